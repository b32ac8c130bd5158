// A gateway's admin API that is made up. It has 1,000 models, or as many as serve is told, with
// twice as many replicas and ten times as many finished requests. It has 500 requests a second, of
// which events have 200. Every second a part of the models and replicas changes. It serves the
// page's files from this repository with the Content-Security-Policy of the real listener.
import http from 'node:http';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const page = fileURLToPath(new URL('../../internal/admin/page', import.meta.url));
const guard = fs.readFileSync(fileURLToPath(new URL('../../internal/admin/guard.go', import.meta.url)), 'utf8');
const policy = [...guard.match(/"Content-Security-Policy", ([\s\S]*?)\)/)[1].matchAll(/"([^"]*)"/g)].map((m) => m[1]).join('');
const types = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' };

const noLimits = { weight: 1, max_concurrent_requests: 0, max_tokens_per_minute: 0, max_per_replica: 0, max_prefill_per_replica: 0, max_queue: 1000, queue_timeout: '1m', patched: [], file: {} };
const pad = (i) => String(i).padStart(4, '0');
let turn = 0; // grows each second, so that figures change
let models = 1000;

const model = (i) => ({
  name: `model-${pad(i)}`, aliases: [], task: 'text-generation', launcher: 'local', discovered: false, state: i === 7 ? 'starting' : 'ready', desired: 2, replicas: 2,
  ready: i === 7 ? 0 : 2, in_flight: (i + turn) % 5, queued: 0, queued_bytes: 0, weight: 1, limits: noLimits, scale: { min: 2, max: 4, file: { min: 2, max: 4 }, overridden: false },
});
export const replica = (i) => ({
  id: `model-${pad(i >> 1)}-${i & 1}`, model: `model-${pad(i >> 1)}`, served_model: `model-${pad(i >> 1)}`, state: i >> 1 === 7 ? 'starting' : 'ready', address: `10.0.0.1:${10000 + i}`,
  in_flight: (i + turn) % 9, max: 64, max_from: 'engine', served: 100 * i + turn, launcher: 'local', pid: 1000 + i, node: 'here', reason: '', since: '2030-05-04T12:00:00Z', restarts: 0, gpus: [],
  failed_starts: 0, failure: '', next_start: null, close_delimited: false, engine: null,
});
const all = (n, make) => Array.from({ length: n }, (_, i) => make(i));
const conditions = [{ type: 'ModelReady', subject: 'model-0007', status: 'false', severity: 'info', reason: 'Starting', message: 'The model starts.', since: '2030-05-04T12:00:00Z' }];
const cured = { type: 'RequestsUncounted', subject: '', status: 'true', severity: 'warning', reason: 'Lost', message: 'It is cured after a second.', since: '2030-05-04T12:00:00Z' };
export const request = (i) => ({
  request_id: `request-${i}`, client_request_id: '', method: 'POST', path: '/v1/chat/completions', tenant: `tenant-${i % 50}`, model: `model-${pad(i % models)}`, replica: `model-${pad(i % models)}-0`,
  upstream: '10.0.0.1:10000', state: 'done', status: i % 97 === 0 ? 503 : 200, code: i % 97 === 0 ? 'no_replica' : '', source: 'engine', route: 'native', cause: '', finish_reason: 'stop',
  tokens_out: i % 400, estimated: false, trace_id: '', flags: '', details: '', stream: true, queued_ms: i % 30, first_byte_ms: 20 + (i % 100), duration_ms: 500 + (i % 1000), bytes_in: 100, bytes_out: 2000,
  attempts: 1, started: new Date(Date.UTC(2030, 0, 1) + 10 * i).toISOString(),
});
const status = () => ({
  version: '1.0.0', pid: 7, listen: '127.0.0.1:8080', started: '2030-05-04T12:00:00Z', uptime_s: 60 + turn, ready: true, reasons: [],
  envoy: { state: 'live', pid: 5, version: '1.40.0', adopted: false, restarts: 0, reason: '', filter: 'module', predecessors: [{ pid: 4, version: '1.39.0', requests: 38 }] }, xds: { connected: true, nacks: 0, last_nack: null, refused: [] },
  config: { path: '/etc/sluice.yaml', loaded_at: '2030-05-04T12:00:00Z', faults: [], held: false, needs_restart: [] },
  shared: { configured: false, up: false, mode: '', gateways: 0, since: null, last_error: '' }, upgrade: { failed: '', failed_at: null, predecessors: [] },
});

const quota = (i) => (i % 5 === 4 ? {} : {
  requests_per_minute: { used: 7 * i, limit: 300, remaining: Math.max(0, 300 - 7 * i), resets_ms: 100 * i }, max_concurrent_streams: { used: i, limit: 64, remaining: 64 - i, resets_ms: 0 },
});
const tenant = (i) => ({
  name: `tenant-${i}`, models: ['*'], in_flight: i, keys: 1, priority: '', running: i, prefill: 0, queued: 0, quota: quota(i), weight: 1,
  budgets: i !== 48 ? [] : [{ key: 'tenant-48/1a2b3c4d', per: 'month', of: 'cost', used: 41.5, soft: 40, hard: 50, level: 'soft', resets: new Date(Date.now() + 7.5 * 86400_000).toISOString() }],
  limits: { weight: 1, requests_per_minute: 300, tokens_per_minute: 0, max_concurrent_streams: 64, max_prefill: 0, max_queue_bytes: 0, patched: [], file: {} },
});
const candidate = (i) => ({
  replica: `model-0001-${i}`, picked: i === 0, load: 3 + i, full: i === 7, predicted_ms: 40 + 31 * i, matched_tokens: 4096 >> i, uncached_tokens: 5000 - (4096 >> i), waiting_tokens: 100 * i,
});
const detail = (id) => ({
  ...request(Number(id.split('-')[1])), timeline: [{ at_ms: 0, what: 'received', detail: 'POST /v1/chat/completions' }, { at_ms: 3, what: 'picked', detail: 'model-0001-0' }],
  picked: { replica: 'model-0001-0', strategy: 'prefix', why: 'cached', moved: '', predicted_ms: 40, matched_tokens: 4096, considered: 40, candidates: all(8, candidate) },
});

// The history: a value every ten seconds, with a gap.
function history(query) {
  const step = Number(query.get('step'));
  const n = -Number(query.get('from')) / step;
  const wave = (top) => all(n, (i) => (i > n / 3 && i < n / 3 + 9 ? null : Math.round(top * (1.2 + Math.sin(i / 40) + 0.3 * Math.sin(i / 3)))));
  const tops = { requests_per_second: 200, errors_per_second: 2, queued: 9, running: 150, ttft_p50_ms: 60, ttft_p95_ms: 200, inter_token_p50_ms: 12, inter_token_p95_ms: 30, tokens_per_second: 9000, replicas_ready: 900, replicas_wanted: 905, gpu_memory_bytes: 4e11 };
  return { from: new Date(Date.now() + 1000 * Number(query.get('from'))).toISOString(), step_seconds: step, series: Object.entries(tops).map(([name, top]) => ({ name, model: '', values: wave(top) })) };
}

const answers = {
  '/api/v1/session': () => ({ name: 'local', role: 'operator', by: 'none' }),
  '/api/v1/status': status,
  '/api/v1/history': history,
  '/api/v1/tenants': () => ({ tenants: all(50, tenant) }),
  '/api/v1/usage': () => ({ from: '2030-05-03T12:00:00Z', to: '2030-05-04T12:00:00Z', complete: true, usage: all(2 * models, (i) => ({
    tenant: `tenant-${i % 50}`, key: `tenant-${i % 50}/${pad(i)}`, model: `model-${pad(i % models)}`, requests: 7 * i, prompt_tokens: 911 * i, cached_tokens: 300 * i, completion_tokens: 211 * i,
    estimated_requests: i % 3, estimated_prompt_tokens: 0, estimated_completion_tokens: 0, cost: i / 100,
  })) }),
  '/api/v1/nodes': () => ({ nodes: [] }),
  '/api/v1/upstreams': () => ({ upstreams: [] }),
  '/api/v1/pools': () => ({ pools: [] }),
  '/api/v1/requests': () => ({ running: 0, requests: all(models, request).reverse() }),
};

/** Sends the stream of events: everything, all requests, and then changes each second. */
function sendEvents(asked, answer) {
  const send = (event, data) => answer.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  let finished = models;
  const requests = () => send('requests', { requests: all(200, () => request(finished++)), dropped: 300 });
  answer.writeHead(200, { 'content-type': 'text/event-stream' });
  send('state', { whole: true, models: all(models, model), replicas: all(2 * models, replica), conditions: [...conditions, cured], totals: {} });
  while (finished < 10 * models) requests();
  const timer = setInterval(() => {
    turn++;
    send('state', { models: all(models / 2, (i) => model(2 * i)), replicas: all(models / 2, (i) => replica(4 * i)), conditions: [], totals: {}, removed: { models: [], replicas: [], conditions: [{ type: cured.type }] } });
    requests();
  }, 1000);
  asked.on('close', () => clearInterval(timer));
}

/**
 * Serves the page and the API of so many models. Returns the server's URL and a func that ends it.
 */
export function serve(count = models) {
  models = count;
  const server = http.createServer((asked, answer) => {
    const url = new URL(asked.url, 'http://stub');
    if (url.pathname === '/api/v1/events') return sendEvents(asked, answer);
    const make = answers[url.pathname] ?? (url.pathname.startsWith('/api/v1/requests/') && (() => detail(url.pathname.split('/').at(-1))));
    if (make) {
      answer.writeHead(200, { 'content-type': 'application/json' });
      answer.end(JSON.stringify(make(url.searchParams)));
      return;
    }
    const file = path.join(page, url.pathname);
    const name = path.extname(file) && fs.existsSync(file) ? file : path.join(page, 'index.html');
    answer.writeHead(200, { 'content-type': types[path.extname(name)] ?? 'text/plain', 'content-security-policy': policy });
    answer.end(fs.readFileSync(name));
  });
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => resolve([`http://127.0.0.1:${server.address().port}`, () => server.closeAllConnections() || server.close()]));
  });
}
