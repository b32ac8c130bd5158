// How much of a tenant's limits and budgets is used: a bar in the list of tenants, and a table for
// one tenant.

import { el, text, attr, list, makeLoad, setShare, smallTable } from './dom.js';
import { held } from './table.js';
import { duration, number, short, words } from './format.js';

/** Returns a budget as a limit. now is the gateway's clock in ms. */
function budgetUse(b, now) {
  const limit = b.hard || b.soft;
  const note = [b.soft > 0 && `warns from ${number(b.soft)}`, b.hard > 0 ? `refuses from ${number(b.hard)}` : 'never refuses'].filter(Boolean).join(', ');
  return { id: `${b.key} ${b.of} ${b.per}`, name: `${words(b.of)} per ${b.per}${b.key ? `, key ${b.key}` : ''}`, note,
    used: b.used, limit, remaining: Math.max(0, limit - b.used), resets_ms: Date.parse(b.resets) - now, full: b.level !== 'within' };
}

/** Returns the limits and budgets of a tenant with their use. */
function uses(t, now) {
  const limits = Object.entries(t.quota).sort().map(([name, u]) => ({ id: name, name: words(name), note: '', ...u, full: u.remaining <= 0 }));
  return [...limits, ...t.budgets.map((b) => budgetUse(b, now))];
}

/** Returns the share of a limit that is used, from 0. */
function share({ used, limit }) {
  return limit > 0 ? used / limit : Number(used > 0);
}

/** Returns the used share of the most used limit or budget, and -1 if there is none. */
export function mostUsed(t) {
  return Math.max(-1, ...uses(t, 0).map(share));
}

/** Shows the most used limit or budget in a cell. The tooltip has all. */
export function showMostUsed(cell, t) {
  const bar = held(cell, makeLoad);
  const all = uses(t, 0);
  const first = all.reduce((most, u) => (!most || share(u) > share(most) ? u : most), null);
  bar.firstChild.hidden = !first;
  setShare(bar, first ? share(first) : 0, first ? `${short(first.used)} / ${short(first.limit)}` : '–');
  attr(bar.firstChild, 'data-full', Boolean(first?.full));
  attr(cell, 'title', all.map((u) => `${u.name}: ${number(u.used)} of ${number(u.limit)}`).join('\n') || null);
}

/** Makes the table of a tenant's limits and budgets with what is used and what remains of each. */
export function makeQuota() {
  const table = smallTable('Use of limits', [['Name', ''], ['Used', 'w-load'], ['Limit', 'num w-small p2'], ['Remaining', 'num w-since'], ['Resets in', 'num w-since p2']]);
  return { node: table.node, update: (t, now) => list(table.rows, uses(t, now), (u) => u.id, makeRow, updateRow) };
}

function makeRow({ id, name }) {
  const row = el('tr', { 'data-limit': id });
  row.note = el('span', { class: 'sub' });
  row.bar = makeLoad();
  row.figures = ['num p2', 'num', 'num p2'].map((c) => el('td', { class: c }));
  row.append(el('th', { scope: 'row' }, name, row.note), el('td', {}, row.bar), ...row.figures);
  return row;
}

function updateRow(row, use) {
  const [limit, remaining, resets] = row.figures;
  text(row.note, use.note);
  attr(row.note, 'title', use.note || null);
  row.note.hidden = use.note === '';
  setShare(row.bar, share(use), number(use.used));
  attr(row.bar.firstChild, 'data-full', use.full);
  text(limit, number(use.limit));
  text(remaining, number(use.remaining));
  text(resets, duration(use.resets_ms));
}
