// How much of a tenant's limits is used: a bar in the list of tenants, and a table for one tenant.

import { el, text, attr, list, makeLoad, setShare } from './dom.js';
import { held } from './table.js';
import { duration, number, words } from './format.js';

/** Returns the share of a limit that is used, from 0. */
function share({ used, limit }) {
  return limit > 0 ? used / limit : Number(used > 0);
}

/** Returns the uses of a tenant's limits by their names, the most used one first. */
export function uses(quota) {
  return Object.entries(quota).sort(([, a], [, b]) => share(b) - share(a));
}

/** Returns the used share of the most used limit, and -1 if there is no limit. */
export function mostUsed(quota) {
  return Math.max(-1, ...Object.values(quota).map(share));
}

/** Shows the most used limit in a cell. The tooltip has all. */
export function showMostUsed(cell, quota) {
  const bar = held(cell, makeLoad);
  const [first] = uses(quota);
  bar.firstChild.hidden = !first;
  setShare(bar, first ? share(first[1]) : 0, first ? `${number(first[1].used)} / ${number(first[1].limit)}` : '–');
  attr(bar.firstChild, 'data-full', Boolean(first) && first[1].remaining <= 0);
  attr(cell, 'title', uses(quota).map(([name, u]) => `${words(name)}: ${number(u.used)} of ${number(u.limit)}`).join('\n') || null);
}

/** Makes the table of a tenant's limits with what is used and what remains of each. */
export function makeQuota() {
  const rows = el('tbody');
  const heads = [['Name', ''], ['Used', 'w-load'], ['Limit', 'num w-small p2'], ['Remaining', 'num w-since'], ['Whole again in', 'num w-since p2']];
  const table = el('table', {}, el('thead', {}, el('tr', {}, heads.map(([title, c]) => el('th', { scope: 'col', class: c, text: title })))), rows);
  const update = (quota) => list(rows, Object.entries(quota).sort(), ([name]) => name, makeRow, updateRow);
  return { node: el('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': 'Use of limits' }, table), update };
}

function makeRow([name]) {
  const row = el('tr', { 'data-limit': name }, el('th', { scope: 'row', text: words(name) }));
  row.bar = makeLoad();
  row.figures = ['num p2', 'num', 'num p2'].map((c) => el('td', { class: c }));
  row.append(el('td', {}, row.bar), ...row.figures);
  return row;
}

function updateRow(row, [, use]) {
  const [limit, remaining, resets] = row.figures;
  setShare(row.bar, share(use), number(use.used));
  attr(row.bar.firstChild, 'data-full', use.remaining <= 0);
  text(limit, number(use.limit));
  text(remaining, number(use.remaining));
  text(resets, duration(use.resets_ms));
}
