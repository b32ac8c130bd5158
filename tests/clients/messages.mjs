// Calls the Messages API with Anthropic's Node client and checks the answers.
//
//     BASE_URL=http://127.0.0.1:8080 MODEL=chat API_KEY=sk-… node messages.mjs
//
// The script prints "ok <check>" for every check. The first check that fails ends the script with a
// line that says why. The settings are those of messages.py, and NODE_MODULES.
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { expect, runChecks } from './checks.mjs';

const { BASE_URL, API_KEY, MODEL, EMBED_MODEL, FAULTS } = process.env;
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const require = createRequire(packages + '/');
const Anthropic = require('@anthropic-ai/sdk').default;

const options = { baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, timeout: 90_000 };
const client = new Anthropic(options);
const messages = [{ role: 'user', content: 'Tell me of the sea.' }];
const weather = [{ role: 'user', content: 'Use a tool to find the weather in Lisbon.' }];
const tools = [{
  name: 'get_weather',
  description: 'The weather of a city',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
}];

async function checkMessage() {
  const reply = await client.messages.create({ model: MODEL, max_tokens: 8, system: 'Be brief.', messages });
  expect(reply.type === 'message' && reply.content[0].text && reply.stop_reason === 'max_tokens', reply);
  expect(reply.usage.output_tokens === 8 && reply.usage.input_tokens > 0, reply);
}

async function checkStream() {
  const stream = client.messages.stream({ model: MODEL, max_tokens: 16, messages });
  let text = '';
  stream.on('text', (part) => { text += part; });
  const final = await stream.finalMessage();
  expect(text && final.content[0].text === text && final.usage.output_tokens > 0, final);
}

async function checkTools() {
  const reply = await client.messages.stream({ model: MODEL, max_tokens: 64, messages: weather, tools }).finalMessage();
  const call = reply.content.find((b) => b.type === 'tool_use');
  expect(call?.input.city && reply.stop_reason === 'tool_use', reply);
  const result = { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'Rain.' }] };
  const next = [...weather, { role: 'assistant', content: reply.content }, result];
  const last = await client.messages.create({ model: MODEL, max_tokens: 16, messages: next, tools, tool_choice: { type: 'none' } });
  expect(last.content.length > 0, last);
}

async function checkCountTokens() {
  const { input_tokens: n } = await client.messages.countTokens({ model: MODEL, messages });
  expect(n > 0, `${n} tokens`);
}

async function refused(kind, call) {
  try {
    await call();
  } catch (e) {
    expect(e instanceof kind && e.error?.type === 'error' && e.error.error.message, `${e} is not ${kind.name}`);
    return;
  }
  throw new Error(`no error, want ${kind.name}`);
}

async function checkErrors() {
  await refused(Anthropic.NotFoundError, () => client.messages.create({ model: 'none', max_tokens: 1, messages }));
  await refused(Anthropic.BadRequestError, () => client.messages.create({ model: EMBED_MODEL, max_tokens: 1, messages }));
  await refused(Anthropic.AuthenticationError, () => new Anthropic({ ...options, apiKey: 'sk-none' }).messages.create({ model: MODEL, max_tokens: 1, messages }));
}

async function checkBrokenStream() {
  if (!FAULTS) return;
  let error;
  try {
    await client.messages.stream({ model: MODEL, max_tokens: 32, messages }, { headers: { 'x-sim-fault': 'cut=4' } }).finalMessage();
  } catch (e) {
    error = e;
  }
  expect(String(error).includes('upstream_truncated'), `the client ends with ${error}`);
}

await runChecks({ checkMessage, checkStream, checkTools, checkCountTokens, checkErrors, checkBrokenStream });
