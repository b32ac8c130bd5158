// Keys: those of the file and of run time. Operators make and revoke the latter.

import { el, text, attr, redraw } from '../dom.js';
import { makeTable, twoLines, clipped } from '../table.js';
import { moment, number, short } from '../format.js';
import { get, send } from '../api.js';
import { ask, action, button, tell } from '../dialog.js';
import { poll } from '../store.js';

const limits = [['requests_per_minute', 'Requests per minute'], ['tokens_per_minute', 'Tokens per minute'], ['max_concurrent_streams', 'Requests at once']];
const budgets = [
  { name: 'tokens_day', title: 'Tokens per day', of: 'tokens', per: 'day' },
  { name: 'cost_month', title: 'Cost per month', of: 'cost', per: 'month' },
];
const every = 5000; // ms between two reads

export function keys(place) {
  const fault = el('p', { class: 'fault', role: 'alert', hidden: true });
  const tools = el('div', { class: 'tools' });
  const read = async () => {
    try {
      table.update((await get('/api/v1/keys')).keys);
      fault.hidden = true;
    } catch (e) {
      text(fault, e.message);
      fault.hidden = false;
    }
  };
  const table = keyTable(place, read);
  return {
    title: 'Keys', needs: ['tenants'],
    node: el('div', { class: 'stack' }, el('div', { class: 'title' }, el('h1', { text: 'Keys' }), tools, table.tools),
      fault, el('div', { class: 'panel' }, table.node)),
    update: (s) => redraw(tools, s.tenants.map((t) => t.name), (tenants) => [button('New key', () => make(tenants, read))]),
    close: poll(read, every),
  };
}

function keyTable(place, changed) {
  return makeTable({
    label: 'keys', place, order: 'tenant', key: (k) => k.usage_key, empty: 'There are no keys.',
    words: (k) => [k.usage_key, k.name, k.prefix, k.source, ...k.models],
    mark: (node, k) => attr(node, 'data-key', k.id),
    columns: [
      { id: 'tenant', title: 'Tenant', class: 'clip', value: (k) => k.tenant, show: (cell, k) => twoLines(cell, k.tenant, k.name) },
      { id: 'id', title: 'Key', class: 'w-name clip', value: (k) => k.id, show: (cell, k) => twoLines(cell, k.id, k.prefix ? `${k.prefix}…` : 'of the file') },
      { id: 'models', title: 'Models', class: 'p3 clip', value: (k) => k.models.join(), show: (cell, k) => clipped(cell, usable(k)) },
      { id: 'limits', title: 'Limits', class: 'p2 w-limits clip', show: showLimited },
      { id: 'used', title: 'Last used', class: 'w-model p2 clip', value: (k) => (k.last_used ? Date.parse(k.last_used) : 0), show: (cell, k) => text(cell, k.last_used ? moment(k.last_used) : 'never') },
      { id: 'expires', title: 'Ends', class: 'w-model p3 clip', value: (k) => (k.expires ? Date.parse(k.expires) : Infinity), show: (cell, k) => twoLines(cell, k.expires ? moment(k.expires) : 'never', k.created ? `made ${moment(k.created).slice(0, 10)}` : '') },
      { id: 'act', title: 'Revoke', class: 'w-act', value: (k) => k.source, show: (cell, k) => redraw(cell, k.source, (source) => [source === 'runtime' ? revoke(k, changed) : 'in the file']) },
    ],
  });
}

/** Returns the models that a key may use. */
function usable(k) {
  return k.models.includes('*') ? 'all' : k.models.join(', ') || 'none';
}

/** Returns how much of each limit and budget of a key is used, in words, the most used first. */
function limited(k) {
  const unit = { requests_per_minute: 'req/min', tokens_per_minute: 'tok/min', max_concurrent_streams: 'at once' };
  const all = Object.entries(k.quota).map(([name, q]) => ({ used: q.used, limit: q.limit, unit: unit[name] ?? name }));
  for (const b of k.budgets) all.push({ used: b.used, limit: b.hard || b.soft, unit: `${b.of === 'tokens' ? 'tok' : b.of}/${b.per}` });
  return all.sort((a, b) => b.used / b.limit - a.used / a.limit);
}

/**
 * Shows how much of the limits of a key is used, on two lines. The tooltip has all, with all
 * digits.
 */
function showLimited(cell, k) {
  const all = limited(k);
  const words = (some) => some.map((u) => `${short(u.used)}/${short(u.limit)} ${u.unit}`).join(' · ');
  const whole = all.map((u) => `${number(u.used)} of ${number(u.limit)} ${u.unit}`).join('\n');
  const half = Math.ceil(all.length / 2);
  twoLines(cell, words(all.slice(0, half)) || '–', words(all.slice(half)));
  for (const line of cell.lines) attr(line, 'title', whole || null);
}

function revoke(k, changed) {
  return action('Revoke', {
    title: `Revoke ${k.name || k.prefix}?`, why: `Clients of ${k.tenant} with this key are refused from now on. Requests that run go on.`,
    method: 'DELETE', path: `/api/v1/keys/${encodeURIComponent(k.id)}`, done: 'The key is revoked.', then: changed,
  });
}

/** Asks for a new key, and shows it once. */
function make(tenants, changed) {
  ask({
    title: 'New key', confirm: 'Make',
    body: [
      el('label', {}, 'Tenant', el('select', { name: 'tenant' }, tenants.map((t) => el('option', { value: t, text: t })))),
      el('label', {}, 'Name', el('input', { name: 'name', maxlength: '100', autocomplete: 'off' })),
      el('label', {}, 'Models, with commas (empty: those of the tenant)', el('input', { name: 'models', autocomplete: 'off' })),
      ...limits.map(([name, title]) => el('label', {}, `${title} (empty: no limit of its own)`, el('input', { name, type: 'number', min: '1' }))),
      ...budgets.map(({ name, title }) => el('label', {}, `${title} (empty: no budget of its own)`, el('input', { name, type: 'number', min: '0', step: 'any' }))),
      el('label', {}, 'Days until it ends (empty: never)', el('input', { name: 'expires', type: 'number', min: '1', max: '3650' })),
    ],
    run: async (form) => {
      const days = Number(form.elements.expires.value);
      const models = form.elements.models.value.trim();
      const said = await send('POST', '/api/v1/keys', {
        tenant: form.elements.tenant.value, name: form.elements.name.value,
        ...(models !== '' && { models: models.split(',').map((name) => name.trim()).filter(Boolean) }),
        limits: Object.fromEntries(limits.map(([name]) => [name, Number(form.elements[name].value)])),
        budgets: budgets.map(({ name, of, per }) => ({ of, per, hard: Number(form.elements[name].value) })).filter((b) => b.hard > 0),
        ...(days > 0 && { expires: new Date(get.now + days * 86_400_000).toISOString() }),
      });
      tell(`The key of ${said.tenant} works at all gateways within a second.`);
      changed();
      setTimeout(() => ask({ title: `The key of ${said.tenant}`, body: [
        el('p', { text: 'Copy it now. Sluice keeps only its hash and cannot show it again.' }), el('p', {}, el('code', { class: 'secret', text: said.key })),
      ] }));
    },
  });
}
