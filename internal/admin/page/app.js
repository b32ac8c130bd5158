// The page's poll loop: it reads the JSON API once a second and shows the answers.

import { el, text, attr, list, chip, tone, number, span, ago } from './view.js';
import { models, tenants, replicas, upstreams, nodes, requests } from './tables.js';
import { routedModel, routing } from './routing.js';
import { session, showLogin } from './login.js';

const $ = (id) => document.getElementById(id);
const pollInterval = 1000; // ms between two polls
const pollTimeout = 5000; // ms until a poll fails
const maxSamples = 120; // samples of requests in flight in the curve
const shownRequests = 100;

let last = null; // the result of the last successful poll
let lostSince = null; // when the first of the failed polls failed; null while polls succeed
let paused = false;
const samples = [];

/** Returns the parsed answer of the API, and the server's time in ms. */
async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(pollTimeout), headers: { accept: 'application/json' } });
  if (answer.status === 401) showLogin();
  if (!answer.ok) throw new Error(await errorMessage(answer));
  return [await answer.json(), Date.parse(answer.headers.get('date')) || Date.now()];
}

async function errorMessage(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

/** Reads the routing of a model. null: there is no such model, or it cannot be read now. */
async function routingOf(model) {
  try {
    return model === '' ? null : (await get(`/api/v1/models/${encodeURIComponent(model)}/routing`))[0];
  } catch {
    return null;
  }
}

/** Reads everything that the page shows. */
async function poll() {
  const [[status, now], [m], [t], [r], [u], [n], [c], [q]] = await Promise.all([
    get('/api/v1/status'), get('/api/v1/models'), get('/api/v1/tenants'), get('/api/v1/replicas'), get('/api/v1/upstreams'), get('/api/v1/nodes'),
    get('/api/v1/conditions'),
    get(`/api/v1/requests?limit=${shownRequests}`),
  ]);
  const routed = await routingOf(routedModel(m.models));
  return { status, now, routed, models: m.models, tenants: t.tenants, replicas: r.replicas, upstreams: u.upstreams, nodes: n.nodes, conditions: c.conditions, requests: q.requests, running: q.running };
}

// The cards

function cards(w) {
  const s = w.status;
  text($('version'), s.version);
  text($('uptime'), `up ${span(s.uptime_s)}`);
  chip($('readiness'), s.ready ? 'ready' : 'not ready', s.ready ? 'ok' : 'bad');

  text($('listen'), s.listen ? `Clients call http://${s.listen}/v1` : '');
  const inFlight = sum(w.models, 'in_flight');
  text($('in-flight'), number(inFlight));
  text($('queued'), number(sum(w.models, 'queued')));
  draw(inFlight);
  shared(s.shared, w.now);

  const e = s.envoy;
  chip($('envoy-state'), e.state || 'unknown', tone(e.state));
  text($('envoy-version'), e.version || '–');
  text($('envoy-pid'), e.pid ? `pid ${e.pid}${e.adopted ? ', adopted' : ''}` : '–');
  text($('envoy-restarts'), number(e.restarts));

  const x = s.xds;
  const refused = x.refused.length;
  chip($('xds-state'), !x.connected ? 'not connected' : refused > 0 ? `${refused} refused` : 'connected',
    !x.connected ? 'bad' : refused > 0 ? 'warn' : 'ok');
  text($('xds-nacks'), number(x.nacks));
  text($('xds-last'), x.last_nack ? `${ago(x.last_nack.time, w.now)} ago` : 'never');

  const c = s.config;
  const faults = c.faults.length;
  chip($('config-state'), c.held ? 'held back' : faults === 0 ? 'in force' : faults === 1 ? '1 fault' : `${faults} faults`, faults === 0 ? 'ok' : 'bad');
  text($('config-path'), c.path || 'none');
  text($('config-loaded'), c.loaded_at ? `${ago(c.loaded_at, w.now)} ago` : '–');
  attr($('config-loaded'), 'title', c.loaded_at && new Date(c.loaded_at).toLocaleString());
  $('reload').hidden = !c.path || document.body.dataset.role === 'viewer';
  $('reload-force').hidden = !c.held || $('reload').hidden;
}

/** Shows the state that gateways share, if one is configured. */
function shared(s, now) {
  $('shared').hidden = !s.configured;
  if (!s.configured) return;
  chip($('shared-state'), s.up ? 'shared state' : 'no shared state', s.up ? 'ok' : 'warn');
  const gateways = s.gateways === 1 ? '1 gateway' : `${number(s.gateways)} gateways`;
  const since = s.since ? ` for ${ago(s.since, now)}` : '';
  text($('shared-words'), `${gateways}, ${s.mode}${since}`);
  attr($('shared-words'), 'title', s.last_error ? `Last error: ${s.last_error}` : null);
}

function sum(rows, field) {
  return rows.reduce((n, row) => n + row[field], 0);
}

/** Adds a sample of the requests in flight, and draws the curve of the last samples. */
function draw(value) {
  samples.push(value);
  if (samples.length > maxSamples) samples.shift();
  const top = Math.max(4, ...samples);
  const step = maxSamples / Math.max(samples.length - 1, 29); // 30 samples are enough to fill the width
  const x = (i) => (maxSamples - (samples.length - 1 - i) * step).toFixed(1);
  const points = samples.map((v, i) => `${x(i)},${(31 - (29 * v) / top).toFixed(1)}`);
  const [area, line] = $('spark').children;
  attr(line, 'd', `M${points.join('L')}`);
  attr(area, 'd', `M${x(0)},32L${points.join('L')}L${maxSamples},32Z`);
}

// The faults that need the operator's attention

function faults(w) {
  const all = w.status.reasons.map((why) => ({ what: 'Not ready', why }));
  for (const c of w.conditions) {
    if (needsAttention(c)) all.push({ what: c.subject === '' ? words(c.type) : `${words(c.type)}: ${c.subject}`, why: c.message });
  }
  return all;
}

/** A normal start of a model and a change that waits for a restart are in the list of conditions, but they are no fault. */
function needsAttention(c) {
  return c.severity !== 'info';
}

/** Writes the name of a type as words: ConnectionsNearLimit becomes "Connections near limit", but ModelReady that is false is no "Model ready". */
function words(type) {
  if (type === 'ModelReady') return 'Model not ready';
  return type.replace(/(?<=[a-z])([A-Z])/g, (c) => ` ${c.toLowerCase()}`);
}

function attention(w) {
  const all = faults(w);
  $('attention').hidden = all.length === 0;
  text($('attention-count'), all.length);
  list($('attention-list'), all, (t) => `${t.what}\n${t.why}`,
    (t) => el('li', {}, el('span', { class: 'what', text: t.what }), el('span', { class: 'why', text: t.why || 'the reason is unknown' })),
    () => {});
  text($('announce'), all.length === 0 ? '' : `${all.length} things need attention: ${all.map((t) => t.what).join('; ')}`);
  document.title = all.length === 0 ? 'Sluice' : `(${all.length}) Sluice`;
}

// The poll loop

function show(w) {
  cards(w);
  attention(w);
  models(w.models);
  tenants(w.tenants);
  replicas(w.replicas, w.now);
  upstreams(w.upstreams, w.now);
  nodes(w.nodes);
  requests(w.requests, w.running);
  routing(w.routed);
  text($('updated'), `updated ${new Date().toLocaleTimeString('en-GB')}`);
}

function connection(error) {
  if (error) lostSince ??= new Date();
  else lostSince = null;
  const banner = $('offline');
  banner.hidden = !lostSince;
  if (lostSince) {
    text(banner, `Sluice has not answered since ${lostSince.toLocaleTimeString('en-GB')}${last ? '; this is the last known state' : ''}. (${error.message})`);
    chip($('readiness'), 'unreachable', 'bad');
    document.title = '(!) Sluice';
  }
  $('main').classList.toggle('stale', lostSince !== null);
}

async function tick() {
  if (!paused && !document.hidden && (await session())) {
    try {
      last = await poll();
      connection(null);
      if (!paused) show(last);
    } catch (e) {
      connection(e);
    }
  }
  setTimeout(tick, pollInterval);
}

/** Has Sluice read the file again. force confirms a file that Sluice holds back, because it would remove everything. */
async function reload(force) {
  const button = $(force ? 'reload-force' : 'reload');
  const result = $('reload-result');
  button.disabled = true;
  try {
    const answer = await fetch('/api/v1/reload', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ force }) });
    text(result, answer.ok ? 'Loaded.' : 'Refused: see what needs attention.');
  } catch {
    text(result, 'Sluice did not answer.');
  }
  button.disabled = false;
  setTimeout(() => text(result, ''), 8000);
}

function pause() {
  paused = !paused;
  attr($('pause'), 'aria-pressed', paused);
  text($('pause'), paused ? 'Paused' : 'Pause');
}

function filtered() {
  if (!last) return;
  replicas(last.replicas, last.now);
  requests(last.requests, last.running);
}

/** Shows changed limits before the next poll, even while the page is paused. */
function limitsChanged({ detail: { kind, name, limits } }) {
  if (!last) return;
  const row = last[kind].find((r) => r.name === name);
  if (row) Object.assign(row, { limits, weight: limits.weight });
  models(last.models);
  tenants(last.tenants);
}

document.addEventListener('limits', limitsChanged);
$('pause').addEventListener('click', pause);
$('reload').addEventListener('click', () => reload(false));
$('reload-force').addEventListener('click', () => reload(true));
$('ring-model').addEventListener('change', async () => routing(await routingOf($('ring-model').value)));
for (const id of ['replicas-filter', 'requests-filter', 'requests-kind']) $(id).addEventListener('input', filtered);
tick();
