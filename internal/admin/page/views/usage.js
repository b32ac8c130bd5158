// Usage: requests and tokens by tenant, key and model.

import { el, text, attr, redraw } from '../dom.js';
import { makeTable, figure, twoLines } from '../table.js';
import { number, short, moment } from '../format.js';
import { latest } from '../api.js';
import { keep } from '../router.js';
import { poll } from '../store.js';

const periods = [['Last 24 hours', '-86400'], ['Last 7 days', `${-7 * 86400}`], ['Last 30 days', `${-30 * 86400}`]];
const groups = [['Tenant, key and model', 'tenant,key,model'], ['Tenant', 'tenant'], ['Model', 'model'], ['Tenant and day', 'tenant,day']];

export function usage(place) {
  const from = choice('Time', periods, place.query.get('from'), () => read());
  const by = choice('By', groups, place.query.get('by'), () => read());
  const csv = el('a', { class: 'button', download: 'usage.csv', text: 'CSV' });
  const sums = el('section', { class: 'panel figures', 'aria-label': 'Sums' });
  const about = el('p', { class: 'muted' });
  const table = usageTable(place);
  const fault = el('p', { class: 'fault', role: 'alert', hidden: true });
  const get = latest();
  const read = async () => {
    keep({ from: from.value === periods[0][1] ? '' : from.value, by: by.value === groups[0][1] ? '' : by.value });
    const query = new URLSearchParams({ from: from.value, group_by: by.value });
    attr(csv, 'href', `/api/v1/usage?${query}&format=csv`);
    try {
      const said = await get(`/api/v1/usage?${query}`);
      if (!said) return;
      text(about, `From ${moment(said.from)} to ${moment(said.to)}.${said.complete === false ? ' The ledger does not have all of this time.' : ''}`);
      table.update(said.usage);
      redraw(sums, totals(said.usage), (all) => all.map(([words, n]) => el('div', { class: 'figure' }, el('b', { text: short(n), title: number(n) }), el('span', { text: words }))));
      fault.hidden = true;
    } catch (e) {
      text(fault, e.message);
      fault.hidden = false;
    }
  };
  return {
    title: 'Usage',
    node: el('div', { class: 'stack' }, el('div', { class: 'title' }, el('h1', { text: 'Usage' }), el('div', { class: 'tools' }, from, by, csv), table.tools),
      fault, sums, el('div', { class: 'panel' }, table.node), about),
    close: poll(read, 30_000),
  };
}

function choice(label, options, wanted, change) {
  const select = el('select', { 'aria-label': label, change }, options.map(([words, value]) => el('option', { value, text: words })));
  if (options.some(([, value]) => value === wanted)) select.value = wanted;
  return select;
}

function totals(rows) {
  const sum = (field) => rows.reduce((n, row) => n + (row[field] ?? 0), 0);
  return [['requests', sum('requests')], ['prompt tokens', sum('prompt_tokens')], ['of these cached', sum('cached_tokens')], ['output tokens', sum('completion_tokens')],
    ['cost', sum('cost')]].filter(([words, n]) => words !== 'cost' || n > 0);
}

function usageTable(place) {
  const label = (u) => [u.tenant, u.key, u.model, u.hour, u.day, u.month].filter(Boolean).join(' · ');
  const numbers = (id, title, field, more = '') => ({
    id, title, class: `num w-tokens ${more}`, value: (u) => u[field], show: (cell, u) => { figure(cell, u[field]); attr(cell, 'title', number(u[field])); },
  });
  return makeTable({
    label: 'usage', place, order: '-completion', key: label, words: (u) => [label(u)], empty: 'Nothing was used in this time.',
    columns: [
      { id: 'who', title: 'Who', class: 'clip', value: label, show: (cell, u) => twoLines(cell, u.tenant ?? u.model, [u.key, u.tenant && u.model, u.hour, u.day, u.month].filter(Boolean).join(' · ')) },
      numbers('requests', 'Requests', 'requests'), numbers('prompt', 'Prompt tokens', 'prompt_tokens', 'p2'), numbers('cached', 'Cached tokens', 'cached_tokens', 'p3'),
      numbers('completion', 'Output tokens', 'completion_tokens'),
      numbers('estimated', 'Estimated requests', 'estimated_requests', 'p3 w-load'),
      { id: 'cost', title: 'Cost', class: 'num w-small p2', value: (u) => u.cost ?? 0, show: (cell, u) => text(cell, u.cost > 0 ? u.cost.toFixed(2) : '–') },
    ],
  });
}
