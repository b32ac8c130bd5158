// Building blocks of the page: DOM nodes, keyed lists and the format of numbers. Data of the API is
// inserted as text and never as markup.

/** Makes an element. Props are attributes, except text, which is the element's text. Children are nodes or strings. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === 'text') node.textContent = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
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
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/**
 * Makes the nodes of items the children of parent, in order. A node is made once for each key and then
 * updated in place. It is moved only when the order changes, so that focus and selection are kept.
 */
export function list(parent, items, key, make, update) {
  const known = parent.known ?? (parent.known = new Map());
  const seen = new Set();
  let next = parent.firstChild;
  for (const item of items) {
    const k = key(item);
    if (seen.has(k)) continue;
    seen.add(k);
    let node = known.get(k);
    if (!node) {
      node = make(item);
      known.set(k, node);
    }
    update(node, item);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  for (const [k, node] of known) {
    if (!seen.has(k)) {
      node.remove();
      known.delete(k);
    }
  }
}

/** Shows a state as a chip. The tone selects its colour and shape. */
export function chip(node, words, tone) {
  text(node, words);
  attr(node, 'data-tone', tone);
}

const tones = {
  ready: 'ok', live: 'ok', external: 'ok',
  starting: 'busy', pending: 'busy', draining: 'warn', degraded: 'warn',
  failed: 'bad', down: 'bad',
};

/** Returns the tone of a state of a model, a replica or Envoy. */
export function tone(state) {
  return tones[state] ?? 'idle';
}

/** Makes a bar with a text such as "3 / 8". setLoad fills it. */
export function makeLoad() {
  const bar = el('div', { class: 'bar', 'aria-hidden': 'true' }, el('i'));
  return el('div', { class: 'load' }, bar, el('span'));
}

/** Shows a load. If bound is 0, no bound is known and the bar is relative to maxLoad. */
export function setLoad(node, load, bound, maxLoad) {
  const [bar, words] = node.children;
  const whole = bound > 0 ? bound : Math.max(maxLoad, 1);
  bar.firstChild.style.width = `${Math.min(100, (100 * load) / whole)}%`;
  attr(bar, 'data-full', bound > 0 && load >= bound ? '' : null);
  text(words, bound > 0 ? `${load} / ${bound}` : load);
}

/** Formats a number: 1234567 becomes "1,234,567". */
export function number(n) {
  return n.toLocaleString('en');
}

/** Formats milliseconds: "12 ms", "1.24 s", "3 min 5 s". 0 means unknown and becomes "–". */
export function duration(ms) {
  if (!ms) return '–';
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  return span(ms / 1000);
}

/** Formats seconds in their two largest units: "45 s", "3 min 5 s", "2 h 10 min", "4 d 3 h". */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Formats the time from an ISO time to now. now must be of the same machine's clock. */
export function ago(iso, now) {
  return iso ? span((now - Date.parse(iso)) / 1000) : '–';
}

/** Formats an ISO time in the browser's time zone. */
export function clock(iso) {
  return iso ? new Date(iso).toLocaleTimeString('en-GB') : '–';
}

/** Formats a number of bytes: "812 B", "14.2 kB", "3.1 MB". */
export function bytes(n) {
  if (n < 1000) return `${n} B`;
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} kB`;
  if (n < 1e9) return `${(n / 1e6).toFixed(1)} MB`;
  return `${(n / 1e9).toFixed(1)} GB`;
}
