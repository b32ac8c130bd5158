// Limits: how the tables show them, and the dialog that changes them at run time.

import { el, text, number, bytes } from './view.js';

const $ = (id) => document.getElementById(id);
const patchTimeout = 10000; // ms until a change fails

// The limits that can be changed. A row holds the field's name, its label in the dialog, its text in
// a table for a value and for no limit, and its least value, which is also its default. A value of 0
// means no limit. A tenant's weight has no text because it has a column of its own.
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

/** Shows limits in a cell, and marks those that differ from the file. DOM nodes are kept while nothing changes. */
export function showLimits(cell, kind, limits) {
  show(cell, parts(kind, limits));
}

export function showWeight(cell, limits) {
  show(cell, [part(number(limits.weight), limits, 'weight', 1)]);
}

function show(cell, all) {
  const key = JSON.stringify(all);
  if (cell.shows === key) return;
  cell.shows = key;
  const nodes = all.flatMap(({ words, why }, i) => [
    i > 0 ? ' · ' : '',
    why ? el('span', { class: 'patched', title: why }, words, el('span', { class: 'unseen', text: ` (${why})` })) : words,
  ]);
  cell.replaceChildren(...(all.length > 0 ? nodes : ['none']));
  cell.classList.toggle('zero', all.length === 0);
}

/** Returns the button that opens the dialog. current returns the API's row at the time of the click. */
export function editButton(kind, name, current) {
  const button = el('button', { type: 'button', class: 'edit', 'aria-label': `Edit the limits of ${name}`, text: 'Edit' });
  button.addEventListener('click', () => open(kind, name, current().limits));
  return button;
}

// The dialog

let edited = null; // { kind, name, limits, rows } of the dialog that was opened last

function open(kind, name, limits) {
  const rows = kinds[kind].map(([field, label, , , least]) => makeField(field, label, least, limits));
  edited = { kind, name, limits, rows };
  text($('limits-title'), `Limits of ${kind === 'models' ? 'model' : 'tenant'} ${name}`);
  $('limits-fields').replaceChildren(...rows.map((r) => r.node));
  $('limits-file').hidden = limits.patched.length === 0;
  fail('');
  busy(false);
  $('limits-dialog').showModal();
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
function fillInFile() {
  for (const r of edited.rows) r.input.value = r.file || '';
  edited.rows[0].input.focus();
}

/** Returns the changed fields. A field that was set to the file's value becomes null, which restores the file's value. */
function changes() {
  const changed = {};
  for (const { field, least, file, input } of edited.rows) {
    const value = input.value === '' ? least : Number(input.value);
    if (value !== Math.max(least, edited.limits[field])) changed[field] = value === file ? null : value;
  }
  return changed;
}

async function save(event) {
  event.preventDefault();
  const asked = edited; // before the answer arrives, the operator may close the dialog and open another
  const changed = changes();
  if (Object.keys(changed).length === 0) {
    $('limits-dialog').close();
    return;
  }
  busy(true);
  const [limits, fault] = await send(asked, changed);
  if (limits) done(asked, limits);
  if (edited !== asked) return;
  busy(false);
  if (fault) fail(fault.message, fault.param);
  else $('limits-dialog').close();
}

/** Sends a change. Returns the new limits, or the error. */
async function send({ kind, name }, changed) {
  try {
    const answer = await fetch(`/api/v1/${kind}/${encodeURIComponent(name)}/limits`, {
      method: 'PATCH', headers: { 'content-type': 'application/json' }, body: JSON.stringify(changed), signal: AbortSignal.timeout(patchTimeout),
    });
    const said = await answer.json();
    return answer.ok ? [said, null] : [null, said.error];
  } catch {
    return [null, { message: 'Sluice did not answer. It is unknown whether the limits have changed.' }];
  }
}

function done({ kind, name }, limits) {
  text($('limits-result'), `The limits of ${name} have changed.`);
  document.dispatchEvent(new CustomEvent('limits', { detail: { kind, name, limits } }));
}

function fail(message, field) {
  text($('limits-fault'), message);
  $('limits-fault').hidden = message === '';
  edited.rows.find((r) => r.field === field)?.input.focus();
}

function busy(on) {
  $('limits-save').disabled = on;
}

$('limits-form').addEventListener('submit', save);
$('limits-cancel').addEventListener('click', () => $('limits-dialog').close());
$('limits-file').addEventListener('click', fillInFile);
