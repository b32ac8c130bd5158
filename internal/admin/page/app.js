// The page's frame: the header, the menu, and the view of the browser's URL.

import { el, text, attr, chip, focusView } from './dom.js';
import { span, clock, count } from './format.js';
import { route, current } from './router.js';
import { state, start, want, pause } from './store.js';
import { session } from './session.js';
import { attention } from './views/conditions.js';
import { overview } from './views/overview.js';
import { models, model } from './views/models.js';
import { replicas, replica } from './views/replicas.js';
import { tenants, tenant } from './views/tenants.js';
import { requests, request } from './views/requests.js';
import { nodes } from './views/nodes.js';
import { configuration } from './views/configuration.js';
import { routing } from './views/routing.js';
import { playground } from './views/playground.js';
import { usage } from './views/usage.js';
import { keys } from './views/keys.js';

const $ = (id) => document.getElementById(id);

// A view is a func of a place. It returns { title, node, needs, update, close }. needs are names
// for want of store.js. When all of these have come, update is called with the state after each
// change. close is called at the end.
const pages = [
  ['Overview', '', overview],
  ['Models', 'models', models, model],
  ['Replicas', 'replicas', replicas, replica],
  ['Nodes', 'nodes', nodes],
  ['Requests', 'requests', requests, request],
  ['Tenants', 'tenants', tenants, tenant],
  ['Keys', 'keys', keys],
  ['Usage', 'usage', usage],
  ['Routing', 'routing', routing],
  ['Configuration', 'configuration', configuration],
  ['Playground', 'playground', playground],
];

let view = null; // the view in sight
const links = new Map(); // the links of the menu by kind

function build() {
  for (const [words, kind, all, one] of pages) {
    route(kind, all, one);
    const badge = el('span', { class: 'badge' });
    const a = el('a', { href: `/${kind}` }, words, badge);
    links.set(kind, { a, badge });
    $('nav').append(a);
  }
}

/** Shows the view of the browser's URL. The focus moves to it, as after a click on a link. */
async function navigate(event) {
  const [make, place] = current();
  view?.close?.();
  view = make ? make(place) : unknown();
  $('view').replaceChildren(view.node);
  for (const [kind, { a }] of links) attr(a, 'aria-current', kind === place.kind ? 'page' : null);
  open(false);
  if (event?.type === 'navigate') {
    scrollTo(0, 0);
    focusView();
  }
  show();
  await want(view.needs ?? []);
}

function unknown() {
  return { title: 'Not found', node: el('div', { class: 'stack' }, el('h1', { text: 'There is no such page' }), el('p', {}, el('a', { href: '/', text: 'Overview' }))) };
}

// The frame

function show() {
  const faults = attention(state.conditions, state.status);
  header();
  connection();
  links.get('models').badge.textContent = state.models.length || '';
  links.get('replicas').badge.textContent = state.replicas.length || '';
  const title = typeof view?.title === 'function' ? view.title() : view?.title;
  const mark = state.lost ? '(!) ' : faults.length > 0 ? `(${faults.length}) ` : '';
  document.title = `${mark}${title} · Sluice`;
  text($('announce'), faults.length === 0 ? '' : count(faults.length, 'thing needs attention', 'things need attention'));
  if (['status', ...(view?.needs ?? [])].every((name) => state.known.has(name))) view?.update?.(state);
}

function header() {
  const s = state.status;
  if (!s) return;
  text($('version'), s.version);
  text($('uptime'), `up ${span(s.uptime_s)}`);
  if (state.lost) chip($('readiness'), 'unreachable', 'bad');
  else chip($('readiness'), s.ready ? 'ready' : 'not ready', s.ready ? 'ok' : 'bad');
}

function connection() {
  const fault = state.lost
    ? `Sluice has not answered since ${clock(state.lost)}. This is the last known state.` : state.fault || state.refused;
  text($('offline'), fault);
  $('offline').hidden = fault === '';
  $('view').classList.toggle('stale', state.lost !== null);
}

/** Opens or closes the menu of a narrow screen. */
function open(on) {
  attr($('menu'), 'aria-expanded', String(on));
  $('nav').classList.toggle('open', on);
}

function pressed() {
  pause();
  attr($('pause'), 'aria-pressed', String(state.paused));
  text($('pause'), state.paused ? 'Paused' : 'Pause');
}

/** "/" goes to the filter of the view. Escape closes the menu of a narrow screen. */
function shortcut(event) {
  if (event.key === 'Escape' && $('nav').classList.contains('open')) {
    if ($('nav').contains(document.activeElement)) $('menu').focus();
    open(false);
  }
  if (event.key !== '/' || event.target.closest('input, textarea, select') || event.ctrlKey || event.metaKey) return;
  const filter = document.querySelector('#view input[type=search]');
  if (filter) {
    event.preventDefault();
    filter.focus();
  }
}

build();
document.addEventListener('state', show);
document.addEventListener('navigate', navigate);
document.addEventListener('session', navigate);
document.addEventListener('keydown', shortcut);
$('menu').addEventListener('click', () => open($('menu').getAttribute('aria-expanded') !== 'true'));
$('pause').addEventListener('click', pressed);
document.querySelector('.skip').addEventListener('click', (event) => (event.preventDefault(), $('main').focus()));
await session();
await navigate();
start();
