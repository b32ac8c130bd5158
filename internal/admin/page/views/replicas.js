// The replicas, and one replica.

import { el, text, attr, chip, link, panel, facts, amend, redraw, makeChip, makeLoad, setLoad, pathOf, headingOf } from '../dom.js';
import { makeTable, tableView, twoLines, figure, held, clipped } from '../table.js';
import { number, percent, bytes, ago, until, duration, lastLine, short } from '../format.js';
import { requestTable } from './requests.js';
import { attention, makeAttention } from './conditions.js';
import { action } from '../dialog.js';
import { makeLog } from './log.js';

/** Says where the limit of a server comes from that someone else runs. */
const limitFrom = {
  max_per_replica: 'max_per_replica', slots: 'slots in the file', engine: 'told by the engine',
  catalogue: 'usual for its engine', unknown: 'one at a time: the engine is unknown',
};

/** Makes the table of replicas. withModel: they are of several models. */
export function replicaTable(place, withModel = true) {
  const maxLoad = (r) => r.in_flight;
  return makeTable({
    label: 'replicas', place, order: 'id', key: (r) => `${r.model} ${r.id}`, href: (r) => pathOf('replicas', r.id),
    words: (r) => [r.id, r.model, r.state, r.address, r.node, r.launcher], empty: 'No replicas.',
    mark: (node, r) => { attr(node, 'data-replica', r.id); attr(node, 'data-state', r.state); },
    columns: [
      { id: 'id', title: 'Replica', value: (r) => r.id, show: (cell, r) => twoLines(cell, r.id, r.reason && lastLine(r.reason), pathOf('replicas', r.id), withModel ? r.model : '') },
      withModel && { id: 'model', title: 'Model', class: 'p2 clip', value: (r) => r.model, show: (cell, r) => clipped(cell, r.model) },
      { id: 'state', title: 'State', class: 'w-state', value: (r) => r.state, show: (cell, r) => showState(cell, r) },
      { id: 'load', title: 'Load', class: 'w-load w-busy', value: maxLoad, show: (cell, r) => setLoad(held(cell, makeLoad), r.in_flight, r.max, r.in_flight) },
      { id: 'served', title: 'Served', class: 'num w-small p2', value: (r) => r.served, show: (cell, r) => figure(cell, r.served) },
      { id: 'restarts', title: 'Restarts', class: 'num w-small p3', value: (r) => r.restarts, show: (cell, r) => figure(cell, r.restarts) },
      { id: 'address', title: 'Address', class: 'w-address p4 clip', value: (r) => r.address, show: (cell, r) => clipped(cell, r.address) },
      { id: 'runs', title: 'Runs', class: 'w-model p4 clip', value: (r) => runs(r), show: (cell, r) => clipped(cell, runs(r), [runs(r), r.command].filter(Boolean).join('\n')) },
    ].filter(Boolean),
  });
}

function showState(cell, r) {
  showReplicaState(held(cell, makeChip), r);
}

/** Shows the state of a replica. */
function showReplicaState(node, r) {
  if (r.drained) chip(node, 'drained');
  else if (r.fetching && r.state !== 'ready') chip(node, `loading ${percent(r.fetching.done / r.fetching.total)}`, 'busy');
  else chip(node, r.state);
}

function runs(r) {
  return [r.launcher, r.node, r.pid && `pid ${r.pid}`].filter(Boolean).join(', ');
}

export function replicas(place) {
  return tableView('Replicas', 'live', replicaTable(place), (s) => s.replicas);
}

/** One replica. A server of others may be a replica of several models; they are all shown. */
export function replica({ name }) {
  const state = makeChip('loading');
  const tools = el('div', { class: 'tools' });
  const faults = makeAttention();
  const reason = el('pre', { class: 'reason', hidden: true });
  const about = el('div', { class: 'card' });
  const requests = requestTable(null);
  const log = makeLog(name);
  const gone = el('p', { class: 'banner', hidden: true, text: 'This replica does not exist any more.' });
  return {
    title: name, needs: ['live', 'requests'],
    node: el('div', { class: 'stack' },
      el('div', { class: 'title' }, headingOf('Replicas', name), state, tools),
      gone, faults.node, reason, about, log.node, panel('Last requests', requests.tools, requests.node)),
    update(s) {
      const all = s.replicas.filter((r) => r.id === name);
      gone.hidden = all.length > 0;
      state.hidden = all.length === 0;
      if (all.length === 0) return;
      showReplicaState(state, all[0]);
      redraw(tools, Boolean(all[0].drained), (drained) => actions(name, drained));
      const own = attention(s.conditions, null).filter((c) => c.subject === name);
      faults.update(own);
      reason.hidden = all[0].reason === '' || own.some((c) => c.type === 'ReplicaFailed'); // which has the reason in it
      text(reason, all[0].reason);
      attr(reason, 'data-state', all[0].state);
      amend(about, [all, ago(all[0].since, s.now), until(all[0].next_start, s.now)], replicaFacts);
      requests.update(s.requests.filter((q) => q.replica === name));
    },
    close: log.close,
  };
}

/** Returns the buttons of a replica. */
function actions(id, drained) {
  const path = `/api/v1/replicas/${encodeURIComponent(id)}`;
  return [
    drained
      ? action('Undrain', { title: `Undrain ${id}?`, why: 'The replica gets requests again.', path: `${path}/undrain`, done: `${id} gets requests.`, danger: false })
      : action('Drain', { title: `Drain ${id}?`, why: 'The replica gets no new requests until it is undrained. Its running requests go on.', path: `${path}/drain`, done: `${id} is drained.` }),
    action('Restart', { title: `Restart ${id}?`, why: 'The replica is replaced when it has finished its requests.', path: `${path}/restart`, done: `${id} is restarted.` }),
  ];
}

function replicaFacts([all, since, next]) {
  const [r] = all;
  const e = r.engine;
  return facts([
    ['Models', el('span', {}, all.flatMap((x, i) => [i > 0 ? ', ' : '', link('models', x.model)]))],
    ['Known there as', r.served_model === r.model ? '' : r.served_model],
    ['In this state for', since], ['In flight', r.max > 0 ? `${r.in_flight} of ${r.max}` : r.in_flight],
    ['Limit', r.launcher === 'upstream' ? limitFrom[r.max_from] : ''],
    ['Served', number(r.served)], ['Restarts', number(r.restarts)],
    r.failed_starts > 0 && ['Failed starts', `${r.failed_starts} in a row${r.failure && `, ${r.failure.replaceAll('_', ' ')}`}`],
    ['Next start', next],
    ['Address', r.address && el('code', { text: r.address })], ['Launcher', r.launcher], ['Node', r.node], ['Process', r.pid ? `pid ${r.pid}` : ''],
    ['GPUs', r.gpus.join(', ')],
    r.fetching && ['Weights', `${bytes(r.fetching.done)} of ${bytes(r.fetching.total)} fetched, ${bytes(r.fetching.per_second)}/s`],
    ['Responses', r.close_delimited ? 'have no length, so all requests are managed' : ''],
    ...(e ? engineFacts(e) : []),
    ['Command', r.command && el('code', { class: 'wrap', text: r.command }), 'wide'],
  ]);
}

function engineFacts(e) {
  const known = (n, write) => (n === null ? '' : write(n));
  return [
    ['Engine', e.name], ['Runs there', known(e.running, number)], ['Waits there', known(e.waiting, number)],
    ['KV cache used', known(e.kv_usage, percent)], ['Prefix cache', known(e.cache_tokens, (n) => `${short(n)} tokens`)],
    ['Found in it', known(e.cached_tokens, (n) => `${short(n)} tokens`)], ['Prefill', known(e.prefill_rate, (n) => `${short(n)} tokens/s`)],
    ['Said so', known(e.age_s, (n) => `${duration(1000 * n)} ago`)], ['No answer', e.fault],
  ];
}
