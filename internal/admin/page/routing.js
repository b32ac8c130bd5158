// Routing: how the replicas of one model look to a request, and where a given request would go.

import { el, text, attr, list, makeLoad, number, duration } from './view.js';

const $ = (id) => document.getElementById(id);

/** Fills the list of models and returns the name of the selected one, or ''. */
export function routedModel(all) {
  list($('ring-model'), all, (m) => m.name, (m) => el('option', { value: m.name, text: m.name }), () => {});
  return $('ring-model').value;
}

/** Shows the routing of the selected model. null: it is not known. */
export function routing(r) {
  $('routing-empty').hidden = (r?.replicas.length ?? 0) > 0;
  text($('routing-recent'), r ? recentWords(r.recent) : '');
  text($('routing-prompt'), r && r.replicas.some((x) => x.predicted_ms > 0) ? `of a new prompt of ${number(r.prompt_tokens)} tokens` : '');
  const most = Math.max(1, ...(r?.replicas ?? []).map((x) => x.waiting_tokens));
  list($('routing'), r?.replicas ?? [], (x) => `${r.model} ${x.id}`, makeRow, (row, x) => updateRow(row, x, r.picked, most));
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
  bar(row.waiting, x.waiting_tokens / most, number(x.waiting_tokens));
  text(rate, x.rate > 0 ? `${number(Math.round(x.rate))}/s` : '–');
  const share = x.recent.prompt_tokens > 0 ? x.recent.cached_tokens / x.recent.prompt_tokens : 0;
  bar(row.cached, share, x.recent.prompt_tokens > 0 ? percent(share) : '–');
  attr(row.cached, 'title', x.recent.prompt_tokens > 0 ? `Predicted: ${percent(x.recent.matched_tokens / x.recent.prompt_tokens)}` : null);
  text(first, duration(x.predicted_ms));
}

/** Fills a bar to a share from 0 to 1. */
function bar(node, share, words) {
  const [whole, label] = node.children;
  whole.firstChild.style.width = `${Math.round(100 * Math.min(1, share))}%`;
  text(label, words);
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
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

async function pick(event) {
  event.preventDefault();
  const model = $('ring-model').value;
  const result = $('ring-result');
  try {
    const answer = await fetch(`/api/v1/models/${encodeURIComponent(model)}/pick`, {
      method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(asked(model, $('ring-key').value)), signal: AbortSignal.timeout(5000),
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error.message);
    result.replaceChildren(...explained(said));
  } catch (e) {
    result.replaceChildren(el('p', { class: 'fault', text: e.message }));
  }
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

$('ring-form').addEventListener('submit', pick);
