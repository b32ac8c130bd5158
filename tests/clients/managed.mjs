// Reads managed streams of Sluice with the official, unmodified Node client.
//
//     BASE_URL=http://127.0.0.1:8080/v1 ENGINE_URL=http://127.0.0.1:9000 MANAGED_MODEL=a \
//       AUTO_MODEL=b API_KEY=sk-… node managed.mjs
//
// Each model must be served by one simulated engine (`sluice sim`), with heartbeats far below a
// second. ENGINE_URL is the engine of AUTO_MODEL. The script prints "ok <check>" for every check.
// The first check that fails ends the script with a line that says why. NODE_MODULES is the
// directory of the packages (default .tools/node/node_modules of this repository).
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { expect, runChecks } from './checks.mjs';

const { BASE_URL, ENGINE_URL, API_KEY, MANAGED_MODEL, AUTO_MODEL } = process.env;
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const OpenAI = createRequire(packages + '/')('openai');

const stall = { 'x-sim-fault': 'stall=3:700ms' };
const longStall = { 'x-sim-fault': 'stall=3:2s' }; // has several heartbeats on a busy machine, too
const tools = [{ type: 'function', function: {
  name: 'get_weather',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
} }];

const make = (defaultHeaders) => new OpenAI({ apiKey: API_KEY, baseURL: BASE_URL, maxRetries: 0, timeout: 90_000, defaultHeaders });
const client = make();
const stalling = make(stall);
const chunked = make({ ...stall, 'x-sluice-heartbeat': 'chunk' });

// chat returns the body of a streamed chat of exactly max_tokens tokens.
function chat(model, content, more) {
  return { model, messages: [{ role: 'user', content }], stream: true, max_tokens: 20, ignore_eos: true,
    stream_options: { include_usage: true }, ...more };
}

async function collect(stream) {
  const all = [];
  for await (const event of await stream) all.push(event);
  return all;
}

// said returns the text of a stream, which must end with the reason length and contain its usage.
function said(chunks) {
  const choices = chunks.flatMap((c) => c.choices);
  const text = choices.map((c) => c.delta.content ?? '').join('');
  const reasons = choices.map((c) => c.finish_reason).filter(Boolean);
  expect(text && String(reasons) === 'length', `finish reasons ${reasons} after ${text}`);
  const usage = chunks.map((c) => c.usage).filter(Boolean).at(-1);
  expect(usage?.completion_tokens > 0 && usage.prompt_tokens > 0, `usage ${JSON.stringify(usage)}`);
  return text;
}

// fails checks that reading the stream ends with an error of the client that has this code.
async function fails(stream, code) {
  let error;
  const got = [];
  try {
    for await (const event of await stream) got.push(event);
  } catch (e) {
    error = e;
  }
  expect(error instanceof OpenAI.APIError, `${error?.constructor.name} after ${got.length} events: ${error?.message}`);
  expect(error.code === code && error.error.retryable && error.error.retry_after_ms > 0, `code ${error.code}: ${JSON.stringify(error.error)}`);
  expect(got.length, 'nothing came before the error');
}

async function checkHeartbeats() {
  const want = said(await collect(client.chat.completions.create(chat(MANAGED_MODEL, 'heartbeats'))));
  for (const model of [MANAGED_MODEL, AUTO_MODEL]) {
    // The client hides heartbeats, so the script reads them from the response below it.
    const raw = await client.chat.completions.create(chat(model, 'raw', { max_duration_ms: 600_000 }), { headers: longStall }).asResponse();
    const comments = (await raw.text()).split('\n').filter((line) => line.startsWith(':'));
    expect(comments.filter((c) => c.includes('decode')).length >= 2, `heartbeats ${comments}`);
  }
  const chunks = await collect(stalling.chat.completions.create(chat(MANAGED_MODEL, 'heartbeats')));
  expect(said(chunks) === want, 'another text between heartbeats');
}

async function checkEmptyChunks() {
  const want = said(await collect(client.chat.completions.create(chat(MANAGED_MODEL, 'chunks'))));
  const chunks = await collect(chunked.chat.completions.create(chat(MANAGED_MODEL, 'chunks')));
  expect(chunks.some((c) => c.id === 'heartbeat'), 'no heartbeat among the chunks');
  expect(said(chunks) === want, 'another text between empty chunks');
  // The client assembles the whole answer.
  const whole = await chunked.chat.completions.stream(chat(MANAGED_MODEL, 'chunks')).finalContent();
  expect(whole === want, `put together: ${whole}, not ${want}`);
}

async function checkErrorAfter200() {
  for (const fault of ['cut=4', 'eof=4']) {
    const headers = { 'x-sim-fault': fault };
    await fails(client.chat.completions.create(chat(MANAGED_MODEL, fault), { headers }), 'upstream_truncated');
  }
}

async function checkTimeout() {
  for (const model of [MANAGED_MODEL, AUTO_MODEL]) {
    const chunks = await collect(client.chat.completions.create(chat(model, 'long', { max_tokens: 5000, timeout_ms: 4000 })));
    said(chunks);
    expect(chunks.at(-1).usage.completion_tokens < 5000, 'the time did not bound the stream');
  }
}

async function generations(mark) {
  const { requests } = await (await fetch(`${ENGINE_URL}/sim/requests`)).json();
  return requests.filter((r) => r.headers['x-mark'] === mark).length;
}

async function checkJoin() {
  const headers = { 'x-mark': 'node', 'idempotency-key': 'joined by node' };
  const ask = () => client.chat.completions.create(chat(AUTO_MODEL, 'join', { max_tokens: 60 }), { headers });
  const answers = [];
  const first = (await ask())[Symbol.asyncIterator]();
  const begin = (await first.next()).value;
  answers.push(...await Promise.all([ask(), ask()].map(collect)));
  answers.push([begin, ...await collect(first)], await collect(ask()));
  const texts = answers.map((a) => said(a) + a[0].id);
  expect(new Set(texts).size === 1, `several answers: ${texts}`);
  expect(await generations('node') === 1, `${await generations('node')} generations`);
}

async function checkTools() {
  const { max_tokens, ignore_eos, ...body } = chat(MANAGED_MODEL, 'Use a tool to find the weather in Lisbon.', { tools });
  for (const c of [client, stalling, chunked]) {
    const { choices: [choice] } = await c.chat.completions.stream(body).finalChatCompletion();
    expect(choice.finish_reason === 'tool_calls' && choice.message.tool_calls.length, choice);
    for (const call of choice.message.tool_calls) {
      expect(call.function.name === 'get_weather' && 'city' in JSON.parse(call.function.arguments), call);
    }
  }
}

async function checkResponses() {
  const body = { model: MANAGED_MODEL, input: 'hello', max_output_tokens: 20, stream: true };
  const texts = [];
  for (const c of [client, stalling, chunked]) {
    const events = await collect(c.responses.create(body));
    const last = events.at(-1);
    expect(['response.completed', 'response.incomplete'].includes(last.type) && last.response.usage.output_tokens > 0, last);
    texts.push(events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join(''));
  }
  expect(texts[0] && new Set(texts).size === 1, `texts ${texts}`);
  await fails(client.responses.create(body, { headers: { 'x-sim-fault': 'cut=6' } }), 'upstream_truncated');
}

const checks = {
  'heartbeats': checkHeartbeats,
  'heartbeats as empty chunks': checkEmptyChunks,
  'error after 200': checkErrorAfter200,
  'timeout_ms': checkTimeout,
  'idempotency-key joins': checkJoin,
  'tool calls': checkTools,
  'responses': checkResponses,
};

await runChecks(checks);
