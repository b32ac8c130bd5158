// Checks with the AI SDK (npm: ai) and three of its providers what Sluice answers. The SDK checks
// each answer and each event against a schema, so it finds what other clients overlook.
//
//     BASE_URL=http://127.0.0.1:8080 MODEL=chat EMBED_MODEL=embed API_KEY=sk-… node aisdk.mjs
//
// The model must be served by a simulated engine (`sluice sim`). With FAULTS the model must be one
// of managed streams. The script prints "ok <check>" for every check. The first check that fails
// ends the script with a line that says why. NODE_MODULES is the directory of the packages.
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { expect, runChecks } from './checks.mjs';

const { BASE_URL, API_KEY, MODEL, EMBED_MODEL, FAULTS } = process.env;
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const load = createRequire(packages + '/');
const { embedMany, generateObject, generateText, stepCountIs, streamText, tool } = load('ai');
const { z } = load('zod');
globalThis.AI_SDK_LOG_WARNINGS = false;

// models returns the model by each provider. headers go with each request.
function models(headers) {
  const settings = { baseURL: BASE_URL + '/v1', apiKey: API_KEY, headers };
  const openai = load('@ai-sdk/openai').createOpenAI(settings);
  const compatible = load('@ai-sdk/openai-compatible').createOpenAICompatible({
    ...settings, name: 'sluice', includeUsage: true, supportsStructuredOutputs: true,
  });
  const anthropic = load('@ai-sdk/anthropic').createAnthropic(settings);
  return { compatible: compatible(MODEL), chat: openai.chat(MODEL), responses: openai.responses(MODEL), messages: anthropic(MODEL) };
}

// streamed reads a stream to its end and returns its text, its usage, and what went wrong.
async function streamed(options) {
  const errors = [], stream = streamText({ maxRetries: 0, maxOutputTokens: 40, onError: ({ error }) => errors.push(error), ...options });
  let text = '', usage;
  for await (const part of stream.fullStream) {
    if (part.type === 'text-delta') text += part.text;
    if (part.type === 'finish') usage = part.totalUsage;
  }
  return { text, usage, errors };
}

const get_weather = tool({ description: 'the weather', inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => 'rain in ' + city });

const checks = {};
for (const [name, model] of Object.entries(models())) {
  checks[name + ' text'] = async () => {
    const { text, usage } = await generateText({ model, maxRetries: 0, maxOutputTokens: 40, prompt: 'hello' });
    expect(text && usage.outputTokens > 0, [text, usage]);
  };
  checks[name + ' stream'] = async () => {
    const { text, usage, errors } = await streamed({ model, prompt: 'hello' });
    expect(text && usage.outputTokens > 0 && errors.length === 0, [text, usage, errors]);
  };
  checks[name + ' tool'] = async () => {
    const { steps } = await generateText({ model, maxRetries: 0, prompt: 'use the tool', tools: { get_weather }, stopWhen: stepCountIs(2) });
    expect(steps[0].toolResults[0].output.startsWith('rain in '), steps[0].content);
  };
  checks[name + ' object'] = async () => {
    const { object } = await generateObject({ model, maxRetries: 0, prompt: 'a city', schema: z.object({ city: z.string() }) });
    expect(typeof object.city === 'string', object);
  };
}
checks.embeddings = async () => {
  const model = load('@ai-sdk/openai').createOpenAI({ baseURL: BASE_URL + '/v1', apiKey: API_KEY }).embedding(EMBED_MODEL);
  const { embeddings } = await embedMany({ model, maxRetries: 0, values: ['the sea', 'the sky'] });
  expect(embeddings.length === 2 && embeddings[0].length > 0, embeddings);
};
for (const [name, model] of FAULTS ? Object.entries(models({ 'x-sim-fault': 'cut=9' })) : []) {
  checks[name + ' cut'] = async () => {
    const { text, errors } = await streamed({ model, prompt: 'tell me a long story' });
    expect(text && errors.length > 0 && errors.every((e) => e.message === "The engine's answer ended before it was whole."), [text, errors]);
  };
}
await runChecks(checks);
