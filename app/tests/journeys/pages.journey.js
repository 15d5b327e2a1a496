import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { answered, binary, fillStore, noticed, openApp, profiles, send, serve, setDefaults, storedChat, storedMessages, until, visit } from './helpers.js'; // prettier-ignore
import { gate, modelOf, typed } from './mock.js';
import { optionRows } from '../../src/lib/serve_options.js';

/** @typedef {import('./helpers.js').Tools} Tools */

const axePath = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

/** A model is not unloaded while it answers, and is when it is idle; the next message loads it, and so does a button. */
export async function loadAndUnload(/** @type {Tools} */ { browser, url }) {
    const { page, faults } = await openApp(browser, url, profiles.phone);
    await setDefaults(page, { max_tokens: 3000, temperature: 0, ignore_eos: true });
    await send(page, 'Count from one to two hundred in words.');
    await page.waitForSelector('.message.assistant .markdown');
    const place = new URL(page.url()).hash;
    await page.click('.tabs a:has-text("Models")');
    await page.click('button:has-text("Unload")');
    await noticed(page, 'qwen-0.5b is answering', 'error');
    await visit(page, place);
    await page.click('button.send.stop');
    const running = async () => (await (await fetch(`${url}/health`)).json()).running;
    await until(async () => (await running()) === 0, 'no answer is written');
    const unload = async () => {
        await visit(page, '#/models');
        await page.click('button:has-text("Unload")');
        await page.waitForSelector('.model-card:has-text("Not loaded")');
    };
    await unload();
    await visit(page, place);
    await page.click('.message.assistant button[aria-label="Regenerate"]');
    await page.waitForSelector('.message.assistant:not(:has(button[aria-label="Regenerate"])) .markdown');
    await page.click('button.send.stop');
    await page.waitForSelector('.message.assistant .branches:has-text("2/2")');
    await until(async () => (await running()) === 0, 'no answer is written');
    await unload();
    await page.click('button:has-text("Load")');
    await page.waitForSelector('.model-card:has-text("Loaded") button:has-text("Chat")');
    assert.deepEqual(faults, []);
}

/** While a message has its model loaded, the page says that it is loaded, and then that it waits. */
export async function loadsOnDemand(/** @type {Tools} */ { browser, mock }) {
    const said = gate();
    mock.models = [{ ...modelOf(['text']), status: 'unloaded' }];
    mock.answer = () => [{ delta: {}, gate: said.opened }, ...typed('Awake.')];
    const { page, faults } = await openApp(browser, mock.url, profiles.phone);
    await page.waitForSelector('.dot.unloaded');
    await send(page, 'Hello');
    await page.waitForSelector('.waiting:has-text("Loading the model")');
    mock.models[0].status = 'loading';
    await page.waitForSelector('.dot.loading');
    mock.models[0].status = 'loaded';
    await page.waitForSelector('.waiting:has-text("Waiting for the model")');
    said.open();
    await page.waitForSelector('.message.assistant .markdown:has-text("Awake.")');
    assert.deepEqual(faults, []);
}

/** A download is paused, goes on, survives a reload, and ends in the list of local models. */
export async function download(/** @type {Tools} */ { browser, url, hub }) {
    await hub.fault({ bytes_per_s: 100_000 }); // a minute
    const { page, faults } = await openApp(browser, url);
    await page.goto(url + '/#/models');
    await page.fill('.hub input', 'https://huggingface.co/org/tiny/tree/main');
    await page.click('.direct button');
    await page.waitForSelector('.download-card small:has-text("/s")');
    await page.waitForSelector('.side-button .badge:has-text("1")');
    const percent = async () => Number(await page.getAttribute('.ring', 'aria-valuenow'));
    await until(async () => (await percent()) > 0, 'a part has come');
    await page.click('.download-card button[aria-label="Pause"]');
    await page.waitForSelector('.download-card.paused');
    const before = await percent();
    assert.ok(before > 0);
    await page.click('.download-card button[aria-label="Resume"]');
    await page.waitForSelector('.download-card.running');
    await page.reload();
    await page.waitForSelector('.download-card.running');
    await until(async () => (await percent()) >= before, 'it goes on from where it was');
    await page.click('.download-card button[aria-label="Pause"]');
    await page.waitForSelector('.download-card.paused');
    await hub.fault({});
    await page.click('.download-card button[aria-label="Resume"]');
    await page.waitForSelector('.model-card:has-text("org/tiny"):has-text("6.3 MB")');
    await page.waitForSelector('.download-card', { state: 'detached' });
    await page.click('button[aria-label="Delete org/tiny"]');
    await page.click('dialog .button.danger');
    await noticed(page, 'org/tiny is deleted');
    await page.waitForSelector('.model-card:has-text("org/tiny")', { state: 'detached' });
    assert.deepEqual(faults, []);
}

/** What goes wrong with downloads is said with what helps. */
export async function downloadFaults(/** @type {Tools} */ { browser, url, mock }) {
    const { page, faults } = await openApp(browser, url);
    await page.goto(url + '/#/models');
    for (const [name, help] of [
        ['org/none', 'Check the name'],
        ['org/gated', 'Accept the terms'],
    ]) {
        await page.fill('.hub input', name);
        await page.click('.direct button');
        await page.waitForSelector(`.download-card:has-text("${name}"):has-text("${help}")`);
    }
    assert.deepEqual(faults, []);
    mock.routes['POST /v1/jobs'] = { status: 403, error: { message: 'no', code: 'pull_not_allowed' } };
    const other = await openApp(browser, mock.url);
    await other.page.goto(mock.url + '/#/models');
    await other.page.fill('.hub input', 'org/tiny');
    await other.page.click('.direct button');
    await other.page.waitForSelector('.download-card:has-text("--allow-pull")');
    assert.deepEqual(other.faults, []);
}

/** A hub that cannot be reached: search and downloads say so, with what helps; local models stay of use. */
export async function hubAway(/** @type {Tools} */ { browser }) {
    const home = mkdtempSync(join(tmpdir(), 'apus-app-'));
    const away = { HF_ENDPOINT: 'http://127.0.0.1:9', HF_HOME: home, HF_HUB_CACHE: join(home, 'hub') };
    const server = await serve(['--port', '0', '--slots', '1', '--allow-pull'], away, []);
    try {
        const { page, faults } = await openApp(browser, server.url);
        await visit(page, '#/models');
        await page.fill('.hub input', 'anything');
        await page.waitForSelector('.hub .wrong-text');
        await page.fill('.hub input', 'org/tiny');
        await page.click('.direct button');
        await page.waitForSelector('.download-card:has-text("Check the network")');
        await page.click('.download-card button[aria-label="Cancel"]');
        await page.waitForSelector('.download-card', { state: 'detached' });
        // Family, quantisation and memory of what is here.
        await page.locator('.model-card:has(strong:text-is("qwen-0.5b"))').scrollIntoViewIfNeeded();
        await page.waitForSelector('.model-card:has(strong:text-is("qwen-0.5b")):has-text("of memory")');
        assert.deepEqual(faults, []);
    } finally {
        await server.stop();
        rmSync(home, { recursive: true, force: true });
    }
}

/** Theme, language and size of text take effect at once and stay. */
export async function appearance(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url);
    await page.goto(mock.url + '/#/settings');
    await page.getByLabel('Theme').selectOption('dark');
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), 'rgb(25, 26, 27)');
    await page.getByLabel('Language').selectOption('zh');
    await page.waitForSelector('h1:has-text("设置")');
    assert.equal(await page.getAttribute('html', 'lang'), 'zh-Hans');
    await page.reload();
    await page.waitForSelector('h1:has-text("设置")');
    assert.equal(await page.getAttribute('html', 'data-theme'), 'dark');
    mock.answer = () => [{ delta: { content: '好' } }, { wait: 200, cut: true }];
    await visit(page, '#/chat');
    await send(page, '你好');
    await page.waitForSelector('.trouble.error:has-text("连接已中断"):has-text("请检查服务器")');
    assert.deepEqual(faults, []);
}

/** The command line that the page shows names options that the program has. */
export async function serverOptions(/** @type {Tools} */ { browser, mock }) {
    const help = execFileSync(binary, ['serve', '--help'], { encoding: 'utf8' });
    for (const group of optionRows) for (const row of group.rows) assert.match(help, new RegExp(`${row.option}\\b`));
    const { page, faults } = await openApp(browser, mock.url);
    await page.goto(mock.url + '/#/settings/server');
    await page.getByLabel('Port').fill('8080');
    await page.getByLabel('Clients may download models').check();
    await page.waitForSelector('code:has-text("apus serve mock --port 8080 --allow-pull")');
    await page.waitForSelector('code:has-text("port = 8080")');
    assert.deepEqual(faults, []);
}

/** Presets: a chat's settings are saved and used in another one. */
export async function presets(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url);
    await page.keyboard.press('Control+.');
    await page.fill('.panel .field textarea', 'You are a pirate.');
    await page.getByLabel('Temperature').fill('0.3');
    await page.click('.panel button:has-text("Save as preset")');
    await page.fill('dialog input', 'Pirate');
    await page.click('dialog .button.primary');
    await page.getByRole('button', { name: 'Reset', exact: true }).click();
    assert.equal(await page.inputValue('.panel .field textarea'), '');
    await page.getByLabel('Presets').selectOption({ label: 'Pirate' });
    assert.equal(await page.inputValue('.panel .field textarea'), 'You are a pirate.');
    await page.keyboard.press('Escape');
    await page.fill('#prompt', 'Hello');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.message.assistant .markdown');
    assert.equal(mock.asked[0].messages[0].content, 'You are a pirate.');
    assert.equal(mock.asked[0].temperature, 0.3);
    assert.deepEqual(faults, []);
}

/** The page opens without the server once it was there, and shows the chats. */
export async function withoutServer(/** @type {Tools} */ { browser, mock }) {
    const { page, context } = await openApp(browser, mock.url);
    await page.evaluate(() => navigator.serviceWorker.ready);
    await until(() => page.evaluate(async () => (await caches.keys()).length > 0), 'files are kept');
    await fillStore(
        page,
        [storedChat('kept')],
        storedMessages('kept', 4, (i) => `message ${i}`),
    );
    await context.route('**', (route) => route.abort());
    await page.goto(mock.url + '/');
    await page.click('.chat-entry a');
    await page.waitForSelector('.message:has-text("message 3")');
    const kept = await page.evaluate(async () => {
        const urls = [];
        for (const name of await caches.keys())
            for (const one of await (await caches.open(name)).keys()) urls.push(new URL(one.url).pathname);
        return urls;
    });
    assert.ok(
        kept.every((path) => path === '/' || path.startsWith('/assets/')),
        kept.join(),
    );
}

const SCREENS = [
    '#/chat',
    '#/chat/a',
    '#/models',
    '#/settings',
    '#/settings/answers',
    '#/settings/tools',
    '#/settings/server',
    '#/settings/devices',
    '#/settings/data',
    '#/settings/about',
];
const TEXT =
    'Some **text** with `code`, a [link](https://example.org), $x^2$.\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n```js\nlet a = 1; // note\n```\n- [ ] task';

/** No violation of WCAG 2.2 AA that axe finds, in both themes, on a phone and on a desk. */
export async function accessibility(/** @type {Tools} */ { browser, mock }) {
    /** @type {string[]} */
    const found = [];
    for (const [name, profile] of Object.entries(profiles))
        for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
            const { page } = await openApp(browser, mock.url, { ...profile, colorScheme, bypassCSP: true });
            await fillStore(
                page,
                [storedChat('a')],
                storedMessages('a', 4, () => TEXT),
            );
            await page.addScriptTag({ path: axePath });
            /** @param {string} place */
            const check = async (place) => {
                const violations = await page.evaluate(async () => {
                    const result = await /** @type {any} */ (window).axe.run(document, {
                        runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'],
                    });
                    return result.violations.map(
                        (/** @type {any} */ item) =>
                            `${item.id}: ${item.nodes.map((/** @type {any} */ node) => node.target.join(' ')).slice(0, 3)}`,
                    );
                });
                found.push(
                    ...violations.map((/** @type {string} */ text) => `${name} ${colorScheme} ${place}: ${text}`),
                );
            };
            for (const screen of SCREENS) {
                await visit(page, screen);
                await check(screen);
            }
            await visit(page, '#/chat/a');
            await page.keyboard.press('Control+.');
            await page.waitForSelector('.panel');
            await check('panel');
            await page.keyboard.press('Escape');
            await page.waitForSelector('.panel', { state: 'detached' });
            await page.keyboard.press('Control+k');
            await page.waitForSelector('.palette[open]');
            await check('search');
            await page.context().close();
        }
    assert.deepEqual(found, []);
}

/** Nothing is wider than the screen, from 320 to 1440 pixels. */
export async function widths(/** @type {Tools} */ { browser, mock }) {
    const { page } = await openApp(browser, mock.url);
    const long = `${'x'.repeat(300)} ${TEXT} مرحبا بالعالم ${'很'.repeat(200)}`;
    await fillStore(
        page,
        [storedChat('a', { title: 'y'.repeat(120) })],
        storedMessages('a', 4, () => long),
    );
    mock.models = [{ id: `org/${'name-'.repeat(30)}`, context_length: 8192, status: 'loaded' }];
    for (const [width, height] of [
        [320, 568],
        [390, 844],
        [768, 1024],
        [1440, 900],
    ]) {
        await page.setViewportSize({ width, height });
        for (const screen of SCREENS) {
            await visit(page, screen);
            const wide = await page.evaluate(() => {
                const wider = document.documentElement.scrollWidth > innerWidth;
                const inside = [...document.querySelectorAll('.scroller, .panel-body, .composer')].filter(
                    (e) => e.scrollWidth > e.clientWidth + 1,
                );
                return wider || inside.length > 0 ? inside.map((e) => e.className).join() || 'page' : '';
            });
            assert.equal(wide, '', `${screen} at ${width}`);
            const tab = page.locator('.sub-tabs .here');
            if (screen.startsWith('#/settings'))
                assert.ok(await tab.evaluate((e) => e.getBoundingClientRect().right <= innerWidth + 1), `${screen} at ${width}: its tab is seen`); // prettier-ignore
            const tall = await page.evaluate(() => document.documentElement.scrollHeight > innerHeight);
            assert.ok(!tall, `${screen} at ${width} is higher than the screen`);
        }
    }
    mock.models = [{ id: 'mock', context_length: 8192, status: 'loaded' }];
}

/** A new chat begins at its top, also where the chat before was longer than the screen. */
export async function newChatAtTop(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url, { viewport: { width: 320, height: 568 } });
    await fillStore(page, [storedChat('a')], storedMessages('a', 8, () => TEXT)); // prettier-ignore
    await visit(page, '#/chat/a');
    const top = () => page.evaluate(() => document.querySelector('.scroller')?.scrollTop ?? -1);
    await until(async () => (await top()) > 0, 'the end of the chat is shown');
    await visit(page, '#/models');
    await visit(page, '#/chat');
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done))));
    assert.equal(await top(), 0);
    assert.deepEqual(faults, []);
}

/** Everything of a chat is done with keys alone. */
export async function keyboard(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url);
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement?.className), 'skip');
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate(() => document.activeElement?.id), 'prompt');
    await page.keyboard.type('Hello');
    await page.keyboard.press('Enter');
    await answered(page);
    await page.waitForSelector('[aria-live=polite].offscreen:has-text("Answer: Hello.")', { state: 'attached' });
    for (let i = 0; i < 40; i++) {
        await page.keyboard.press('Shift+Tab');
        if ((await page.evaluate(() => document.activeElement?.getAttribute('aria-label'))) === 'Regenerate') break;
    }
    await page.keyboard.press('Enter');
    await page.waitForSelector('.branches:has-text("2/2")');
    await page.keyboard.press('Control+.');
    await page.waitForSelector('.panel');
    await page.keyboard.press('Escape');
    await page.waitForSelector('.panel', { state: 'detached' });
    assert.deepEqual(faults, []);
}

/** The hub is searched, sorted and filtered by size; a model of the result is downloaded. */
export async function hubSearch(/** @type {Tools} */ { browser, url }) {
    const { page, faults } = await openApp(browser, url);
    await page.goto(url + '/#/models');
    await page.fill('.hub input', 'org');
    await page.waitForSelector('.hub .card:has-text("org/other")');
    const names = () => page.locator('.hub .card strong').allTextContents();
    assert.deepEqual(await names(), ['org/gated', 'org/other', 'org/tiny']);
    assert.match((await page.textContent('.hub .card >> nth=0')) ?? '', /MLX · 1\.0 GB · ↓ 9 · ♥ 91 · 2026-01-0/);
    await page.waitForSelector('.hub .card:has-text("org/gated") .tag:has-text("gated")');
    // The server's plan of what is seen: with its numbers for what it can run, and a reason for what it cannot.
    for (const name of ['org/other', 'org/tiny'])
        await page.locator(`.hub .card:has-text("${name}")`).scrollIntoViewIfNeeded();
    await page.waitForSelector('.hub .card:has-text("org/other") .tag.fits[title^="Needs"]');
    await page.waitForSelector('.hub .card:has-text("org/tiny") .tag:has-text("not supported")');
    await page.getByLabel('Sort by').selectOption('likes');
    await until(async () => (await names())[0] === 'org/tiny', 'most liked first');
    await page.getByLabel('Size').selectOption({ label: '> 10 GB' });
    await page.waitForSelector('.hub:has-text("Nothing found")');
    await page.getByLabel('Size').selectOption({ label: '1–4 GB' });
    await page.click('.hub .card:has-text("org/other") button');
    await noticed(page, 'org/other is downloaded');
    await page.waitForSelector('.hub .card:has-text("org/other") .tag:has-text("downloaded")');
    await page.click('.hub .card:has-text("org/other") button:has-text("Load")');
    await noticed(page, 'other is loaded');
    await page.waitForSelector('.model-card:has-text("Loaded"):has(strong:text-is("other"))');
    await page.evaluate(() => fetch('/v1/models/other', { method: 'DELETE' }));
    assert.deepEqual(faults, []);
}

/** A server that was started without a model: the page says so, loads a local one, and answers. */
export async function startsEmpty(/** @type {Tools} */ { browser }) {
    const server = await serve(['--port', '0', '--slots', '1'], {}, []);
    try {
        const { page, faults } = await openApp(browser, server.url);
        await page.waitForSelector('.empty:has-text("No model yet")');
        await page.click('button:has-text("Choose a model")');
        await page.click('.model-card:has(strong:text-is("qwen-0.5b")) button:has-text("Load")');
        await noticed(page, 'is loaded');
        await page.click('.model-card:has-text("Loaded") button:has-text("Chat")');
        await page.fill('#prompt', 'Say hello.');
        await page.keyboard.press('Enter');
        await page.waitForSelector('.message.assistant .markdown');
        assert.deepEqual(faults, []);
    } finally {
        await server.stop();
    }
}
