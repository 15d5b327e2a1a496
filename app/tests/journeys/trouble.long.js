import assert from 'node:assert/strict';
import {
    answered,
    openApp,
    openDoor,
    profiles,
    reloadStored,
    send,
    serve,
    setDefaults,
    until,
    visit,
} from './helpers.js';

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

/** A model that nobody uses is unloaded after half a minute, while the page is open; the next message loads it. */
export async function idleUnload(/** @type {Tools} */ { browser }) {
    const server = await serve(['--port', '0', '--slots', '1', '--idle-unload', '30s']);
    try {
        const { page, faults } = await openApp(browser, server.url, profiles.phone);
        await setDefaults(page, { max_tokens: 8, temperature: 0 });
        await send(page, 'Say hello.');
        await answered(page);
        const place = new URL(page.url()).hash;
        const ended = Date.now();
        await visit(page, '#/models');
        await page.waitForSelector('.model-card:has-text("Not loaded")');
        const seconds = (Date.now() - ended) / 1000;
        console.log(`       unloaded after ${seconds.toFixed(0)} s`);
        assert.ok(seconds > 25, 'it was unloaded early');
        await visit(page, place);
        await send(page, 'And now?');
        await until(async () => (await page.locator('.message.assistant .markdown').count()) === 2, 'it answers again');
        await answered(page);
        await visit(page, '#/models');
        await page.waitForSelector('.model-card:has-text("Loaded"):has(button:has-text("Unload"))');
        assert.deepEqual(faults, []);
    } finally {
        await server.stop();
    }
}
