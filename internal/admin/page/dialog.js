// Actions: buttons that ask before they change something, and tell what became of it.

import { el, text, focusView } from './dom.js';
import { send } from './api.js';
import { operates } from './session.js';
import { refresh } from './store.js';

/** Tells the operator what became of an action, also by a screen reader. */
export function tell(words, tone = 'ok') {
  const note = document.getElementById('note');
  note.dataset.tone = tone;
  text(note, words);
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => text(note, ''), 8000);
}

/**
 * Opens a dialog. body are nodes; run is called when the operator confirms, with the form, and
 * closes the dialog unless it throws. Without confirm, the dialog has only a button that closes it.
 */
export function ask({ title, body = [], confirm = '', danger = false, run = () => {} }) {
  const fault = el('p', { class: 'fault', role: 'alert', hidden: true });
  const ok = confirm && el('button', { type: 'submit', class: danger ? 'danger' : 'primary', text: confirm });
  const leave = !confirm ? 'Close' : confirm === 'Cancel' ? 'Back' : 'Cancel'; // two buttons have two names
  const form = el('form', { class: 'form', method: 'dialog' }, el('h2', { text: title }), body, fault, el('p', { class: 'buttons' },
    ok, el('button', { type: 'button', text: leave, click: () => dialog.close() })));
  const dialog = el('dialog', { 'aria-label': title, close: () => {
    dialog.remove();
    // The button that has opened the dialog may be gone.
    if (document.activeElement === document.body) focusView();
  } }, form);
  dialog.fail = (message) => {
    text(fault, message);
    fault.hidden = false;
  };
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (ok) ok.disabled = true;
    fault.hidden = true;
    try {
      await run(form, dialog);
      dialog.close();
    } catch (e) {
      dialog.fail(e.message);
      if (e.param) form.elements[e.param]?.focus();
    }
    if (ok) ok.disabled = false;
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Has the API change something, says that it has, and reads the state anew. */
export async function change(method, path, body, done) {
  await send(method, path, body);
  tell(done);
  refresh();
}

/**
 * Returns a button that asks and then calls the API, or null for a viewer. done is what the page
 * says when the call has worked.
 */
export function action(words, { title, why, method = 'POST', path, body = {}, done, danger = true, then = () => {} }) {
  return button(words, () => ask({
    title, confirm: words, danger, body: [el('p', { text: why })],
    run: async () => {
      await change(method, path, body, done);
      then();
    },
  }));
}

/** Returns a button, or null for a viewer. */
export function button(words, click, props = {}) {
  return operates() ? el('button', { type: 'button', text: words, click, ...props }) : null;
}
