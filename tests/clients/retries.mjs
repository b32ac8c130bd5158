// Counts the attempts of the official Node client at a request that its own timeout ends. There
// must be one.
//
//     BASE_URL=http://127.0.0.1:8080/v1 MODEL=chat node retries.mjs
//
// More settings: NODE_MODULES, as for chat.mjs.
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const { BASE_URL, MODEL } = process.env;
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const OpenAI = createRequire(packages + '/')('openai');

let attempts = 0;
const counted = (url, init) => { attempts++; return fetch(url, init); };
const client = new OpenAI({ baseURL: BASE_URL, apiKey: 'none', maxRetries: 2, fetch: counted });

for (const option of ['timeout_ms', 'max_duration_ms']) {
  attempts = 0;
  const request = { model: MODEL, max_tokens: 1000, ignore_eos: true, messages: [{ role: 'user', content: 'x' }], [option]: 4000 };
  const fault = await client.chat.completions.create(request).catch((e) => e);
  if (fault.status !== 408 || attempts !== 1) {
    console.log(`${option}: status ${fault.status} after ${attempts} attempts, want 408 after one`);
    process.exit(1);
  }
  console.log(`ok ${option}: one attempt`);
}
