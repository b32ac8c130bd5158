// What the tests of the operator's page share: Chromium, the faults that a page may have, and
// axe-core.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const { CHROMIUM = '/usr/bin/chromium' } = process.env;
export const timeout = Number(process.env.TIMEOUT ?? 90_000);
const packages = process.env.NODE_MODULES ?? fileURLToPath(new URL('../../.tools/node/node_modules', import.meta.url));
const load = createRequire(packages + '/');
const { chromium } = load('playwright-core');
const axe = readFileSync(load.resolve('axe-core/axe.min.js'), 'utf8');

/** The errors and warnings of the browser. */
export const faults = [];

export function expect(holds, what) {
  if (!holds) throw new Error(what);
}

/** Removes the faults that match, because the test has caused them. */
export function forgive(pattern) {
  faults.splice(0, faults.length, ...faults.filter((f) => !pattern.test(f)));
}

/**
 * Opens a page of a URL and records its faults. prepare may change what the page will be answered.
 */
export async function open(browser, url, options = {}, prepare = () => {}) {
  const context = await browser.newContext({ bypassCSP: false, ...options });
  context.setDefaultTimeout(timeout);
  const page = await context.newPage();
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && faults.push(`console: ${m.text()}`));
  page.on('pageerror', (e) => faults.push(`uncaught: ${e.message}`));
  // The page ends its calls and its event stream when it leaves a view, so aborted requests are no
  // fault.
  page.on('requestfailed', (r) => /ERR_ABORTED/.test(r.failure()?.errorText) || faults.push(`request failed: ${r.url()} ${r.failure()?.errorText}`));
  page.on('request', (r) => new URL(r.url()).origin === new URL(url).origin || faults.push(`foreign request: ${r.url()}`));
  await page.exposeFunction('violated', (what) => faults.push(`content security policy: ${what}`));
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (e) => window.violated(`${e.violatedDirective} ${e.blockedURI}`));
    window.loadedAt = performance.timeOrigin; // changes when the page is loaded again
  });
  await prepare(page);
  const answer = await page.goto(url, { timeout });
  expect(answer.status() === 200, `the page answered ${answer.status()}`);
  expect(answer.headers()['content-security-policy'], 'the page has no content security policy');
  return page;
}

/** Fails if axe-core finds anything wrong with what the page shows. */
export async function accessible(page, where) {
  await page.evaluate(() => Promise.all(document.getAnimations().map((a) => a.finished.catch(() => {}))));
  // The script is evaluated by the debugger, which the content security policy does not bind. It is
  // half a megabyte, and a document keeps it when the view changes.
  if (!await page.evaluate(() => 'axe' in globalThis)) await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  const found = violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 160)} ${n.failureSummary}`).join(' | ')}`);
  expect(found.length === 0, `axe-core at ${where}: ${found.join('\n')}`);
}

/** Follows a link of the menu, and waits for the view. */
export async function visit(page, name) {
  if (!(await page.locator('#nav').isVisible())) await page.getByRole('button', { name: 'Menu' }).click();
  await page.locator('#nav').getByRole('link', { name: new RegExp(`^${name}\\b`) }).click();
  await page.waitForFunction((n) => document.title.includes(`${n} · Sluice`), name, { timeout });
}

/** Fails if the page is wider than its window. */
export async function fits(page, where) {
  const [width, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  expect(width <= window, `${where} is ${width} pixels wide in a window of ${window}`);
  const [first] = await page.evaluate(() => [...document.querySelectorAll('#view thead th:first-child')].filter((th) => th.closest('table').offsetWidth > 0).map((th) => th.offsetWidth).sort((a, b) => a - b));
  expect(first === undefined || first >= 80, `on ${where} the first column of a table is ${first} pixels wide in a window of ${window}`);
}

/** Runs a test in Chromium. It prints "ok page", or what is wrong and exits with 1. */
export async function run(test) {
  let browser;
  try {
    browser = await chromium.launch({
      executablePath: CHROMIUM,
      args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
        '--disable-component-update', '--disable-sync'],
    });
    await test(browser);
    expect(faults.length === 0, faults.join('\n'));
    console.log('ok page');
  } catch (e) {
    console.error(`page: ${[e.stack, ...faults].join('\n')}`);
    process.exitCode = 1;
  } finally {
    await browser?.close();
  }
}
