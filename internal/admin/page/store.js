// What the page knows of the gateway, kept up to date while somebody looks at it.

import { get } from './api.js';
import { session } from './session.js';

const every = 1000; // ms between two reads
const maxRequests = 10_000; // finished requests that the page remembers

/** What the page knows. now is the gateway's clock in ms. lost: since when the gateway has not answered. */
export const state = {
  status: null, models: [], replicas: [], conditions: [], requests: [], running: 0,
  tenants: [], nodes: [], upstreams: [], pools: [], now: Date.now(), lost: null, fault: '', paused: false,
};

let needs = new Set(); // the names of what the view in sight reads besides status, models, replicas and conditions
const finished = new Map(); // finished requests by id, oldest first
const changed = new Event('state');

/** Sets what the view in sight needs: any of requests, tenants, nodes, upstreams and pools. Resolves when it is there. */
export function want(names) {
  needs = new Set(names);
  return read();
}

const readers = {
  requests: async () => merge(await get('/api/v1/requests?limit=1000')),
  tenants: async () => { state.tenants = (await get('/api/v1/tenants')).tenants; },
  nodes: async () => { state.nodes = (await get('/api/v1/nodes')).nodes; },
  upstreams: async () => { state.upstreams = (await get('/api/v1/upstreams')).upstreams; },
  pools: async () => { state.pools = (await get('/api/v1/pools')).pools; },
  status: async () => { state.status = await get('/api/v1/status'); },
  models: async () => { state.models = (await get('/api/v1/models')).models; },
  replicas: async () => { state.replicas = (await get('/api/v1/replicas')).replicas; },
  conditions: async () => { state.conditions = (await get('/api/v1/conditions')).conditions; },
};

const always = ['status', 'models', 'replicas', 'conditions'];

/** Adds requests to those that are known. */
function merge({ running, requests }) {
  for (const q of requests.filter((r) => r.state === 'done').reverse()) finished.set(q.request_id || q.started, q);
  for (const id of finished.keys()) {
    if (finished.size <= maxRequests) break;
    finished.delete(id);
  }
  state.running = running;
  state.requests = [...requests.filter((r) => r.state !== 'done' && !finished.has(r.request_id)), ...finished.values()];
}

async function read() {
  try {
    await Promise.all([...always, ...needs].map((name) => readers[name]()));
    Object.assign(state, { now: get.now, lost: null, fault: '' });
  } catch (e) {
    if (e.status === 0) Object.assign(state, { lost: state.lost ?? new Date(), fault: e.message });
    else if (e.status !== 401) state.fault = e.message;
  }
  document.dispatchEvent(changed);
}

/** Reads again at once, because something was changed by the page. */
export function refresh() {
  return read();
}

async function tick() {
  if (!state.paused && !document.hidden && (await session())) await read();
  setTimeout(tick, every);
}

/** Begins to read. */
export function start() {
  tick();
}
