// The nodes with their GPUs, and the servers that someone else runs.

import { el, attr, chip, link, panel, facts, makeChip, makeLoad, setLoad, amend, pathOf } from '../dom.js';
import { makeTable, twoLines, clipped, held } from '../table.js';
import { number, bytes, ago, count } from '../format.js';

export function nodes(place) {
  const cards = el('div', { class: 'cards two' });
  const none = el('p', { class: 'muted', hidden: true, text: 'No node runs replicas.' });
  const servers = upstreamTable(place);
  const others = panel('Servers of others', servers.tools, servers.node);
  return {
    title: 'Nodes', needs: ['nodes', 'upstreams'],
    node: el('div', { class: 'stack' }, el('h1', { text: 'Nodes' }), none, cards, others),
    update(s) {
      none.hidden = s.nodes.length > 0;
      amend(cards, s.nodes, (all) => all.map(nodeCard));
      others.hidden = s.upstreams.length === 0;
      servers.now = s.now;
      servers.update(s.upstreams);
    },
  };
}

function nodeCard(n) {
  const load = (total, placed, write) => {
    if (!(total > 0)) return `${write(placed)} assigned`;
    const node = makeLoad();
    setLoad(node, placed / total, 0, 1);
    node.lastChild.textContent = `${write(placed)} of ${write(total)}`;
    return node;
  };
  const state = n.left ? makeChip('has left') : n.lost ? makeChip('does not answer', 'bad') : makeChip('answers', 'ok');
  return el('section', { class: 'card', 'data-node': n.name }, el('h2', {}, n.name, state),
    facts([['Labels', n.labels.join(', ')], ['CPUs assigned', load(n.cpus.total, n.cpus.placed, number)],
      ['Memory assigned', load(n.memory.total, n.memory.placed, bytes)], ['GPUs', n.reason && (n.gpus.length > 0 ? n.reason : `none: ${n.reason}`)]]),
    n.gpus.length > 0 && el('ul', { class: 'gpus', 'aria-label': count(n.gpus.length, 'GPU') }, n.gpus.map(gpuItem)));
}

function gpuItem(g) {
  const load = makeLoad();
  setLoad(load, Math.round(1000 - 1000 * g.free) / 1000, 1, 1);
  return el('li', { 'data-gpu': g.uuid }, el('b', { text: `${g.index} ${g.name}`, title: g.uuid }), load,
    el('span', { class: 'sub' }, g.memory.total > 0 ? `${bytes(g.memory.used)} of ${bytes(g.memory.total)} used · ` : '',
      g.replicas.length === 0 ? 'free' : g.replicas.flatMap((r, i) => [i > 0 ? ', ' : '', link('replicas', r.id, r.share < 1 ? `${r.id} (${r.share})` : r.id)])));
}

function upstreamTable(place) {
  const table = makeTable({
    label: 'servers of others', place, order: 'server', key: (u) => `${u.url} ${u.replica}`, href: (u) => pathOf('replicas', u.replica),
    words: (u) => [u.url, u.address, u.state, ...u.serves], empty: 'No servers.',
    mark: (node, u) => attr(node, 'data-upstream', u.replica),
    columns: [
      { id: 'server', title: 'Server', value: (u) => u.url, show: (cell, u) => twoLines(cell, u.url, u.reason || u.address, pathOf('replicas', u.replica), serves(u)) },
      { id: 'state', title: 'State', class: 'w-state', value: (u) => u.state, show: (cell, u) => chip(held(cell, makeChip), u.state) },
      { id: 'serves', title: 'Serves', class: 'p2 clip', value: (u) => u.serves.length, show: (cell, u) => clipped(cell, serves(u)) },
      { id: 'seen', title: 'Seen there', class: 'p2 clip', show: (cell, u) => clipped(cell, seenAt(u)) },
      { id: 'since', title: 'Since', class: 'num w-since p2', value: (u) => (u.since ? Date.parse(u.since) : 0), show: (cell, u) => clipped(cell, ago(u.since, table.now)) },
    ],
  });
  return table;
}

function serves(u) {
  return u.serves.join(', ') || 'nothing';
}

/** Says what a server lists, and why it does not serve all of that. */
function seenAt(u) {
  const listed = u.list ? `lists ${count(u.listed_count, 'model')}` : 'has no list of models';
  return [u.state === 'starting' ? 'not asked yet' : listed, u.filtered > 0 && `${number(u.filtered)} left out by the file`,
    u.clashes.length > 0 && `names of the file: ${u.clashes.join(', ')}`, u.refused,
    u.addresses > 1 && `the first of ${u.addresses} addresses`].filter(Boolean).join(' · ');
}
