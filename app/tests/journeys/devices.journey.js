import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { answered, noticed, openApp, profiles, send, serve, setDefaults, until } from './helpers.js';

/** @typedef {import('./helpers.js').Tools} Tools */
/** @typedef {import('playwright-core').Page} Page */

/** Looks at the server's history at once. @param {Page} page */
const look = (page) => page.evaluate(() => void document.dispatchEvent(new Event('visibilitychange')));

/** Until a selector is there, or is gone, while the page looks at the history. @param {Page} page @param {string} selector @param {boolean} [there] */
const seen = (page, selector, there = true) =>
    until(
        async () => {
            await look(page);
            return (await page.locator(selector).count()) > 0 === there;
        },
        `${selector} ${there ? 'is there' : 'is gone'}`,
    );

/** @param {Page} page @param {string} key */
async function unlock(page, key) {
    await page.fill('dialog input', key);
    await page.click('dialog .button.primary');
    await page.waitForSelector('dialog[open]', { state: 'detached' });
}

/** Chromium lets a page be opened whose certificate the user accepts, but no service worker. */
const selfSigned = { ignoreHTTPSErrors: true, allow: /SSL certificate error/ };

/** A phone is paired by the address of the QR code, sees itself, invites another device, and is revoked by it. */
export async function pairing(/** @type {Tools} */ { browser }) {
    const state = mkdtempSync(join(tmpdir(), 'apus-state-'));
    const options = ['--lan', '--host', '127.0.0.1', '--port', '0', '--slots', '1'];
    const server = await serve(options, { APUS_STATE: state });
    try {
        const address = () => /https:\/\/\S+\/#\/pair\/[0-9a-f]{32}/.exec(server.output())?.[0];
        await until(() => Boolean(address()), 'the server prints a pairing');
        const phone = await openApp(browser, server.url, { ...profiles.phone, ...selfSigned }, address());
        await noticed(phone.page, 'This device is paired');
        assert.doesNotMatch(phone.page.url(), /pair/);
        await phone.page.goto(server.url + '/#/settings/devices');
        await phone.page.waitForSelector('.device:has-text("iPhone, Safari") .tag:has-text("this device")');
        await phone.page.click('button:has-text("Pair a device")');
        await phone.page.waitForSelector('.pairing code');
        const next = (await phone.page.textContent('.pairing code'))?.trim() ?? '';
        const qr = await phone.page
            .locator('.pairing .qr path')
            .getAttribute('d')
            .catch(() => null);
        assert.ok(qr === null || qr.length > 500);

        const desk = await openApp(browser, server.url, { ...selfSigned }, next);
        await noticed(desk.page, 'This device is paired');
        const late = await openApp(browser, server.url, { ...selfSigned }, next);
        await noticed(late.page, 'This pairing was used');
        await desk.page.goto(server.url + '/#/settings/devices');
        await desk.page.click('.device:has-text("iPhone") button');
        await desk.page.click('dialog .button.danger');
        await desk.page.waitForSelector('.device:has-text("iPhone")', { state: 'detached' });

        // The phone's key is no key any more: the page says so and asks for another one.
        await phone.page.reload();
        await phone.page.waitForSelector('dialog:has-text("does not accept the key")');
        assert.deepEqual([...phone.faults, ...desk.faults, ...late.faults], []);
    } finally {
        await server.stop();
        rmSync(state, { recursive: true, force: true });
    }
}

/** Two devices with one history: what one writes or removes the other sees, also what it did without the server. */
export async function sharedHistory(/** @type {Tools} */ { browser }) {
    const folder = mkdtempSync(join(tmpdir(), 'apus-history-'));
    const server = await serve(['--port', '0', '--slots', '2', '--api-key', 'secret', '--history', folder]);
    try {
        const one = await openApp(browser, server.url);
        await setDefaults(one.page, { max_tokens: 8 });
        await unlock(one.page, 'secret');
        await send(one.page, 'Say hello.');
        await answered(one.page);
        const two = await openApp(browser, server.url);
        await setDefaults(two.page, { max_tokens: 8 });
        await unlock(two.page, 'secret');
        await look(one.page);
        await seen(two.page, '.chat-entry:has-text("Say hello.")');
        await two.page.click('.chat-entry a');
        await two.page.waitForSelector('.message.assistant .markdown');
        await send(two.page, 'And goodbye.');
        await answered(two.page);
        await look(two.page);
        await seen(one.page, '.message.user:has-text("And goodbye.")');
        await until(async () => {
            await look(one.page);
            return (await one.page.locator('.message.assistant .markdown').count()) === 2;
        }, 'the second answer');

        // Another tab of the first device has the same chats.
        const tab = await one.context.newPage();
        await tab.goto(server.url);
        await unlock(tab, 'secret');
        await tab.waitForSelector('.chat-entry:has-text("Say hello.")');

        // Without the network a chat is removed; the other device learns of it afterwards, and it does not come back.
        await one.context.setOffline(true);
        await one.page.hover('.chat-entry');
        await one.page.click('.chat-entry button');
        await one.page.click('[role=menuitem]:has-text("Delete")');
        await one.page.waitForSelector('.chat-entry', { state: 'detached' });
        await tab.waitForSelector('.chat-entry', { state: 'detached' });
        await one.context.setOffline(false);
        await until(async () => {
            await look(one.page);
            await look(two.page);
            return (await two.page.locator('.chat-entry').count()) === 0;
        }, 'the chat is gone on the other device');
        await look(one.page);
        assert.equal(await one.page.locator('.chat-entry').count(), 0);
        assert.deepEqual(one.faults, []);
        assert.deepEqual(two.faults, []);
    } finally {
        await server.stop();
        rmSync(folder, { recursive: true, force: true });
    }
}
