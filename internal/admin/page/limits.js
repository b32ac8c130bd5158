// Limits: how the tables show them, and the dialog that changes them at run time.

import { el, attr, redraw } from './dom.js';
import { number, bytes } from './format.js';
import { ask, button, change } from './dialog.js';

// The limits that can be changed. A row holds the field's name, its label in the dialog, and its
// text in a table for a value and for no limit. It also holds the least value, which is the
// default, too. A value of 0 means no limit. A tenant's weight has no text because it has a column
// of its own.
const kinds = {
  models: [
    ['max_concurrent_requests', 'Requests at once', (n) => `${n} at once`, 'any number at once', 0],
    ['max_tokens_per_minute', 'Tokens a minute', (n) => `${n} tokens/min`, 'any tokens/min', 0],
    ['weight', 'Weight in its pools', (n) => `weight ${n}`, 'weight 0', 1],
  ],
  tenants: [
    ['requests_per_minute', 'Requests a minute', (n) => `${n} requests/min`, 'any requests/min', 0],
    ['tokens_per_minute', 'Tokens a minute', (n) => `${n} tokens/min`, 'any tokens/min', 0],
    ['max_concurrent_streams', 'Requests at once, running or waiting', (n) => `${n} at once`, 'any number at once', 0],
    ['max_prefill', 'Requests at once without a first token', (n) => `${n} in prefill`, 'any number in prefill', 0],
    ['weight', 'Weight beside other tenants of its priority', null, null, 1],
  ],
};

// In the tables

/** Returns the file's value of a field, or the default if the file has none. */
function fileValue(limits, field, least) {
  return limits.file[field] ?? least;
}

function part(words, limits, field, least) {
  if (!limits.patched.includes(field)) return { words };
  const file = fileValue(limits, field, least);
  return { words, why: `set at run time; the file says ${file ? number(file) : 'no limit'}` };
}

function parts(kind, limits) {
  const all = [];
  for (const [field, , some, none, least] of kinds[kind]) {
    const value = limits[field];
    if (some && (value > least || limits.patched.includes(field))) all.push(part(value ? some(number(value)) : none, limits, field, least));
  }
  if (limits.max_per_replica) all.push({ words: `${number(limits.max_per_replica)} per replica` });
  if (limits.max_prefill_per_replica) all.push({ words: `${number(limits.max_prefill_per_replica)} in prefill per replica` });
  if (limits.max_prefill_tokens_per_replica) {
    all.push({ words: `${number(limits.max_prefill_tokens_per_replica)} uncached prompt tokens per replica` });
  }
  if (limits.max_queue) all.push({ words: `queue ${number(limits.max_queue)} for ${limits.queue_timeout}` });
  if (limits.max_queue_bytes) all.push({ words: `${bytes(limits.max_queue_bytes)} queued` });
  return all;
}

/**
 * Shows limits in a cell, which may clip them, and marks those that differ from the file. DOM nodes
 * are kept while nothing changes.
 */
export function showLimits(cell, kind, limits) {
  const all = parts(kind, limits);
  show(cell, all);
  attr(cell, 'title', all.map(({ words }) => words).join(' · ') || null);
}

export function showWeight(cell, limits) {
  show(cell, [part(number(limits.weight), limits, 'weight', 1)]);
}

function show(cell, all) {
  redraw(cell, all, () => (all.length === 0 ? [el('span', { class: 'zero', text: 'none' })] : all.flatMap(({ words, why }, i) => [
    i > 0 && ' · ',
    why ? el('span', { class: 'patched', title: why }, words, el('span', { class: 'unseen', text: ` (${why})` })) : words,
  ])));
}

/**
 * Returns the button that opens the dialog, or null for a viewer. current returns the API's row at
 * the time of the click.
 */
export function editButton(kind, name, current) {
  return button('Limits', () => open(kind, name, current().limits), { 'aria-label': `Edit the limits of ${name}` });
}

// The dialog

function open(kind, name, limits) {
  const rows = kinds[kind].map(([field, label, , , least]) => makeField(field, label, least, limits));
  const fill = el('button', { type: 'button', text: 'Fill in the file’s values', click: () => fillInFile(rows) });
  ask({
    title: `Limits of ${kind === 'models' ? 'model' : 'tenant'} ${name}`, confirm: 'Save',
    body: [el('p', { class: 'muted', text: 'A change takes effect at once. It stays in force until the file’s value of the limit changes.' }),
      rows.map((r) => r.node), limits.patched.length > 0 && el('p', {}, fill)].flat().filter(Boolean),
    run: () => save(kind, name, changes(rows, limits)),
  });
}

function makeField(field, label, least, limits) {
  const file = fileValue(limits, field, least);
  const patched = limits.patched.includes(field);
  const hint = el('span', { class: 'sub', id: `limit-hint-${field}`, text: `${patched ? 'Set at run time. ' : ''}The file: ${file ? number(file) : 'no limit'}` });
  const input = el('input', {
    type: 'number', min: least, step: 1, name: field, inputmode: 'numeric', autocomplete: 'off',
    placeholder: least === 0 ? 'no limit' : least, 'aria-describedby': hint.id,
  });
  input.value = limits[field] || '';
  return { field, least, file, input, node: el('label', {}, label, input, hint) };
}

/** Fills in the file's values. They take effect when the operator saves them. */
function fillInFile(rows) {
  for (const r of rows) r.input.value = r.file || '';
  rows[0].input.focus();
}

/**
 * Returns the changed fields. A field that was set to the file's value becomes null, which restores
 * the file's value.
 */
function changes(rows, limits) {
  const changed = {};
  for (const { field, least, file, input } of rows) {
    const value = input.value === '' ? least : Number(input.value);
    if (value !== Math.max(least, limits[field])) changed[field] = value === file ? null : value;
  }
  return changed;
}

async function save(kind, name, changed) {
  if (Object.keys(changed).length === 0) return;
  await change('PATCH', `/api/v1/${kind}/${encodeURIComponent(name)}/limits`, changed, `The limits of ${name} have changed.`);
}
