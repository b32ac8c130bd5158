// The running and the last requests, and one request.

import { el, text, attr, chip, link, facts, amend, redraw, makeChip, panel, pathOf, headingOf } from '../dom.js';
import { makeCandidates } from '../candidates.js';
import { makeTable, twoLines, clipped } from '../table.js';
import { number, duration, clock, moment, otherDay, bytes, count } from '../format.js';
import { keep } from '../router.js';
import { action } from '../dialog.js';
import { get } from '../api.js';

/** Makes the table of requests, newest first. */
export function requestTable(place) {
  return makeTable({
    label: 'requests', place, order: '-time', key: (q) => q.request_id || q.started, href: (q) => pathOf('requests', q.request_id),
    words: (q) => [q.request_id, q.client_request_id, q.model, q.tenant, q.replica, q.status, q.code, q.path, q.cause], empty: 'No requests yet.',
    mark: (node, q) => { attr(node, 'data-request', q.request_id); attr(node, 'data-state', q.state); },
    columns: [
      { id: 'time', title: 'Time', class: 'w-time', value: (q) => Date.parse(q.started), show: (cell, q) => twoLines(cell, clock(q.started), otherDay(q.started), pathOf('requests', q.request_id)) },
      { id: 'model', title: 'Model', class: 'clip', value: (q) => q.model, show: (cell, q) => twoLines(cell, q.model || '–', q.path.replace(/^\/v1\//, '')) },
      { id: 'status', title: 'Status', class: 'w-status', value: (q) => outcome(q)[0], show: showOutcome },
      { id: 'replica', title: 'Replica', class: 'w-model p2 clip', value: (q) => q.replica, show: (cell, q) => clipped(cell, q.replica || q.upstream) },
      { id: 'tenant', title: 'Tenant', class: 'w-name p3 clip', value: (q) => q.tenant, show: (cell, q) => clipped(cell, q.tenant) },
      { id: 'queued', title: 'Waited', class: 'num w-small p4', value: (q) => q.queued_ms, show: (cell, q) => text(cell, q.queued_ms >= 1 ? duration(q.queued_ms) : '–') },
      { id: 'first', title: 'First byte', class: 'num w-small p2', value: (q) => q.first_byte_ms, show: (cell, q) => text(cell, duration(q.first_byte_ms)) },
      { id: 'duration', title: 'Duration', class: 'num w-small', value: (q) => q.duration_ms, show: (cell, q) => text(cell, duration(q.duration_ms)) },
      { id: 'tokens', title: 'Tokens', class: 'num w-small p3', value: (q) => q.tokens_out, show: (cell, q) => text(cell, tokens(q)) },
    ],
  });
}

/** Returns how many tokens a request has made. "~": the engine has not counted them. */
function tokens(q) {
  return q.tokens_out > 0 ? `${q.estimated ? '~' : ''}${number(q.tokens_out)}` : '–';
}

function showOutcome(cell, q) {
  if (!cell.note) cell.append((cell.chip = makeChip()), (cell.note = el('span', { class: 'sub' })));
  chip(cell.chip, ...outcome(q));
  const notes = reasons(q).join(' · ');
  text(cell.note, notes);
  cell.note.hidden = notes === '';
  attr(cell, 'title', [notes, q.details].filter(Boolean).join('\n') || null);
}

/** Says why a request has not ended well. */
function reasons(q) {
  const refusal = q.state === 'done' && q.source === 'gateway' && q.status >= 400;
  const cause = q.cause && q.cause !== 'client' && `ended by ${q.cause.replaceAll('_', ' ')}`;
  return [cause, q.code || (refusal && q.details.split('{')[0].replaceAll('_', ' ')), q.flags, q.attempts > 1 && count(q.attempts, 'attempt')].filter(Boolean);
}

/** Returns the word and the tone of a request's chip. */
function outcome(q) {
  if (q.state === 'queued') return ['queued', 'busy'];
  if (q.state === 'streaming') return [q.stream ? 'streaming' : 'running', 'busy'];
  if (q.cause === 'client' || /\b(DC|DR)\b/.test(q.flags)) return [q.status ? `${q.status}, client left` : 'client left', 'warn'];
  if (q.status === 0) return ['ended', 'idle'];
  if (q.status >= 500) return [String(q.status), 'bad'];
  if (q.status >= 400) return [String(q.status), 'warn'];
  return q.flags || q.cause || q.code ? [`${q.status}, cut`, 'bad'] : [String(q.status), 'ok'];
}

function failed(q) {
  return q.state === 'done' && outcome(q)[1] !== 'ok';
}

const kinds = { all: () => true, running: (q) => q.state !== 'done', failed };
const kindWords = { all: 'All', running: 'Running or queued', failed: 'Failed' };

export function requests(place) {
  const table = requestTable(place);
  const kind = el('select', { 'aria-label': 'Show', change: () => (keep({ show: kind.value === 'all' ? '' : kind.value }), update()) },
    Object.keys(kinds).map((k) => el('option', { value: k, text: kindWords[k] })));
  kind.value = Object.hasOwn(kinds, place.query.get('show')) ? place.query.get('show') : 'all';
  const running = el('span', { class: 'muted' });
  let last = null;
  const update = () => last && table.update(last.requests.filter(kinds[kind.value]));
  return {
    title: 'Requests', needs: ['requests'],
    node: el('div', { class: 'stack' },
      el('div', { class: 'title' }, el('h1', { text: 'Requests' }), running, el('div', { class: 'tools' }, kind), table.tools),
      el('div', { class: 'panel' }, table.node)),
    update(s) {
      last = s;
      text(running, `${number(s.running)} running or queued`);
      update();
    },
  };
}

/** One request, with its timeline. The timeline is read again when the request has come further. */
export function request({ name }) {
  const state = makeChip('loading');
  const tools = el('div', { class: 'tools' });
  const about = el('div', { class: 'card' });
  const story = el('ol', { class: 'timeline' });
  const picked = el('p', { class: 'muted' });
  const past = panel('Timeline', null, story, picked);
  past.hidden = true;
  const candidates = makeCandidates();
  const gone = el('p', { class: 'banner', hidden: true, text: 'The gateway does not know this request any more.' });
  let read = '';
  const tell = async (q) => {
    const far = `${q.state} ${q.status} ${q.replica} ${q.first_byte_ms > 0}`;
    if (far === read) return;
    read = far;
    try {
      const said = await get(`/api/v1/requests/${encodeURIComponent(name)}`);
      redraw(story, said.timeline, (all) => all.map(step));
      redraw(picked, [said.picked, said.trace_url], why);
      candidates.update(said.picked);
      past.hidden = said.timeline.length === 0;
    } catch {
      read = ''; // the next change of the list reads it again
    }
  };
  return {
    title: `Request ${name}`, needs: ['requests'],
    node: el('div', { class: 'stack' },
      el('div', { class: 'title' }, headingOf('Requests', name), state, tools), gone, about, past,
      candidates.node),
    update(s) {
      const q = s.requests.find((x) => x.request_id === name);
      gone.hidden = Boolean(q);
      state.hidden = !q;
      if (!q) return;
      chip(state, ...outcome(q));
      redraw(tools, q.state !== 'done', (on) => [on && cancel(name)]);
      amend(about, q, requestFacts);
      tell(q);
    },
  };
}

function step({ at_ms: at, what, detail }) {
  return el('li', { 'data-what': what }, el('span', { class: 'at', text: at > 0 ? duration(at) : '0 ms' }), el('b', { text: what.replaceAll('_', ' ') }), ' ', el('span', { class: 'muted', text: detail }));
}

/** Says why the replica was picked, and where the trace is. */
function why([picked, trace]) {
  const reasons = picked && [
    `${picked.replica} was picked by ${picked.strategy.replaceAll('_', ' ')}${picked.why && `: ${picked.why.replaceAll('_', ' ')}`}`,
    picked.predicted_ms > 0 && `first token predicted after ${duration(picked.predicted_ms)}`,
    picked.matched_tokens > 0 && `${count(picked.matched_tokens, 'token')} of its prompt cached there`,
  ].filter(Boolean).join(', ');
  return [reasons && `${reasons}. `, trace && el('a', { href: trace, target: '_blank', rel: 'noopener noreferrer', text: 'Trace' })];
}

function cancel(id) {
  return action('Cancel', { title: 'Cancel this request?', why: 'The request ends at once. A client without an answer gets an error.',
    path: `/api/v1/requests/${encodeURIComponent(id)}/cancel`, done: 'The request is cancelled.' });
}

function requestFacts(q) {
  return facts([
    ['Model', link('models', q.model)], ['Replica', link('replicas', q.replica)], ['Tenant', q.tenant && link('tenants', q.tenant)],
    ['Call', el('code', { text: `${q.method} ${q.path}`.trim() })], ['Client’s id', q.client_request_id],
    ['Began', moment(q.started)], ['Waited', q.queued_ms >= 1 ? duration(q.queued_ms) : 'not at all'],
    ['First byte after', duration(q.first_byte_ms)], ['Took', duration(q.duration_ms)], ['Tokens made', tokens(q)],
    ['Finish reason', q.finish_reason], ['Outcome', reasons(q).join(' · ')], ['Details', q.details],
    ['Attempts', number(q.attempts)], ['Way', q.route], ['Answered by', q.source], ['Bytes', `${bytes(q.bytes_in)} in, ${bytes(q.bytes_out)} out`],
    ['Server', q.upstream && el('code', { text: q.upstream })], ['Trace', q.trace_id && el('code', { text: q.trace_id })],
  ]);
}
