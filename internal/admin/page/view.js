// Building blocks of the page: DOM nodes, keyed lists and words for figures. Everything foreign goes in as text, never as
// markup.

/** Makes an element. Props are attributes, except "class", "text" and data-* as usual; children are nodes or strings. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === 'text') node.textContent = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Sets a node's text, if it differs: a selection in unchanged text survives. */
export function text(node, value) {
  const s = String(value);
  if (node.textContent !== s) node.textContent = s;
}

/** Sets or, for null and false, removes an attribute. */
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/**
 * Makes the children of parent the nodes of items, in order: nodes are made once for each key, updated in place and moved
 * only when the order changes, so that focus and selection survive.
 */
export function list(parent, items, key, make, update) {
  const known = parent.known ?? (parent.known = new Map());
  const seen = new Set();
  let at = parent.firstChild;
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
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  for (const [k, node] of known) {
    if (!seen.has(k)) {
      node.remove();
      known.delete(k);
    }
  }
}

/** Shows a state as a chip: its tone is a colour and a shape. */
export function chip(node, words, tone) {
  text(node, words);
  attr(node, 'data-tone', tone);
}

const tones = {
  ready: 'ok', live: 'ok', external: 'ok',
  starting: 'busy', pending: 'busy', draining: 'warn', degraded: 'warn',
  failed: 'bad', down: 'bad',
};

/** The tone of a model's, a replica's or Envoy's state. */
export function tone(state) {
  return tones[state] ?? 'idle';
}

/** A load as a bar with its words: "3 / 8". Without a bound the bar is relative to most. */
export function makeLoad() {
  const bar = el('div', { class: 'bar', 'aria-hidden': 'true' }, el('i'));
  return el('div', { class: 'load' }, bar, el('span'));
}

export function setLoad(node, load, bound, most) {
  const [bar, words] = node.children;
  const whole = bound > 0 ? bound : Math.max(most, 1);
  bar.firstChild.style.width = `${Math.min(100, (100 * load) / whole)}%`;
  attr(bar, 'data-full', bound > 0 && load >= bound ? '' : null);
  text(words, bound > 0 ? `${load} / ${bound}` : load);
}

/** 1234567 → "1,234,567" */
export function number(n) {
  return n.toLocaleString('en');
}

/** Milliseconds as people say them: "12 ms", "1.24 s", "3 min 5 s". Nothing for 0, which means not known. */
export function duration(ms) {
  if (!ms) return '–';
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  return span(ms / 1000);
}

/** Seconds as the two largest units: "45 s", "3 min 5 s", "2 h 10 min", "4 d 3 h". */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** How long ago an ISO time was, against the same machine's clock. */
export function ago(iso, now) {
  return iso ? span((now - Date.parse(iso)) / 1000) : '–';
}

/** An ISO time as the operator's clock shows it. */
export function clock(iso) {
  return iso ? new Date(iso).toLocaleTimeString('en-GB') : '–';
}

/** Bytes: "812 B", "14.2 kB", "3.1 MB". */
export function bytes(n) {
  if (n < 1000) return `${n} B`;
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} kB`;
  if (n < 1e9) return `${(n / 1e6).toFixed(1)} MB`;
  return `${(n / 1e9).toFixed(1)} GB`;
}
