// The models, and one model.

import { el, text, attr, chip, panel, facts, amend, redraw, makeChip, pathOf, headingOf } from '../dom.js';
import { makeTable, tableView, twoLines, figure, held } from '../table.js';
import { number, percent, bytes, ago, count, words } from '../format.js';
import { showLimits, editButton } from '../limits.js';
import { attention, makeAttention } from './conditions.js';
import { replicaTable } from './replicas.js';
import { requestTable } from './requests.js';
import { makeHistory } from '../history.js';
import { action, ask, button, change } from '../dialog.js';

/** Makes the table of models. */
export function modelTable(place) {
  return makeTable({
    label: 'models', place, order: 'name', key: (m) => m.name, href: (m) => pathOf('models', m.name),
    words: (m) => [m.name, m.state, m.task, m.launcher, ...m.aliases],
    empty: 'No models. Add one to the configuration file, or name an upstream.',
    mark: (node, m) => attr(node, 'data-model', m.name),
    columns: [
      { id: 'name', title: 'Model', value: (m) => m.name, show: (cell, m) => twoLines(cell, m.name, about(m), pathOf('models', m.name), load(m)) },
      { id: 'state', title: 'State', class: 'w-state', value: (m) => m.state, show: showState },
      { id: 'ready', title: 'Ready', class: 'num w-small p2', value: (m) => m.ready, show: (cell, m) => text(cell, m.desired > 0 ? `${m.ready} / ${m.desired}` : m.ready) },
      { id: 'running', title: 'In flight', class: 'num w-small p1', value: (m) => m.in_flight, show: (cell, m) => figure(cell, m.in_flight) },
      { id: 'queued', title: 'Queued', class: 'num w-small p1', value: (m) => m.queued, show: (cell, m) => figure(cell, m.queued) },
      { id: 'limits', title: 'Limits', class: 'p2 w-limits clip', show: (cell, m) => showLimits(cell, 'models', m.limits) },
    ],
  });
}

function showState(cell, m) {
  showModelState(held(cell, makeChip), m);
}

/** Shows the state of a model. A model that an operator has drained is not called ready. */
function showModelState(node, m) {
  if (m.drained) chip(node, 'drained');
  else if (m.fetching) chip(node, `loading ${percent(m.fetching.done / m.fetching.total)}`, 'busy');
  else chip(node, m.state);
}

/** Says how many requests a model has, for windows without room for these columns. */
function load(m) {
  return [m.in_flight > 0 && `${number(m.in_flight)} in flight`, m.queued > 0 && `${number(m.queued)} queued`].filter(Boolean).join(' · ');
}

function about(m) {
  const also = m.aliases.length > 0 && `also ${m.aliases.join(', ')}`;
  return [m.task, m.launcher, m.discovered && 'discovered', also].filter(Boolean).join(' · ');
}

export function models(place) {
  return tableView('Models', 'live', modelTable(place), (s) => s.models);
}

/** One model. */
export function model(place) {
  const { name } = place;
  const history = makeHistory(name, place);
  const state = makeChip('loading');
  const tools = el('div', { class: 'tools' });
  const faults = makeAttention();
  const about = el('div', { class: 'card' });
  const replicas = replicaTable(null, false);
  const requests = requestTable(null);
  const gone = el('p', { class: 'banner', hidden: true, text: 'This model does not exist any more.' });
  let shown = null;
  return {
    title: name, needs: ['live', 'requests'],
    node: el('div', { class: 'stack' },
      el('div', { class: 'title' }, headingOf('Models', name), state, tools),
      gone, faults.node, about, history.node,
      panel('Replicas', replicas.tools, replicas.node), panel('Last requests', requests.tools, requests.node)),
    update(s) {
      const m = s.models.find((x) => x.name === name || x.aliases.includes(name));
      gone.hidden = Boolean(m);
      state.hidden = !m;
      history.node.hidden = !m && !shown;
      if (!m) return;
      shown = m;
      redraw(tools, [m.name, m.drained, Boolean(m.scale)], () => actions(m, () => shown));
      showModelState(state, m);
      const own = s.replicas.filter((r) => r.model === m.name);
      const subjects = new Set([m.name, ...own.map((r) => r.id)]);
      faults.update(attention(s.conditions, null).filter((c) => subjects.has(c.subject)));
      amend(about, [m, m.scaled && ago(m.scaled.at, s.now)], modelFacts);
      replicas.update(own);
      requests.update(s.requests.filter((q) => q.model === m.name));
    },
    close: history.close,
  };
}

/** Returns the buttons of a model. current returns the API's row at the time of a click. */
function actions(m, current) {
  const query = new URLSearchParams({ model: m.name });
  const path = `/api/v1/models/${encodeURIComponent(m.name)}`;
  return [
    el('a', { class: 'button', href: `/playground?${query}`, text: 'Try it' }),
    el('a', { class: 'button', href: `/routing?${query}`, text: 'Routing' }),
    editButton('models', m.name, current),
    m.scale && button('Scale', () => scale(path, current())),
    m.drained
      ? action('Undrain', { title: `Undrain ${m.name}?`, why: 'The model accepts requests again.', path: `${path}/undrain`, done: `${m.name} accepts requests.`, danger: false })
      : action('Drain', { title: `Drain ${m.name}?`, why: 'The model refuses new requests until it is undrained. Running and waiting requests go on.', path: `${path}/drain`, done: `${m.name} is drained.` }),
    action('Restart', { title: `Restart ${m.name}?`, why: 'The replicas are restarted one after another. Each waits until the model has as many ready replicas as before.', path: `${path}/restart`, done: `${m.name} is restarted, one replica after another.` }),
  ];
}

/** Asks for the bounds of the number of replicas. */
function scale(path, m) {
  const { min, max, file, overridden } = m.scale;
  const field = (name, words, value) => el('label', {}, words, el('input', { type: 'number', name, min: '0', step: '1', required: true, value }));
  const dialog = ask({
    title: `Scale ${m.name}`, confirm: 'Scale',
    body: [el('p', { class: 'muted', text: `The file says ${file.min} to ${file.max}. The bounds hold until the file changes, also over restarts.` }),
      field('min', 'At least', min), field('max', 'At most', max),
      overridden && el('p', {}, el('button', { type: 'button', text: 'Restore the file’s bounds', click: async () => {
        try {
          await change('DELETE', `${path}/scale`, {}, `${m.name} has the bounds of the file.`);
          dialog.close();
        } catch (e) {
          dialog.fail(e.message);
        }
      } }))].filter(Boolean),
    run: (form) => change('PUT', `${path}/scale`, { min: Number(form.elements.min.value), max: Number(form.elements.max.value) }, `${m.name} has new bounds.`),
  });
}

function modelFacts([m, scaled]) {
  const limits = el('span');
  showLimits(limits, 'models', m.limits);
  return facts([
    ['Task', words(m.task)], ['Launcher', m.launcher + (m.discovered ? ', discovered' : '')], ['Other names', m.aliases.join(', ')],
    ['Replicas', m.desired > 0 ? `${m.ready} ready of ${m.desired} wanted` : count(m.ready, 'ready', 'ready')],
    ['In flight', number(m.in_flight)], ['Queued', m.queued_bytes > 0 ? `${number(m.queued)}, ${bytes(m.queued_bytes)}` : number(m.queued)],
    ['Bounds of replicas', m.scale && `${m.scale.min} to ${m.scale.max}${m.scale.overridden ? `, set at run time; the file says ${m.scale.file.min} to ${m.scale.file.max}` : ''}`],
    ['Limits', limits],
    m.fetching && ['Weights', `${bytes(m.fetching.done)} of ${bytes(m.fetching.total)} fetched, ${bytes(m.fetching.per_second)}/s`],
    m.scaled && ['Last scaled', `${scaled} ago, from ${m.scaled.from} to ${m.scaled.to}: ${m.scaled.reason.replaceAll('_', ' ')}`],
  ]);
}

