// Reads streams of Sluice in Chromium, as a page would: fetch() with a ReadableStream, and a
// WebSocket.
//
//     GATEWAY_URL=http://127.0.0.1:8080 MODEL=m API_KEY=sk-… PAGE=file:///…/chat.html \
//       LISTED=http://127.0.0.1:1 UNLISTED=http://127.0.0.1:2 node browser.mjs
//
// MODEL must be served by a simulated engine with 100 ms between tokens and heartbeats far below a
// second. The requests come from a page of the gateway's own origin. Others come from any page of
// LISTED, which the gateway has in cors.origins, and from one of UNLISTED, which it has not. PAGE
// is a page of another origin that holds a conversation over a WebSocket
// (examples/realtime/chat.html). The script prints "ok <check>" for every check. The first check
// that fails ends the script with a line that says why. More settings: CHROMIUM (default
// /usr/bin/chromium), NODE_MODULES (the directory of playwright-core, default
// .tools/node/node_modules of this repository).
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { expect } from './checks.mjs';

const { GATEWAY_URL, MODEL, API_KEY, PAGE, LISTED, UNLISTED, CHROMIUM = '/usr/bin/chromium' } = process.env;
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const { chromium } = createRequire(packages + '/')('playwright-core');
const timeout = 90_000;

// inTime is the promise, or an error that says what has not come.
function inTime(promise, what) {
  const late = new Promise((_, reject) => { setTimeout(() => reject(new Error(`${what} has not come`)), timeout).unref(); });
  return Promise.race([promise, late]);
}

// fetched runs in the page. It returns the text of a streamed response, to its end or up to an
// event.
async function fetched({ headers, body, events = Infinity }) {
  const response = await fetch('/v1/chat/completions', {
    method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(body),
  });
  let text = '';
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  while ((text.match(/^data: .*\n\n/gm) ?? []).length < events) {
    const { done, value } = await reader.read();
    if (done) break;
    text += value;
  }
  await reader.cancel();
  return { status: response.status, type: response.headers.get('content-type'), text };
}

// conversed runs in the page. It returns the messages of one answer on a WebSocket. The engine may
// go on when the tokens of the credit have come.
function conversed({ protocols, start }) {
  return new Promise((resolve) => {
    const socket = new WebSocket(`${location.origin.replace('http', 'ws')}/v1/realtime`, protocols);
    const all = { messages: [] };
    socket.onopen = () => { all.protocol = socket.protocol; socket.send(JSON.stringify(start)); };
    socket.onclose = (e) => resolve({ ...all, code: e.code });
    socket.onmessage = (e) => {
      const message = JSON.parse(e.data);
      all.messages.push(message);
      const tokens = all.messages.filter((m) => m.type === 'token').length;
      if (message.type === 'token' && tokens === start.credit) socket.send(JSON.stringify({ type: 'credit', tokens: 1000 }));
      if (['final', 'error'].includes(message.type)) socket.close(1000);
    };
  });
}

const messages = [{ role: 'user', content: 'hello' }];

async function checkFetch(page) {
  const headers = { authorization: `Bearer ${API_KEY}` };
  const body = { model: MODEL, messages, stream: true, max_tokens: 15, ignore_eos: true };
  const whole = await page.evaluate(fetched, { headers, body });
  expect(whole.status === 200 && whole.type === 'text/event-stream' && whole.text.endsWith('data: [DONE]\n\n'), whole);
  // The events come, although the engine does not end the stream.
  const begun = await inTime(page.evaluate(fetched, { headers: { ...headers, 'x-sim-fault': 'stall=3' }, body, events: 3 }), 'the beginning of a stream');
  expect(begun.status === 200 && !begun.text.includes('[DONE]'), begun);
  const stalled = await page.evaluate(fetched, { headers: { ...headers, 'x-sim-fault': 'stall=3:1s' }, body });
  expect(/^: decode/m.test(stalled.text), 'no heartbeat');
  const said = ({ text }) => text.split('\n').filter((line) => line.startsWith('data: {'))
    .map((line) => JSON.parse(line.slice(6)).choices[0]?.delta.content ?? '').join('');
  expect(said(whole) && said(whole) === said(stalled), `${said(whole)} and ${said(stalled)}`);
  const cut = await page.evaluate(fetched, { headers: { ...headers, 'x-sim-fault': 'cut=4' }, body });
  expect(cut.text.includes('"upstream_truncated"') && !cut.text.includes('[DONE]'), cut.text);
}

async function checkSocket(page) {
  const start = { type: 'start', request_id: 'browser', model: MODEL, messages, params: { max_tokens: 15, ignore_eos: true }, credit: 3 };
  const turn = await inTime(page.evaluate(conversed, { protocols: ['realtime', `openai-insecure-api-key.${API_KEY}`], start }), 'an answer');
  expect(turn.protocol === 'realtime' && turn.code === 1000, turn);
  const final = turn.messages.at(-1);
  expect(final.type === 'final' && final.finish_reason === 'length' && final.usage.completion_tokens === 15, final);
  const stranger = await page.evaluate(conversed, { protocols: ['realtime', 'openai-insecure-api-key.wrong'], start });
  expect(stranger.messages.length === 0 && stranger.code === 1006, stranger);
}

// checkPage: the example page, opened from a file, gets two answers and stops one of them.
async function checkPage(browser) {
  const page = await browser.newPage();
  const talk = page.locator('#talk');
  const shows = (words) => talk.getByText(words).first().waitFor({ timeout });
  await page.goto(PAGE, { timeout });
  await page.locator('#url').fill(`${GATEWAY_URL.replace('http', 'ws')}/v1/realtime`);
  await page.locator('#model').fill(MODEL);
  await page.locator('#key').fill(API_KEY);
  await page.getByRole('button', { name: 'Open' }).click();
  await shows('open');
  for (const text of ['hello', 'and now']) {
    await page.locator('#text').fill(text);
    await page.getByRole('button', { name: 'Send' }).click();
    await talk.getByText(text).first().waitFor({ timeout });
    await page.waitForFunction(() => /\S/.test(document.querySelector('#talk').lastChild.textContent), null, { timeout });
    await page.getByRole('button', { name: 'Stop' }).click();
    await page.waitForFunction((n) => document.querySelector('#talk').innerText.split(/, \d+ tokens/).length > n,
      text === 'hello' ? 1 : 2, { timeout });
  }
}

// called runs in the page. It calls the API by fetch and tells what a page can know of the answer.
async function called({ url, key, body }) {
  try {
    const response = await fetch(url, {
      method: 'POST', body: JSON.stringify(body),
      headers: { 'content-type': 'application/json', authorization: `Bearer ${key}`, 'x-stainless-lang': 'js' },
    });
    return { status: response.status, text: await response.text(), id: response.headers.get('x-request-id'), replica: response.headers.get('x-sluice-replica') };
  } catch (e) {
    return { refused: String(e) };
  }
}

// checkOrigins: pages of the origin that the gateway lists read answers and errors; others do not.
async function checkOrigins(browser) {
  const url = `${GATEWAY_URL}/v1/chat/completions`;
  const body = { model: MODEL, messages, stream: true, max_tokens: 3 };
  const at = async (origin) => {
    const page = await browser.newPage();
    await page.goto(origin, { timeout });
    return page;
  };
  const listed = await at(LISTED);
  const answer = await listed.evaluate(called, { url, key: API_KEY, body });
  expect(answer.status === 200 && answer.text.endsWith('data: [DONE]\n\n') && answer.id && answer.replica, answer);
  const refusal = await listed.evaluate(called, { url, key: 'wrong', body });
  expect(refusal.status === 401 && JSON.parse(refusal.text).error.code === 'invalid_api_key', refusal);
  const models = await listed.evaluate(async ({ url, key }) =>
    (await fetch(url, { headers: { authorization: `Bearer ${key}` } })).json(), { url: `${GATEWAY_URL}/v1/models`, key: API_KEY });
  expect(models.data[0].id === MODEL, models);
  const unlisted = await (await at(UNLISTED)).evaluate(called, { url, key: API_KEY, body });
  expect(unlisted.refused, unlisted);
}

let browser;
try {
  browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync'],
  });
  const page = await browser.newPage();
  await page.goto(`${GATEWAY_URL}/health`, { timeout });
  await checkFetch(page);
  console.log('ok fetch');
  await checkSocket(page);
  console.log('ok WebSocket');
  if (PAGE) {
    await checkPage(browser);
    console.log('ok page');
  }
  if (LISTED) {
    await checkOrigins(browser);
    console.log('ok origins');
  }
} catch (e) {
  console.error(`browser: ${e.message}`);
  process.exitCode = 1;
} finally {
  await browser?.close();
}
