// Opens the operator's page with states that a real gateway has seldom, and checks what it shows. The
// answers are those of pagestub.mjs, and those that a case makes up.
//
//     node pagecases.mjs
import { expect, forgive, open, run, timeout } from './pagelib.mjs';
import { serve } from './pagestub.mjs';

const [url, end] = await serve();

/** Answers a path of the API with JSON. */
const answer = (page, path, json, status = 200) => page.route(path, (route) => route.fulfill({ json, status }));

/** checkRefusedKey: a wrong key of a tenant is an error of the chat. It does not end the operator's login. */
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
  await page.waitForTimeout(500);
  expect(await page.locator('#login').isHidden(), 'a refused key of a tenant shows the login');
  // A login that has ended is found all the same.
  await answer(page, '**/api/v1/status', { error: { message: 'This listener needs a token of admin_auth.' } }, 401);
  await page.getByLabel('Message').fill('Hello');
  await page.keyboard.press('Enter');
  await page.locator('#login').waitFor({ timeout });
  forgive(/status of 401/);
  await page.context().close();
}

/** checkHiddenLog: a tab that nobody has seen yet does not follow the log of its replica. */
async function checkHiddenLog(browser) {
  const page = await open(browser, url);
  await page.addInitScript(() => Object.defineProperty(document, 'hidden', { get: () => window.seen !== true }));
  let followed = 0;
  await page.route('**/log?*', (route) => (followed++, route.fulfill({ contentType: 'text/plain', body: 'the engine starts\n' })));
  await page.goto(`${url}/replicas/model-0001-0`);
  await page.getByRole('heading', { name: 'Log' }).waitFor({ timeout });
  await page.waitForTimeout(500);
  expect(followed === 0, 'a tab that nobody has seen follows a log');
  await page.evaluate(() => { window.seen = true; document.dispatchEvent(new Event('visibilitychange')); });
  await page.locator('.log').getByText('the engine starts').waitFor({ timeout });
  await page.context().close();
}

await run(async (browser) => {
  await checkRefusedKey(browser);
  await checkHiddenLog(browser);
});
end();
