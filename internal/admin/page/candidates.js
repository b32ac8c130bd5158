// Why a request went to its replica: the replicas that the pick chose from, as they were then.

import { el, redraw, panel, link, smallTable } from './dom.js';
import { number, duration } from './format.js';

const columns = [
  ['Replica', ''], ['Load', 'num w-small'], ['First token', 'num w-small'], ['Cached tokens', 'num w-tokens p2'],
  ['New tokens', 'num w-tokens p2'], ['Tokens ahead', 'num w-tokens p3'],
];

/** Makes the panel of the candidates of a pick. It is hidden while none is known. */
export function makeCandidates() {
  const counted = el('span', { class: 'count' });
  const table = smallTable('Replicas at the pick', columns);
  const node = panel('Replicas at the pick', counted, table.node);
  node.hidden = true;
  return { node, update: (picked) => {
    const all = picked?.candidates ?? [];
    node.hidden = all.length === 0;
    redraw(counted, [all.length, picked?.considered], ([n, of]) => (n < of ? `the best ${n} of ${number(of)}` : ''));
    redraw(table.rows, all, () => all.map(makeRow));
  } };
}

function makeRow(c) {
  const state = c.picked ? 'picked' : c.full && 'no free slot';
  const figure = (n, words) => (n === null ? '–' : words(n));
  return el('tr', { 'data-candidate': c.replica, 'data-picked': c.picked },
    el('th', { scope: 'row' }, link('replicas', c.replica), state && el('span', { class: 'sub', text: state })), ...[
      number(c.load), figure(c.predicted_ms, duration), figure(c.matched_tokens, number), figure(c.uncached_tokens, number), figure(c.waiting_tokens, number),
    ].map((s, i) => el('td', { class: columns[i + 1][1], text: s })));
}
