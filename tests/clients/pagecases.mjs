// Opens the operator's page with states that a real gateway has seldom, and checks what it shows.
// The answers are those of pagestub.mjs, and those that a case makes up.
//
//     node pagecases.mjs
import { accessible, expect, fits, forgive, open, run, timeout } from './pagelib.mjs';
import { replica, request, serve } from './pagestub.mjs';

const [url, end] = await serve(20); // pagelarge.mjs shows that the page bears many

/** Answers a path of the API with JSON. */
const answer = (page, path, json, status = 200) => page.route(path, (route) => route.fulfill({ json, status }));

/**
 * checkRefusedKey: a wrong key of a tenant is an error of the chat. It does not end the operator's
 * login.
 */
async function checkRefusedKey(browser) {
  const page = await open(browser, `${url}/playground`);
  await answer(page, '**/api/v1/playground', { error: { message: 'Incorrect API key provided.' } }, 401);
  const chat = async () => {
    await page.getByLabel('Message').fill('Hello');
    await page.keyboard.press('Enter');
    await page.locator('.bubble.assistant .fault').last().waitFor({ timeout });
  };
  await chat();
  expect(await page.locator('.bubble .fault').innerText() === 'Incorrect API key provided.', 'the chat does not say why it was refused');
  await page.waitForResponse('**/api/v1/status'); // the refusal had the page read the status
  expect(await page.locator('#login').isHidden(), 'a refused key of a tenant shows the login');
  // A login that has ended is found all the same.
  await answer(page, '**/api/v1/status', { error: { message: 'This listener needs a token of admin_auth.' } }, 401);
  await page.getByLabel('Message').fill('Hello');
  await page.keyboard.press('Enter');
  await page.locator('#login').waitFor({ timeout });
  const below = await page.locator('#login label code').evaluate((c) => c.offsetTop - c.closest('label').offsetTop);
  expect(below < 10, `a part of the label of the login stands ${below} pixels below the other`);
  await page.context().close();
  forgive(/status of 401/);
}

/** checkHiddenLog: a tab that nobody has seen yet does not follow the log of its replica. */
async function checkHiddenLog(browser) {
  let followed = 0;
  const page = await open(browser, `${url}/replicas/model-0001-0`, {}, async (p) => {
    await p.addInitScript(() => Object.defineProperty(document, 'hidden', { get: () => window.seen !== true }));
    await p.route('**/log?*', (route) => (followed++, route.fulfill({ contentType: 'text/plain', body: 'the engine starts\n' })));
  });
  await page.getByRole('heading', { name: 'Log' }).waitFor({ timeout });
  await page.evaluate(() => fetch('/api/v1/status').then((a) => a.text())); // a request for the log would have gone before
  expect(followed === 0, 'a tab that nobody has seen follows a log');
  await page.evaluate(() => { window.seen = true; document.dispatchEvent(new Event('visibilitychange')); });
  await page.locator('.log').getByText('the engine starts').waitFor({ timeout });
  await page.context().close();
}

/** Shows these models, replicas and conditions in the place of the stub's. */
function show(page, state) {
  const said = { whole: true, models: [], replicas: [], conditions: [], totals: {}, ...state };
  return page.route('**/api/v1/events', (route) => route.fulfill({ contentType: 'text/event-stream', body: `event: state\ndata: ${JSON.stringify(said)}\n\n` }));
}

/** checkAdvice: a command that the message of a condition names looks like code. */
async function checkAdvice(browser) {
  const condition = { type: 'BudgetReached', subject: 'acme', status: 'true', severity: 'warning', reason: 'Refused', message: 'Look at `sluice usage` now.', since: '2030-05-04T12:00:00Z' };
  const page = await open(browser, url, {}, (p) => show(p, { conditions: [condition] }));
  await page.locator('.attention code', { hasText: /^sluice usage$/ }).waitFor({ timeout });
  const words = await page.locator('.attention .why').innerText();
  expect(words === 'Look at sluice usage now.', `a condition says: ${words}`);
  await page.context().close();
}

/** Opens a view in a window of this width, after prepare has said what the API answers. */
function openWide(browser, path, width, prepare) {
  return open(browser, url + path, { viewport: { width, height: 844 } }, prepare);
}

const server = 'vllm.prod.example.internal:8000';
const served = (model, more = {}) => ({ ...replica(0), id: server, model, served_model: model, launcher: 'upstream', pid: 0, node: '', ...more });

/** checkServerOfSeveral: on a phone, the rows of one server tell which model each is of. */
async function checkServerOfSeveral(browser) {
  const replicas = [served('embed'), served('chat', { reason: 'connection refused' })];
  for (const [width, want] of [[390, ['chat · connection refused', 'embed']], [1280, ['connection refused', '']]]) {
    const page = await openWide(browser, '/replicas', width, (p) => show(p, { replicas }));
    await page.locator('tr[data-replica]').nth(1).waitFor({ timeout });
    const lines = (await page.locator('tr[data-replica] th .sub').allInnerTexts()).map((s) => s.trim()).sort();
    expect(JSON.stringify(lines) === JSON.stringify(want.sort()), `below the names at ${width} pixels stands ${JSON.stringify(lines)}`);
    await fits(page, `the replicas at ${width}`);
    await page.context().close();
  }
}

/** checkWidths: the list of replicas has room for names in windows of every usual width. */
async function checkWidths(browser) {
  const page = await openWide(browser, '/replicas', 1280, (p) => show(p, { replicas: [served('chat')] }));
  await page.locator('tr[data-replica]').waitFor({ timeout });
  for (const width of [1280, 1366, 1400, 1440, 1441, 1536, 1920]) {
    await page.setViewportSize({ width, height: 800 });
    const room = await page.locator('#view thead th').first().evaluate((th) => th.offsetWidth);
    expect(room >= 170, `the names of replicas have ${room} pixels in a window of ${width}`);
  }
  await page.context().close();
}

/** Reports whether a node shows its whole text. */
const whole = (node) => node.scrollWidth <= node.clientWidth;

const key = (i) => ({
  id: `1a2b3c4${i}`, usage_key: `team-${i}/1a2b3c4${i}`, tenant: `team-${i}`, name: 'Notebook', prefix: 'sk-abcd', created: '2030-05-01T12:00:00Z', expires: '2030-06-01T12:00:00Z',
  last_used: '2030-05-04T11:59:00Z', models: ['*'], source: i % 2 ? 'runtime' : 'file', limits: {},
  quota: { requests_per_minute: { used: 30, limit: 300 }, tokens_per_minute: { used: 12345, limit: 1000000 }, max_concurrent_streams: { used: 3, limit: 4 } }, budgets: [{ key: '', per: 'day', of: 'tokens', used: 1000, soft: 0, hard: 5000, level: 'within', resets: '2030-05-05T00:00:00Z' }],
});

/**
 * checkKeys: the list of keys names their tenants in a narrow window, and its rows have the height
 * of all rows.
 */
async function checkKeys(browser) {
  for (const width of [390, 768, 1280]) {
    const page = await openWide(browser, '/keys', width, (p) => answer(p, '**/api/v1/keys', { keys: [key(0), key(1)] }));
    await page.locator('tr[data-key]').nth(1).waitFor({ timeout });
    const table = page.locator('#view table');
    expect(await table.evaluate((t) => t.scrollWidth <= t.closest('.scroll').clientWidth), `the keys are wider than a window of ${width}`);
    const room = await page.locator('tr[data-key] th').first().evaluate((th) => th.offsetWidth);
    expect(room >= 80, `the tenants of keys have ${room} pixels in a window of ${width}`);
    expect(await page.locator('tr[data-key] td:last-child', { hasText: 'Revoke' }).evaluate(whole), `the button that revokes a key is cut in a window of ${width}`);
    if (width === 1280) {
      const limits = page.locator('tr[data-key]').first().locator('td.w-limits .name, td.w-limits .sub');
      expect((await limits.evaluateAll((lines) => lines.map((l) => l.scrollWidth <= l.clientWidth))).every(Boolean), 'the limits of a key are cut');
      const tooltip = await limits.first().getAttribute('title');
      expect(tooltip.includes('12,345 of 1,000,000 tok/min') && tooltip.includes('1,000 of 5,000 tok/day'), `the tooltip of limits is ${tooltip}`);
    }
    const heights = await page.locator('tr[data-key]').evaluateAll((rows) => rows.map((r) => r.offsetHeight));
    expect(heights.every((h) => h <= 45), `the rows of keys are ${heights} pixels high in a window of ${width}`);
    await page.context().close();
  }
}

/** checkModelsOfAKey: what is typed as the models of a key is sent, also if it names none. */
async function checkModelsOfAKey(browser) {
  const page = await open(browser, `${url}/keys`, {}, (p) => answer(p, '**/api/v1/keys', { keys: [] }));
  for (const [typed, sent] of [['', undefined], [' , ', []], ['a, b', ['a', 'b']]]) {
    await page.getByRole('button', { name: 'New key' }).click();
    const dialog = page.getByRole('dialog', { name: 'New key' });
    await dialog.getByLabel('Models').fill(typed);
    const [asked] = await Promise.all([page.waitForRequest((r) => r.method() === 'POST'), dialog.getByRole('button', { name: 'Make' }).click()]);
    expect(String(asked.postDataJSON().models) === String(sent), `the models "${typed}" are sent as ${JSON.stringify(asked.postDataJSON().models)}`);
    await page.getByRole('dialog', { name: 'The key' }).getByRole('button', { name: 'Close' }).click();
  }
  await page.context().close();
}

/**
 * checkPhone: a phone shows the time of requests, the use of limits, and how far the weights of a
 * replica are.
 */
async function checkPhone(browser) {
  const loading = { state: 'starting', fetching: { done: 8e9, total: 9e9, per_second: 1e8 } };
  const page = await openWide(browser, '/replicas', 390, (p) => show(p, { replicas: [served('chat', loading)] }));
  const state = page.locator('tr[data-replica] td', { has: page.locator('.chip') });
  await state.getByText('loading 89 %').waitFor({ timeout });
  expect(await state.evaluate(whole), 'the state of a replica that loads is cut on a phone');
  await page.goto(`${url}/requests`);
  const time = page.locator('tr[data-request] th .name').first();
  await time.waitFor({ timeout });
  expect(await time.evaluate(whole), 'the time of a request is cut on a phone');
  expect(await page.locator('#view thead th', { hasText: 'Duration' }).evaluate(whole), 'the head of the duration is cut on a phone');
  await fits(page, 'the requests on a phone');
  await page.goto(`${url}/tenants`);
  const used = page.locator('td', { hasText: '119 / 300' });
  await used.waitFor({ timeout });
  expect(await used.evaluate(whole), 'the use of a limit is cut on a phone');
  await page.context().close();
}

/**
 * checkSizes: sizes have few enough letters for the axis of a chart, also those of a large cluster.
 */
async function checkSizes(browser) {
  const page = await open(browser, url);
  const written = await page.evaluate(async () => [812, 1500, 14_200, 3.1e6, 85.9e9, 500e9, 5_497.6e9, 50e12].map((await import('/format.js')).bytes));
  const want = ['812 B', '1.5 kB', '14 kB', '3.1 MB', '85.9 GB', '500 GB', '5.5 TB', '50.0 TB'];
  expect(String(written) === String(want), `sizes are written as ${written}`);
  await page.context().close();
}

/** checkOvertaken: an answer that comes after that to a later question is not shown. */
async function checkOvertaken(browser) {
  const page = await open(browser, `${url}/configuration`);
  const late = []; // the answers to the earlier question, which come when that to the later one is shown
  let later, release;
  const ask = () => { later = new Promise((resolve) => { release = resolve; }); };
  const answerLate = (fulfill) => late.push(later.then(fulfill));
  ask();
  const row = (n) => ({ tenant: `of-${n}`, key: 'k', model: 'm', requests: 1, prompt_tokens: 1, cached_tokens: 0, completion_tokens: 1, estimated_requests: 0, cost: 0 });
  await page.route('**/api/v1/usage?*', async (route) => {
    const from = new URL(route.request().url()).searchParams.get('from');
    const fulfill = () => route.fulfill({ json: { from: '2030-05-03T12:00:00Z', to: '2030-05-04T12:00:00Z', complete: true, usage: [row(from)] } });
    await (from === '-86400' ? fulfill() : answerLate(fulfill));
  });
  await page.route('**/api/v1/models/*/routing', async (route) => {
    const model = route.request().url().split('/').at(-2);
    const replicas = [{ id: `of-${model}`, candidate: true, load: 0, waiting_tokens: 0, rate: 0, recent: { prompt_tokens: 0 }, predicted_ms: 1 }];
    const fulfill = () => route.fulfill({ json: { model, prompt_tokens: 1, picked: '', recent: { requests: 0 }, replicas } });
    await (model === 'model-0000' ? answerLate(fulfill) : fulfill());
  });
  const shown = async (words) => {
    await page.locator('#view tbody', { hasText: words }).first().waitFor({ timeout });
    expect(late.length > 0, 'the earlier question was not asked');
    release();
    await Promise.all(late.splice(0));
    await page.evaluate(() => fetch('/api/v1/status').then((a) => a.text())); // its answer comes behind the late ones
    ask();
    expect((await page.locator('#view table').innerText()).includes(words), `an answer to an earlier question is shown: ${await page.locator('#view table').innerText()}`);
  };
  await page.goto(`${url}/usage?from=-604800`);
  await page.getByLabel('Time').selectOption('-86400');
  await shown('of--86400');
  await page.goto(`${url}/routing?model=model-0000`);
  await page.locator('#routed-model option').nth(1).waitFor({ state: 'attached', timeout });
  await page.locator('#routed-model').selectOption('model-0001');
  await shown('of-model-0001');
  await page.context().close();
}

/**
 * checkReasoning: the playground shows what a model thinks before it answers. Both names of the
 * field occur.
 */
async function checkReasoning(browser) {
  const page = await open(browser, `${url}/playground`);
  const deltas = [{ reasoning_content: 'Let me ' }, { reasoning: 'think.' }, { content: 'It is 7.' }];
  const body = deltas.map((delta) => `data: ${JSON.stringify({ choices: [{ delta }] })}\n\n`).join('');
  await page.route('**/api/v1/playground', (route) => route.fulfill({ contentType: 'text/event-stream', body: `${body}data: [DONE]\n\n` }));
  await page.getByLabel('Message').fill('Hello');
  await page.keyboard.press('Enter');
  const said = page.locator('.bubble.assistant');
  await said.getByText('It is 7.').waitFor({ timeout });
  expect(await said.locator('.thoughts').innerText() === 'Let me think.', 'the playground does not show what the model thinks');
  await accessible(page, 'a chat with a model that thinks');
  await page.context().close();
}

const modelOf = (name, more = {}) => ({
  name, aliases: [], task: 'text-generation', launcher: 'local', discovered: false, state: 'ready', desired: 1, replicas: 1, ready: 1, in_flight: 0, queued: 0, queued_bytes: 0, weight: 1,
  limits: { weight: 1, max_concurrent_requests: 0, max_tokens_per_minute: 0, max_per_replica: 0, max_prefill_per_replica: 0, max_queue: 1000, queue_timeout: '1m', patched: [], file: {} }, scale: null, ...more,
});

/**
 * checkNames: a phone shows names that differ at their ends only, and how many requests a model
 * has.
 */
async function checkNames(browser) {
  const models = [modelOf('team-0/model-00-instruct', { in_flight: 3, queued: 2 }), modelOf('team-0/model-05-instruct')];
  const page = await openWide(browser, '/models', 390, (p) => show(p, { models, replicas: [served('chat', { id: '127.0.0.100:18200' })] }));
  const names = page.locator('tr[data-model] th .name');
  await names.nth(1).waitFor({ timeout });
  expect((await names.evaluateAll((all) => all.map((n) => n.scrollWidth <= n.clientWidth))).every(Boolean), 'the names of models are cut on a phone');
  const load = await page.locator('tr[data-model] th .narrow').first().innerText();
  expect(load.startsWith('3 in flight · 2 queued'), `below the name of a model stands ${load}`);
  await page.setViewportSize({ width: 640, height: 844 }); // 1280 pixels at a zoom of 200 %
  expect(await page.locator('#view thead th', { hasText: 'Queued' }).isVisible(), 'a window of 640 pixels does not show how many requests wait');
  expect(await page.locator('tr[data-model] th .narrow').first().isHidden(), 'a window of 640 pixels tells the requests of a model twice');
  await page.setViewportSize({ width: 390, height: 844 });
  await page.goto(`${url}/replicas`);
  const id = page.locator('tr[data-replica] th .name');
  await id.waitFor({ timeout });
  expect(await id.evaluate(whole), 'the address of a replica is cut on a phone');
  await page.context().close();
}

/** checkOrder: names are ordered by the numbers in them. */
async function checkOrder(browser) {
  const replicas = ['chat-10', 'chat-9', 'chat-1'].map((id) => ({ ...replica(0), id }));
  const page = await openWide(browser, '/replicas', 1280, (p) => show(p, { replicas }));
  await page.locator('tr[data-replica]').nth(2).waitFor({ timeout });
  const ids = await page.locator('tr[data-replica] th .name').allInnerTexts();
  expect(String(ids) === 'chat-1,chat-9,chat-10', `the order of replicas is ${ids}`);
  await page.context().close();
}

/**
 * checkFailing: the pages of a model and of its replica tell what to do about the replica's fault.
 */
async function checkFailing(browser) {
  const failed = { ...replica(0), id: 'chat-0', model: 'chat', state: 'failed', reason: 'exit status 1', next_start: new Date(Date.now() + 3600_000 - 1).toISOString() };
  const condition = { type: 'ReplicaFailed', subject: 'chat-0', status: 'true', severity: 'error', reason: 'Failed', message: 'Replica chat-0 of chat failed: exit status 1. Read its log.', since: '2030-05-04T12:00:00Z' };
  const state = { models: [modelOf('a'), modelOf('chat', { state: 'failed', ready: 0 })], replicas: [failed], conditions: [condition] };
  const page = await openWide(browser, '/models/chat', 1280, (p) => show(p, state));
  for (const path of ['/models/chat', '/replicas/chat-0']) {
    await page.goto(url + path);
    await page.locator('.attention', { hasText: 'Read its log.' }).waitFor({ timeout });
  }
  expect(await page.locator('pre.reason').isHidden(), 'the page of a replica tells its fault twice');
  await page.locator('.facts div', { hasText: 'Next start' }).getByText(/^in \d/).waitFor({ timeout });
  await page.goto(`${url}/models/a`);
  await page.locator('h1', { hasText: '/ a' }).waitFor({ timeout });
  await page.locator('.card', { hasText: 'Launcher' }).waitFor({ timeout });
  expect(await page.locator('.attention').isHidden(), 'the page of a model tells the fault of another');
  await page.context().close();
}

/** checkChoice: the playground and the routing begin with a model that is ready. */
async function checkChoice(browser) {
  const models = [modelOf('broken', { state: 'failed', ready: 0 }), modelOf('chat')];
  const page = await openWide(browser, '/models', 1280, (p) => show(p, { models }));
  for (const path of ['/playground', '/routing', '/routing?model=none']) {
    await page.goto(url + path);
    const select = page.locator('#view select').first();
    await select.locator('option').nth(1).waitFor({ state: 'attached', timeout });
    expect(await select.inputValue() === 'chat', `${path} begins with the model ${await select.inputValue()}`);
  }
  await page.goto(`${url}/playground?model=broken`);
  await page.locator('#view select option').nth(1).waitFor({ state: 'attached', timeout });
  expect(await page.locator('#view select').first().inputValue() === 'broken', 'the playground does not begin with the model of its URL');
  await page.context().close();
}

/**
 * checkPatched: limits that were changed at run time make the list of models no wider than its
 * window. The tooltip has all.
 */
async function checkPatched(browser) {
  const limits = { ...modelOf('').limits, max_concurrent_requests: 4, max_tokens_per_minute: 1_200_000, weight: 5, patched: ['max_tokens_per_minute', 'weight'] };
  const page = await openWide(browser, '/models', 1280, (p) => show(p, { models: [modelOf('chat', { limits })] }));
  await page.locator('.patched').first().waitFor({ timeout });
  await fits(page, 'the models with changed limits');
  const tooltip = await page.locator('tr[data-model] td.w-limits').getAttribute('title');
  expect(tooltip === '4 at once · 1,200,000 tokens/min · weight 5 · queue 1,000 for 1m', `the tooltip of limits is ${tooltip}`);
  await page.context().close();
}

/** checkUnread: the page does not say that something is not there before it has read it. */
async function checkUnread(browser) {
  let answerAll;
  const late = new Promise((resolve) => { answerAll = resolve; });
  const page = await open(browser, `${url}/configuration`);
  for (const path of ['**/api/v1/requests?*', '**/api/v1/tenants', '**/api/v1/nodes']) await page.route(path, (route) => late.then(() => route.continue()));
  const denials = ['does not know this request', 'No tenants', 'No node runs replicas'];
  for (const path of ['/requests/request-5', '/tenants', '/nodes']) {
    await page.evaluate((to) => {
      history.pushState(null, '', to);
      for (const event of ['navigate', 'state']) document.dispatchEvent(new Event(event));
    }, path);
    const said = await page.locator('#view').innerText();
    for (const words of denials) expect(!said.includes(words), `${path} says before it has read anything: ${said}`);
  }
  answerAll();
  await page.getByText('No node runs replicas.').waitFor({ timeout });
  await page.context().close();
}

/** checkRefusedEvents: a page that gets no events says why, and not that there are no models. */
async function checkRefusedEvents(browser) {
  const page = await open(browser, `${url}/models`, {}, (p) => answer(p, '**/api/v1/events', { error: { message: 'As many clients read as may.' } }, 429));
  await page.locator('#offline', { hasText: 'As many clients read as may.' }).waitFor({ timeout });
  expect(!(await page.locator('#view').innerText()).includes('No models'), 'a page without events says that there are no models');
  await page.unroute('**/api/v1/events');
  await page.locator('tr[data-model]').first().waitFor({ timeout });
  expect(await page.locator('#offline').isHidden(), 'the page says that it gets no events, and it does');
  await page.context().close();
  forgive(/status of 429/);
}

/** checkAnnounced: one condition is announced as one. */
async function checkAnnounced(browser) {
  const condition = { type: 'BudgetReached', subject: 'acme', status: 'true', severity: 'warning', reason: 'Refused', message: 'Refused.', since: '2030-05-04T12:00:00Z' };
  const page = await openWide(browser, '/', 1280, (p) => show(p, { conditions: [condition] }));
  await page.locator('#announce', { hasText: /^1 thing needs attention$/ }).waitFor({ state: 'attached', timeout });
  await page.context().close();
}

/** checkBurst: an answer that comes at once has no rate. */
async function checkBurst(browser) {
  const page = await open(browser, `${url}/playground`);
  const event = `data: ${JSON.stringify({ choices: [{ delta: { content: 'a' } }] })}\n\n`;
  await page.route('**/api/v1/playground', (route) => route.fulfill({ contentType: 'text/event-stream', body: `${event}${event}data: [DONE]\n\n` }));
  await page.evaluate(() => { performance.now = () => 7; });
  await page.getByLabel('Message').fill('Hello');
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Stop' }).waitFor({ state: 'hidden', timeout });
  await page.locator('.bubble.assistant').getByText('aa').waitFor({ timeout });
  const figures = await page.locator('.bubble.assistant .sub').innerText();
  expect(!/∞|NaN/.test(figures), `the figures of an answer are: ${figures}`);
  await page.context().close();
}

/** checkURLs: a URL with words that the page does not write shows the rows all the same. */
async function checkURLs(browser) {
  const page = await open(browser, `${url}/configuration`);
  for (const path of ['/models?sort=limits', '/requests?show=constructor', '/requests?sort=-nothing']) {
    await page.goto(url + path);
    await page.locator('#view tbody:not(.spacer) tr').first().waitFor({ timeout }).catch(() => { throw new Error(`${path} shows no rows`); });
  }
  await page.context().close();
}

/**
 * checkPause: after a click on Pause the page stays as it is: it has no stream, and nothing is
 * read.
 */
async function checkPause(browser) {
  const page = await open(browser, `${url}/configuration`);
  await page.addInitScript(() => {
    Object.assign(window, { streams: [], ticks: 0, reads: 0, logs: 0 });
    const [Stream, every, read] = [window.EventSource, window.setInterval, window.fetch];
    window.EventSource = class extends Stream { constructor(of) { super(of); window.streams.push(this); } };
    window.setInterval = (call, ms) => every(() => (window.ticks++, call()), ms / 50);
    window.fetch = (path, options) => {
      if (/v1\/(keys|usage)/.test(path)) window.reads++;
      if (/\/log\?/.test(path)) {
        window.logs++;
        options.signal.addEventListener('abort', () => window.logs--);
      }
      return read(path, options);
    };
  });
  for (const path of ['**/api/v1/keys', '**/api/v1/usage?*']) await page.route(path, (route) => route.fulfill({ json: { keys: [], usage: [] } }));
  await page.route('**/log?*', () => {}); // it has no end
  for (const path of ['/keys', '/usage', '/replicas/model-0001-0']) {
    const hasLog = path.startsWith('/replicas');
    await page.goto(url + path);
    await page.waitForFunction((logs) => window.streams.length > 0 && window.logs === logs, Number(hasLog), { timeout });
    await page.getByRole('button', { name: 'Pause' }).click();
    const { open, ticks, reads } = await page.evaluate(() => (
      { open: window.logs + window.streams.filter((s) => s.readyState !== EventSource.CLOSED).length, ticks: window.ticks, reads: window.reads }));
    expect(open === 0, `${path} has a stream of events or a log during a pause`);
    if (hasLog) {
      await page.locator('.panel', { hasText: 'Log' }).getByText('The page is paused.').waitFor({ timeout });
    } else {
      await page.waitForFunction((before) => window.ticks > before + 2, ticks, { timeout });
      expect(await page.evaluate(() => window.reads) === reads, `${path} reads during a pause`);
    }
    await page.getByRole('button', { name: 'Paused' }).click();
    await page.waitForFunction(() => window.streams.at(-1).readyState === EventSource.OPEN, null, { timeout });
  }
  await page.context().close();
}

/** Answers the status of the stub with these fields in the place of its own. */
const answerStatus = async (page, fields) => answer(page, '**/api/v1/status', { ...(await (await fetch(`${url}/api/v1/status`)).json()), ...fields });

/** checkReasons: the page tells all the reasons for which the gateway is not ready. */
async function checkReasons(browser) {
  const reasons = ['the gateway is draining', 'Envoy is down: signal: killed'];
  const page = await open(browser, url, {}, (p) => answerStatus(p, { ready: false, reasons }));
  for (const words of reasons) await page.locator('.attention', { hasText: words }).waitFor({ timeout });
  await page.context().close();
}

/** checkCut: a response that broke off after its status 200 is among the failed requests. */
async function checkCut(browser) {
  const all = [request(1), { ...request(2), code: 'upstream_truncated' }, { ...request(3), cause: 'shutdown' }];
  const page = await open(browser, `${url}/requests?show=failed`, {}, (p) => Promise.all([show(p, {}), answer(p, '**/api/v1/requests?*', { running: 2, requests: all })]));
  await page.getByText('2 running or queued', { exact: true }).waitFor({ timeout });
  await page.locator('tr[data-request]').first().waitFor({ timeout }).catch(() => { throw new Error('no response that broke off is among the failed requests'); });
  const ids = await page.locator('tr[data-request]').evaluateAll((rows) => rows.map((r) => r.dataset.request).sort());
  expect(String(ids) === 'request-2,request-3', `the failed requests are ${ids}`);
  await page.context().close();
}

/**
 * checkHeads: Enter at the head of a column orders the rows. It does not open a row. Arrows move
 * through the rows also after a click on a link that has opened another tab.
 */
async function checkHeads(browser) {
  const page = await open(browser, `${url}/models`);
  await page.locator('tr[data-model]').first().waitFor({ timeout });
  await page.getByRole('grid').focus();
  await page.keyboard.press('ArrowDown');
  await page.locator('tr[data-active]').waitFor({ timeout });
  await page.locator('thead button', { hasText: 'Ready' }).focus();
  await page.keyboard.press('Enter');
  await page.locator('thead th[aria-sort]', { hasText: 'Ready' }).waitFor({ timeout: 5000 }).catch(() => { throw new Error(`Enter at the head of a column leads to ${page.url()}`); });
  const active = () => page.locator('tr[data-active]').getAttribute('data-model');
  const before = await active();
  await page.locator('tr[data-model] a').nth(2).focus(); // as that click does
  await page.keyboard.press('ArrowDown');
  expect(await active() !== before, 'an arrow moves to no other row while a link has the focus');
  await page.context().close();
}

/** checkLost: what a screen reader reads aloud while the gateway is away does not change. */
async function checkLost(browser) {
  const page = await open(browser, `${url}/models`);
  await page.locator('tr[data-model]').first().waitFor({ timeout });
  await page.route('**/api/v1/status', (route) => route.abort('connectionrefused'));
  const banner = page.locator('#offline');
  await banner.waitFor({ timeout });
  const said = await banner.innerText();
  await page.clock.setFixedTime(Date.now() + 60_000);
  await page.evaluate(() => document.dispatchEvent(new Event('state')));
  expect(await banner.innerText() === said, `the banner said "${said}" and then "${await banner.innerText()}"`);
  await page.context().close();
  forgive(/CONNECTION_REFUSED/);
}

/** checkKept: figures that change leave the focus and the selection in the other facts. */
async function checkKept(browser) {
  const page = await open(browser, `${url}/replicas/model-0000-0`);
  const running = page.locator('.facts div', { hasText: 'In flight' });
  await running.waitFor({ timeout });
  await page.locator('.facts a').first().focus();
  await page.locator('.facts code').first().evaluate((code) => getSelection().selectAllChildren(code));
  const before = await running.innerText();
  await page.waitForFunction((was) => [...document.querySelectorAll('.facts div')].some((d) => d.innerText.startsWith('In flight') && d.innerText !== was), before, { timeout });
  const [focus, selected] = await page.evaluate(() => [document.activeElement.textContent, String(getSelection())]);
  expect(focus === 'model-0000', 'a link loses the focus when a figure beside it changes');
  expect(selected === '10.0.0.1:10000', `the selection is "${selected}" after a figure beside it has changed`);
  await page.context().close();
}

/** checkDays: the list of requests tells the day of those that are not of today. */
async function checkDays(browser) {
  const all = [{ ...request(1), started: '2030-05-04T11:59:00Z' }, { ...request(2), started: '2030-05-03T11:59:00Z' }];
  const page = await open(browser, `${url}/requests`, { timezoneId: 'UTC' }, async (p) => {
    await p.clock.setFixedTime(new Date('2030-05-04T12:00:00Z'));
    await Promise.all([show(p, {}), answer(p, '**/api/v1/requests?*', { running: 0, requests: all })]);
  });
  await page.locator('tr[data-request]').nth(1).waitFor({ timeout });
  const times = await page.locator('tr[data-request] th').allInnerTexts();
  expect(String(times.map((t) => t.trim().split(/\s+/).join(' '))) === '11:59:00,11:59:00 2030-05-03', `the times of requests are ${times}`);
  await page.context().close();
}

/**
 * checkCopy: the button that copies says that it did, or why not. It is not there where it cannot
 * copy.
 */
async function checkCopy(browser) {
  for (const can of [true, false]) {
    const page = await open(browser, `${url}/playground`, {}, (p) => p.addInitScript((value) => Object.defineProperty(navigator, 'clipboard', { value }), can ? {} : null));
    if (can) await page.evaluate(() => { navigator.clipboard.writeText = async (words) => { window.copied = words; }; });
    await page.locator('pre.code', { hasText: 'curl' }).waitFor({ timeout });
    const copy = page.getByRole('button', { name: 'Copy' });
    expect(await copy.count() === Number(can), `a page that ${can ? 'can' : 'cannot'} copy has the wrong buttons`);
    if (can) {
      await copy.click();
      await page.locator('#note', { hasText: 'copied' }).waitFor({ timeout });
      expect((await page.evaluate(() => window.copied)).startsWith('curl'), 'the request is not copied');
      await page.evaluate(() => { navigator.clipboard.writeText = async () => { throw new Error('Write permission denied.'); }; });
      await copy.click();
      await page.locator('#note[data-tone=bad]', { hasText: 'Write permission denied.' }).waitFor({ timeout });
    }
    await page.context().close();
  }
}

/** checkAddress: a gateway that listens at all addresses is called at the address of its page. */
async function checkAddress(browser) {
  for (const listen of ['0.0.0.0:8080', '[::]:8080']) {
    const page = await open(browser, url, {}, (p) => answerStatus(p, { listen }));
    const called = await page.locator('.card .facts code').first().innerText();
    expect(called === 'http://127.0.0.1:8080/v1', `clients of ${listen} are told to call ${called}`);
    await page.context().close();
  }
}

/** checkGone: the page of what does not exist does not say that it loads. */
async function checkGone(browser) {
  const page = await open(browser, url);
  for (const path of ['/models/none', '/replicas/none', '/requests/none']) {
    await page.goto(url + path);
    await page.locator('.banner', { hasText: /does not/ }).last().waitFor({ timeout });
    for (const odd of [page.locator('.title .chip'), page.getByRole('heading', { name: 'History' })]) expect(await odd.isHidden(), `${path} shows ${odd}`);
  }
  await page.context().close();
}

/** checkFocus: after an action the keyboard goes on where it was, or in the view. */
async function checkFocus(browser) {
  let drained = false;
  const page = await open(browser, `${url}/models/chat`, { viewport: { width: 1280, height: 300 } }, async (p) => {
    await answer(p, '**/drain', {});
    await p.route('**/api/v1/events', (route) => route.fulfill({ contentType: 'text/event-stream',
      body: `retry: 100\nevent: state\ndata: ${JSON.stringify({ whole: true, models: [modelOf('chat', { drained })], replicas: [], conditions: [], totals: {} })}\n\n` }));
  });
  const button = (name) => page.locator('.title').getByRole('button', { name, exact: true });
  await button('Drain').focus();
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).press('Enter');
  await page.getByRole('dialog').waitFor({ state: 'detached', timeout });
  await page.evaluate(() => scrollTo(0, 400));
  drained = true; // the model says so after the answer to the action
  await button('Undrain').waitFor({ timeout });
  expect(await page.evaluate(() => scrollY) === 400, 'the page scrolls to the button that was pressed');
  expect(await page.evaluate(() => document.activeElement.textContent) === 'Undrain', 'the focus is lost with the button that was pressed');
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor({ timeout });
  drained = false; // somebody else has undrained it
  await button('Drain').waitFor({ state: 'attached', timeout });
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'detached', timeout });
  expect(await page.evaluate(() => document.activeElement.id) === 'main', 'the focus is lost after a dialog whose button has gone');
  await page.context().close();
}

/** checkFocusOfGone: the view has the focus when the button of an action goes after the action. */
async function checkFocusOfGone(browser) {
  let gone = false;
  const page = await open(browser, `${url}/requests/request-1`, {}, async (p) => {
    await show(p, {});
    await p.route('**/api/v1/requests?*', (route) => route.fulfill({ json: { running: 1, requests: [{ ...request(1), state: gone ? 'done' : 'streaming' }] } }));
    await p.route('**/api/v1/keys', (route) => route.fulfill({ json: { keys: gone ? [key(0)] : [key(0), key(1)] } }));
    await Promise.all([answer(p, '**/cancel', {}, 202), answer(p, '**/api/v1/keys/*', {})]);
  });
  const act = async (name) => {
    const button = page.locator('.title button, td button').getByText(name, { exact: true });
    await button.focus();
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').getByRole('button', { name, exact: true }).press('Enter'); // there is one
    await page.getByRole('dialog').waitFor({ state: 'detached', timeout });
    gone = true; // the answer to the action comes before it is seen
    await button.waitFor({ state: 'detached', timeout });
    expect(await page.evaluate(() => document.activeElement.id) === 'main', `the focus is lost with the button ${name}`);
    gone = false;
  };
  await act('Cancel');
  await page.goto(`${url}/keys`);
  await act('Revoke');
  await page.context().close();
}

await run(async (browser) => {
  await checkRefusedKey(browser);
  await checkHiddenLog(browser);
  await checkAdvice(browser);
  await checkServerOfSeveral(browser);
  await checkWidths(browser);
  await checkKeys(browser);
  await checkModelsOfAKey(browser);
  await checkPhone(browser);
  await checkSizes(browser);
  await checkOvertaken(browser);
  await checkReasoning(browser);
  await checkNames(browser);
  await checkOrder(browser);
  await checkFailing(browser);
  await checkChoice(browser);
  await checkPatched(browser);
  await checkUnread(browser);
  await checkRefusedEvents(browser);
  await checkAnnounced(browser);
  await checkBurst(browser);
  await checkURLs(browser);
  await checkPause(browser);
  await checkReasons(browser);
  await checkCut(browser);
  await checkHeads(browser);
  await checkLost(browser);
  await checkKept(browser);
  await checkDays(browser);
  await checkCopy(browser);
  await checkAddress(browser);
  await checkGone(browser);
  await checkFocus(browser);
  await checkFocusOfGone(browser);
});
end();
