// The conditions that need the operator's attention.

import { el, list, makeChip, pathOf, prose } from '../dom.js';
import { words } from '../format.js';

/**
 * Returns what needs attention: { what, why, severity, subject, type }. A normal start and a change
 * that waits for a restart do not.
 */
export function attention(conditions, status) {
  const all = (status?.reasons ?? []).map((why) => ({ what: 'Not ready', why, severity: 'error', subject: '', type: '' }));
  for (const c of conditions) {
    if (c.severity === 'info') continue;
    all.push({ what: c.type === 'ModelReady' ? 'Model not ready' : words(c.type), why: c.message, severity: c.severity, subject: c.subject, type: c.type });
  }
  return all.sort((a, b) => order(a) - order(b));
}

/** Errors come before warnings. */
function order(c) {
  return c.severity === 'error' ? 0 : 1;
}

const pagesOf = { ModelReady: 'models', ReplicaFailed: 'replicas', ReplicaSuspended: 'replicas', ReplicaPending: 'models' };

/** Returns the path of what a condition is about; '' if the page has none. */
function pathOfSubject({ type, subject }) {
  if (pagesOf[type]) return pathOf(pagesOf[type], subject);
  if (type === 'UpstreamUnreachable') return '/nodes'; // the servers of others are there, too
  if (type !== 'BudgetReached') return '';
  const [, of, name] = subject.match(/^(tenant|key) (.+), \w+ per \w+$/) ?? [];
  if (!name) return '/keys';
  return pathOf('tenants', of === 'key' ? name.slice(0, name.lastIndexOf('/')) : name); // it shows the budgets of its keys, too
}

/** Makes the panel of what needs attention. It is hidden while nothing does. */
export function makeAttention() {
  const items = el('ul');
  const node = el('section', { class: 'panel attention', 'aria-label': 'Needs attention', hidden: true }, items);
  return {
    node,
    update(all) {
      node.hidden = all.length === 0;
      node.dataset.severity = all.some((c) => c.severity === 'error') ? 'error' : 'warning';
      list(items, all, (c) => `${c.type || c.why} ${c.subject}\n${c.what}\n${c.severity}`, makeItem, (item, c) => prose(item.why, c.why || 'The reason is unknown.'));
    },
  };
}

function makeItem(c) {
  const href = c.subject && pathOfSubject(c);
  const item = el('li', {}, makeChip(c.what, c.severity === 'error' ? 'bad' : 'warn'), ' ',
    c.subject && (href ? el('a', { href, text: c.subject }) : el('b', { text: c.subject })));
  item.why = el('p', { class: 'why' });
  item.append(item.why);
  return item;
}
