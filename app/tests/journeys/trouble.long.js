import assert from 'node:assert/strict';
import { openApp, send, serve, setDefaults } from './helpers.js';

/** @typedef {import('./helpers.js').Tools} Tools */

/** A server that ends while it answers, and comes back: what came is kept, the page says what happened, and goes on. */
export async function serverStopped(/** @type {Tools} */ { browser }) {
    const options = ['--slots', '1', '--port'];
    const first = await serve([...options, '0']);
    const { page, faults } = await openApp(browser, first.url);
    await setDefaults(page, { max_tokens: 400, seed: 1, temperature: 0 });
    await send(page, 'Count from one to two hundred in words.');
    await page.waitForSelector('.message.assistant .markdown');
    await first.stop('SIGKILL');
    const second = await serve([...options, new URL(first.url).port]);
    try {
        await page.waitForSelector('.trouble:has-text("The rest of this answer is lost")', { timeout: 60_000 });
        const kept = (await page.textContent('.message.assistant .markdown')) ?? '';
        assert.ok(kept.length > 0);
        await page.reload();
        await page.waitForSelector('.message.assistant .markdown');
        assert.equal(await page.textContent('.message.assistant .markdown'), kept);
        await setDefaults(page, { max_tokens: 4 });
        await page.click('.message.assistant button[aria-label="Regenerate"]');
        await page.waitForSelector('.branches:has-text("2/2")');
        await page.waitForSelector('button.send:not(.stop)', { timeout: 60_000 });
        assert.deepEqual(faults, []);
    } finally {
        await second.stop();
    }
}
