// The configuration: the file in force, the faults of a newer one, and its reload.

import { el, chip, facts, makeChip, amend, redraw, panel, link } from '../dom.js';
import { moment, ago, count, number } from '../format.js';
import { action } from '../dialog.js';
import { checkButton } from '../reload.js';

export function configuration() {
  const state = makeChip('loading');
  const tools = el('div', { class: 'tools' });
  const about = el('div', { class: 'card' });
  const faults = el('section', { class: 'panel attention', 'aria-label': 'Faults of the newest file', hidden: true });
  const pools = el('div', { class: 'pools' });
  const pooled = panel('Pools', null, pools);
  return {
    title: 'Configuration', needs: ['pools'],
    node: el('div', { class: 'stack' }, el('div', { class: 'title' }, el('h1', { text: 'Configuration' }), state, tools), faults, about, pooled),
    update(s) {
      const c = s.status.config;
      chip(state, c.held ? 'held back' : c.faults.length > 0 ? count(c.faults.length, 'fault') : 'in force', c.faults.length > 0 ? 'bad' : 'ok');
      redraw(tools, [c.path !== '', c.held], buttons);
      faults.hidden = c.faults.length === 0;
      redraw(faults, c.faults, (all) => el('ul', {}, all.map((f) => el('li', {}, el('p', { class: 'why', text: f })))));
      amend(about, [c, ago(c.loaded_at, s.now)], fileFacts);
      pooled.hidden = s.pools.length === 0;
      amend(pools, s.pools, (all) => el('dl', { class: 'facts' }, all.map((p) => el('div', {}, el('dt', { text: p.name }),
        el('dd', {}, p.models.flatMap((m, i) => [i > 0 ? ', ' : '', link('models', m)]), p.queued > 0 && ` · ${number(p.queued)} queued`)))));
    },
  };
}

function buttons([hasFile, held]) {
  if (!hasFile) return [];
  return [
    checkButton(),
    action('Reload', { title: 'Read the file again?', why: 'If the file has no faults, it takes effect at once.', path: '/api/v1/reload',
      done: 'The file is in force.', danger: false }),
    held && action('Load it anyway', { title: 'Load the file that is held back?', why: 'Sluice holds the file back because it would remove everything. See the faults.',
      path: '/api/v1/reload', body: { force: true }, done: 'The file is in force.' }),
  ];
}

function fileFacts([c, since]) {
  return facts([
    ['File', c.path ? el('code', { class: 'wrap', text: c.path }) : 'none'], ['Loaded', c.loaded_at && `${moment(c.loaded_at)}, ${since} ago`],
    ['Takes effect at the next start', c.needs_restart.join(', ')],
  ]);
}
