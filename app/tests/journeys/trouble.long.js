import assert from 'node:assert/strict';
import { openApp, openDoor, reloadStored, send, serve, setDefaults } from './helpers.js';

/** @typedef {import('./helpers.js').Tools} Tools */

/** A server that ends while it answers, and comes back: what came is kept, the page says what happened, and goes on. */
export async function serverStopped(/** @type {Tools} */ { browser }) {
    const door = await openDoor();
    const first = await serve(['--port', '0', '--slots', '1']);
    door.lead(first.url);
    const { page, faults } = await openApp(browser, door.url);
    await setDefaults(page, { max_tokens: 3000, seed: 1, temperature: 0, ignore_eos: true });
    await send(page, 'Count from one to two hundred in words.');
    await page.waitForSelector('.message.assistant .markdown');
    door.lead('');
    await first.stop('SIGKILL');
    const second = await serve(['--port', '0', '--slots', '1']);
    door.lead(second.url);
    try {
        await page.waitForSelector('.trouble:has-text("The rest of this answer is lost")');
        const kept = (await page.textContent('.message.assistant .markdown')) ?? '';
        assert.ok(kept.length > 0);
        await reloadStored(page);
        await page.waitForSelector('.message.assistant .markdown');
        assert.equal(await page.textContent('.message.assistant .markdown'), kept);
        await page.click('.message.assistant button[aria-label="Regenerate"]');
        await page.click('button.send.stop');
        await page.waitForSelector('.branches:has-text("2/2")');
        assert.deepEqual(faults, []);
    } finally {
        door.close();
        await second.stop('SIGKILL');
    }
}
