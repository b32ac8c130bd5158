// The table: thousands of rows with a filter, an order and the keyboard. Only the rows that can be
// seen have DOM nodes. The filter and the order are in the query of the URL.

import { el, text, attr, list } from './dom.js';
import { go, keep } from './router.js';
import { number } from './format.js';

const rowHeight = 44; // pixels, as in style.css
const margin = 8; // rows outside of the visible part that have nodes

// Orders texts by the numbers in them: chat-2 comes before chat-10.
const texts = new Intl.Collator('en', { numeric: true });

let tables = 0; // numbers the ids

/**
 * Makes a table. Its options:
 *   label     what the rows are, for screen readers
 *   columns   { id, title, class, value, show }. The column is ordered by value(row), a number or a
 *             text. Without value the column has no order. show(cell, row) fills a cell. The first
 *             column is the row's header.
 *   key       returns the key of a row, which stays the same
 *   href      returns the path that a click on the row or Enter goes to; optional
 *   words     returns the texts that the filter searches; without it there is no filter
 *   order     the id of the column that the rows are ordered by at first, with "-" before it for
 *             descending
 *   place     the place of the view: its query holds filter and order; null: they are not kept
 *   empty     what a table without rows says
 *   mark      called with a row's node and the row; optional
 */
export function makeTable(options) {
  return new Table(options);
}

/** Makes the view of a list: a table alone. rows returns its rows of the state. */
export function tableView(title, need, table, rows) {
  return {
    title, needs: [need],
    node: el('div', { class: 'stack' }, el('div', { class: 'title' }, el('h1', { text: title }), table.tools), el('div', { class: 'panel' }, table.node)),
    update: (s) => table.update(rows(s)),
  };
}

class Table {
  constructor(options) {
    Object.assign(this, { order: '', href: null, words: null, place: null, mark: null, empty: 'Nothing.' }, options);
    this.id = `table-${++tables}`;
    this.all = [];
    this.rows = [];
    this.active = null; // the key of the row that the keyboard is at
    this.filter = this.place?.query.get('q') ?? '';
    this.order = this.place?.query.get('sort') ?? this.order;
    this.build();
  }

  build() {
    this.counted = el('span', { class: 'count', role: 'status' });
    this.before = el('td'); // one cell, because a wider one would add columns where some are hidden
    this.after = el('td');
    this.body = el('tbody');
    this.heads = this.columns.map((c) => this.head(c));
    this.table = el('table', { role: 'grid', tabindex: '0', 'aria-label': this.label, keydown: (e) => this.pressed(e) },
      el('thead', {}, el('tr', { 'aria-rowindex': '1' }, this.heads)), spacer(this.before), this.body, spacer(this.after));
    this.scroller = el('div', { class: 'scroll', scroll: () => this.draw() }, this.table);
    this.hint = el('p', { class: 'empty', hidden: true });
    this.tools = this.words ? el('div', { class: 'table-tools' }, this.counted, this.search()) : null;
    this.node = el('div', { class: 'table' }, this.scroller, this.hint);
    this.body.addEventListener('click', (e) => this.clicked(e));
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    this.showOrder();
  }

  search() {
    const input = el('input', {
      type: 'search', class: 'filter', placeholder: 'Filter', 'aria-label': `Filter ${this.label}`, autocomplete: 'off', spellcheck: 'false',
      input: () => this.setFilter(input.value),
      keydown: (e) => e.key === 'ArrowDown' && (e.preventDefault(), this.table.focus()),
    });
    input.value = this.filter;
    return input;
  }

  head(column) {
    const th = el('th', { scope: 'col', class: column.class });
    if (!column.value) th.append(column.title);
    else th.append(el('button', { type: 'button', text: column.title, click: () => this.orderBy(column.id) }));
    return th;
  }

  // What is shown

  /** Shows these rows. */
  update(rows) {
    this.all = rows;
    this.arrange();
  }

  setFilter(filter) {
    this.filter = filter;
    if (this.place) keep({ q: filter });
    this.scroller.scrollTop = 0;
    this.arrange();
  }

  /** Orders by a column: first downwards for numbers and upwards for texts, then the other way. */
  orderBy(id) {
    const up = this.order === `-${id}`;
    const { value } = this.columns.find((c) => c.id === id);
    const numeric = this.all.length > 0 && typeof value(this.all[0]) === 'number';
    const down = this.order === id || (numeric && !up);
    this.order = down ? `-${id}` : id;
    if (this.place) keep({ sort: this.order });
    this.showOrder();
    this.arrange();
  }

  showOrder() {
    this.columns.forEach((c, i) => {
      const ordered = this.order.replace(/^-/, '') === c.id;
      attr(this.heads[i], 'aria-sort', ordered ? (this.order.startsWith('-') ? 'descending' : 'ascending') : null);
    });
  }

  /** Filters and orders the rows. The first visible row stays, unless it is the first of all. */
  arrange() {
    const top = Math.floor(this.scroller.scrollTop / rowHeight);
    const anchor = top > 0 && this.rows[top] ? this.key(this.rows[top]) : null;
    this.rows = this.ordered(this.filtered());
    if (anchor !== null) {
      const now = this.rows.findIndex((r) => this.key(r) === anchor);
      if (now > 0 && now !== top) {
        this.pad(0);
        this.scroller.scrollTop += (now - top) * rowHeight;
      }
    }
    const many = this.rows.length === this.all.length ? number(this.all.length) : `${number(this.rows.length)} of ${number(this.all.length)}`;
    text(this.counted, many);
    attr(this.table, 'aria-rowcount', this.rows.length + 1);
    this.scroller.hidden = this.rows.length === 0;
    this.hint.hidden = this.rows.length > 0;
    text(this.hint, this.all.length > 0 ? 'Nothing matches the filter.' : this.empty);
    this.draw();
  }

  filtered() {
    const wanted = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    if (wanted.length === 0 || !this.words) return [...this.all];
    return this.all.filter((row) => {
      const s = this.words(row).join(' ').toLowerCase();
      return wanted.every((w) => s.includes(w));
    });
  }

  ordered(rows) {
    const column = this.columns.find((c) => c.id === this.order.replace(/^-/, ''));
    if (!column?.value) return rows;
    const sign = this.order.startsWith('-') ? -1 : 1;
    const values = new Map(rows.map((r) => [r, column.value(r)]));
    return rows.sort((a, b) => {
      const [x, y] = [values.get(a), values.get(b)];
      if (typeof x === 'string' && typeof y === 'string') return sign * texts.compare(x, y);
      return x === y ? 0 : x > y ? sign : -sign;
    });
  }

  /** Gives nodes to the rows that can be seen, and room to the others. */
  draw() {
    const seen = Math.ceil((this.scroller.clientHeight || 600) / rowHeight);
    const first = Math.max(0, Math.min(Math.floor(this.scroller.scrollTop / rowHeight), this.rows.length - seen) - margin);
    const shown = this.rows.slice(first, first + seen + 2 * margin);
    this.pad(first, this.rows.length - first - shown.length);
    let index = first;
    list(this.body, shown, this.key, () => this.makeRow(), (node, row) => this.fill(node, row, ++index));
    this.showActive();
  }

  pad(before, after = this.rows.length - before) {
    setHeight(this.before, before);
    setHeight(this.after, after);
  }

  makeRow() {
    return el('tr', {}, this.columns.map((c, i) => el(i === 0 ? 'th' : 'td', { class: c.class, scope: i === 0 ? 'row' : null })));
  }

  fill(node, row, index) {
    node.row = row;
    attr(node, 'aria-rowindex', index + 1);
    attr(node, 'id', `${this.id}-${index}`);
    this.columns.forEach((c, i) => c.show(node.children[i], row));
    this.mark?.(node, row);
  }

  // The keyboard and the mouse

  pressed(event) {
    const own = event.target === this.table; // else a button or a link in it has the focus
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    const at = this.rows.findIndex((r) => this.key(r) === this.active);
    if (event.key === 'Enter' && own && at >= 0 && this.href) go(this.href(this.rows[at]));
    else if (event.key in steps) this.moveTo(at < 0 ? (event.key === 'End' ? this.rows.length - 1 : 0) : at + steps[event.key]);
    else return;
    event.preventDefault();
  }

  moveTo(index) {
    if (this.rows.length === 0) return;
    const at = Math.max(0, Math.min(index, this.rows.length - 1));
    this.active = this.key(this.rows[at]);
    const head = this.heads[0].offsetHeight;
    const top = at * rowHeight;
    const s = this.scroller;
    if (top < s.scrollTop) s.scrollTop = top;
    else if (top + rowHeight + head > s.scrollTop + s.clientHeight) s.scrollTop = top + rowHeight + head - s.clientHeight;
    this.draw();
    this.body.known.get(this.active)?.scrollIntoView?.({ block: 'nearest' });
  }

  showActive() {
    let id = null;
    for (const node of this.body.children) {
      const on = this.active !== null && this.key(node.row) === this.active;
      attr(node, 'data-active', on);
      attr(node, 'aria-selected', on ? 'true' : null);
      if (on) id = node.id;
    }
    attr(this.table, 'aria-activedescendant', id);
  }

  clicked(event) {
    if (!this.href || event.target.closest('a, button') || String(getSelection()) !== '') return;
    const row = event.target.closest('tr')?.row;
    if (row) go(this.href(row));
  }
}

function spacer(cell) {
  return el('tbody', { class: 'spacer', 'aria-hidden': 'true' }, el('tr', {}, cell));
}

function setHeight(cell, rows) {
  cell.parentNode.parentNode.hidden = rows <= 0;
  const height = `${Math.max(0, rows) * rowHeight}px`;
  if (cell.style.height !== height) cell.style.height = height;
}

// What cells show

/**
 * Puts a main line, which may be a link, and a smaller second line into a cell. In a narrow window
 * the second line begins with narrow. That is what stands in a column that such a window has no
 * room for.
 */
export function twoLines(cell, main, sub = '', path = null, narrow = '') {
  if (!cell.lines) {
    cell.narrow = el('span', { class: 'narrow' });
    cell.sub = el('span');
    cell.lines = [el(path ? 'a' : 'span', { class: 'name', tabindex: path ? '-1' : null }), el('span', { class: 'sub' }, cell.narrow, cell.sub)];
    cell.append(...cell.lines);
  }
  if (path) attr(cell.lines[0], 'href', path);
  text(cell.lines[0], main);
  attr(cell.lines[0], 'title', main);
  text(cell.narrow, narrow && sub ? `${narrow} · ` : narrow);
  text(cell.sub, sub || '');
  attr(cell.lines[1], 'title', [narrow, sub].filter(Boolean).join(' · ') || null);
  cell.lines[1].hidden = !sub && !narrow;
}

/** Puts a line into a cell that may clip it. The tooltip shows the whole line. */
export function clipped(cell, s, whole = s) {
  text(cell, s || '–');
  attr(cell, 'title', whole || null);
}

/** Puts a number into a cell. 0 is dim. */
export function figure(cell, n) {
  text(cell, number(n));
  cell.classList.toggle('zero', n === 0);
}

/** Returns the node that a cell holds. The first call makes it. */
export function held(cell, make) {
  if (!cell.firstChild) cell.append(make());
  return cell.firstChild;
}
