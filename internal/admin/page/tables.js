// The tables: models, tenants, replicas, servers of others, nodes, requests.

import { el, text, attr, list, chip, tone, makeLoad, setLoad, number, duration, ago, clock, bytes } from './view.js';
import { showLimits, showWeight, editButton } from './limits.js';

const $ = (id) => document.getElementById(id);

/** Makes a row whose cells are row.parts.NAME. Columns are [name, classes]. The first column is the row's header. */
function makeRow(columns) {
  const row = el('tr');
  row.parts = {};
  columns.forEach(([name, classes], i) => {
    const cell = i === 0 ? el('th', { scope: 'row' }) : el('td');
    if (classes) cell.className = classes;
    row.parts[name] = cell;
    row.append(cell);
  });
  return row;
}

/** Puts a main line and a smaller second line into a cell. */
function twoLines(cell, main, sub) {
  if (!cell.lines) {
    cell.lines = [el('span', { class: 'name' }), el('span', { class: 'sub' })];
    cell.append(...cell.lines);
  }
  text(cell.lines[0], main);
  text(cell.lines[1], sub);
  cell.lines[1].hidden = !sub;
}

/** Puts a line into a cell that may clip it. The tooltip shows the whole line. */
function clipped(cell, s, whole = s) {
  text(cell, s || '–');
  attr(cell, 'title', whole || null);
}

function figure(cell, n) {
  text(cell, number(n));
  cell.classList.toggle('zero', n === 0);
}

/** Returns the cell's chip. The first call creates it. */
function chipOf(cell) {
  if (!cell.chip) {
    cell.chip = el('span', { class: 'chip' });
    cell.append(cell.chip);
  }
  return cell.chip;
}

// Models

export function models(all) {
  text($('models-count'), all.length);
  $('models-empty').hidden = all.length > 0;
  list($('models'), all, (m) => m.name, makeModel, updateModel);
}

function makeModel(m) {
  const row = makeRow([['name'], ['state'], ['ready', 'num p2'], ['inFlight', 'num'], ['queued', 'num'], ['limits', 'p2'], ['edit', 'edit']]);
  row.dataset.model = m.name;
  row.parts.edit.append(editButton('models', m.name, () => row.shown));
  return row;
}

function updateModel(row, m) {
  const p = row.parts;
  twoLines(p.name, m.name, about(m));
  chip(chipOf(p.state), m.state, tone(m.state));
  text(p.ready, m.desired > 0 ? `${m.ready} / ${m.desired}` : m.ready);
  figure(p.inFlight, m.in_flight);
  figure(p.queued, m.queued);
  showLimits(p.limits, 'models', m.limits);
  row.shown = m;
}

function about(m) {
  const parts = [m.task, m.launcher];
  if (m.discovered) parts.push('discovered');
  if (m.aliases.length > 0) parts.push(`also ${m.aliases.join(', ')}`);
  return parts.filter(Boolean).join(' · ');
}

// Tenants

export function tenants(all) {
  text($('tenants-count'), all.length);
  $('tenants-empty').hidden = all.length > 0;
  list($('tenants'), all, (t) => t.name, makeTenant, updateTenant);
}

function makeTenant(t) {
  const row = makeRow([['name'], ['priority'], ['weight', 'num p2'], ['running', 'num'], ['prefill', 'num p3'], ['queued', 'num'],
    ['limits', 'p2'], ['edit', 'edit']]);
  row.dataset.tenant = t.name;
  row.parts.edit.append(editButton('tenants', t.name, () => row.shown));
  return row;
}

function updateTenant(row, t) {
  const p = row.parts;
  twoLines(p.name, t.name, access(t));
  text(p.priority, t.priority || 'default');
  showWeight(p.weight, t.limits);
  figure(p.running, t.running);
  figure(p.prefill, t.prefill);
  figure(p.queued, t.queued);
  showLimits(p.limits, 'tenants', t.limits);
  row.shown = t;
}

/** Returns how many keys a tenant has, and which models it may use. */
function access(t) {
  const models = t.models.includes('*') ? 'all models' : t.models.join(', ') || 'no models';
  return `${t.keys === 1 ? '1 key' : `${number(t.keys)} keys`} · ${models}`;
}

// Replicas, with a heading for each model

export function replicas(all, now) {
  const ready = all.filter((r) => r.state === 'ready').length;
  text($('replicas-count'), all.length === 0 ? '' : `${ready} of ${all.length} ready`);
  const shown = all.filter(matches($('replicas-filter').value, (r) => [r.id, r.model, r.state, r.address]));
  $('replicas-empty').hidden = shown.length > 0;
  text($('replicas-empty'), all.length > 0 ? 'No replica matches the filter.' : 'No replicas.');

  const maxLoad = new Map();
  for (const r of all) maxLoad.set(r.model, Math.max(maxLoad.get(r.model) ?? 0, r.in_flight));
  const rows = [];
  let model = null;
  for (const r of shown) {
    if (r.model !== model) rows.push({ heading: (model = r.model) });
    rows.push(r);
  }
  list($('replicas'), rows, (r) => r.heading !== undefined ? `model ${r.heading}` : `replica ${r.model} ${r.id}`, makeReplica,
    (row, r) => r.heading === undefined && updateReplica(row, r, maxLoad.get(r.model), now));
}

function makeReplica(r) {
  if (r.heading !== undefined) {
    // Three columns are never hidden; a wider span would add columns on narrow screens.
    return el('tr', { class: 'group' }, el('th', { scope: 'rowgroup', colspan: '3', text: r.heading }));
  }
  const row = makeRow([['id'], ['state'], ['load'], ['served', 'num p2'], ['restarts', 'num p2'], ['address', 'p3 clip'],
    ['runs', 'p3 clip'], ['since', 'num p2']]);
  row.dataset.replica = r.id;
  row.load = makeLoad();
  row.parts.load.append(row.load);
  return row;
}

function updateReplica(row, r, maxLoad, now) {
  const p = row.parts;
  row.dataset.state = r.state;
  twoLines(p.id, r.id, r.reason && lastLine(r.reason));
  chip(chipOf(p.state), r.state, tone(r.state));
  setLoad(row.load, r.in_flight, r.max, maxLoad);
  figure(p.served, r.served);
  figure(p.restarts, r.restarts);
  clipped(p.address, r.address);
  const runs = [r.launcher, r.served_model !== r.model && `as ${r.served_model}`, r.node, r.pid && `pid ${r.pid}`, r.launcher === 'upstream' && limitFrom[r.max_from],
    r.close_delimited && 'managed: its responses have no length'].filter(Boolean).join(', ');
  clipped(p.runs, runs, [runs, r.command].filter(Boolean).join('\n'));
  text(p.since, ago(r.since, now));
}

/** Says where the limit of a server comes from that someone else runs. */
const limitFrom = {
  max_per_replica: 'limit from max_per_replica', slots: 'limit from slots in the file', engine: 'limit told by the engine',
  catalogue: 'usual limit of its engine', unknown: 'one request at a time: engine unknown',
};

function lastLine(s) {
  return s.trimEnd().split('\n').at(-1);
}

// Servers that someone else runs, and what was seen there. The panel is hidden if there are none.

export function upstreams(all, now) {
  $('upstreams-panel').hidden = all.length === 0;
  text($('upstreams-count'), `${all.filter((u) => u.state === 'ready').length} of ${all.length} ready`);
  list($('upstreams'), all, (u) => `${u.url} ${u.replica}`, makeUpstream, (row, u) => updateUpstream(row, u, now));
}

function makeUpstream(u) {
  const row = makeRow([['server'], ['state'], ['serves', 'clip'], ['seen', 'p2 clip'], ['since', 'num p2']]);
  row.dataset.upstream = u.replica;
  return row;
}

function updateUpstream(row, u, now) {
  const p = row.parts;
  row.dataset.state = u.state;
  twoLines(p.server, u.url, u.reason || u.address);
  chip(chipOf(p.state), u.state, tone(u.state));
  clipped(p.serves, u.serves.join(', ') || 'nothing');
  clipped(p.seen, seenAt(u));
  text(p.since, ago(u.since, now));
}

/** Says what a server lists, and why it does not serve all of that. */
function seenAt(u) {
  const listed = u.list ? `lists ${u.listed_count === 1 ? '1 model' : `${number(u.listed_count)} models`}` : 'has no list of models';
  return [u.state === 'starting' ? 'not asked yet' : listed, u.filtered > 0 && `${number(u.filtered)} left out by the file`,
    u.clashes.length > 0 && `names of the file: ${u.clashes.join(', ')}`, u.refused,
    u.addresses > 1 && `the first of ${u.addresses} addresses`].filter(Boolean).join(' · ');
}

// Nodes, with a row for each GPU. The panel is hidden for a single node without GPUs and without replicas that reserve CPU or memory.

export function nodes(all) {
  const gpus = all.reduce((n, node) => n + node.gpus.length, 0);
  $('nodes-panel').hidden = all.length < 2 && gpus === 0 && all.every((node) => node.cpus.placed === 0 && node.memory.placed === 0);
  text($('nodes-count'), gpus === 1 ? '1 GPU' : `${number(gpus)} GPUs`);
  const rows = [];
  for (const node of all) {
    rows.push({ heading: nodeLine(node), node: node.name });
    rows.push(...node.gpus);
  }
  list($('nodes'), rows, (g) => g.heading !== undefined ? `node ${g.node}` : g.uuid, makeGPU,
    (row, g) => g.heading === undefined ? updateGPU(row, g) : text(row.firstChild, g.heading));
}

function nodeLine(n) {
  const parts = [`${[n.name, ...n.labels].join(', ')}${n.lost ? ' (does not answer)' : ''}: ${number(n.cpus.placed)} of ${number(n.cpus.total)} CPUs assigned`,
    `${bytes(n.memory.placed)} of ${bytes(n.memory.total)} memory assigned`, n.reason];
  return parts.filter(Boolean).join(' · ');
}

function makeGPU(g) {
  if (g.heading !== undefined) return el('tr', { class: 'group' }, el('th', { scope: 'rowgroup', colspan: '3' }));
  const row = makeRow([['gpu'], ['given'], ['replicas', 'clip'], ['memory', 'num p2']]);
  row.dataset.gpu = g.uuid;
  row.load = makeLoad();
  row.parts.given.append(row.load);
  return row;
}

function updateGPU(row, g) {
  const p = row.parts;
  twoLines(p.gpu, `${g.index} ${g.name}`, g.uuid);
  setLoad(row.load, Math.round(1000 - 1000 * g.free) / 1000, 1, 1);
  clipped(p.replicas, g.replicas.map((r) => (r.share < 1 ? `${r.id} (${r.share})` : r.id)).join(', '));
  text(p.memory, g.memory.total > 0 ? `${bytes(g.memory.used)} / ${bytes(g.memory.total)}` : '–');
}

// Requests

export function requests(all, running) {
  const kind = $('requests-kind').value;
  const shown = all.filter((q) => kind === 'all' || (kind === 'running') === (q.state !== 'done') && (kind === 'running' || failed(q)))
    .filter(matches($('requests-filter').value, (q) => [q.request_id, q.client_request_id, q.model, q.tenant, q.replica, q.code, q.path]));
  text($('requests-count'), running === 1 ? '1 is running' : `${number(running)} are running`);
  $('requests-empty').hidden = shown.length > 0;
  text($('requests-empty'), all.length > 0 ? 'No request matches the filter.' : 'No requests yet.');
  list($('requests'), shown, (q) => q.request_id || q.started, makeRequest, updateRequest);
}

function failed(q) {
  return q.status === 0 || q.status >= 400 || q.flags !== '';
}

function makeRequest(q) {
  const row = makeRow([['time'], ['model', 'clip'], ['status', 'clip'], ['replica', 'p2 clip'], ['tenant', 'p3 clip'], ['call', 'p3 clip'],
    ['waited', 'num p3'], ['firstByte', 'num p2'], ['duration', 'num'], ['bytes', 'num p3']]);
  row.dataset.request = q.request_id;
  row.parts.time.title = `request ${q.request_id}`;
  return row;
}

function updateRequest(row, q) {
  const p = row.parts;
  row.dataset.state = q.state;
  text(p.time, clock(q.started));
  clipped(p.model, q.model);
  status(p.status, q);
  clipped(p.replica, q.replica || q.upstream);
  clipped(p.tenant, q.tenant);
  twoLines(p.call, q.path.replace(/^\/v1\//, '') || '–', q.client_request_id);
  attr(p.call, 'title', [`${q.method} ${q.path}`.trim(), q.client_request_id].filter(Boolean).join('\n'));
  text(p.waited, q.queued_ms >= 1 ? duration(q.queued_ms) : '–');
  text(p.firstByte, duration(q.first_byte_ms));
  text(p.duration, duration(q.duration_ms));
  text(p.bytes, `${bytes(q.bytes_in)} / ${bytes(q.bytes_out)}`);
}

function status(cell, q) {
  if (!cell.note) cell.append((cell.chip = el('span', { class: 'chip' })), (cell.note = el('span', { class: 'note' })));
  const [words, t] = outcome(q);
  chip(cell.chip, words, t);
  const refusal = q.state === 'done' && q.source === 'gateway' && q.status >= 400;
  const cause = q.cause && q.cause !== 'client' && `ended by ${q.cause.replaceAll('_', ' ')}`;
  const notes = [cause, q.code || (refusal && q.details.split('{')[0].replaceAll('_', ' ')), q.flags, q.attempts > 1 && `${q.attempts} attempts`];
  text(cell.note, notes.filter(Boolean).join(' · '));
  cell.note.hidden = cell.note.textContent === '';
  attr(cell, 'title', q.details || null);
}

function outcome(q) {
  if (q.state === 'queued') return ['queued', 'warn'];
  if (q.state === 'streaming') return [q.stream ? 'streaming' : 'running', 'busy'];
  if (q.cause === 'client' || /\b(DC|DR)\b/.test(q.flags)) return [q.status ? `${q.status}, client disconnected` : 'client disconnected', 'warn'];
  if (q.status === 0) return ['ended', 'idle'];
  if (q.status >= 500) return [q.status, 'bad'];
  if (q.status >= 400) return [q.status, 'warn'];
  return q.flags || q.cause || q.code ? [`${q.status}, cut`, 'bad'] : [q.status, 'ok'];
}

/** Returns a predicate for rows whose fields contain every word of the filter. */
function matches(filter, fields) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return (row) => {
    const s = fields(row).join(' ').toLowerCase();
    return words.every((w) => s.includes(w));
  };
}
