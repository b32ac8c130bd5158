// Opens the operator's page in Chromium and checks that it shows the running models and requests,
// live.
//
//     ADMIN_URL=http://127.0.0.1:9090 EXPECT_MODEL=chat EXPECT_REPLICA=chat-0 node page.mjs
//
// The page needs requests to show: another client must send requests to EXPECT_MODEL meanwhile.
// EXPECT_UPSTREAM is the replica id of a server that someone else runs, and EXPECT_SEEN what the
// page says of it. The script prints "ok page", or what is wrong and exits with 1. EDIT_MODEL and
// EDIT_TENANT name a model and a tenant: the script changes one of their limits on the page and
// restores the file's value. With ADMIN_TOKEN, a token with the role operator, the script first
// logs in, and out at the end. With VIEWER_TOKEN it then logs in with the role viewer, which sees
// no action. API_KEY is the key for the playground. FILE is the content of the configuration file.
// SCREENSHOTS is a directory: the script writes pictures of the views to it. More settings:
// CHROMIUM (default /usr/bin/chromium), TIMEOUT in ms for each step (default 90000), NODE_MODULES
// (the directory of playwright-core, default .tools/node/node_modules of this repository).
import { accessible, expect, faults, fits, forgive, open, run, timeout, visit } from './pagelib.mjs';

const {
  ADMIN_URL, ADMIN_TOKEN, VIEWER_TOKEN, API_KEY, EXPECT_MODEL, EXPECT_REPLICA, EXPECT_UPSTREAM, EXPECT_SEEN, EDIT_MODEL, EDIT_TENANT, SCREENSHOTS, FILE,
} = process.env;

/** Returns the selector of a table row by its name, which may be any text. */
function row(kind, name) {
  return `tr[data-${kind}=${JSON.stringify(name)}]`;
}

/** Waits for a row that contains every word. */
async function shows(page, selector, ...words) {
  const found = page.locator(selector).first();
  await found.waitFor({ timeout }).catch(() => { throw new Error(`the page never showed ${selector}`); });
  for (const word of words) await found.getByText(word).first().waitFor({ timeout });
}

async function api(path) {
  const answer = await fetch(ADMIN_URL + path, { headers: ADMIN_TOKEN ? { authorization: `Bearer ${ADMIN_TOKEN}` } : {} });
  expect(answer.ok, `${path}: ${answer.status}`);
  return answer.json();
}

/**
 * checkLive: under load the page shows the API's values. They change without a reload of the page.
 */
async function checkLive(page) {
  const served = async () => (await api('/api/v1/replicas')).replicas.filter((r) => r.model === EXPECT_MODEL).reduce((n, r) => n + r.served, 0);
  const shown = (least) => { // the sum on the page, if it is greater
    const n = [...document.querySelectorAll('tr[data-replica] td:nth-of-type(4)')].reduce((sum, cell) => sum + Number(cell.textContent.replaceAll(',', '')), 0);
    return n > least && n;
  };
  const origin = await page.evaluate(() => window.loadedAt);
  await visit(page, 'Replicas');
  for (let i = 0; i < 3; i++) {
    const least = await served();
    await page.waitForFunction(shown, least, { timeout }).catch(() => { throw new Error('the page does not follow the API'); });
    const [now, most] = [await page.evaluate(shown, least), await served()];
    expect(now <= most, `the page shows ${now} served requests, the API ${most}`);
  }
  expect(await page.evaluate(() => window.loadedAt) === origin, 'the page was loaded again');
}

/** checkRequest: a finished request has a row and a page with the values of the API. */
async function checkRequest(page) {
  await visit(page, 'Requests');
  const done = page.locator('tr[data-request][data-state=done]').first();
  await done.waitFor({ timeout });
  const id = await done.getAttribute('data-request');
  await page.locator(`${row('request', id)} th a`).click();
  await page.waitForURL(`**/requests/${id}`, { timeout });
  await page.locator('.facts').waitFor({ timeout });
  const said = (await api('/api/v1/requests?limit=1000')).requests.find((q) => q.request_id === id);
  const about = await page.locator('.facts').first().innerText();
  for (const word of [said.model, said.replica, `${said.method} ${said.path}`]) expect(about.includes(word), `the page of a request does not say ${word}: ${about}`);
  for (const what of ['received', 'picked', 'finished']) await page.locator(`.timeline li[data-what=${what}]`).waitFor({ timeout });
  const { picked } = await api(`/api/v1/requests/${id}`);
  await page.locator('tr[data-candidate]').first().waitFor({ timeout });
  const shown = await page.locator('tr[data-candidate] th a').allInnerTexts();
  expect(String(shown) === String(picked.candidates.map((c) => c.replica)), `the candidates are ${picked.candidates.map((c) => c.replica)}, the page shows ${shown}`);
  expect(await page.locator('tr[data-picked] th a').innerText() === picked.replica, `${picked.replica} was picked, and is not marked`);
  await page.locator('.title .chip[data-tone=ok]').waitFor({ timeout }); // the access log has told of it
  await picture(page, 'request');
  await accessible(page, 'a request');
}

/** checkDetails: a model and a replica have pages, with links from one to the other, and back. */
async function checkDetails(page) {
  await visit(page, 'Models');
  let answer; // the history comes late, so that the page is looked at before and after it
  const late = new Promise((resolve) => { answer = resolve; });
  await page.route('**/api/v1/history?*', (route) => late.then(() => route.continue()));
  await page.locator(`${row('model', EXPECT_MODEL)} th a`).click();
  await page.waitForURL(`**/models/${encodeURIComponent(EXPECT_MODEL)}`, { timeout });
  await shows(page, row('replica', EXPECT_REPLICA), 'ready');
  await accessible(page, 'a model whose history is not read yet');
  answer();
  await page.locator('.chart canvas').first().waitFor({ timeout });
  await page.unroute('**/api/v1/history?*');
  await picture(page, 'model');
  await accessible(page, 'a model');
  await page.locator(`${row('replica', EXPECT_REPLICA)} th a`).click();
  await page.waitForURL(`**/replicas/${encodeURIComponent(EXPECT_REPLICA)}`, { timeout });
  await page.locator('.facts').first().waitFor({ timeout });
  await picture(page, 'replica');
  await accessible(page, 'a replica');
  await page.goBack();
  await shows(page, row('replica', EXPECT_REPLICA), 'ready');
}

/**
 * checkActions: actions ask first, and do what they say: a model is drained and undrained, and
 * scaled; a replica's log is shown and searched.
 */
async function checkActions(page) {
  await page.goto(`${ADMIN_URL}/models/${encodeURIComponent(EXPECT_MODEL)}`);
  const model = async () => (await api('/api/v1/models')).models.find((m) => m.name === EXPECT_MODEL);
  const dialog = page.getByRole('dialog');
  const title = page.locator('.title').first();
  for (const [words, drained] of [['Drain', true], ['Undrain', false]]) {
    await title.getByRole('button', { name: words, exact: true }).click();
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    expect(Boolean((await model()).drained) === !drained, `${words} does not wait for a confirmation`);
    await title.getByRole('button', { name: words, exact: true }).click();
    await accessible(page, 'a question');
    await dialog.getByRole('button', { name: words }).click();
    await title.locator('.chip', { hasText: drained ? 'drained' : 'ready' }).waitFor({ timeout });
    expect(Boolean((await model()).drained) === drained, `${words} has no effect`);
  }
  await title.getByRole('button', { name: 'Scale' }).click();
  const { min, max } = (await model()).scale;
  await dialog.getByLabel('At most').fill(String(min - 1));
  await dialog.getByRole('button', { name: 'Scale' }).click();
  await dialog.locator('.fault').waitFor({ timeout });
  forgive(/status of 400/);
  await dialog.getByLabel('At most').fill(String(max + 1));
  await dialog.getByRole('button', { name: 'Scale' }).click();
  await page.getByText(`${min} to ${max + 1}, set at run time`).waitFor({ timeout });
  expect((await model()).scale.max === max + 1, 'the scale has no effect');
  await title.getByRole('button', { name: 'Scale' }).click();
  await dialog.getByRole('button', { name: 'Restore' }).click();
  await page.getByText(`${min} to ${max + 1}, set at run time`).waitFor({ state: 'detached', timeout });

  await page.goto(`${ADMIN_URL}/replicas/${encodeURIComponent(EXPECT_REPLICA)}`);
  await page.locator('.log').getByText('simulated engine').first().waitFor({ timeout });
  await page.getByLabel('Search the log').fill('nothing has this');
  await page.keyboard.press('Enter');
  await page.getByText('No lines.').waitFor({ timeout });
}

/** checkHistory: the charts have the samples of the API. */
async function checkHistory(page) {
  await visit(page, 'Overview');
  // The first samples of a gateway may be from before its first request.
  const chart = page.getByRole('img', { name: /^Requests per second: all [\d.]+ now, at most [\d.]*[1-9]/ });
  await chart.waitFor({ timeout }).catch(() => { throw new Error('the charts never had a sample with requests'); });
  const most = Number((await chart.getAttribute('aria-label')).match(/at most ([\d.]+)/)[1]);
  const { series } = await api('/api/v1/history?from=-3600&step=10');
  const known = Math.max(...series.find((s) => s.name === 'requests_per_second').values);
  expect(most > 0 && most <= 1.01 * known + 0.01, `the chart has at most ${most} requests per second, the API ${known}`);
  await page.getByRole('button', { name: '24 h' }).click();
  await page.getByRole('button', { name: '24 h', pressed: true }).waitFor({ timeout });
  expect(new URL(page.url()).searchParams.get('range') === '24 h', 'the range is not in the URL');
  await page.getByRole('button', { name: '1 h' }).click();
}

/**
 * checkRouting: the routing of the model has a row for every replica, and says where a request
 * would go.
 */
async function checkRouting(page) {
  await visit(page, 'Routing');
  await page.locator('#routed-model').selectOption(EXPECT_MODEL);
  await shows(page, row('routed', EXPECT_REPLICA), EXPECT_REPLICA);
  const answer = page.locator('.answer');
  for (const asked of ['You are a helpful assistant.', '{"prompt": "Hello"}']) {
    await answer.evaluate((node) => node.replaceChildren());
    await page.getByLabel('Prompt or body').fill(asked);
    await page.getByRole('button', { name: 'Ask' }).click();
    await answer.locator('li[data-picked]').waitFor({ timeout });
    expect((await answer.innerText()).includes(EXPECT_REPLICA), `the answer does not name ${EXPECT_REPLICA}`);
    expect(await answer.locator('> p').innerText() !== '', 'the answer does not say why');
  }
  await picture(page, 'routing');
  await page.getByLabel('Prompt or body').fill('{"model": 7, "messages": []}');
  await page.getByRole('button', { name: 'Ask' }).click();
  await answer.locator('.fault').waitFor({ timeout });
  forgive(/status of 400/);
}

/** checkPlayground: an answer streams, and the request is shown as curl and as Python. */
async function checkPlayground(page) {
  await visit(page, 'Playground');
  await page.getByLabel('Model').selectOption(EXPECT_MODEL);
  if (API_KEY) await page.getByLabel('Key of a tenant').fill(API_KEY);
  await page.getByLabel('At most tokens').fill('20');
  await page.getByLabel('Message').fill("What is 'this'?");
  const code = page.locator('pre.code');
  await page.waitForFunction(() => document.querySelector('pre.code').textContent.includes("'\\''this'\\''"), null, { timeout });
  await page.keyboard.press('Enter');
  const said = page.locator('.bubble.assistant');
  await page.waitForFunction(() => /first token .* finish: length/.test(document.querySelector('.bubble.assistant .sub')?.textContent), null, { timeout })
    .catch(async () => { throw new Error(`the playground has no answer: ${await page.locator('.talk').innerText()}`); });
  expect((await said.locator('.words').innerText()).length > 20, 'the answer is too short');
  await page.getByRole('button', { name: 'Python' }).click();
  expect(/from openai import OpenAI/.test(await code.innerText()), 'the request is not shown as Python');
  await picture(page, 'playground');
  await accessible(page, 'the playground');
  await said.getByRole('link', { name: 'request' }).click();
  await page.locator('.facts').first().waitFor({ timeout });
}

/**
 * checkReload: the page shows what the file would change, and its faults with their lines. The
 * reload asks first. The test has the gateway check another content, because a changed file would
 * take effect by itself.
 */
async function checkReload(page) {
  await visit(page, 'Configuration');
  const dialog = page.getByRole('dialog');
  const check = page.getByRole('button', { name: 'Check the file' });
  let content = '';
  await page.route('**/api/v1/reload?dry_run=true', (route) => route.continue({ postData: JSON.stringify(content === '' ? {} : { content }) }));
  await check.click();
  await dialog.getByText('The file changes nothing').waitFor({ timeout });
  await dialog.getByRole('button', { name: 'Close' }).click();

  content = `${FILE}\nnonsense: 7\n`;
  await check.click();
  await dialog.getByText('The file has faults').waitFor({ timeout });
  forgive(/status of 422/);
  const line = FILE.split('\n').length + 1;
  expect((await dialog.locator('.plan').innerText()).includes(`:${line}`), `the fault is not in line ${line}: ${await dialog.innerText()}`);
  await accessible(page, 'the faults of a file');
  await dialog.getByRole('button', { name: 'Close' }).click();

  content = `${FILE.replace('token_interval: 20ms', 'token_interval: 25ms')}`;
  await check.click();
  const change = dialog.locator('li[data-change=changed]', { hasText: `model ${EXPECT_MODEL}` });
  await change.waitFor({ timeout }).catch(async () => { throw new Error(`the plan is: ${await dialog.innerText()}`); });
  for (const words of ['variables', 'replaces', EXPECT_REPLICA]) expect((await change.innerText()).includes(words), `${words} is not in the plan: ${await change.innerText()}`);
  await accessible(page, 'a plan of a reload');
  await dialog.getByRole('button', { name: 'Reload' }).click();
  await page.locator('#note', { hasText: 'The file is in force.' }).waitFor({ timeout });
  await page.unroute('**/api/v1/reload?dry_run=true');
}

/**
 * checkEdit: a limit that is changed on the page takes effect and is marked. The file's value can
 * be restored. All this works with the keyboard alone.
 */
async function checkEdit(page, kind, name, field) {
  await page.goto(`${ADMIN_URL}/${kind}/${encodeURIComponent(name)}`);
  const limits = () => api(`/api/v1/${kind}/${encodeURIComponent(name)}/limits`);
  const before = await limits();
  expect(before.patched.length === 0, `${name} has changed limits already: ${before.patched}`);
  const button = page.getByRole('button', { name: `Edit the limits of ${name}` });
  const dialog = page.getByRole('dialog');
  await button.focus();
  await page.keyboard.press('Enter');
  await dialog.waitFor({ timeout });
  await accessible(page, 'the limits');
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached', timeout });
  expect(await button.evaluate((b) => b === document.activeElement), 'the focus is lost after the dialog');

  const value = before[field] + 7;
  await page.keyboard.press('Enter');
  await dialog.locator(`input[name=${field}]`).fill(String(value));
  await page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'detached', timeout });
  const mark = page.locator('.card .patched').first();
  await mark.waitFor({ timeout }).catch(() => { throw new Error('the changed limit has no mark'); });
  expect(/^set at run time; the file says /.test(await mark.getAttribute('title')), `the mark says: ${await mark.getAttribute('title')}`);
  const during = await limits();
  expect(during[field] === value && String(during.patched) === field, `after the change: ${JSON.stringify(during)}`);

  await button.click();
  await dialog.getByRole('button', { name: 'Fill in the file' }).click();
  await dialog.getByRole('button', { name: 'Save' }).click();
  await mark.waitFor({ state: 'detached', timeout });
  const after = await limits();
  expect(JSON.stringify(after) === JSON.stringify(before), `back to the file's: ${JSON.stringify(after)}`);
}

/**
 * logIn: the page shows nothing but the login until it gets a token that is right. No script can
 * read the cookie.
 */
async function logIn(page, right) {
  const form = page.locator('#login');
  await form.waitFor({ timeout });
  await accessible(page, 'the login');
  expect(await page.locator('#app').isHidden(), 'the page shows its views to strangers');
  for (const token of ['wrong', right]) {
    await form.locator('input').fill(token);
    await page.keyboard.press('Enter');
    if (token === 'wrong') await page.locator('#login-fault').waitFor({ timeout });
  }
  await form.waitFor({ state: 'hidden', timeout });
  forgive(/status of 401/); // of the wrong token, and of what was asked before the login
  const [cookie, ...others] = await page.context().cookies();
  expect(others.length === 0 && cookie.httpOnly && cookie.sameSite === 'Strict', `the cookie: ${JSON.stringify([cookie, ...others])}`);
  expect(!JSON.stringify(cookie).includes(right), 'the cookie holds the token');
  expect(await page.evaluate(() => document.cookie === '' && localStorage.length === 0), 'scripts can read the login');
}

/** logOut: the page shows the login again, and nothing else. */
async function logOut(page) {
  expect(faults.length === 0, faults.join('\n'));
  await page.getByRole('button', { name: 'Log out' }).click();
  await page.locator('#login').waitFor({ timeout });
  expect(await page.locator('#app').isHidden(), 'the page shows its views after the end of the login');
  expect((await page.context().cookies()).length === 0, 'the cookie stays after the end of the login');
  await page.waitForLoadState('networkidle', { timeout });
  forgive(/status of 401/); // of what was asked while the login ended
}

/** checkViewer: who may only read sees the values and no action. */
async function checkViewer(page) {
  await logIn(page, VIEWER_TOKEN);
  for (const path of [`/models/${encodeURIComponent(EXPECT_MODEL)}`, `/replicas/${encodeURIComponent(EXPECT_REPLICA)}`, '/configuration', '/playground']) {
    await page.goto(ADMIN_URL + path);
    await page.locator('#view h1').waitFor({ timeout });
    await page.waitForFunction(() => document.querySelector('#readiness').textContent === 'ready', null, { timeout });
    const buttons = await page.locator('#view button:not(thead button, [aria-pressed])').allInnerTexts();
    expect(buttons.length === 0, `a viewer sees actions at ${path}: ${buttons}`);
  }
  await logOut(page);
}

/** Writes a picture of a view for the documents, if they have one of it. */
async function picture(page, name) {
  if (!SCREENSHOTS || !['overview', 'playground'].includes(name)) return;
  await page.emulateMedia({ reducedMotion: 'reduce' });
  await page.screenshot({ path: `${SCREENSHOTS}/page-${name}.png` });
}

const views = ['Overview', 'Models', 'Replicas', 'Nodes', 'Requests', 'Tenants', 'Keys', 'Usage', 'Routing', 'Configuration', 'Playground'];

await run(async (browser) => {
  expect(ADMIN_URL && EXPECT_MODEL && EXPECT_REPLICA, 'ADMIN_URL, EXPECT_MODEL and EXPECT_REPLICA must be set');
  const page = await open(browser, ADMIN_URL, { viewport: { width: 1280, height: 800 } });
  if (ADMIN_TOKEN) await logIn(page, ADMIN_TOKEN);
  await shows(page, row('model', EXPECT_MODEL), EXPECT_MODEL);
  await checkLive(page);
  await checkRequest(page);
  await checkDetails(page);
  await checkActions(page);
  await checkHistory(page);
  await checkRouting(page);
  await checkPlayground(page);
  if (FILE) await checkReload(page);
  if (EXPECT_UPSTREAM) {
    await visit(page, 'Nodes');
    await shows(page, row('upstream', EXPECT_UPSTREAM), 'ready', EXPECT_SEEN);
  }
  if (EDIT_MODEL) await checkEdit(page, 'models', EDIT_MODEL, 'max_concurrent_requests');
  if (EDIT_TENANT) await checkEdit(page, 'tenants', EDIT_TENANT, 'requests_per_minute');
  for (const name of views) {
    await visit(page, name);
    await page.waitForTimeout(SCREENSHOTS ? 1500 : 0);
    await picture(page, name.toLowerCase());
    await fits(page, name);
    await accessible(page, name);
  }
  await page.setViewportSize({ width: 390, height: 844 });
  await page.emulateMedia({ colorScheme: 'dark' });
  for (const name of views) {
    await visit(page, name);
    await fits(page, name);
    // With a login the views are those without one, and only the menu has more.
    if (!ADMIN_TOKEN || name === views.at(-1)) await accessible(page, `${name}, dark and narrow`);
  }
  for (const path of [`/models/${encodeURIComponent(EXPECT_MODEL)}`, `/replicas/${encodeURIComponent(EXPECT_REPLICA)}`]) {
    await page.goto(ADMIN_URL + path);
    await page.locator('.facts').first().waitFor({ timeout });
    await fits(page, path);
  }
  if (ADMIN_TOKEN) await logOut(page);
  if (VIEWER_TOKEN) await checkViewer(page);
});
