// The targets of the app, measured on a phone's profile; for a quiet machine.
//   node targets.js [ROUNDS]      exit code 1 where a median misses its target
import { chromium } from 'playwright-core';
import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
import { answered, fillStore, openApp, profiles, send, serve, storedChat, storedMessages, until } from './helpers.js';
import { Mock, tasksWhile, typed } from './mock.js';

const rounds = Number(process.argv[2] ?? 5);
const SLOWER = 4;
const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--no-first-run'],
});
const real = await serve(['--port', '0', '--slots', '2']);
const mock = await new Mock(real.url).start();
let missed = 0;

/** @param {number[]} list */
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

/** @param {string} what @param {number[]} values @param {number} most @param {string} unit @param {number[]} [floor] what a page without anything takes */
function report(what, values, most, unit, floor) {
    const value = median(values);
    const ok = value <= most;
    if (!ok) missed++;
    const all = values.map((one) => Math.round(one)).join(' ');
    const beside = floor ? `; an empty page ${Math.round(median(floor))} (${floor.map(Math.round).join(' ')})` : '';
    console.log(`${ok ? 'met   ' : 'MISSED'} ${what}: ${Math.round(value)} ${unit}, target ${most} (${all})${beside}`);
}

/** A page with its processor so many times slower. @param {string} url @param {number} rate */
async function slowPage(url, rate) {
    const context = await browser.newContext({ ...profiles.phone, locale: 'en-US' });
    const page = await context.newPage();
    const session = await context.newCDPSession(page);
    await session.send('Emulation.setCPUThrottlingRate', { rate });
    const start = Date.now();
    await page.goto(url, { waitUntil: 'commit' });
    return { context, page, session, start };
}

/** When a page was painted, and when it had its field and nothing to do. @param {string} url */
async function startOf(url) {
    const { context, page } = await slowPage(url, SLOWER);
    await page.waitForSelector('#prompt');
    const figures = await page.evaluate(async () => {
        await new Promise((done) => requestIdleCallback(done, { timeout: 5000 }));
        const ready = performance.now();
        return { paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN, ready };
    });
    await context.close();
    return figures;
}

async function measureStart() {
    const empty = createServer((from, to) => {
        to.writeHead(200, { 'Content-Type': 'text/html' });
        to.end('<!doctype html><title>Empty</title><textarea id="prompt" placeholder="Empty"></textarea>');
    });
    await new Promise((done) => empty.listen(0, '127.0.0.1', () => done(null)));
    const floor = [];
    const app = [];
    for (let i = 0; i < rounds; i++) {
        floor.push(await startOf(`http://127.0.0.1:${/** @type {any} */ (empty.address()).port}/`));
        app.push(await startOf(real.url));
    }
    empty.closeAllConnections();
    empty.close();
    for (const [what, key, most] of /** @type {const} */ ([
        ['first paint', 'paint', 300],
        ['interactive', 'ready', 1000],
    ])) {
        const values = app.map((one) => one[key]);
        report(`${what} at ${SLOWER}x`, values, most, 'ms', floor.map((one) => one[key])); // prettier-ignore
    }
}

async function measureStreaming() {
    const text =
        'The swift sleeps, eats and mates **in flight**; it lands only to nest. See `apus apus`.\n\n- one\n- two\n\n```c\nint main(void) { return 0; }\n```\n\n';
    const longest = [];
    for (let i = 0; i < Math.min(rounds, 3); i++) {
        mock.answer = () => [{ wait: 1000 }, ...typed(text.repeat(14), 4, 10)];
        const { page, context } = await openApp(browser, mock.url, profiles.phone);
        const session = await context.newCDPSession(page);
        await session.send('Emulation.setCPUThrottlingRate', { rate: SLOWER });
        await send(page, 'Stream');
        await page.waitForSelector('.waiting');
        longest.push(Math.max(...(await tasksWhile(session, () => answered(page)))));
        await context.close();
    }
    report(`longest task at 100 tok/s, ${SLOWER}x`, longest, 50, 'ms');
}

async function measureLongChat() {
    const times = [];
    const memory = [];
    const text =
        'A paragraph of an answer with **words** in it.\n\n```js\nconst a = 1;\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n';
    for (let i = 0; i < rounds; i++) {
        const { page, context } = await openApp(browser, mock.url, profiles.phone);
        const messages = storedMessages('long', 500, (n) => `${n}. ${text}`);
        await fillStore(page, [storedChat('long')], messages);
        times.push(
            await page.evaluate(async () => {
                const start = performance.now();
                location.hash = '#/chat/long';
                while (!document.querySelector('.message.last .markdown'))
                    await new Promise((done) => requestAnimationFrame(done));
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
                return performance.now() - start;
            }),
        );
        memory.push(await memoryOf(page, context));
        await context.close();
    }
    report('500 messages', times, 300, 'ms');
    report('memory of the tab with 500 messages (private pages of its process)', memory.map((one) => one.own), 80, 'MB'); // prettier-ignore
    console.log(`       its JavaScript heap: ${Math.round(median(memory.map((one) => one.heap)))} MB`);
}

/** In MB: what the renderer's process has for itself, and the heap. @param {import('playwright-core').Page} page @param {import('playwright-core').BrowserContext} context */
async function memoryOf(page, context) {
    const session = await context.newCDPSession(page);
    await session.send('HeapProfiler.collectGarbage');
    await session.send('Performance.enable');
    const { metrics } = await session.send('Performance.getMetrics');
    const heap = (metrics.find((item) => item.name === 'JSHeapUsedSize')?.value ?? 0) / 1e6;
    const root = await browser.newBrowserCDPSession();
    const { processInfo } = await root.send('SystemInfo.getProcessInfo');
    const own = processInfo
        .filter((item) => item.type === 'renderer')
        .map((item) => {
            const rollup = readFileSync(`/proc/${item.id}/smaps_rollup`, 'utf8');
            const kb = [...rollup.matchAll(/^Private_\w+:\s+(\d+)/gm)].reduce(
                (sum, found) => sum + Number(found[1]),
                0,
            );
            return (kb * 1024) / 1e6;
        });
    await root.detach();
    return { heap, own: Math.max(...own) };
}

/** A server of one stream that is kept: ten minutes of reading, on the page's clock, with a reload in the middle. */
async function longPrefill() {
    /** @type {string[]} */
    const log = [];
    /** @type {Set<import('node:http').ServerResponse>} */
    const readers = new Set();
    let asked = 0;
    let over = false;
    const add = (/** @type {any} */ value) => {
        log.push(`id: ${log.length + 1}\ndata: ${value === null ? '[DONE]' : JSON.stringify(value)}\n\n`);
        if (value === null) over = true;
        for (const to of readers) {
            to.write(log[log.length - 1]);
            if (over) to.end();
        }
    };
    const kept = createServer((from, to) => {
        const url = new URL(from.url ?? '/', 'http://x');
        if (url.pathname === '/v1/chat/completions') asked++;
        if (url.pathname === '/v1/chat/completions' || url.pathname.startsWith('/v1/streams/')) {
            to.writeHead(200, { 'Content-Type': 'text/event-stream', 'x-stream-id': 'kept' });
            to.write(log.slice(Number(url.searchParams.get('after') ?? 0)).join('') || ': waiting\n\n');
            if (over) return void to.end();
            readers.add(to);
            to.on('close', () => readers.delete(to));
            return;
        }
        mock.server.emit('request', from, to);
    });
    await new Promise((done) => kept.listen(0, '127.0.0.1', () => done(null)));
    const url = `http://127.0.0.1:${/** @type {any} */ (kept.address()).port}`;
    const progress = (/** @type {number} */ n) =>
        add({ choices: [], prompt_progress: { processed: n, total: 60_000 } });
    const { page, context, faults } = await openApp(browser, url, profiles.phone);
    await page.clock.install();
    await send(page, 'Read all this');
    for (let minute = 0; minute < 10; minute++) {
        progress(minute * 6000);
        await page.clock.fastForward(60_000);
        await page.waitForSelector(`.waiting:has-text("${minute * 10} %")`);
        if (minute === 5) {
            await page.reload();
            await until(() => readers.size > 0, 'the page listens again');
        }
    }
    for (const part of ['All ', 'of it ', 'was read.']) add({ choices: [{ index: 0, delta: { content: part } }] });
    add({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] });
    add(null);
    await page.waitForSelector('.message.assistant .markdown:has-text("All of it was read.")');
    await page.reload();
    await page.waitForSelector('.message.assistant .markdown:has-text("All of it was read.")');
    const lost = faults.length + (asked === 1 ? 0 : 1);
    if (lost) missed++;
    console.log(
        `${lost ? 'MISSED' : 'met   '} ten minutes of reading and a reload: asked once (${asked}), ${faults.join() || 'no fault'}`,
    );
    await context.close();
    kept.closeAllConnections();
    kept.close();
}

await longPrefill();
await measureStart();
await measureLongChat();
await measureStreaming();
await browser.close();
mock.stop();
await real.stop();
process.exit(missed ? 1 : 0);
