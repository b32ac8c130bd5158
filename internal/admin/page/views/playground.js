// The playground: a chat with a model, and the request that it sends as curl and as Python. The API
// passes the request on to the clients' listener, where it meets the same checks and limits as any
// other.

import { el, text, chooseFrom, link, panel } from '../dom.js';
import { duration, number, clientsURL } from '../format.js';
import { errorOf, get } from '../api.js';
import { tell } from '../dialog.js';
import { operates } from '../session.js';
import { keep } from '../router.js';

let key = ''; // the key of a tenant; kept while the page is open and nowhere else

export function playground(place) {
  if (!operates()) return { title: 'Playground', node: el('div', { class: 'stack' }, el('h1', { text: 'Playground' }), el('p', { text: 'The role viewer may only read.' })) };
  const form = makeSettings(place);
  const talk = el('div', { class: 'talk', role: 'log', 'aria-label': 'Conversation', tabindex: '0' });
  let messages = [];
  const code = makeCode();
  let running = null; // the AbortController of the answer that streams

  const question = el('textarea', { rows: '3', placeholder: 'Say something', required: true, keydown: (e) => e.key === 'Enter' && !e.shiftKey && !e.isComposing && (e.preventDefault(), ask.requestSubmit()) });
  const send = el('button', { type: 'submit', class: 'primary', text: 'Send' });
  const stop = el('button', { type: 'button', text: 'Stop', hidden: true, click: () => running?.abort() });
  const clear = el('button', { type: 'button', text: 'Clear', click: () => (running?.abort(), messages = [], talk.replaceChildren(), show()) });
  const show = () => code.show(body([...messages, { role: 'user', content: question.value || 'Hello' }]));
  const body = (all) => form.body(all);
  const busy = (on) => { send.disabled = on; stop.hidden = !on; };

  const ask = el('form', { class: 'ask', submit: async (event) => {
    event.preventDefault();
    if (question.value.trim() === '' || running) return;
    const asked = messages; // another list after Clear
    asked.push({ role: 'user', content: question.value });
    bubble(talk, 'user', question.value);
    question.value = '';
    running = new AbortController();
    busy(true);
    const answer = bubble(talk, 'assistant', '');
    const said = await chat(body(asked), answer, running.signal, () => talk.scrollTo(0, talk.scrollHeight));
    if (said) asked.push({ role: 'assistant', content: said });
    else asked.pop();
    running = null;
    busy(false);
    show();
  } }, el('label', {}, el('span', { class: 'unseen', text: 'Message' }), question), el('div', { class: 'buttons' }, send, stop, clear));

  question.addEventListener('input', show);
  form.node.addEventListener('input', show);
  return {
    title: 'Playground', needs: ['live'],
    node: el('div', { class: 'stack' }, el('h1', { text: 'Playground' }), el('div', { class: 'split' },
      el('div', { class: 'panel chat' }, talk, ask), el('div', { class: 'stack' }, form.node, code.node))),
    update(s) {
      form.update(s);
      code.url = clientsURL(s.status);
      show();
    },
    close: () => running?.abort(),
  };
}

/** Makes the settings: the model, the key and the parameters. */
function makeSettings(place) {
  const wanted = place.query.get('model');
  const model = el('select', { name: 'model', change: () => keep({ model: model.value }) });
  const secret = el('input', { type: 'password', autocomplete: 'off', spellcheck: 'false', placeholder: 'needed if the gateway asks for keys', input: () => { key = secret.value.trim(); } });
  secret.value = key;
  const system = el('textarea', { rows: '2', placeholder: 'none' });
  const tokens = el('input', { type: 'number', min: '1', step: '1', value: '512' });
  const temperature = el('input', { type: 'number', min: '0', max: '2', step: '0.1', placeholder: 'the engine’s' });
  const field = (words, input) => el('label', {}, words, input);
  return {
    node: el('section', { class: 'card form', 'aria-label': 'Settings' }, field('Model', model), field('Key of a tenant', secret), field('System prompt', system),
      el('div', { class: 'pair' }, field('At most tokens', tokens), field('Temperature', temperature))),
    update(s) {
      chooseFrom(model, s.models.filter((m) => m.task === '' || m.task === 'text-generation'), wanted);
    },
    body(messages) {
      const all = system.value.trim() ? [{ role: 'system', content: system.value }, ...messages] : messages;
      return {
        model: model.value, messages: all, stream: true, ...(Number(tokens.value) > 0 && { max_tokens: Number(tokens.value) }),
        ...(temperature.value !== '' && { temperature: Number(temperature.value) }),
      };
    },
  };
}

/** Adds a message to the conversation. */
function bubble(talk, role, words) {
  const node = el('div', { class: `bubble ${role}` });
  node.thoughts = el('p', { class: 'thoughts', hidden: true });
  node.words = el('p', { class: 'words', text: words });
  node.figures = el('p', { class: 'sub' });
  node.append(node.thoughts, node.words, node.figures);
  talk.append(node);
  talk.scrollTo(0, talk.scrollHeight);
  return node;
}

/** Streams an answer into a bubble. Returns the answer's text; '' if there is none. */
async function chat(body, node, signal, moved) {
  const began = performance.now();
  const figures = { first: 0, tokens: 0, finish: '', id: '' };
  let said = '';
  let thoughts = ''; // what the model says before its answer; it is not sent back
  try {
    const answer = await fetch('/api/v1/playground', {
      method: 'POST', signal, body: JSON.stringify(body), headers: { 'content-type': 'application/json', ...(key && { 'x-playground-key': key }) },
    });
    figures.id = answer.headers.get('x-request-id') ?? '';
    if (!answer.ok) throw await refused(answer);
    for await (const event of events(answer.body)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices?.[0];
      figures.finish = choice?.finish_reason ?? figures.finish;
      const more = choice?.delta?.content ?? '';
      const thought = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning ?? ''; // engines differ in the name
      if (more === '' && thought === '') continue;
      figures.first ||= performance.now() - began;
      figures.tokens++;
      said += more;
      thoughts += thought;
      text(node.words, said);
      text(node.thoughts, thoughts);
      node.thoughts.hidden = thoughts === '';
      tellFigures(node, figures, performance.now() - began);
      moved();
    }
  } catch (e) {
    if (!signal.aborted) node.append(el('p', { class: 'fault', role: 'alert', text: e.message }));
    figures.finish = signal.aborted ? 'stopped' : figures.finish;
  }
  tellFigures(node, figures, performance.now() - began);
  if (figures.id) node.figures.append(' · ', link('requests', figures.id, 'request'));
  return said;
}

/**
 * Returns the error of an answer. The clients' listener answers 401 to a wrong key of a tenant, and
 * the API does so after the end of the login. The status tells which: reading it shows the login
 * after its end.
 */
async function refused(answer) {
  if (answer.status === 401) get('/api/v1/status').catch(() => {});
  return errorOf(answer);
}

function tellFigures(node, { first, tokens, finish }, whole) {
  const rate = tokens > 1 && whole > first ? `${number(Math.round((tokens - 1) / ((whole - first) / 1000)))} chunks/s` : '';
  text(node.figures, [first && `first token ${duration(first)}`, rate, finish && `finish: ${finish}`, duration(whole)].filter(Boolean).join(' · '));
}

/** Yields the events of a stream, parsed. */
async function* events(stream) {
  let rest = '';
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith('data:') ? line.slice(5).trim() : '';
      if (data !== '' && data !== '[DONE]') yield JSON.parse(data);
    }
  }
}

/** Makes the panel of the request as curl and as Python. */
function makeCode() {
  const pre = el('pre', { class: 'code', tabindex: '0' });
  const made = { url: '', body: null };
  let language = 'curl';
  const tabs = ['curl', 'Python'].map((name) => el('button', { type: 'button', 'aria-pressed': String(name === language), text: name, click: () => choose(name) }));
  // A page that was loaded by http from another machine may not write to the clipboard.
  const copy = navigator.clipboard && el('button', { type: 'button', text: 'Copy', click: async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      tell('The request is copied.');
    } catch (e) { // somebody has forbidden it
      tell(`The request is not copied: ${e.message}`, 'bad');
    }
  } });
  const draw = () => made.body && text(pre, language === 'curl' ? curl(made.url, made.body) : python(made.url, made.body));
  const choose = (name) => {
    language = name;
    tabs.forEach((t) => t.setAttribute('aria-pressed', String(t.textContent === name)));
    draw();
  };
  return {
    node: panel('The request', [...tabs, copy], pre),
    set url(url) { made.url = url; },
    show(body) { made.body = body; draw(); },
  };
}

function curl(url, body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const header = key ? ' \\\n  -H "authorization: Bearer $API_KEY"' : '';
  return `curl -N ${url}/chat/completions \\\n  -H 'content-type: application/json'${header} \\\n  -d '${quoted}'`;
}

function python(url, { model, messages, ...rest }) {
  const given = Object.entries({ ...rest, stream: undefined }).filter(([, v]) => v !== undefined).map(([k, v]) => `    ${k}=${JSON.stringify(v)},\n`).join('');
  const lines = messages.map((m) => `        ${JSON.stringify(m)},\n`).join('');
  return `${key ? 'import os\n\n' : ''}from openai import OpenAI

client = OpenAI(base_url="${url}", api_key=${key ? 'os.environ["API_KEY"]' : '"none"'})
stream = client.chat.completions.create(
    model=${JSON.stringify(model)},
    messages=[
${lines}    ],
${given}    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}
