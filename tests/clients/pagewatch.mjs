// Shows the operator's page in Chromium and measures the CPU time of its process: half of the time
// at the overview, half at the requests. The benchmark internal/bench runs it.
//
//     ADMIN_URL=http://127.0.0.1:9090 SECONDS=10 node pagewatch.mjs
//
// It prints "watching" when the page has its values. Then it prints a line of JSON for each view,
// with the view and the share of a core that the processes of the page took.
import { expect, open, run, timeout, visit } from './pagelib.mjs';

const { ADMIN_URL, SECONDS = '10' } = process.env;

/** Returns the CPU time of the processes that show pages, in seconds. */
async function busy(devtools) {
  const { processInfo } = await devtools.send('SystemInfo.getProcessInfo');
  return processInfo.filter((p) => p.type === 'renderer').reduce((sum, p) => sum + p.cpuTime, 0);
}

await run(async (browser) => {
  expect(ADMIN_URL, 'ADMIN_URL must be set');
  const page = await open(browser, ADMIN_URL, { viewport: { width: 1280, height: 800 } });
  await page.locator('tr[data-model]').first().waitFor({ timeout });
  await page.waitForTimeout(2000);
  const devtools = await browser.newBrowserCDPSession();
  console.log('watching');
  for (const view of ['Overview', 'Requests']) {
    if (view !== 'Overview') await visit(page, view);
    const [before, began] = [await busy(devtools), Date.now()];
    await page.waitForTimeout(500 * Number(SECONDS));
    console.log(JSON.stringify({ view, share: (await busy(devtools) - before) / ((Date.now() - began) / 1000) }));
  }
});
