// The router: which view a URL shows. Links inside the page change the view without loading the
// page.

const routes = new Map(); // the first part of a path → [view of the list, view of one]

/**
 * Sets the views of a path: of /kind, and of /kind/NAME. A view is a func that is called with a
 * place.
 */
export function route(kind, all, one = null) {
  routes.set(kind, [all, one]);
}

/**
 * Returns the view of the browser's URL and its place: the kind, the name ('' for a list), and the
 * query. The view is null for an unknown URL.
 */
export function current() {
  const [kind, ...rest] = location.pathname.slice(1).split('/');
  const views = routes.get(kind);
  const raw = rest.join('/').replace(/\/$/, '');
  const place = { kind, name: decoded(raw), query: new URLSearchParams(location.search) };
  return [raw === '' ? views?.[0] ?? null : views?.[1] ?? null, place];
}

function decoded(s) {
  try {
    return decodeURIComponent(s);
  } catch {
    return s;
  }
}

/** Goes to a path of the page. */
export function go(path) {
  if (path === location.pathname + location.search) return;
  history.pushState(null, '', path);
  document.dispatchEvent(new Event('navigate'));
}

/**
 * Writes values into the query of the URL, without a new entry in the history. Empty values leave
 * the query.
 */
export function keep(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value === '' || value === null) query.delete(name);
    else query.set(name, value);
  }
  const search = query.size > 0 ? `?${query}` : '';
  if (search !== location.search) history.replaceState(null, '', location.pathname + search);
}

function clicked(event) {
  const a = event.target.closest?.('a[href]');
  if (!a || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || a.target) return;
  const url = new URL(a.href);
  if (url.origin !== location.origin || !routes.has(url.pathname.slice(1).split('/')[0]) || url.hash) return;
  event.preventDefault();
  go(url.pathname + url.search);
}

document.addEventListener('click', clicked);
addEventListener('popstate', () => document.dispatchEvent(new Event('navigate')));
