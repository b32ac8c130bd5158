// The tenants, and one tenant.

import { el, text, attr, panel, facts, amend, pathOf, headingOf } from '../dom.js';
import { makeTable, tableView, twoLines, figure } from '../table.js';
import { number, bytes, count } from '../format.js';
import { showLimits, showWeight, editButton } from '../limits.js';
import { makeQuota, mostUsed, showMostUsed } from '../quota.js';
import { requestTable } from './requests.js';

function tenantTable(place) {
  return makeTable({
    label: 'tenants', place, order: 'name', key: (t) => t.name, href: (t) => pathOf('tenants', t.name),
    words: (t) => [t.name, t.priority, ...t.models], empty: 'No tenants. The file names them under tenants.',
    mark: (node, t) => attr(node, 'data-tenant', t.name),
    columns: [
      { id: 'name', title: 'Tenant', value: (t) => t.name, show: (cell, t) => twoLines(cell, t.name, access(t), pathOf('tenants', t.name)) },
      { id: 'priority', title: 'Priority', class: 'w-small p2', value: (t) => t.priority, show: (cell, t) => text(cell, t.priority || 'default') },
      { id: 'weight', title: 'Weight', class: 'num w-small p3', value: (t) => t.weight, show: (cell, t) => showWeight(cell, t.limits) },
      { id: 'running', title: 'Running', class: 'num w-small', value: (t) => t.running, show: (cell, t) => figure(cell, t.running) },
      { id: 'prefill', title: 'Prefill', class: 'num w-small p4', value: (t) => t.prefill, show: (cell, t) => figure(cell, t.prefill) },
      { id: 'queued', title: 'Queued', class: 'num w-small', value: (t) => t.queued, show: (cell, t) => figure(cell, t.queued) },
      { id: 'used', title: 'Most used limit', class: 'w-load', value: mostUsed, show: showMostUsed },
      { id: 'limits', title: 'Limits', class: 'p2 w-limits clip', show: (cell, t) => showLimits(cell, 'tenants', t.limits) },
    ],
  });
}

/** Returns how many keys a tenant has, and which models it may use. */
function access(t) {
  return `${count(t.keys, 'key')} · ${usable(t)}`;
}

function usable(t) {
  return t.models.includes('*') ? 'all models' : t.models.join(', ') || 'no models';
}

export function tenants(place) {
  return tableView('Tenants', 'tenants', tenantTable(place), (s) => s.tenants);
}

/** One tenant. */
export function tenant({ name }) {
  const tools = el('div', { class: 'tools' });
  const about = el('div', { class: 'card' });
  const quota = makeQuota();
  const used = panel('Use of limits and budgets', null, quota.node);
  const requests = requestTable(null);
  const gone = el('p', { class: 'banner', hidden: true, text: 'This tenant does not exist any more.' });
  let shown = null;
  return {
    title: name, needs: ['tenants', 'requests'],
    node: el('div', { class: 'stack' },
      el('div', { class: 'title' }, headingOf('Tenants', name), tools),
      gone, about, used, panel('Last requests', requests.tools, requests.node)),
    update(s) {
      const t = s.tenants.find((x) => x.name === name);
      gone.hidden = Boolean(t);
      if (!t) return;
      shown = t;
      if (!tools.firstChild) tools.append(editButton('tenants', name, () => shown) ?? '');
      amend(about, t, tenantFacts);
      used.hidden = mostUsed(t) < 0;
      quota.update(t, s.now);
      requests.update(s.requests.filter((q) => q.tenant === name));
    },
  };
}

function tenantFacts(t) {
  const limits = el('span');
  showLimits(limits, 'tenants', t.limits);
  return facts([
    ['Priority', t.priority || 'default'], ['Weight', number(t.weight)], ['Keys', number(t.keys)], ['Models', usable(t)],
    ['Running', number(t.running)], ['Of them without a first token', number(t.prefill)], ['Queued', number(t.queued)],
    ['Limits', limits], ['Queue', t.limits.max_queue_bytes > 0 ? `at most ${bytes(t.limits.max_queue_bytes)}` : ''],
  ]);
}
