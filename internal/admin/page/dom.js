// Building blocks of the page: DOM nodes and keyed lists. Data of the API is inserted as text and
// never as markup.

/**
 * Makes an element. Props are attributes, except text, which is the element's text, and functions,
 * which listen to the event of their name. Children are nodes or strings; null and false are left
 * out.
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === 'text') node.textContent = value;
    else if (typeof value === 'function') node.addEventListener(name, value);
    else attr(node, name, value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false && c !== ''));
  return node;
}

/** Sets a node's text if it differs, so that a selection in unchanged text is kept. */
export function text(node, value) {
  const s = String(value);
  if (node.textContent !== s) node.textContent = s;
}

/** Sets an attribute, or removes it if the value is null, undefined or false. */
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? '' : value);
}

/** Gives the view the focus, without a scroll. */
export function focusView() {
  document.getElementById('main').focus({ preventScroll: true });
}

/**
 * Makes the nodes of items the children of parent, in order. A node is made once for each key and
 * then updated in place. It is moved only when the order changes, so that focus and selection are
 * kept.
 */
export function list(parent, items, key, make, update = () => {}) {
  const known = parent.known ?? (parent.known = new Map());
  const kept = new Set();
  for (const item of items) kept.add(key(item));
  for (const [k, node] of known) {
    if (!kept.has(k)) {
      if (node.contains(document.activeElement)) focusView();
      node.remove();
      known.delete(k);
    }
  }
  let next = parent.firstChild;
  for (const item of items) {
    const k = key(item);
    if (!kept.delete(k)) continue; // the key occurs twice
    let node = known.get(k);
    if (!node) {
      node = make(item);
      known.set(k, node);
    }
    update(node, item);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
}

/**
 * Fills a select with models. It first shows the model of the name wanted, else the first one that
 * is ready.
 */
export function chooseFrom(select, models, wanted) {
  const first = select.options.length === 0;
  list(select, models, (m) => m.name, (m) => el('option', { value: m.name, text: m.name }));
  if (first) select.value = (models.find((m) => m.name === wanted) ?? models.find((m) => m.state === 'ready'))?.name;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}

/**
 * Makes a table for few rows, with what scrolls it. heads are the titles of the columns with their
 * classes. The caller fills the rows.
 */
export function smallTable(label, heads) {
  const rows = el('tbody');
  const titles = heads.map(([title, c]) => el('th', { scope: 'col', class: c, text: title }));
  const table = el('table', {}, el('thead', {}, el('tr', {}, titles)), rows);
  return { node: el('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': label }, table), table, titles, rows };
}

/** Makes the heading of the view of one thing, with a link to the list of all. */
export function headingOf(all, name) {
  return el('h1', {}, el('a', { href: `/${all.toLowerCase()}`, text: all }), ' / ', name);
}

/**
 * Replaces the children of a node if what they show has changed. what is any JSON value. If a child
 * has the focus, the child in its place gets it, or else the view.
 */
export function redraw(node, what, make) {
  const key = JSON.stringify(what);
  if (node.drawn === key) return;
  node.drawn = key;
  const at = [...node.children].indexOf(document.activeElement);
  node.replaceChildren(...[make(what)].flat().filter(Boolean));
  if (at < 0) return;
  if (node.children[at]) node.children[at].focus({ preventScroll: true });
  else focusView();
}

/**
 * Does as redraw, but keeps the nodes that are equal, and so the focus and the selection in them.
 * make returns nodes that listen to nothing.
 */
export function amend(node, what, make) {
  const key = JSON.stringify(what);
  if (node.drawn === key) return;
  node.drawn = key;
  become(node, [make(what)].flat().filter(Boolean));
}

/** Makes the children of a node equal to these, and replaces only what differs. */
function become(node, children) {
  const old = [...node.childNodes];
  if (old.length !== children.length) {
    node.replaceChildren(...children);
    return;
  }
  old.forEach((was, i) => {
    if (was.isEqualNode(children[i])) return;
    if (was.hasChildNodes() && tagOf(was) === tagOf(children[i])) become(was, [...children[i].childNodes]);
    else was.replaceWith(children[i]);
  });
}

/** Returns the name of a node with its attributes, of which texts have none. */
function tagOf(node) {
  return [node.nodeName, ...[...node.attributes ?? []].map((a) => `${a.name}=${a.value}`)].join('\n');
}

const tones = {
  ready: 'ok', live: 'ok', external: 'ok', connected: 'ok', active: 'ok',
  starting: 'busy', pending: 'busy', loading: 'busy', draining: 'warn', drained: 'warn', degraded: 'warn', lost: 'bad',
  failed: 'bad', down: 'bad',
};

/**
 * Returns the tone of a state of a model, a replica or Envoy: the colour and the shape of its chip.
 */
export function tone(state) {
  return tones[state] ?? 'idle';
}

/** Makes a chip: a state in a word. */
export function makeChip(words = '', t = 'idle') {
  return el('span', { class: 'chip', 'data-tone': t, text: words });
}

/** Shows a state as a chip. */
export function chip(node, words, t = tone(words)) {
  text(node, words);
  attr(node, 'data-tone', t);
}

/** Shows text in a node. What stands between backticks is code. */
export function prose(node, words) {
  if (node.words === words) return;
  node.words = words;
  node.replaceChildren(...words.split(/`([^`\n]+)`/).map((part, i) => (i % 2 === 1 ? el('code', { text: part }) : part)));
}

/** Makes a bar with a text such as "3 / 8". setLoad and setShare fill it. */
export function makeLoad() {
  const bar = el('div', { class: 'bar', 'aria-hidden': 'true' }, el('i'));
  return el('div', { class: 'load' }, bar, el('span'));
}

/** Shows a load. If bound is 0, no bound is known and the bar is relative to maxLoad. */
export function setLoad(node, load, bound, maxLoad) {
  const whole = bound > 0 ? bound : Math.max(maxLoad, 1);
  setShare(node, load / whole, bound > 0 ? `${load} / ${bound}` : load);
  attr(node.firstChild, 'data-full', bound > 0 && load >= bound);
}

/** Fills a bar to a share from 0 to 1. */
export function setShare(node, share, words) {
  const [bar, label] = node.children;
  const width = `${Math.round(100 * Math.min(1, share))}%`;
  if (bar.firstChild.style.width !== width) bar.firstChild.style.width = width;
  text(label, words);
}

/**
 * Makes a list of facts. Rows are [name, value, class], where a value is text or a node; empty ones
 * are left out.
 */
export function facts(rows) {
  const shown = rows.filter((r) => r && r[1] !== '' && r[1] !== null && r[1] !== undefined);
  return el('dl', { class: 'facts' }, shown.map(([name, value, style]) => el('div', { class: style }, el('dt', { text: name }), el('dd', {}, value instanceof Node ? value : String(value)))));
}

let panels = 0; // numbers the ids of headings

/** Makes a section with a heading. tools are nodes beside the heading. */
export function panel(title, tools, ...children) {
  const id = `panel-${++panels}`;
  return el('section', { class: 'panel', 'aria-labelledby': id },
    el('div', { class: 'panel-head' }, el('h2', { id }, title), el('div', { class: 'tools' }, tools)), children);
}

/** Makes a link to a page of a thing: link('models', 'chat'). An empty name gives "–". */
export function link(kind, name, words = name) {
  return name ? el('a', { href: pathOf(kind, name), text: words }) : '–';
}

/** Returns the path of the page of a thing. */
export function pathOf(kind, name) {
  return `/${kind}/${encodeURIComponent(name)}`;
}
