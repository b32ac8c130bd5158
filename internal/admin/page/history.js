// The charts of the history of the gateway, or of one model. The gateway keeps 24 hours.

import { el } from './dom.js';
import { bytes, duration, short } from './format.js';
import { latest } from './api.js';
import { keep } from './router.js';
import { makeChart } from './chart.js';

const ranges = [['1 h', 3600, 10], ['6 h', 6 * 3600, 60], ['24 h', 24 * 3600, 120]]; // words, seconds, seconds between two values

const ms = (n) => (n === null ? '–' : n === 0 ? '0' : duration(n));
const size = (n) => (n === null ? '–' : bytes(n));
const line = (name, label, tone, area = false) => ({ name, label, tone, area });

// The charts: title, how values are written, series.
const charts = [
  ['Requests per second', short, [line('requests_per_second', 'all', 'accent', true), line('errors_per_second', 'failed', 'bad')]],
  ['Requests now', short, [line('running', 'running', 'accent', true), line('queued', 'queued', 'warn')]],
  ['Time to first token', ms, [line('ttft_p50_ms', 'median', 'accent'), line('ttft_p95_ms', '95 %', 'violet')]],
  ['Time between tokens', ms, [line('inter_token_p50_ms', 'median', 'accent'), line('inter_token_p95_ms', '95 %', 'violet')]],
  ['Output tokens per second', short, [line('tokens_per_second', 'all', 'accent', true)]],
  ['Replicas', short, [line('replicas_ready', 'ready', 'ok'), line('replicas_wanted', 'wanted', 'muted')]],
  ['GPU memory', size, [line('gpu_memory_bytes', 'used', 'accent', true)]],
];

/** Makes the charts of a model; '' stands for the whole gateway. */
export function makeHistory(model, place) {
  const made = charts.map(([title, write, series]) => ({ chart: makeChart(title, series, write), series }));
  let range = ranges.find(([words]) => words === place.query.get('range')) ?? ranges[0];
  let data = null; // { from, step, columns by name }
  const buttons = ranges.map((r) => el('button', { type: 'button', 'aria-pressed': String(r === range), text: r[0], click: () => choose(r) }));
  const grid = el('div', { class: 'charts' }, made.map(({ chart }) => chart.node));
  const node = el('section', { class: 'stack', 'aria-label': 'History' },
    el('div', { class: 'title' }, el('h2', { text: 'History' }), el('div', { class: 'tools', role: 'group', 'aria-label': 'Time' }, buttons)), grid);

  const choose = (r) => {
    range = r;
    keep({ range: r === ranges[0] ? '' : r[0] });
    buttons.forEach((b, i) => b.setAttribute('aria-pressed', String(ranges[i] === r)));
    read();
  };
  const draw = () => {
    const length = data.columns.running?.length ?? 0;
    const times = Array.from({ length }, (_, i) => data.from + i * data.step);
    for (const { chart, series } of made) {
      const columns = series.map((s) => data.columns[s.name] ?? new Array(length).fill(null));
      if (series[0].name === 'gpu_memory_bytes') chart.node.hidden = !columns[0].some((v) => v !== null && v > 0);
      chart.set(times, columns);
    }
  };
  const get = latest();
  const read = async () => {
    const [, seconds, step] = range;
    const query = new URLSearchParams({ from: -seconds, step, ...(model && { model }) });
    const said = await get(`/api/v1/history?${query}`).catch(() => null);
    if (!said) return;
    data = { from: Date.parse(said.from) / 1000, step: said.step_seconds, columns: Object.fromEntries(said.series.map((s) => [s.name, s.values])) };
    draw();
  };
  let readAt = Date.now();
  const sampled = () => {
    if (Date.now() - readAt < range[2] * 900) return; // no step has ended
    readAt = Date.now();
    read();
  };
  document.addEventListener('sample', sampled);
  read();
  return {
    node,
    close() {
      document.removeEventListener('sample', sampled);
      made.forEach(({ chart }) => chart.close());
    },
  };
}
