// The overview: what needs attention, the figures of the gateway, and its models.

import { el, text, chip, facts, panel, amend, makeChip } from '../dom.js';
import { number, ago, count, clientsURL } from '../format.js';
import { attention, makeAttention } from './conditions.js';
import { modelTable } from './models.js';
import { makeHistory } from '../history.js';

export function overview(place) {
  const faults = makeAttention();
  const table = modelTable(place);
  const figures = makeFigures();
  const history = makeHistory('', place);
  const system = el('div', { class: 'cards' });
  return {
    title: 'Overview', needs: ['live'],
    node: el('div', { class: 'stack' }, el('h1', { class: 'unseen', text: 'Overview' }), faults.node, figures.node, history.node,
      panel('Models', table.tools, table.node), system),
    update(s) {
      faults.update(attention(s.conditions, s.status));
      figures.update(s);
      table.update(s.models);
      amend(system, systemOf(s), systemCards);
    },
    close: history.close,
  };
}

/** Makes the row of large figures. */
function makeFigures() {
  const names = ['in flight', 'queued', 'models ready', 'replicas ready'];
  const cells = names.map((name) => el('div', { class: 'figure' }, el('b', { text: '–' }), el('span', { text: name })));
  return {
    node: el('section', { class: 'panel figures', 'aria-label': 'Now' }, cells),
    update(s) {
      const ready = s.models.filter((m) => m.ready > 0).length;
      const up = s.replicas.filter((r) => r.state === 'ready').length;
      [number(sum(s.models, 'in_flight')), number(sum(s.models, 'queued')), `${number(ready)} / ${number(s.models.length)}`, `${number(up)} / ${number(s.replicas.length)}`]
        .forEach((v, i) => text(cells[i].firstChild, v));
      // A model that may have no replicas is well without them.
      const idle = s.models.filter((m) => m.state === 'idle').length;
      text(cells[2].lastChild, idle > 0 ? `models ready, ${number(idle)} idle` : names[2]);
    },
  };
}

function sum(rows, field) {
  return rows.reduce((n, row) => n + row[field], 0);
}

/** Returns what the cards of the system show. */
function systemOf({ status: s, now }) {
  return { envoy: s.envoy, xds: s.xds, last: s.xds.last_nack ? `${ago(s.xds.last_nack.time, now)} ago` : 'never', shared: s.shared, clients: s.listen && clientsURL(s),
    pid: s.pid, before: s.upgrade.predecessors };
}

/** Returns the fact about a process that was replaced and still has requests. */
function before(p) {
  return ['Before it', `pid ${p.pid}, ${p.version}: ${count(p.requests, 'request')}`];
}

function systemCards(w) {
  const refused = w.xds.refused.length;
  const xds = !w.xds.connected ? ['not connected', 'bad'] : refused > 0 ? [`${refused} refused`, 'warn'] : ['connected', 'ok'];
  return [
    card('Gateway', null, facts([
      ['Clients call', w.clients && el('code', { text: w.clients })], ['Process', `pid ${w.pid}`],
      ...w.before.map(before),
    ])),
    card('Envoy', stateChip(w.envoy.state || 'unknown'), facts([
      ['Version', w.envoy.version], ['Process', w.envoy.pid ? `pid ${w.envoy.pid}${w.envoy.adopted ? ', adopted' : ''}` : ''],
      ['Asks by', w.envoy.filter === 'module' ? 'Sluice\'s filter' : w.envoy.filter], ['Restarts', number(w.envoy.restarts)], ['Reason', w.envoy.state === 'live' ? '' : w.envoy.reason],
      ...w.envoy.predecessors.map(before),
    ])),
    card('xDS', makeChip(...xds), facts([['Refusals so far', number(w.xds.nacks)], ['Last refusal', w.last]])),
    w.shared.configured && card('Shared state', makeChip(w.shared.up ? 'connected' : 'not connected', w.shared.up ? 'ok' : 'warn'), facts([
      ['Gateways', number(w.shared.gateways)], ['Limits', w.shared.mode === 'alone' ? 'the last known share' : 'shared'], ['Last error', w.shared.last_error],
    ])),
  ];
}

function stateChip(word) {
  const node = makeChip();
  chip(node, word);
  return node;
}

function card(title, state, ...children) {
  return el('section', { class: 'card' }, el('h2', {}, title, state), children);
}
