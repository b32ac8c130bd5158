// A gateway's admin API that is made up: 1,000 models with 2,000 replicas, and 10,000 finished requests.
// It serves the page's files from this repository with the Content-Security-Policy of the real listener.
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
let turn = 0; // grows with each read, so that figures change

const models = () => Array.from({ length: 1000 }, (_, i) => ({
  name: `model-${pad(i)}`, aliases: [], task: 'text-generation', launcher: 'local', discovered: false, state: i === 7 ? 'starting' : 'ready', desired: 2, replicas: 2,
  ready: i === 7 ? 0 : 2, in_flight: (i + turn) % 5, queued: 0, queued_bytes: 0, weight: 1, limits: noLimits,
}));
const replicas = () => Array.from({ length: 2000 }, (_, i) => ({
  id: `model-${pad(i >> 1)}-${i & 1}`, model: `model-${pad(i >> 1)}`, served_model: `model-${pad(i >> 1)}`, state: i >> 1 === 7 ? 'starting' : 'ready', address: `10.0.0.1:${10000 + i}`,
  in_flight: (i + turn) % 9, max: 64, max_from: 'engine', served: 100 * i + turn, launcher: 'local', pid: 1000 + i, node: 'here', reason: '', since: '2030-05-04T12:00:00Z', restarts: 0, gpus: [],
  failed_starts: 0, failure: '', next_start: null, close_delimited: false, engine: null,
}));
export const request = (i) => ({
  request_id: `request-${i}`, client_request_id: '', method: 'POST', path: '/v1/chat/completions', tenant: `tenant-${i % 50}`, model: `model-${pad(i % 1000)}`, replica: `model-${pad(i % 1000)}-0`,
  upstream: '10.0.0.1:10000', state: 'done', status: i % 97 === 0 ? 503 : 200, code: i % 97 === 0 ? 'no_replica' : '', source: 'engine', route: 'native', cause: '', finish_reason: 'stop',
  tokens_out: i % 400, estimated: false, trace_id: '', flags: '', details: '', stream: true, queued_ms: i % 30, first_byte_ms: 20 + (i % 100), duration_ms: 500 + (i % 1000), bytes_in: 100, bytes_out: 2000,
  attempts: 1, started: new Date(Date.UTC(2030, 0, 1) + 10 * i).toISOString(),
});
const status = () => ({
  version: '1.0.0', pid: 7, listen: '127.0.0.1:8080', started: '2030-05-04T12:00:00Z', uptime_s: 60 + turn, ready: true, reasons: [],
  envoy: { state: 'live', pid: 5, version: '1.40.0', adopted: false, restarts: 0, reason: '' }, xds: { connected: true, nacks: 0, last_nack: null, refused: [] },
  config: { path: '/etc/sluice.yaml', loaded_at: '2030-05-04T12:00:00Z', faults: [], held: false, needs_restart: [] },
  shared: { configured: false, up: false, mode: '', gateways: 0, since: null, last_error: '' }, upgrade: { failed: '', failed_at: null, predecessors: [] },
});

let finished = 0; // requests that were listed; each list has the next 1,000
const answers = {
  '/api/v1/session': () => ({ name: 'local', role: 'operator', by: 'none' }),
  '/api/v1/status': status,
  '/api/v1/models': () => ({ models: models() }),
  '/api/v1/replicas': () => ({ replicas: replicas() }),
  '/api/v1/conditions': () => ({ conditions: [{ type: 'ModelReady', subject: 'model-0007', status: 'false', severity: 'info', reason: 'Starting', message: 'The model starts.', since: '2030-05-04T12:00:00Z' }] }),
  '/api/v1/tenants': () => ({ tenants: [] }),
  '/api/v1/nodes': () => ({ nodes: [] }),
  '/api/v1/upstreams': () => ({ upstreams: [] }),
  '/api/v1/pools': () => ({ pools: [] }),
  '/api/v1/requests': () => ({ running: 0, requests: Array.from({ length: 1000 }, () => request(finished++ % 10_000)).reverse() }),
};

/** Serves the page and the API. Returns the server's URL and a func that ends it. */
export function serve() {
  const server = http.createServer((asked, answer) => {
    const url = new URL(asked.url, 'http://stub');
    turn++;
    if (answers[url.pathname]) {
      answer.writeHead(200, { 'content-type': 'application/json' });
      answer.end(JSON.stringify(answers[url.pathname]()));
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
