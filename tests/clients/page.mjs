// Opens the operator's page in Chromium and checks that it shows the running models and requests, live.
//
//     ADMIN_URL=http://127.0.0.1:9090 EXPECT_MODEL=chat EXPECT_REPLICA=chat-0 node page.mjs
//
// The page needs requests to show. With API_URL (http://127.0.0.1:8080/v1) and, if keys are needed,
// API_KEY, the script sends them itself, to EXPECT_MODEL. Without API_URL another client must send
// requests meanwhile. EXPECT_MODEL and EXPECT_REPLICA may be lists separated by commas.
// EXPECT_UPSTREAM is the replica id of a server that someone else runs, and EXPECT_SEEN what the page
// says of it. The script prints "ok page", or one line about a fault and exits with 1. EDIT_MODEL and EDIT_TENANT name a model
// and a tenant: the script changes one of their limits on the page and restores the file's value. With
// ADMIN_TOKEN, a token with the role operator, the script first logs in, and out at the end. More
// settings: CHROMIUM (default /usr/bin/chromium), TIMEOUT in ms for each step (default 15000),
// SCREENSHOT (a .png to write at the end), NODE_MODULES (the directory of playwright-core, default
// .tools/node/node_modules of this repository).
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const {
  ADMIN_URL, ADMIN_TOKEN, API_URL, API_KEY, EXPECT_MODEL, EXPECT_REPLICA, EXPECT_UPSTREAM, EXPECT_SEEN, EDIT_MODEL, EDIT_TENANT, SCREENSHOT, CHROMIUM = '/usr/bin/chromium',
} = process.env;
const timeout = Number(process.env.TIMEOUT ?? 15_000);
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const { chromium } = createRequire(packages + '/')('playwright-core');

const faults = []; // the errors and warnings of the browser

function expect(holds, what) {
  if (!holds) throw new Error(what);
}

function list(names) {
  return (names ?? '').split(',').filter(Boolean);
}

// row returns the selector of a table row by its name, which may be any text.
function row(kind, name) {
  return `tr[data-${kind}=${JSON.stringify(name)}]`;
}

async function open(browser) {
  const page = await browser.newPage();
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && faults.push(`console: ${m.text()}`));
  page.on('pageerror', (e) => faults.push(`uncaught: ${e.message}`));
  // The page aborts a poll that takes too long and polls again, so aborted requests are no fault.
  page.on('requestfailed', (r) => /ERR_ABORTED/.test(r.failure()?.errorText) || faults.push(`request failed: ${r.url()} ${r.failure()?.errorText}`));
  page.on('request', (r) => new URL(r.url()).origin === new URL(ADMIN_URL).origin || faults.push(`foreign request: ${r.url()}`));
  await page.exposeFunction('violated', (what) => faults.push(`content security policy: ${what}`));
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (e) => window.violated(`${e.violatedDirective} ${e.blockedURI}`));
    window.loadedAt = performance.timeOrigin; // changes when the page is loaded again
  });
  const answer = await page.goto(ADMIN_URL, { timeout });
  expect(answer.status() === 200, `the page answered ${answer.status()}`);
  expect(answer.headers()['content-security-policy'], 'the page has no content security policy');
  return page;
}

// shows waits for a row that contains every word, and returns the row's text.
async function shows(page, selector, ...words) {
  const found = page.locator(selector).first();
  await found.waitFor({ timeout }).catch(() => { throw new Error(`the page never showed ${selector}`); });
  for (const word of words) await found.getByText(word).first().waitFor({ timeout });
}

async function send() {
  const answer = await fetch(`${API_URL}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(API_KEY && { authorization: `Bearer ${API_KEY}` }) },
    body: JSON.stringify({ model: list(EXPECT_MODEL)[0], max_tokens: 4, messages: [{ role: 'user', content: 'Hello' }] }),
  });
  const body = await answer.text();
  expect(answer.ok, `the API answered ${answer.status}: ${body}`);
}

function shownRequests(page) {
  return page.locator('tr[data-request]').evaluateAll((rows) => rows.map((r) => r.dataset.request));
}

// checkLive: a new request appears without a reload of the page, and is then shown as finished.
async function checkLive(page) {
  const origin = await page.evaluate(() => window.loadedAt);
  await page.waitForFunction(() => document.getElementById('updated').textContent !== '', null, { timeout });
  const before = await shownRequests(page);
  if (API_URL) await send();
  const done = (ids) => [...document.querySelectorAll('tr[data-request][data-state=done]')].some((r) => !ids.includes(r.dataset.request));
  await page.waitForFunction(done, before, { timeout }).catch(() => { throw new Error('no new request appeared on the page'); });
  expect(await page.evaluate(() => window.loadedAt) === origin, 'the page was loaded again');
}

// checkRouting: the routing of the model has a row for every expected replica, and tells of the last
// requests.
async function checkRouting(page) {
  const [model] = list(EXPECT_MODEL);
  if (!model) return;
  await page.locator('#ring-model').selectOption(model);
  for (const id of list(EXPECT_REPLICA)) await shows(page, row('routed', id), id);
  const told = () => /^The last |^\d/.test(document.getElementById('routing-recent').textContent);
  await page.waitForFunction(told, null, { timeout }).catch(() => { throw new Error('the routing tells of no request'); });
}

// checkPick: the answer to "Where would this request go?" says why, and names every expected replica.
// A body that is no request is refused in words.
async function checkPick(page) {
  const [model] = list(EXPECT_MODEL);
  if (!model) return;
  await page.locator('#ring-model').selectOption(model);
  for (const asked of ['You are a helpful assistant.', '{"prompt": "Hello"}']) {
    await page.locator('#ring-result').evaluate((node) => node.replaceChildren());
    await page.locator('#ring-key').fill(asked);
    await page.locator('#ring-form button').click();
    await page.locator('#ring-result li[data-picked]').waitFor({ timeout });
    const answer = await page.locator('#ring-result').innerText();
    for (const id of list(EXPECT_REPLICA)) expect(answer.includes(id), `the answer does not name ${id}: ${answer}`);
    expect(await page.locator('#ring-result > p').innerText() !== '', 'the answer does not say why');
  }
  await page.locator('#ring-key').fill('{"model": 7, "messages": []}');
  await page.locator('#ring-form button').click();
  await page.locator('#ring-result .fault').waitFor({ timeout });
  faults.splice(0, faults.length, ...faults.filter((f) => !/status of 400/.test(f)));
}

async function limitsOf(kind, name) {
  const headers = ADMIN_TOKEN ? { authorization: `Bearer ${ADMIN_TOKEN}` } : {};
  const answer = await fetch(`${ADMIN_URL}/api/v1/${kind}/${encodeURIComponent(name)}/limits`, { headers });
  expect(answer.ok, `the limits of ${name}: ${answer.status}`);
  return answer.json();
}

// checkEdit: a limit that is changed on the page takes effect and is marked. The file's value can be
// restored. All this works with the keyboard alone.
async function checkEdit(page, kind, name, field) {
  const before = await limitsOf(kind, name);
  expect(before.patched.length === 0, `${name} has changed limits already: ${before.patched}`);
  const cells = page.locator(row(kind.slice(0, -1), name));
  const button = cells.getByRole('button', { name: `Edit the limits of ${name}` });
  const dialog = page.getByRole('dialog');

  await button.focus();
  await page.keyboard.press('Enter');
  await dialog.waitFor({ timeout });
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'hidden', timeout });
  expect(await button.evaluate((b) => b === document.activeElement), 'the focus is lost after the dialog');

  const value = before[field] + 7;
  await page.keyboard.press('Enter');
  await dialog.locator(`input[name=${field}]`).fill(String(value));
  await page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'hidden', timeout });
  await cells.locator('.patched').first().waitFor({ timeout }).catch(() => { throw new Error('the changed limit has no mark'); });
  const mark = await cells.locator('.patched').first().getAttribute('title');
  expect(/^set at run time; the file says /.test(mark), `the mark says: ${mark}`);
  const during = await limitsOf(kind, name);
  expect(during[field] === value && String(during.patched) === field, `after the change: ${JSON.stringify(during)}`);

  await button.click();
  await dialog.getByRole('button', { name: 'Fill in the file' }).click();
  await dialog.getByRole('button', { name: 'Save' }).click();
  await dialog.waitFor({ state: 'hidden', timeout });
  await cells.locator('.patched').first().waitFor({ state: 'detached', timeout });
  const after = await limitsOf(kind, name);
  expect(JSON.stringify(after) === JSON.stringify(before), `back to the file's: ${JSON.stringify(after)}`);
}

// logIn: the page shows nothing but the login until it gets a token that is right. The cookie is not
// the token, and no script can read it.
async function logIn(page) {
  const form = page.locator('#login');
  await form.waitFor({ timeout });
  expect(await page.locator('#main').isHidden(), 'the page shows its tables to strangers');
  for (const token of ['wrong', ADMIN_TOKEN]) {
    await form.locator('input').fill(token);
    await page.keyboard.press('Enter');
    if (token === 'wrong') await page.locator('#login-fault').waitFor({ timeout });
  }
  await form.waitFor({ state: 'hidden', timeout });
  await page.waitForLoadState('networkidle', { timeout });
  forgiveUnauthorized(); // of the wrong token, and of what was asked before the login
  const [cookie, ...others] = await page.context().cookies();
  expect(others.length === 0 && cookie.httpOnly && cookie.sameSite === 'Strict', `the cookie: ${JSON.stringify([cookie, ...others])}`);
  expect(!JSON.stringify(cookie).includes(ADMIN_TOKEN), 'the cookie holds the token');
  expect(await page.evaluate(() => document.cookie === '' && localStorage.length === 0), 'scripts can read the login');
}

// forgiveUnauthorized removes the faults that answers with status 401 have left in the console.
function forgiveUnauthorized() {
  faults.splice(0, faults.length, ...faults.filter((f) => !/status of 401/.test(f)));
}

// logOut: the page shows the login again, and nothing else.
async function logOut(page) {
  expect(faults.length === 0, faults.join('\n'));
  await page.getByRole('button', { name: 'Log out' }).click();
  await page.locator('#login').waitFor({ timeout });
  expect(await page.locator('#main').isHidden(), 'the page shows its tables after the end of the login');
  expect((await page.context().cookies()).length === 0, 'the cookie stays after the end of the login');
  await page.waitForLoadState('networkidle', { timeout });
  forgiveUnauthorized(); // of what was asked while the login ended
}

// checkNarrow: the page is not wider than the screen of a telephone.
async function checkNarrow(page) {
  await page.setViewportSize({ width: 390, height: 844 });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  expect(width <= 390, `the page is ${width} pixels wide on a screen of 390`);
}

async function check(browser) {
  const page = await open(browser);
  if (ADMIN_TOKEN) await logIn(page);
  for (const name of list(EXPECT_MODEL)) await shows(page, row('model', name), name);
  for (const id of list(EXPECT_REPLICA)) await shows(page, row('replica', id), id, 'ready');
  if (EXPECT_UPSTREAM) await shows(page, row('upstream', EXPECT_UPSTREAM), 'ready', EXPECT_SEEN);
  await checkLive(page);
  await checkRouting(page);
  await checkPick(page);
  if (EDIT_MODEL) await checkEdit(page, 'models', EDIT_MODEL, 'max_concurrent_requests');
  if (EDIT_TENANT) await checkEdit(page, 'tenants', EDIT_TENANT, 'requests_per_minute');
  if (SCREENSHOT) await page.screenshot({ path: SCREENSHOT, fullPage: true });
  await checkNarrow(page);
  if (ADMIN_TOKEN) await logOut(page);
  expect(faults.length === 0, faults.join('\n'));
}

let browser;
try {
  expect(ADMIN_URL, 'ADMIN_URL is not set');
  browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync'],
  });
  await check(browser);
  console.log('ok page');
} catch (e) {
  console.error(`page: ${[e.message, ...faults].join('\n')}`);
  process.exitCode = 1;
} finally {
  await browser?.close();
}
