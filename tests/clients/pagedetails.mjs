// Opens the operator's page and checks details of what it shows: the menu of a narrow screen, the
// links of conditions, the heads of columns, and how it writes numbers.
//
//     node pagedetails.mjs
import { accessible, expect, fits, open, run, timeout, visit } from './pagelib.mjs';
import { serve } from './pagestub.mjs';

const [url, end] = await serve(20);

/** checkMenu: Escape closes the menu of a phone, and the focus is not lost. */
async function checkMenu(browser) {
  const page = await open(browser, url, { viewport: { width: 390, height: 844 } });
  const menu = page.getByRole('button', { name: 'Menu' });
  await menu.click();
  await page.locator('#nav').getByRole('link', { name: 'Models' }).focus();
  await page.keyboard.press('Escape');
  await page.locator('#nav').waitFor({ state: 'hidden', timeout });
  expect(await menu.evaluate((b) => b === document.activeElement && b.ariaExpanded === 'false'), 'the menu button has no focus, or says that the menu is open');
  await page.keyboard.press('Escape');
  expect(await page.locator('#nav').isHidden(), 'Escape opens the menu');
  await page.context().close();
}

/** checkConditions: a condition leads to what it is about. */
async function checkConditions(browser) {
  const wanted = {
    'http://127.0.0.1:9000': ['UpstreamUnreachable', '/nodes'],
    'tenant acme, tokens per day': ['BudgetReached', '/tenants/acme'],
    'key acme/1a2b3c4d, cost per month': ['BudgetReached', '/tenants/acme'],
    'other keys': ['BudgetReached', '/keys'],
    'chat-0': ['ReplicaFailed', '/replicas/chat-0'],
  };
  const conditions = Object.entries(wanted).map(([subject, [type]]) => ({ type, subject, severity: 'warning', message: 'So it is.' }));
  conditions.push({ type: 'DiskFull', subject: 'disk', severity: 'warning', message: 'So it is.' });
  const page = await open(browser, url, {}, (p) => p.route('**/api/v1/events', (route) => route.fulfill({ contentType: 'text/event-stream',
    body: `event: state\ndata: ${JSON.stringify({ whole: true, models: [], replicas: [], conditions, totals: {} })}\n\n` })));
  const panel = page.getByRole('region', { name: 'Needs attention' });
  for (const [subject, [, path]] of Object.entries(wanted)) {
    const href = await panel.getByRole('link', { name: subject, exact: true }).getAttribute('href');
    expect(href === path, `${subject} leads to ${href}, not to ${path}`);
  }
  expect(await panel.getByRole('link', { name: 'disk' }).count() === 0, 'a subject that the page does not show has a link');
  await accessible(page, 'conditions');
  await page.context().close();
}

/** checkUsage: the heads of the columns say what is counted. */
async function checkUsage(browser) {
  const page = await open(browser, url);
  await visit(page, 'Usage');
  for (const name of ['Requests', 'Prompt tokens', 'Cached tokens', 'Output tokens', 'Estimated requests']) {
    await page.getByRole('columnheader', { name, exact: true }).waitFor({ timeout });
  }
  await page.getByRole('columnheader', { name: 'Estimated requests' }).getByRole('button').click(); // its mark needs room, too
  for (const width of [1100, 1280, 1600]) {
    await page.setViewportSize({ width, height: 800 });
    await fits(page, 'Usage');
    const cut = await page.locator('#view thead th').evaluateAll((heads) => heads.filter((h) => h.scrollWidth > h.clientWidth || h.firstChild.scrollWidth > h.clientWidth).map((h) => h.innerText));
    expect(cut.length === 0, `heads of Usage are cut in a window of ${width}: ${cut}`);
  }
  await page.context().close();
}

/** checkNumbers: a number that is rounded up has the next unit. */
async function checkNumbers(browser) {
  const page = await open(browser, url);
  const written = await page.evaluate(async () => {
    const { bytes, duration, short } = await import('/format.js');
    return [
      [0, 0.04, 9.94, 9.96, 999.4, 999.7, 1000, 9996, 59_940, 59_960, 60_000].map(duration), [9999, 9999.7, 999_400, 999_600, 999.6e6].map(short),
      [999, 1000, 999_400, 999_600, 999.6e6].map(bytes),
    ];
  });
  const wanted = [
    ['–', '0.0 ms', '9.9 ms', '10 ms', '999 ms', '1.00 s', '1.00 s', '10.0 s', '59.9 s', '1 min 0 s', '1 min 0 s'],
    ['9,999', '10k', '999k', '1M', '1G'], ['999 B', '1.0 kB', '999 kB', '1.0 MB', '1.0 GB'],
  ];
  expect(JSON.stringify(written) === JSON.stringify(wanted), `written ${JSON.stringify(written)}, not ${JSON.stringify(wanted)}`);
  await page.context().close();
}

await run(async (browser) => {
  await checkMenu(browser);
  await checkConditions(browser);
  await checkUsage(browser);
  await checkNumbers(browser);
});
end();
