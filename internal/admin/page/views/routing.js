// Routing: how the replicas of one model look to a request, and where a given request would go.

import { el, text, attr, list, chooseFrom, makeLoad, setShare, panel, smallTable } from '../dom.js';
import { number, duration, percent } from '../format.js';
import { get, send } from '../api.js';
import { keep } from '../router.js';

export function routing(place) {
  const model = el('select', { id: 'routed-model', change: () => (keep({ model: model.value }), replicas.read()) });
  const replicas = makeReplicas(() => model.value);
  const wanted = place.query.get('model');
  return {
    title: 'Routing', needs: ['live'],
    node: el('div', { class: 'stack' },
      el('div', { class: 'title' }, el('h1', { text: 'Routing' }), el('label', { class: 'inline' }, 'Model ', model)),
      replicas.node, makeQuestion(() => model.value)),
    update(s) {
      chooseFrom(model, s.models, wanted);
      replicas.read();
    },
  };
}

/** Makes the panel of a model's replicas as a prompt of the usual length sees them. */
function makeReplicas(model) {
  const recent = el('p', { class: 'muted pad' });
  const { node: scroller, table, titles, rows } = smallTable('Replicas', [
    ['Replica', ''], ['Load', 'num w-small p2'], ['Tokens before it', 'w-load'], ['Prefill', 'num w-small p3'], ['Cached lately', 'w-load p2'], ['First token', 'num w-first'],
  ]);
  const empty = el('p', { class: 'empty', hidden: true });
  let shown = ''; // the model whose replicas are shown
  const read = async () => {
    const asked = model();
    if (asked === '') return;
    let fault = '';
    const r = await get(`/api/v1/models/${encodeURIComponent(asked)}/routing`).catch((e) => ((fault = e.message), null));
    if (asked !== model() || (!r && shown === asked)) return; // another model is chosen, or what is shown is a second old
    shown = r ? asked : '';
    text(empty, fault || 'The model has no replicas.');
    const all = r?.replicas ?? [];
    empty.hidden = all.length > 0;
    table.hidden = all.length === 0;
    text(recent, r ? recentWords(r.recent) : '');
    text(titles.at(-1), all.some((x) => x.predicted_ms > 0) ? `First token of ${number(r.prompt_tokens)} new tokens` : 'First token');
    const most = Math.max(1, ...all.map((x) => x.waiting_tokens));
    list(rows, all, (x) => `${r.model} ${x.id}`, makeRow, (row, x) => updateRow(row, x, r.picked, most));
  };
  return { read, node: panel('Replicas for a prompt of the usual length', null, recent, scroller, empty) };
}

function makeRow(x) {
  const row = el('tr', { 'data-routed': x.id });
  row.name = el('span', { class: 'name', text: x.id });
  row.sub = el('span', { class: 'sub' });
  row.waiting = makeLoad();
  row.cached = makeLoad();
  row.figures = ['num p2', 'num p3', 'num'].map((c) => el('td', { class: c }));
  const [load, rate, first] = row.figures;
  row.append(el('th', { scope: 'row' }, row.name, row.sub), load, el('td', {}, row.waiting), rate, el('td', { class: 'p2' }, row.cached), first);
  return row;
}

function updateRow(row, x, picked, most) {
  const [load, rate, first] = row.figures;
  text(row.sub, [x.id === picked && 'would be picked', !x.candidate && 'cannot be picked now'].filter(Boolean).join(' · '));
  row.sub.hidden = row.sub.textContent === '';
  text(load, number(x.load));
  setShare(row.waiting, x.waiting_tokens / most, number(x.waiting_tokens));
  text(rate, x.rate > 0 ? `${number(Math.round(x.rate))}/s` : '–');
  const share = x.recent.prompt_tokens > 0 ? x.recent.cached_tokens / x.recent.prompt_tokens : 0;
  setShare(row.cached, share, x.recent.prompt_tokens > 0 ? percent(share) : '–');
  attr(row.cached, 'title', x.recent.prompt_tokens > 0 ? `Predicted: ${percent(x.recent.matched_tokens / x.recent.prompt_tokens)}` : null);
  text(first, duration(x.predicted_ms));
}

/** Says in sentences what became of the last requests. */
function recentWords(r) {
  if (r.requests === 0) return 'No request of this model has ended yet.';
  const parts = [r.requests === 1 ? 'The last request:' : `The last ${number(r.requests)} requests:`];
  if (r.prompt_tokens > 0) {
    parts.push(`${percent(r.cached_tokens / r.prompt_tokens)} of the prompt tokens were cached, ${percent(r.matched_tokens / r.prompt_tokens)} were predicted to be.`);
  }
  if (r.compared > 0) parts.push(`The median first token came after ${duration(r.real_ms)}, ${duration(r.predicted_ms)} were predicted.`);
  const moves = Object.entries(r.moves).sort((a, b) => b[1] - a[1]);
  const moved = moves.reduce((n, [, count]) => n + count, 0);
  if (moved > 0) parts.push(`${number(moved)} left their replica: ${moves.map(([why, n]) => `${number(n)} ${moveWords[why] ?? why}`).join(', ')}.`);
  return parts.length > 1 ? parts.join(' ') : `${number(r.requests)} ended, none of which told what it found in the cache.`;
}

const moveWords = { load: 'for another that was sooner', full: 'because it was full', replica_gone: 'because it was gone' };

// The replica that a request would go to

/** Returns what is asked: the body of a request as it is, or a chat with the text as its prompt. */
function asked(model, words) {
  try {
    const body = JSON.parse(words);
    if (typeof body === 'object' && body !== null && !Array.isArray(body)) return { model, ...body };
  } catch { /* a prompt */ }
  return { model, messages: [{ role: 'user', content: words }] };
}

/** Makes the panel of the question where a request would go. */
function makeQuestion(model) {
  const words = el('textarea', { rows: '2', spellcheck: 'false', placeholder: 'A prompt, or the JSON body of a request' });
  const result = el('div', { class: 'answer', role: 'status' });
  const ask = async (event) => {
    event.preventDefault();
    try {
      result.replaceChildren(...explained(await send('POST', `/api/v1/models/${encodeURIComponent(model())}/pick`, asked(model(), words.value))));
    } catch (e) {
      result.replaceChildren(el('p', { class: 'fault', text: e.message }));
    }
  };
  return panel('Where would this request go?', null,
    el('form', { class: 'question', submit: ask }, el('label', {}, 'Prompt or body', words), el('button', { type: 'submit', class: 'primary', text: 'Ask' })), result);
}

/** Returns the nodes that explain a pick. */
function explained(p) {
  const order = p.replicas.map((r) => {
    const item = el('li', {}, el('span', { class: 'name', text: r.id }), ...costs(p, r).map((words) => el('span', { class: 'sub', text: words })));
    attr(item, 'data-picked', r.id === p.picked ? '' : null);
    attr(item, 'data-out', r.candidate ? null : '');
    return item;
  });
  return [el('p', { text: p.why }), el('ol', { class: 'ring', 'aria-label': 'Replicas in the order of the hash ring' }, ...order)];
}

/** Returns the lines about one replica of a pick. */
function costs(p, r) {
  const lines = [];
  if (r.predicted_ms > 0) lines.push(`first token after ${duration(r.predicted_ms)}`);
  if (p.prompt_tokens > 0) lines.push(`${number(r.matched_tokens)} of ${number(p.prompt_tokens)} tokens cached`);
  if (r.waiting_tokens > 0) lines.push(`${number(r.waiting_tokens)} tokens wait before it`);
  lines.push(r.load === 1 ? '1 request' : `${number(r.load)} requests`);
  if (!r.candidate) lines.push('cannot be picked now');
  return lines;
}
