// The reload of the configuration file: what it would change, and then the reload itself.

import { el } from './dom.js';
import { count, number } from './format.js';
import { APIError, send } from './api.js';
import { ask, button, change, tell } from './dialog.js';

/** Returns the button that reads the file and shows what it would change, or null for a viewer. */
export function checkButton() {
  return button('Check the file', async (event) => {
    const pressed = event.currentTarget;
    pressed.disabled = true;
    try {
      show(await send('POST', '/api/v1/reload?dry_run=true'));
    } catch (e) {
      if (e instanceof APIError && e.status === 422) showFaults(e.message);
      else tell(e.message, 'bad');
    }
    pressed.disabled = false;
  });
}

/** Shows the faults of the file, a line each. */
function showFaults(message) {
  const lines = message.split('\n').filter(Boolean);
  ask({ title: 'The file has faults', body: [el('p', { text: 'It cannot take effect. The configuration in force stays.' }),
    el('ul', { class: 'plan' }, lines.map((line) => el('li', {}, el('p', { class: 'why', text: line }))))] });
}

/** Shows what the file would change. The dialog reloads the file when the operator confirms. */
function show(plan) {
  const changes = plan.changed.length > 0 || plan.restart_required.length > 0;
  if (!changes) {
    ask({ title: 'The file changes nothing', body: [el('p', { text: 'It has no faults, and says what is in force.' })] });
    return;
  }
  const replaced = plan.changed.reduce((n, c) => n + c.replaces.length + c.ends.length, 0);
  ask({
    title: 'What the file would change', confirm: plan.needs_force ? 'Reload anyway' : 'Reload', danger: replaced > 0 || plan.needs_force !== '',
    body: [
      plan.needs_force && el('p', { class: 'fault', text: plan.needs_force }),
      el('p', { text: `${count(plan.changed.length, 'change')}, ${replaced > 0 ? `${count(replaced, 'replica')} replaced or ended` : 'no replica is replaced'}.` }),
      el('ul', { class: 'plan', tabindex: '0', 'aria-label': 'Changes' }, plan.changed.map(makeChange)),
      plan.restart_required.length > 0 && el('p', { text: `Takes effect at the next start only: ${plan.restart_required.join(', ')}.` }),
    ].filter(Boolean),
    run: () => change('POST', '/api/v1/reload', plan.needs_force ? { force: true } : {}, 'The file is in force.'),
  });
}

function makeChange(c) {
  const lines = [
    c.fields.length > 0 && c.change === 'changed' && c.fields.join(', '),
    c.replaces.length > 0 && `replaces ${named(c.replaces)}`, c.ends.length > 0 && `ends ${named(c.ends)}`,
  ].filter(Boolean);
  return el('li', { 'data-change': c.change }, el('b', { text: `${c.what.replaceAll('_', ' ')} ${c.name}`.trim() }), ` ${c.change}`,
    lines.map((s) => el('span', { class: 'sub', text: s })));
}

/** Names the first replicas of a list, and counts the others. */
function named(ids) {
  const more = ids.length - 8;
  return ids.slice(0, 8).join(', ') + (more > 0 ? ` and ${number(more)} more` : '');
}
