// Checks with the official, unmodified Node client how streams of the Responses API end early.
//
//     BASE_URL=http://127.0.0.1:8080/v1 MODEL=a FORBIDDEN=word API_KEY=sk-… node responses.mjs
//
// The model must be served by a simulated engine (`sluice sim`) as managed streams, and a
// moderation rule must forbid the word. The script prints "ok <check>" for every check. The first
// check that fails ends the script with a line that says why. NODE_MODULES is the directory of the
// packages.
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { expect, runChecks } from './checks.mjs';

const { BASE_URL, API_KEY, MODEL, FORBIDDEN } = process.env;
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const OpenAI = createRequire(packages + '/')('openai');
const client = new OpenAI({ apiKey: API_KEY, baseURL: BASE_URL, maxRetries: 0, timeout: 90_000 });
const tools = [{ type: 'function', name: 'get_weather', parameters: {
  type: 'object', properties: { city: { type: 'string' } }, required: ['city'],
} }];

// ended returns the events that the helper of the client emits, the response that it has built, and
// the error that it ends with.
async function ended(fault, body) {
  const events = [];
  const stream = client.responses.stream({ model: MODEL, ...body }, { headers: { 'x-sim-fault': fault } });
  stream.on('event', (e) => events.push(e));
  let built, error;
  try {
    built = await stream.finalResponse();
  } catch (e) {
    error = e;
  }
  expect(events.every((e, i) => e.sequence_number === i), `numbers ${events.map((e) => e.sequence_number)}`);
  const text = events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join('');
  const last = events.at(-1).response;
  const said = last.output.flatMap((item) => item.content ?? []).map((part) => part.text).join('');
  expect(said === text, `${said} after ${text}`);
  return { events, last, built, error, text };
}

function incomplete({ last, built, error }, reason) {
  expect(!error, String(error));
  expect(last.status === 'incomplete' && last.incomplete_details.reason === reason && last.id === built.id, last);
  expect(last.usage.input_tokens > 0, last.usage);
}

async function checkTimeout() {
  const end = await ended('stall=8:1m', { input: 'Tell me of the sea.', timeout_ms: 4000 });
  incomplete(end, 'max_output_tokens');
  expect(end.text && end.built.output[0].content[0].text === end.text, end.built);
}

async function checkToolCall() {
  const end = await ended('stall=5:1m', { input: 'Use a tool to find the weather in Lisbon.', tools, timeout_ms: 4000 });
  incomplete(end, 'max_output_tokens');
  expect(end.last.output[0].type === 'function_call' && end.last.output[0].arguments === end.built.output[0].arguments, end);
}

async function checkBeforeTheFirstToken() {
  incomplete(await ended('hang', { input: 'Tell me of the sea.', timeout_ms: 700 }), 'max_output_tokens');
}

async function checkModeration() {
  const end = await ended('none', { input: `Say hello and ${FORBIDDEN} to the sea.` });
  incomplete(end, 'content_filter');
  expect(!end.text.includes(FORBIDDEN), end.text);
}

async function checkFailure() {
  const { last, error } = await ended('cut=8', { input: 'Tell me of the sea.' });
  expect(last.status === 'failed' && last.error.code === 'upstream_truncated', last);
  expect(error?.code === 'upstream_truncated', `the client ends with ${error}`);
}

const checks = {
  'time-out within a text': checkTimeout,
  'time-out within a tool call': checkToolCall,
  'time-out before the first token': checkBeforeTheFirstToken,
  'moderation': checkModeration,
  'failure': checkFailure,
};

await runChecks(checks);
