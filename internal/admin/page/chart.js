// Charts over time, drawn by uPlot.

import uPlot from './lib/uplot.js';
import { el, text, attr } from './dom.js';
import { short } from './format.js';

const height = 150; // pixels
const dark = matchMedia('(prefers-color-scheme: dark)');
const cursors = uPlot.sync('charts'); // all charts show the same moment

/** Returns the value of a colour of style.css. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * Makes a chart. series are { label, tone, area }, and write formats a value. Returns { node, set,
 * close }: set(times, columns) shows times in seconds since 1970 and a column of values for each
 * series; null is a gap.
 */
export function makeChart(title, series, write = short) {
  const values = series.map((s) => el('span', { class: 'key', 'data-line': s.tone }, `${s.label} `, el('b', { text: '–' })));
  const box = el('div', { class: 'chart-box', role: 'img', 'aria-label': `${title}: not read yet` });
  const node = el('figure', { class: 'chart' }, el('figcaption', {}, el('span', { class: 'chart-title', text: title }), values), box);
  const empty = el('p', { class: 'chart-empty', text: 'No samples yet.' });
  let plot = null;
  let data = null;

  const show = (index) => {
    values.forEach((v, i) => {
      const column = data?.[i + 1] ?? [];
      text(v.lastChild, write(index === null ? latest(column) : column[index] ?? null));
    });
  };
  const draw = () => {
    plot?.destroy();
    plot = null;
    if (!node.isConnected || !data || box.clientWidth === 0) return;
    box.replaceChildren();
    plot = new uPlot(settings(series, write, box.clientWidth, (u) => show(u.cursor.idx ?? null)), data, box);
  };
  const size = new ResizeObserver(() => (plot ? box.clientWidth > 0 && plot.setSize({ width: box.clientWidth, height }) : draw()));
  size.observe(box);
  dark.addEventListener('change', draw);

  return {
    node,
    set(times, columns) {
      data = [times, ...columns];
      const some = columns.some((c) => c.some((v) => v !== null));
      if (!some) box.replaceChildren(empty);
      if (!some || !plot) (plot?.destroy(), (plot = null), some && draw());
      else plot.setData(data);
      show(plot?.cursor.idx ?? null);
      attr(box, 'aria-label', `${title}: ${series.map((s, i) => summary(s.label, columns[i], write)).join('; ')}`);
    },
    close() {
      size.disconnect();
      dark.removeEventListener('change', draw);
      plot?.destroy();
    },
  };
}

/** Returns the last value of a column that is not a gap. */
function latest(column) {
  for (let i = column.length - 1; i >= 0 && i >= column.length - 6; i--) if (column[i] !== null) return column[i];
  return null;
}

function summary(label, column, write) {
  const known = column.filter((v) => v !== null);
  if (known.length === 0) return `${label} unknown`;
  return `${label} ${write(latest(column))} now, at most ${write(Math.max(...known))}`;
}

/**
 * Returns the settings of the points of a series: one for each value between two gaps, which has no
 * line.
 */
function lone(tone) {
  const gap = (v) => v === null || v === undefined;
  const filter = (plot, i) => [...plot.data[i].keys()].filter((at) => !gap(plot.data[i][at]) && gap(plot.data[i][at - 1]) && gap(plot.data[i][at + 1]));
  return { show: false, filter, size: 4, fill: tone };
}

function settings(series, write, width, moved) {
  const [muted, line] = [colour('muted'), colour('line-soft')];
  const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
  return {
    width, height, legend: { show: false }, padding: [8, 18, 0, 0],
    cursor: { sync: { key: cursors.key }, y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString('en-GB').slice(0, 5)) },
      { ...axis, size: 52, space: 32, values: (_, ticks) => ticks.map(write) },
    ],
    series: [{}, ...series.map((s) => ({
      stroke: colour(s.tone), width: 1.5, fill: s.area ? colour(`${s.tone}-soft`) : undefined, points: lone(colour(s.tone)), spanGaps: false,
    }))],
    hooks: { setCursor: [moved] },
  };
}
