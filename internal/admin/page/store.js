// What the page knows of the gateway, kept up to date while somebody looks at it. Models, replicas,
// conditions and finished requests come by one stream of events; the rest is read while a view
// needs it.

import { get, refusal } from './api.js';
import { session } from './session.js';

const every = 2000; // ms between two reads
const again = 3000; // ms until the stream is opened again after the gateway has refused it
const maxRequests = 10_000; // finished requests that the page remembers

/**
 * What the page knows. now is the gateway's clock in ms. lost: since when the gateway has not
 * answered. refused: why the gateway sends no events.
 */
export const state = {
  status: null, models: [], replicas: [], conditions: [], requests: [], running: 0,
  tenants: [], nodes: [], upstreams: [], pools: [], now: Date.now(), lost: null, fault: '', refused: '', paused: false,
  known: new Set(), // what has come: the names of readers, and live for what comes by the stream of events
};

let needs = new Set(); // the names of what the view in sight reads besides the status
let events = null; // the stream of events while it is open
const finished = new Map(); // finished requests by id, oldest first
let unfinished = []; // running requests

function tell() {
  document.dispatchEvent(new Event('state'));
}

// The stream of events

/** Objects of one kind by their key. */
class Objects {
  constructor(name, key) {
    Object.assign(this, { name, key, all: new Map() });
  }

  update({ whole, removed, [this.name]: changed }) {
    if (whole) this.all.clear();
    for (const key of removed?.[this.name] ?? []) this.all.delete(this.key(typeof key === 'string' ? { name: key } : key));
    for (const object of changed ?? []) this.all.set(this.key(object), object);
    if (whole || changed?.length > 0 || removed?.[this.name]?.length > 0) state[this.name] = [...this.all.values()];
  }
}

const kinds = [
  new Objects('models', (m) => m.name), new Objects('replicas', (r) => `${r.model} ${r.id}`), new Objects('conditions', (c) => `${c.type} ${c.subject ?? ''}`),
];

const heard = {
  state: (said) => {
    kinds.forEach((kind) => kind.update(said));
    state.known.add('live');
    state.refused = '';
  },
  requests: ({ requests }) => remember(requests),
  sample: () => document.dispatchEvent(new Event('sample')), // the charts read the history
  end: () => listen(false), // the next read opens it again
};

/** Opens or closes the stream. A page that nobody sees needs none. */
function listen(on) {
  if (!on) {
    events?.close();
    events = null;
    return;
  }
  if (events) return;
  const stream = new EventSource('/api/v1/events');
  events = stream;
  for (const [name, hear] of Object.entries(heard)) {
    stream.addEventListener(name, (event) => {
      hear(JSON.parse(event.data));
      tell();
    });
  }
  stream.addEventListener('error', () => stream.readyState === EventSource.CLOSED && refused(stream));
}

/** Tells why a stream was refused, and has it opened again: it does not come back by itself. */
async function refused(stream) {
  state.refused = await refusal('/api/v1/events');
  tell();
  setTimeout(() => events === stream && listen(false), again);
}

/** Adds finished requests to those that are known, and forgets the oldest. */
function remember(requests) {
  for (const q of requests) {
    finished.delete(q.request_id);
    finished.set(q.request_id || q.started, q);
  }
  for (const id of finished.keys()) {
    if (finished.size <= maxRequests) break;
    finished.delete(id);
  }
  state.requests = [...unfinished.filter((q) => !finished.has(q.request_id)), ...finished.values()];
}

// What is read

const readers = {
  status: async () => { state.status = await get('/api/v1/status'); },
  requests: async () => {
    const { running, requests } = await get('/api/v1/requests?limit=1000');
    state.running = running;
    unfinished = requests.filter((q) => q.state !== 'done');
    remember(requests.filter((q) => q.state === 'done' && !finished.has(q.request_id || q.started)).reverse());
  },
  ...Object.fromEntries(['tenants', 'nodes', 'upstreams', 'pools'].map((name) => [name, async () => { state[name] = (await get(`/api/v1/${name}`))[name]; }])),
};

/**
 * Sets what the view in sight needs: any of live, which are models, replicas and conditions, and of
 * requests, tenants, nodes, upstreams and pools. Resolves when what is read is there.
 */
export function want(names) {
  needs = new Set(names);
  return refresh();
}

/** Reads what the view needs. */
export async function refresh() {
  try {
    const names = Object.keys(readers).filter((name) => name === 'status' || needs.has(name));
    await Promise.all(names.map(async (name) => {
      await readers[name]();
      state.known.add(name);
    }));
    Object.assign(state, { now: get.now, lost: null, fault: '' });
  } catch (e) {
    if (e.status === 0) Object.assign(state, { lost: state.lost ?? new Date(), fault: e.message });
    else if (e.status !== 401) state.fault = e.message;
  }
  tell();
}

/**
 * Reports whether the page shows what changes: somebody sees it, and has not paused it. The event
 * looking tells when that changes.
 */
export function looking() {
  return !state.paused && !document.hidden;
}

function looked() {
  listen(looking());
  document.dispatchEvent(new Event('looking'));
}

/** Pauses the page, or ends the pause. */
export function pause() {
  state.paused = !state.paused;
  looked();
}

/**
 * Reads now, and then every ms while the page shows what changes. Returns a func that ends that.
 */
export function poll(read, ms) {
  const timer = setInterval(() => looking() && read(), ms);
  read();
  return () => clearInterval(timer);
}

async function tick() {
  const on = looking() && (await session());
  listen(on);
  if (on) await refresh();
  setTimeout(tick, every);
}

/** Begins to read. */
export function start() {
  document.addEventListener('visibilitychange', looked);
  document.addEventListener('unauthorized', () => listen(false));
  tick();
}
