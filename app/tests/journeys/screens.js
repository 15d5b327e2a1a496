// Pictures of every screen in both themes, for docs/app.md:  node tests/journeys/screens.js [FOLDER]
import { chromium } from 'playwright-core';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { Agent, request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { catalogue } from '../../src/lib/catalogue.js';
import { fillStore, profiles, root, serve, storedChat, storedMessages, visit } from './helpers.js';
import { Mock, typed } from './mock.js';

const folder = process.argv[2] ?? join(root, 'docs/images');
const shown = readFileSync(join(root, 'docs/app.md'), 'utf8');
mkdirSync(folder, { recursive: true });

const ANSWER = `A **Bloom filter** answers “have I seen this?” with few bits: *no* is certain, *yes* may be wrong.

With $m$ bits, $n$ items and $k$ hashes the false-positive rate is

$$p \\approx \\left(1 - e^{-kn/m}\\right)^k$$

\`\`\`python
class Bloom:
    def __init__(self, bits, hashes):
        self.bits, self.hashes = bytearray(bits // 8), hashes

    def add(self, item):
        for i in range(self.hashes):
            at = hash((i, item)) % (len(self.bits) * 8)
            self.bits[at // 8] |= 1 << at % 8
\`\`\`

| bits per item | hashes | false positives |
|--:|--:|--:|
| 8 | 6 | 2.2 % |
| 10 | 7 | 0.8 % |
| 16 | 11 | 0.05 % |`;

const TITLES = [
    'Bloom filters',
    'Trip to Lisbon in May',
    'Regex for ISO dates',
    'Summary of the meeting notes',
    'Why is the sky blue?',
    'Birthday poem for Ada',
];

const real = await serve(['--port', '0']);
const mock = await new Mock(real.url).start();
mock.models = [
    { id: 'Qwen3-4B-4bit', context_length: 32768, status: 'loaded', input_modalities: ['text'] },
    { id: 'gemma-3-1b-it-4bit', context_length: 32768, status: 'unloaded' },
];
const local = [
    {
        id: 'mlx-community/Qwen3-4B-4bit',
        format: 'safetensors',
        bytes: 2_280_000_000,
        last_used: Date.now() / 1000 - 400,
    },
    {
        id: 'mlx-community/gemma-3-1b-it-4bit',
        format: 'safetensors',
        bytes: 732_000_000,
        last_used: Date.now() / 1000 - 86400 * 3,
    },
    {
        id: 'Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M',
        format: 'gguf',
        bytes: 491_000_000,
        last_used: Date.now() / 1000 - 86400 * 20,
    },
];
mock.routes['/v1/models/local'] = { data: local, unfinished_bytes: 0 };
const job = {
    id: 'job_1',
    kind: 'download',
    model: 'mlx-community/Qwen3-8B-4bit',
    state: 'paused',
    stage: null,
    completed_bytes: 1.9e9,
    total_bytes: 4.62e9,
};
mock.routes['/v1/jobs'] = { data: [job] };
/** The plan of a machine with 16 GB. @param {{ model: string }} body */
const fitOf = ({ model }) => {
    const size = [...catalogue, ...local].find((item) => item.id === model)?.bytes ?? 1e9;
    const mixture = catalogue.find((item) => item.id === model)?.mixture;
    const needed = size * 1.15 + 4e8;
    const fit = needed <= 11.4e9 ? 'fits' : needed <= 13.7e9 ? 'tight' : mixture ? 'streams' : 'too_large';
    const speed = fit === 'too_large' ? null : mixture ? 9.4 : 58e9 / size;
    const family = /gemma/.test(model) ? 'gemma3_text' : /Qwen2/.test(model) ? 'qwen2' : 'qwen3';
    return {
        fit,
        now: fit,
        model_type: family,
        bits: 4,
        needed_bytes: needed,
        usable_bytes: 15.2e9,
        decode_tokens_per_second: speed,
    };
};
mock.routes['/v1/models/fit'] = fitOf;
mock.routes['/health'] = {
    status: 'ok',
    running: 0,
    waiting: 0,
    lan: true,
    memory: { active_mb: 2900, total_system_mb: 16384 },
};
const now = Math.round(Date.now() / 1000);
mock.routes['/v1/devices'] = {
    data: [
        { id: 'd1', name: 'iPhone, Safari', created: now - 86400 * 9, last_used: now - 600, current: false },
        { id: 'd2', name: 'Mac, Safari', created: now - 86400 * 9, last_used: now, current: true },
    ],
};
mock.routes['/v1/devices/pairing'] = await pairingOf();
mock.answer = () => typed('Of course.', 4);

/** A pairing as a real server makes it. */
async function pairingOf() {
    const state = mkdtempSync(join(tmpdir(), 'apus-state-'));
    const server = await serve(['--lan', '--host', '127.0.0.1', '--port', '0', '--api-key', 'k'], {
        APUS_STATE: state,
    });
    const insecure = new Agent({ rejectUnauthorized: false });
    const text = await new Promise((done) => {
        const headers = { Authorization: 'Bearer k', 'Content-Type': 'application/json' };
        const asking = request(
            `${server.url}/v1/devices/pairing`,
            { method: 'POST', headers, agent: insecure },
            (answer) => {
                let all = '';
                answer.on('data', (part) => (all += part)).on('end', () => done(all));
            },
        );
        asking.end('{}');
    });
    await server.stop();
    rmSync(state, { recursive: true, force: true });
    return { ...JSON.parse(text), url: 'https://192.168.1.20:5413/#/pair/5e1f0c7a9b3d4862a1c0e5f7b9d2648c' };
}

const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu'],
});
for (const [profile, options] of Object.entries(profiles))
    for (const scheme of /** @type {const} */ (['light', 'dark'])) {
        const scale = profile === 'phone' ? 1.5 : 1;
        const context = await browser.newContext({
            ...options,
            deviceScaleFactor: scale,
            colorScheme: scheme,
            locale: 'en-US',
            reducedMotion: 'reduce',
        });
        const page = await context.newPage();
        const session = await context.newCDPSession(page);
        /** @param {string} name */
        const shoot = async (name) => {
            const file = `app-${name}-${profile}-${scheme}.webp`;
            if (!shown.includes(file)) return;
            await page.waitForTimeout(350);
            const { data } = await session.send('Page.captureScreenshot', { format: 'webp', quality: 78 });
            writeFileSync(join(folder, file), Buffer.from(data, 'base64'));
        };
        await page.goto(mock.url);
        await page.waitForSelector('#prompt');
        await shoot('start');
        const chats = TITLES.map((title, i) =>
            storedChat(`c${i}`, { title, updated: Date.now() - i * 40_000_000, model: 'Qwen3-4B-4bit' }),
        );
        const messages = storedMessages('c0', 2, (i) =>
            i ? ANSWER : 'What is a Bloom filter? Show the formula, a Python sketch and a small table.',
        );
        Object.assign(messages[1], {
            model: 'Qwen3-4B-4bit',
            reasoning: 'The user wants a short explanation with a formula.',
            reasoningMs: 3400,
            stats: {
                firstMs: 210,
                promptTokens: 420,
                cachedTokens: 310,
                tokens: 388,
                perSecond: 41.3,
                promptPerSecond: 300,
                totalMs: 9800,
            },
        });
        await fillStore(page, chats, messages);
        await page.evaluate(() => (location.hash = '#/chat/c0'));
        await page.waitForSelector('math');
        await shoot('chat');
        await page.keyboard.press('Control+.');
        await page.waitForSelector('.panel');
        await shoot('panel');
        await page.keyboard.press('Escape');
        await page.keyboard.press('Control+k');
        await page.fill('.palette input', 'bloom');
        await shoot('search');
        await page.keyboard.press('Escape');
        await page.evaluate(() => {
            location.hash = '#/models';
        });
        await page.reload();
        await page.locator('.fit-place').first().scrollIntoViewIfNeeded(); // models are planned when they are seen
        await page.waitForSelector('.tag.fit:has-text("tok/s")');
        await shoot('models');
        await visit(page, '#/settings');
        await shoot('settings');
        await visit(page, '#/settings/devices');
        await page.click('button:has-text("Pair a device")');
        await page.waitForSelector('.pairing');
        await shoot('devices');
        await visit(page, '#/settings/server');
        await shoot('server');
        await context.close();
    }
await browser.close();
mock.stop();
await real.stop();
