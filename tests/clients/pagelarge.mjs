// Opens the operator's page with 1,000 models, 2,000 replicas and 10,000 requests (pagestub.mjs),
// and checks that it stays usable. The page has nodes for the rows in sight alone, filters, orders,
// and is worked by the keyboard. axe-core finds nothing.
//
//     node pagelarge.mjs
import { accessible, expect, fits, open, run, timeout, visit } from './pagelib.mjs';
import { serve } from './pagestub.mjs';

const [url, end] = await serve();

/** Waits until the table has a number of rows. */
async function rows(page, n) {
  await page.waitForFunction((count) => Number(document.querySelector('#view [role=grid]')?.getAttribute('aria-rowcount')) === count + 1, n, { timeout })
    .catch(async () => { throw new Error(`${await page.locator('#view [role=grid]').first().getAttribute('aria-rowcount')} rows with the header, want ${n + 1}`); });
}

/** Returns the texts of the first column in sight. */
function inSight(page) {
  return page.locator('#view tbody th .name').allInnerTexts();
}

async function checkTable(page) {
  await visit(page, 'Models');
  await rows(page, 1000);
  expect((await inSight(page)).length < 80, 'the table has nodes for rows that nobody sees');
  const table = page.getByRole('grid', { name: 'models' });
  await table.focus();
  await page.keyboard.press('End');
  await page.locator('tr[data-active]', { hasText: 'model-0999' }).waitFor({ timeout });
  await page.keyboard.press('PageUp');
  await page.locator('tr[data-active]', { hasText: 'model-0989' }).waitFor({ timeout });
  const active = await table.getAttribute('aria-activedescendant');
  expect(await page.locator(`#${active}`).count() === 1, 'a screen reader is not told of the active row');
  await page.keyboard.press('Enter');
  await page.waitForURL('**/models/model-0989', { timeout });
  await page.goBack();
  await rows(page, 1000);

  await page.keyboard.press('/');
  await page.keyboard.type('0042');
  await rows(page, 1);
  expect(new URL(page.url()).searchParams.get('q') === '0042', 'the filter is not in the URL');
  await page.reload();
  await rows(page, 1);
  await page.getByRole('searchbox').fill('');
  await page.getByRole('button', { name: 'In flight' }).click();
  await page.locator('th[aria-sort=descending]', { hasText: 'In flight' }).waitFor({ timeout });
  await page.getByRole('button', { name: 'Pause' }).click();
  const figures = await page.locator('#view tbody:not(.spacer) td:nth-child(4)').allInnerTexts();
  await page.getByRole('button', { name: 'Paused' }).click();
  expect(figures.slice(0, 20).every((f) => f === '4'), `ordered by requests in flight: ${figures.slice(0, 20)}`);
  await page.waitForFunction(() => document.querySelector('#view tbody .chip')?.dataset.tone !== 'bad');
}

/** checkStarting: a model that starts is neither red nor something that needs attention. */
async function checkStarting(page) {
  await page.getByRole('searchbox').fill('0007');
  await rows(page, 1);
  const chip = page.locator('tr[data-model=model-0007] .chip');
  expect(await chip.innerText() === 'starting' && await chip.getAttribute('data-tone') === 'busy', 'a model that starts looks like a fault');
  await visit(page, 'Overview');
  await page.locator('.chart canvas').first().waitFor({ timeout });
  expect((await page.locator('.chart-box').first().getAttribute('aria-label')).includes('now, at most'), 'a screen reader is not told what a chart shows');
  await page.locator('.attention').waitFor({ state: 'hidden', timeout })
    .catch(() => { throw new Error('a model that starts, or a condition that was cured, needs attention'); });
}

/**
 * checkIdle: the charts of a model that is idle but for one request show that one, and have
 * readable axes.
 */
async function checkIdle(page) {
  const [n, step] = [360, 10];
  const [zeros, once] = [new Array(n).fill(0), new Array(n).fill(null).with(200, 70)];
  const series = Object.entries({ running: zeros, queued: zeros, ttft_p50_ms: once }).map(([name, values]) => ({ name, model: 'model-0003', values }));
  await page.route('**/api/v1/history?*', (route) => route.fulfill({ json: { from: new Date(Date.now() - 1000 * n * step).toISOString(), step_seconds: step, series } }));
  await page.evaluate(() => { // what is written on canvases
    const write = CanvasRenderingContext2D.prototype.fillText;
    window.written = [];
    CanvasRenderingContext2D.prototype.fillText = function fillText(words, ...at) { window.written.push(words); write.call(this, words, ...at); };
  });
  await visit(page, 'Models');
  await page.getByRole('searchbox').fill('0003');
  await page.locator('tr[data-model=model-0003] th a').click();
  const chart = page.locator('.chart', { hasText: 'Time to first token' }).locator('canvas');
  await chart.waitFor({ timeout });
  const coloured = await chart.evaluate((c) => {
    const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
    const strong = (i) => data[i + 3] > 128 && Math.max(...data.slice(i, i + 3)) - Math.min(...data.slice(i, i + 3)) > 60;
    return Array.from({ length: data.length / 4 }, (_, i) => 4 * i).filter(strong).length;
  });
  expect(coloured >= 4 && coloured < 100, `a sample without neighbours has ${coloured} pixels of a chart`);
  const written = await page.evaluate(() => window.written);
  expect(written.includes('1') && !written.some((words) => /e-/.test(words)), `the axes say ${[...new Set(written)]}`);
  await page.unroute('**/api/v1/history?*');
}

async function checkRequests(page) {
  await visit(page, 'Requests');
  await rows(page, 10_000);
  // While the table grows and changes, the row that is read stays where it is.
  const scroller = page.locator('#view .scroll');
  await scroller.evaluate((s) => s.scrollTo(0, 200_000));
  await page.waitForFunction(() => document.querySelectorAll('#view tbody:not(.spacer) tr').length > 5, null, { timeout });
  const began = Date.now();
  await page.getByRole('searchbox').fill('no_replica');
  await page.waitForFunction(() => [...document.querySelectorAll('#view tbody:not(.spacer) tr')].every((r) => r.textContent.includes('503')), null, { timeout });
  console.log(`the filter of 10,000 requests took ${Date.now() - began} ms`);
}

/**
 * checkTenants: the list has the most used limit of each tenant, and a tenant's view all of its
 * limits.
 */
async function checkTenants(page, where) {
  await visit(page, 'Tenants');
  await rows(page, 50);
  await page.getByRole('button', { name: 'Most used limit' }).click();
  const first = page.locator('tr[data-tenant]').first();
  await page.locator('th[aria-sort]', { hasText: 'Most used limit' }).waitFor({ timeout });
  expect((await first.innerText()).includes('336 / 300'), `the first tenant by use is: ${await first.innerText()}`);
  await first.locator('th a').click();
  const row = page.locator('tr[data-limit=requests_per_minute]');
  await row.waitFor({ timeout });
  const figures = (await row.locator('td:visible').allInnerTexts()).map((s) => s.trim()).join(' ');
  expect(figures === (where === 'light' ? '336 300 0 4.80 s' : '336 0'), `the use of a limit is: ${figures}`);
  const budget = page.locator('tr[data-limit$="cost month"]');
  const [name, ...sums] = (await budget.locator('th, td:visible').allInnerTexts()).map((s) => s.trim());
  expect(/^Cost per month, key tenant-48\/1a2b3c4d\s+warns from 40, refuses from 50$/.test(name), `the name of a budget is: ${name}`);
  expect(sums.join(' ') === (where === 'light' ? '41.5 50 8.5 7 d 11 h' : '41.5 8.5') || /7 d 12 h$/.test(sums.join(' ')), `the use of a budget is: ${sums}`);
  await accessible(page, `a tenant, ${where}`);
  await fits(page, `a tenant, ${where}`);
}

/** checkCandidates: a request shows which replicas its pick chose from. */
async function checkCandidates(page, where) {
  await visit(page, 'Requests');
  await page.locator('tr[data-request] th a').first().click();
  await page.locator('tr[data-candidate]').nth(7).waitFor({ timeout });
  expect(await page.locator('tr[data-picked] th .sub').innerText() === 'picked', 'the picked replica is not marked');
  await page.getByText('the best 8 of 40').waitFor({ timeout });
  await accessible(page, `a request, ${where}`);
  await fits(page, `a request, ${where}`);
}

async function checkEveryView(page, where) {
  for (const name of ['Overview', 'Models', 'Replicas', 'Nodes', 'Requests', 'Tenants', 'Usage', 'Routing', 'Configuration', 'Playground']) {
    await visit(page, name);
    await accessible(page, `${name}, ${where}`);
    await fits(page, `${name}, ${where}`);
  }
}

await run(async (browser) => {
  const page = await open(browser, url);
  await page.locator('tr[data-model=model-0000]').waitFor({ timeout });
  await checkTable(page);
  await checkStarting(page);
  await checkIdle(page);
  await checkRequests(page);
  await checkEveryView(page, 'light');
  await checkTenants(page, 'light');
  await checkCandidates(page, 'light');
  const narrow = await open(browser, url, { colorScheme: 'dark', viewport: { width: 390, height: 844 } });
  await checkEveryView(narrow, 'dark and narrow');
  await checkTenants(narrow, 'dark and narrow');
  await checkCandidates(narrow, 'dark and narrow');
});
end();
