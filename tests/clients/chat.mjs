// Calls an OpenAI endpoint with the official Node client and checks the answers against OpenAI's
// API.
//
//     BASE_URL=http://127.0.0.1:8080/v1 MODEL=chat EMBED_MODEL=embed node chat.mjs
//
// The script prints "ok <check>" for every check. The first check that fails ends the script with a
// line that says why. More settings: API_KEY (a wrong key must then be refused), AUDIO_MODEL
// (default MODEL), BUSY_MODEL (a model whose queue is full), SKIP (checks to leave out, separated
// by commas), NODE_MODULES (the directory of the packages, default .tools/node/node_modules of this
// repository).
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { expect, runChecks } from './checks.mjs';

const { BASE_URL, API_KEY, MODEL, EMBED_MODEL, BUSY_MODEL, AUDIO_MODEL = MODEL } = process.env;
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const require = createRequire(packages + '/');
const OpenAI = require('openai');
const { version } = JSON.parse(readFileSync(packages + '/openai/package.json', 'utf8'));

const skipped = (process.env.SKIP ?? '').split(',');
const options = { baseURL: BASE_URL, maxRetries: 0, timeout: 90_000 };
const messages = [{ role: 'user', content: 'Hello, who are you?' }];
const tools = [{
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}];
const streamed = { model: MODEL, max_tokens: 16, stream: true, stream_options: { include_usage: true } };

const client = new OpenAI({ apiKey: API_KEY || 'none', ...options });

// refused checks that the call fails with exactly this error class and with Sluice's error code.
async function refused(ErrorClass, status, code, call) {
  let error;
  try {
    await call();
  } catch (e) {
    error = e;
  }
  expect(error, `no error, want ${ErrorClass.name}`);
  expect(error.constructor === ErrorClass, `${error.constructor.name} instead of ${ErrorClass.name}: ${error.message}`);
  expect(error.status === status && error.code === code, `status ${error.status} code ${error.code}, want ${status} ${code}`);
  expect(error.headers.get('x-request-id'), 'no x-request-id');
  return error;
}

async function collect(stream) {
  const all = [];
  for await (const event of await stream) all.push(event);
  return all;
}

async function checkModels() {
  const ids = (await collect(client.models.list())).map((m) => m.id);
  for (const name of [MODEL, EMBED_MODEL].filter(Boolean)) {
    expect(ids.includes(name), `${name} is not among ${ids}`);
    const one = await client.models.retrieve(name);
    expect(one.id === name && one.object === 'model', one);
  }
}

async function checkChat() {
  const { data: reply, response } = await client.chat.completions
    .create({ model: MODEL, messages, max_tokens: 16 }).withResponse();
  const [choice] = reply.choices;
  expect(reply.object === 'chat.completion' && choice.message.role === 'assistant', reply);
  expect(choice.message.content && ['stop', 'length'].includes(choice.finish_reason), choice);
  const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = reply.usage;
  expect(completion > 0 && total === prompt + completion, reply.usage);
  expect(response.headers.get('x-request-id'), 'no x-request-id');
  expect(response.headers.get('x-sluice-source') === 'engine', 'x-sluice-source');
  expect(response.headers.get('x-sluice-replica'), 'no x-sluice-replica');
}

// checkOneStream checks a streamed chat that was asked to include usage.
function checkOneStream(chunks) {
  const choices = chunks.flatMap((c) => c.choices);
  const text = choices.map((c) => c.delta.content ?? '').join('');
  const reasons = choices.map((c) => c.finish_reason).filter(Boolean);
  expect(chunks.length > 3 && text, `${chunks.length} chunks, text ${text}`);
  expect(reasons.length === 1 && ['stop', 'length'].includes(reasons[0]), `finish reasons ${reasons}`);
  expect(chunks.findLast((c) => c.usage)?.usage.completion_tokens > 0, 'no usage');
  expect(new Set(chunks.map((c) => c.id)).size === 1, 'chunks of several completions');
}

async function checkStream() {
  checkOneStream(await collect(client.chat.completions.create({ ...streamed, messages })));
}

async function checkStreamLeftEarly() {
  for await (const chunk of await client.chat.completions.create({ ...streamed, messages })) {
    expect(chunk.choices.length, 'no first chunk');
    break;
  }
  await checkStream();
}

async function checkStreamsAtOnce() {
  await Promise.all([...Array(8).keys()].map(async (n) => {
    const question = [{ role: 'user', content: `Tell me about the number ${n}.` }];
    checkOneStream(await collect(client.chat.completions.create({ ...streamed, messages: question })));
  }));
}

async function checkCompletions() {
  const request = { model: MODEL, prompt: 'Once upon a time', max_tokens: 8 };
  const reply = await client.completions.create(request);
  expect(reply.object === 'text_completion' && reply.choices[0].text, reply);
  const parts = await collect(client.completions.create({ ...request, stream: true }));
  expect(parts.flatMap((p) => p.choices).map((c) => c.text).join(''), `${parts.length} parts without text`);
}

async function checkResponses() {
  const request = { model: MODEL, input: 'Hello', max_output_tokens: 16 };
  const reply = await client.responses.create(request);
  expect(reply.object === 'response' && reply.output_text, reply);
  const kinds = (await collect(client.responses.create({ ...request, stream: true }))).map((e) => e.type);
  expect(kinds[0] === 'response.created' && kinds.includes('response.output_text.delta'), `events ${kinds}`);
  expect(['response.completed', 'response.incomplete'].includes(kinds.at(-1)), `last event ${kinds.at(-1)}`);
}

async function checkTools() {
  const question = [{ role: 'user', content: 'Use a tool to find the weather in Lisbon.' }];
  const calls = [];
  let finish;
  for await (const chunk of await client.chat.completions.create({ model: MODEL, messages: question, tools, stream: true })) {
    for (const choice of chunk.choices) {
      finish = choice.finish_reason ?? finish;
      for (const part of choice.delta.tool_calls ?? []) {
        const call = (calls[part.index] ??= { name: '', arguments: '' });
        call.name += part.function?.name ?? '';
        call.arguments += part.function?.arguments ?? '';
      }
    }
  }
  expect(finish === 'tool_calls' && calls.length, `finish reason ${finish}, ${calls.length} calls`);
  for (const call of calls) {
    expect(call.name === 'get_weather', `tool ${call.name}`);
    expect(typeof JSON.parse(call.arguments) === 'object', `arguments ${call.arguments}`);
  }
}

async function checkEmbeddings() {
  const { data } = await client.embeddings.create({ model: EMBED_MODEL, input: ['one text', 'another text'] });
  const [one, other] = data.map((d) => d.embedding);
  expect(data.length === 2 && one.length > 1 && one.length === other.length, 'embeddings of different lengths');
  expect(one.some(Boolean) && one.some((x, i) => x !== other[i]), 'texts without a difference');
}

// silence returns a WAV file with one second of silence.
function silence() {
  const header = Buffer.alloc(44);
  header.write('RIFF', 0);
  header.writeUInt32LE(36 + 32000, 4);
  header.write('WAVEfmt ', 8);
  header.writeUInt32LE(16, 16);
  header.writeUInt16LE(1, 20); // PCM
  header.writeUInt16LE(1, 22); // channels
  header.writeUInt32LE(16000, 24); // samples a second
  header.writeUInt32LE(32000, 28); // bytes a second
  header.writeUInt16LE(2, 32); // bytes of a sample
  header.writeUInt16LE(16, 34); // bits of a sample
  header.write('data', 36);
  header.writeUInt32LE(32000, 40);
  return Buffer.concat([header, Buffer.alloc(32000)]);
}

async function checkTranscription() {
  const file = await OpenAI.toFile(silence(), 'silence.wav');
  const reply = await client.audio.transcriptions.create({ model: AUDIO_MODEL, file });
  expect(reply.text, reply);
}

async function checkUnknownModel() {
  const model = 'no-such-model';
  await refused(OpenAI.NotFoundError, 404, 'model_not_found', () => client.chat.completions.create({ model, messages }));
  await refused(OpenAI.NotFoundError, 404, 'model_not_found',
    () => client.chat.completions.create({ model, messages, stream: true }));
  await refused(OpenAI.NotFoundError, 404, 'model_not_found', () => client.models.retrieve(model));
}

async function checkWrongKey() {
  for (const apiKey of ['sk-wrong', API_KEY + 'x']) {
    const stranger = new OpenAI({ apiKey, ...options });
    await refused(OpenAI.AuthenticationError, 401, 'invalid_api_key',
      () => stranger.chat.completions.create({ model: MODEL, messages }));
    await refused(OpenAI.AuthenticationError, 401, 'invalid_api_key', () => stranger.models.list());
  }
}

async function checkBadBody() {
  for (const body of [{ model: 7, messages }, { messages }]) {
    await refused(OpenAI.BadRequestError, 400, 'invalid_request', () => client.post('/chat/completions', { body }));
  }
}

async function checkFullQueue() {
  const error = await refused(OpenAI.RateLimitError, 429, 'queue_full',
    () => client.chat.completions.create({ model: BUSY_MODEL, messages }));
  expect(Number(error.headers.get('retry-after')) >= 1, 'no Retry-After');
}

const checks = {
  'models': checkModels,
  'chat': checkChat,
  'streamed chat': checkStream,
  'streamed chat left early': checkStreamLeftEarly,
  'streamed chats at once': checkStreamsAtOnce,
  'completions': checkCompletions,
  'responses': checkResponses,
  'streamed tool call': checkTools,
  'embeddings': EMBED_MODEL && checkEmbeddings,
  'transcription': AUDIO_MODEL && checkTranscription,
  'unknown model': checkUnknownModel,
  'wrong key': API_KEY && checkWrongKey,
  'bad body': checkBadBody,
  'full queue': BUSY_MODEL && checkFullQueue,
};

console.log('openai for Node', version);
for (const name of skipped) delete checks[name];
await runChecks(checks);
