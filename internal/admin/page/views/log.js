// The log of a replica's engine: its last lines, and those that come.

import { el, text, panel } from '../dom.js';
import { failure } from '../api.js';
import { looking } from '../store.js';

const tail = 500; // lines at first
const most = 3000; // lines that the page keeps
const again = 2000; // milliseconds until an interrupted log is read again

/** Makes the panel of the log of a replica. */
export function makeLog(id) {
  const lines = el('pre', { class: 'log', tabindex: '0', role: 'log', 'aria-label': `Log of ${id}` });
  const note = el('p', { class: 'empty' });
  const search = el('input', { type: 'search', class: 'filter', placeholder: 'Search', 'aria-label': 'Search the log', autocomplete: 'off', spellcheck: 'false', maxlength: '200', change: () => (lines.replaceChildren(), seen()) });
  let reading = null; // the AbortController of the call

  const say = (words) => { text(note, words); note.hidden = words === ''; lines.hidden = words !== ''; };
  const add = (more) => {
    if (more.length === 0) return;
    const below = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    say('');
    lines.append(...more.map((line) => el('span', { text: `${line}\n` })));
    while (lines.childElementCount > most) lines.firstElementChild.remove();
    if (below) lines.scrollTop = lines.scrollHeight;
  };
  /** Reads the log until it ends. The first lines replace those of a reading before. */
  const follow = async (signal) => {
    const query = new URLSearchParams({ tail, follow: true, search: search.value });
    const answer = await fetch(`/api/v1/replicas/${encodeURIComponent(id)}/log?${query}`, { signal });
    if (!answer.ok) throw await failure(answer);
    let first = true;
    for await (const more of linesOf(answer.body)) {
      if (first) lines.replaceChildren();
      first = false;
      add(more);
    }
  };
  /** Reads the log, and again when the reading was interrupted, as by a restart of Sluice. */
  const open = async () => {
    const mine = new AbortController();
    reading = mine;
    while (!mine.signal.aborted) {
      try {
        await follow(mine.signal);
      } catch (e) {
        if (mine.signal.aborted) return;
        if (lines.childElementCount === 0) say(e.message);
        if (e.status > 0) return; // Sluice has answered, and would answer the same again
      }
      await new Promise((resolve) => setTimeout(resolve, again));
    }
  };
  // A browser has few connections to one host for all its tabs. A tab that nobody sees keeps none.
  const seen = () => {
    reading?.abort();
    if (lines.childElementCount === 0) say(looking() ? 'No lines.' : 'The page is paused.');
    if (looking()) open();
  };
  document.addEventListener('looking', seen);
  seen();
  return {
    node: panel('Log', search, lines, note),
    close: () => {
      document.removeEventListener('looking', seen);
      reading?.abort();
    },
  };
}

/** Yields the lines of a stream, several at once. */
async function* linesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    yield lines;
  }
}
