import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { homedir, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { devices } from 'playwright-core';
import { strings } from '../../src/strings.js';

export const root = resolve(import.meta.dirname, '../../..');
export const binary = process.env.APUS_BINARY ?? join(root, 'build/apus');
const cache = join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'apus');
const models = join(cache, 'models');
const python = join(cache, 'venv/bin/python'); // tools/python_env.sh
export const smallModel = join(models, 'qwen-0.5b.gguf');

/* Nothing here may depend on how fast the machine is: each wait is for a condition, and ends after LONG_MS only when it
   never comes. A state that would pass by is held: by a gate of the mock, or by a slow hub. */
export const LONG_MS = 240_000;

/** A name of this machine that is no localhost: what browsers allow over HTTPS alone they do not allow there. */
export const INSECURE_HOST = 'lan.test';

/** @typedef {{ url: string, output: () => string, stop: (signal?: NodeJS.Signals) => Promise<void> }} Started */

/**
 * A real server with the small model.
 * @param {string[]} options
 * @param {Record<string, string>} [environment]
 * @param {string[]} [models]
 * @returns {Promise<Started>}
 */
export async function serve(options, environment = {}, models = [smallModel]) {
    assert.ok(existsSync(smallModel), `${smallModel} is absent: tools/fetch_models.py qwen-0.5b`);
    const child = spawn(binary, ['serve', ...models, '--ctx-size', '4096', '--no-request-log', ...options], {
        env: { ...process.env, ...environment },
        stdio: ['ignore', 'pipe', 'inherit'],
    });
    let text = '';
    const url = await new Promise((done, fail) => {
        child.stdout.on('data', (bytes) => {
            text += bytes;
            const found = /API\s+(https?:\/\/[^\s]+)\/v1/.exec(text);
            if (found) done(found[1]);
        });
        child.on('exit', (code) => fail(new Error(`the server ended with ${code}: ${text}`)));
    });
    return {
        url,
        output: () => text,
        stop: (signal = 'SIGTERM') =>
            new Promise((done) => {
                if (child.exitCode !== null || child.signalCode) return done();
                child.on('exit', () => done());
                child.kill(signal);
            }),
    };
}

/** An address behind which one server after the other can be. */
export async function openDoor() {
    let target = 0;
    /** @type {Set<import('node:net').Socket>} */
    const sockets = new Set();
    const server = createServer((from) => {
        const to = connect(target || 9, '127.0.0.1'); // a port where nothing listens: refused
        for (const [socket, other] of [
            [from, to],
            [to, from],
        ]) {
            sockets.add(socket);
            socket.on('error', () => {}).on('close', () => (sockets.delete(socket), other.destroy()));
            socket.pipe(other);
        }
    });
    await new Promise((done) => server.listen(0, '127.0.0.1', () => done(null)));
    return {
        url: `http://127.0.0.1:${/** @type {any} */ (server.address()).port}`,
        /** @param {string} url of the server that is behind it now; empty: none */
        lead: (url) => {
            target = url ? Number(new URL(url).port) : 0;
        },
        close: () => {
            for (const socket of sockets) socket.destroy();
            server.close();
        },
    };
}

/** A model with random weights that takes images. */
export function tinyVision() {
    const directory = mkdtempSync(join(tmpdir(), 'apus-vision-'));
    const program = 'import sys, tiny_model; tiny_model.write_tiny_vision(sys.argv[1], "qwen3-vl")';
    execFileSync(python, ['-c', program, directory], {
        env: { ...process.env, PYTHONPATH: join(root, 'tests/server') },
    });
    return { directory, remove: () => rmSync(directory, { recursive: true, force: true }) };
}

/** A hub whose models have random bytes, and an empty cache. */
export async function startHub() {
    const home = mkdtempSync(join(tmpdir(), 'apus-app-'));
    const child = spawn('python3', [join(import.meta.dirname, 'hub.py')], { stdio: ['pipe', 'pipe', 'inherit'] });
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const next = async () => String((await lines.next()).value);
    const url = await next();
    return {
        environment: { HF_ENDPOINT: url, HF_HOME: home, HF_HUB_CACHE: join(home, 'hub'), NO_PROXY: '*', no_proxy: '*' },
        /** They hold when this returns. @param {any} faults */
        fault: async (faults) => {
            child.stdin.write(JSON.stringify(faults) + '\n');
            await next();
        },
        stop: () => {
            child.stdin.end();
            rmSync(home, { recursive: true, force: true });
        },
    };
}

/** @typedef {{ browser: import('playwright-core').Browser, url: string, mock: import('./mock.js').Mock, hub: Awaited<ReturnType<typeof startHub>> }} Tools */

/** @param {any} device @returns {import('playwright-core').BrowserContextOptions} */
function phoneOf({ defaultBrowserType, ...options }) {
    return options;
}

/** @type {Record<string, import('playwright-core').BrowserContextOptions>} */
export const profiles = {
    desktop: { viewport: { width: 1280, height: 800 } },
    phone: phoneOf(devices['iPhone 13']),
};

/**
 * A page of the app that fails the journey when something goes wrong in it.
 * @param {import('playwright-core').Browser} browser
 * @param {string} url
 * @param {import('playwright-core').BrowserContextOptions & { allow?: RegExp }} [options] allow: messages that are expected
 * @param {string} [start] where it begins
 */
export async function openApp(browser, url, { allow, ...options } = {}, start = url) {
    const context = await browser.newContext({
        ...profiles.desktop,
        locale: 'en-US',
        reducedMotion: 'reduce',
        ...options,
    });
    context.setDefaultTimeout(LONG_MS);
    context.setDefaultNavigationTimeout(LONG_MS);
    await context.addInitScript(keepNotices);
    const page = await context.newPage();
    /** @type {string[]} */
    const faults = [];
    const allowed = new RegExp(`Failed to load resource|net::ERR${allow ? `|${allow.source}` : ''}`);
    page.on('pageerror', (error) => faults.push(`error: ${error.message}`));
    page.on('console', (message) => {
        if (message.type() === 'error' && !allowed.test(message.text())) faults.push(`console: ${message.text()}`);
    });
    page.on('request', (request) => {
        const target = new URL(request.url());
        if (target.protocol.startsWith('http') && target.origin !== url && !allow?.test(request.url()))
            faults.push(`request to ${request.url()}`);
    });
    page.on('dialog', (dialog) => {
        faults.push(`dialog: ${dialog.message()}`);
        dialog.dismiss();
    });
    await page.goto(start);
    await page.waitForSelector('#prompt');
    return { page, context, faults, close: () => context.close() };
}

/** Keeps the texts of notices, which are gone after a few seconds; runs in the page. */
function keepNotices() {
    /** @type {string[]} */
    const kept = [];
    Object.assign(window, { notices: kept });
    new MutationObserver(() => {
        for (const notice of document.querySelectorAll('.notice')) {
            const text = `${notice.className}: ${notice.textContent}`;
            if (!kept.includes(text)) kept.push(text);
        }
    }).observe(document, { childList: true, subtree: true, characterData: true });
}

/** Until there was a notice with a text, since the page was loaded. @param {import('playwright-core').Page} page @param {string} text @param {'info' | 'error'} [kind] */
export async function noticed(page, text, kind) {
    const notices = () => page.evaluate(() => /** @type {any} */ (window).notices);
    const fits = (/** @type {string} */ notice) =>
        notice.includes(text) && (!kind || notice.includes(`notice ${kind}`));
    await until(async () => (await notices()).some(fits), `a notice “${text}”`);
}

/** Tabs of the settings, by their place. @type {Record<string, string>} */
const tabs = { '': '', answers: '', tools: '', server: '', devices: '', data: '', about: '' };
for (const name of Object.keys(tabs)) tabs[name] = strings.en[/** @type {'tab_data'} */ (`tab_${name || 'general'}`)];

/** Goes to a place of the app, and waits until all of it is shown. @param {import('playwright-core').Page} page @param {string} hash */
export async function visit(page, hash) {
    await page.evaluate((value) => (location.hash = value), hash);
    const [, name, id] = hash.split('/');
    if (name === 'models') await page.waitForSelector('.page .hub');
    else if (name === 'settings') await page.waitForSelector(`.sub-tabs .here:has-text("${tabs[id ?? '']}")`);
    else await page.waitForSelector(id ? '.message.last .markdown' : '.chat-page .welcome');
}

/** Sends a message, without waiting for its answer. @param {import('playwright-core').Page} page @param {string} text */
export async function send(page, text) {
    await page.fill('#prompt', text);
    await page.click('button.send:not([disabled])');
}

/** Until nothing is written. @param {import('playwright-core').Page} page */
export async function answered(page) {
    await page.waitForSelector('.message.assistant');
    await page.waitForSelector('button.send:not(.stop)');
}

/** What the page has stored of messages. @param {import('playwright-core').Page} page @returns {Promise<any[]>} */
export const storedTexts = (page) =>
    page.evaluate(async () => {
        const db = await new Promise((done) => {
            const opening = indexedDB.open('apus');
            opening.onsuccess = () => done(opening.result);
        });
        const reading = db.transaction('messages').objectStore('messages').getAll();
        const list = await new Promise((done) => (reading.onsuccess = () => done(reading.result)));
        db.close();
        return list;
    });

/** Reloads the page when all answers are stored as they ended. @param {import('playwright-core').Page} page */
export async function reloadStored(page) {
    await until(
        async () => !(await storedTexts(page)).some((message) => message.state === 'streaming'),
        'answers are stored',
    );
    await page.reload();
    await page.waitForSelector('#prompt');
}

/** Sets what new chats start with. @param {import('playwright-core').Page} page @param {any} params */
export async function setDefaults(page, params) {
    await page.evaluate((value) => localStorage.setItem('apus.params', JSON.stringify(value)), params);
    await page.reload();
    await page.waitForSelector('#prompt');
}

/** Puts chats into the page's store. @param {import('playwright-core').Page} page @param {any[]} chats @param {any[]} messages */
export async function fillStore(page, chats, messages) {
    await page.evaluate(async ([list, texts]) => {
        const db = await new Promise((done) => {
            const opening = indexedDB.open('apus');
            opening.onsuccess = () => done(opening.result);
        });
        await new Promise((done, fail) => {
            const work = db.transaction(['chats', 'messages'], 'readwrite');
            for (const chat of list) work.objectStore('chats').put(chat);
            for (const text of texts) work.objectStore('messages').put(text);
            work.oncomplete = done;
            work.onerror = () => fail(work.error);
        });
        db.close();
    }, /** @type {[any[], any[]]} */ ([chats, messages]));
    await page.reload();
    await page.waitForSelector('#prompt');
}

/** @param {string} id @param {any} [more] */
export const storedChat = (id, more) => ({
    id, title: `Chat ${id}`, created: Date.now(), updated: Date.now(), model: 'mock', system: '', params: {}, schema: '', tools: '',
    servers: [], allowed: [], choice: {}, ...more,
}); // prettier-ignore

/** A chat of so many messages. @param {string} id @param {number} count @param {(i: number) => string} textOf */
export function storedMessages(id, count, textOf) {
    return Array.from({ length: count }, (_, i) => ({
        id: `${id}-${String(i).padStart(5, '0')}`,
        chat: id,
        parent: i ? `${id}-${String(i - 1).padStart(5, '0')}` : null,
        role: i % 2 ? 'assistant' : 'user',
        content: textOf(i),
        created: 1_700_000_000_000 + i,
        state: 'done',
        model: 'mock',
    }));
}

/** Waits until something holds. @param {() => Promise<boolean> | boolean} condition @param {string} what @param {number} [ms] */
export async function until(condition, what, ms = LONG_MS) {
    const end = Date.now() + ms;
    while (Date.now() < end) {
        if (await condition()) return;
        await new Promise((done) => setTimeout(done, 50));
    }
    assert.fail(`not within ${ms} ms: ${what}`);
}
