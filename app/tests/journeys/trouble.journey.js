import assert from 'node:assert/strict';
import { answered, fillStore, noticed, openApp, profiles, reloadStored, send, storedChat, storedMessages, until, visit } from './helpers.js'; // prettier-ignore
import { gate, tasksWhile, typed } from './mock.js';

/** @typedef {import('./helpers.js').Tools} Tools */

const HOSTILE = [
    '<script>alert(1)</script>',
    '<img src=x onerror=alert(2)>',
    '[click](javascript:alert(3)) <a href="javascript:alert(4)">x</a> <a href="data:text/html,<script>alert(5)</script>">y</a>',
    '![pixel](https://evil.example/pixel.png) <img src="https://evil.example/b.png">',
    '<iframe src="https://evil.example"></iframe><object data="https://evil.example"></object>',
    '<form action="https://evil.example"><input name=a><button>Send</button></form>',
    '<style>* { display: none }</style><div class="dialog" id="prompt" style="position:fixed;inset:0">over</div>',
    '<svg onload=alert(6)><animate onbegin=alert(7)></svg><math><mi xlink:href="javascript:alert(8)">m</mi></math>',
    '$\\href{javascript:alert(9)}{x}$ $\\includegraphics{https://evil.example/c.png}$ $\\unknown{$',
    '<a href="https://example.org" target="_self" onclick="alert(10)">link</a>',
    'مرحبا \u202E txt.exe \u202C <b>bold</b> <sub>2</sub>',
    '```html\n<script>alert(11)</script>\n```',
    '<meta http-equiv="refresh" content="0;url=https://evil.example"><base href="https://evil.example">',
];

/** Nothing in an answer runs, loads, or looks like a part of the app. */
export async function hostileAnswers(/** @type {Tools} */ { browser, mock }) {
    mock.answer = () => typed(HOSTILE.join('\n\n'), 9);
    // What the sanitizer reads is reported by the policy, which holds for that document, too.
    const { page, faults } = await openApp(browser, mock.url, {
        allow: /violates the following Content Security Policy/,
    });
    await send(page, 'Be evil <script>alert(0)</script>');
    await answered(page);
    await page.waitForSelector('.markdown .hl-keyword, .markdown .hl-tag'); // what is drawn last
    const bad = await page.evaluate(() => {
        const inside = [...document.querySelectorAll('.markdown *')];
        return inside
            .filter((element) => {
                const names = element.getAttributeNames();
                const href = element.getAttribute('href') ?? element.getAttribute('xlink:href') ?? '';
                return (
                    ['SCRIPT', 'IFRAME', 'OBJECT', 'FORM', 'STYLE', 'META', 'BASE', 'SVG', 'EMBED'].includes(
                        element.tagName.toUpperCase(),
                    ) ||
                    names.some((name) => name.startsWith('on')) ||
                    /^\s*(javascript|data|vbscript):/i.test(href) ||
                    (element.tagName === 'IMG' && !(element.getAttribute('src') ?? '').startsWith('data:')) ||
                    element.id !== '' ||
                    element.classList.contains('dialog')
                );
            })
            .map((element) => element.cloneNode(false))
            .map((node) => new XMLSerializer().serializeToString(node));
    });
    assert.deepEqual(bad, []);
    for (const link of await page.locator('.markdown a[href]').all()) {
        assert.equal(await link.getAttribute('rel'), 'noopener noreferrer nofollow');
        assert.equal(await link.getAttribute('target'), '_blank');
    }
    assert.match((await page.textContent('.markdown')) ?? '', /pixel \(evil\.example\)/);
    assert.deepEqual(faults, []);
}

/** The same from a file that is imported, and in names of files, models and tools. */
export async function hostileNames(/** @type {Tools} */ { browser, mock }) {
    const evil = '<img src=x onerror=alert(1)>"\'`';
    mock.models = [{ id: evil, context_length: 10, status: evil }];
    mock.routes['/v1/models/local'] = {
        data: [{ id: evil, format: evil, bytes: 5, last_used: 1 }],
        unfinished_bytes: 0,
    };
    mock.routes['/v1/models/search'] = { data: [{ id: evil, downloads: evil, gated: 1 }] };
    mock.answer = () => [
        { delta: { tool_calls: [{ index: 0, id: evil, function: { name: evil, arguments: evil } }] } },
        { finish: 'tool_calls' },
    ];
    const { page, faults } = await openApp(browser, mock.url);
    await page.setInputFiles('[data-testid=file-input]', [
        { name: evil + '.txt', mimeType: 'text/plain', buffer: Buffer.from(evil) },
    ]);
    await page.waitForSelector('.chip');
    await send(page, evil);
    await page.waitForSelector('.call.asked');
    await visit(page, '#/models');
    await page.waitForSelector('.model-card:has-text("onerror")');
    await page.fill('.hub input', 'evil');
    await page.waitForSelector('.hub .card:has-text("onerror")');
    await visit(page, '#/settings/data');
    const chats = {
        format: 'apus-chats',
        chats: [
            {
                ...storedChat(evil, { title: evil, choice: { '': evil, [evil]: 3 } }),
                messages: [
                    {
                        id: evil,
                        parent: evil,
                        role: evil,
                        content: evil,
                        attachments: [{ kind: 'image', name: evil, text: 'javascript:alert(1)' }, null],
                    },
                ],
            },
        ],
    };
    await page.setInputFiles('[data-testid=import-input]', {
        name: 'x.json',
        mimeType: 'application/json',
        buffer: Buffer.from(JSON.stringify(chats)),
    });
    await page.waitForSelector('.chat-entry:has-text("onerror") >> nth=1');
    await page.waitForSelector('.message:has-text("onerror")');
    mock.models = [{ id: 'mock', context_length: 8192, status: 'loaded' }];
    assert.deepEqual(faults, []);
}

/** A fence of a megabyte, and a line of 400,000 characters, are shown while the page stays usable. */
export async function hugeAnswers(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url);
    for (const text of [
        '```\n' + 'let value = 12345; // a line of code\n'.repeat(28_000) + '```\n',
        'word '.repeat(80_000),
    ]) {
        mock.answer = () => typed(text, 20_000, 5);
        await send(page, 'A lot, please');
        await answered(page);
        const start = Date.now();
        await page.fill('#prompt', 'still here');
        console.log(`       a field is filled beside ${text.length} characters: ${Date.now() - start} ms`);
        const elements = await page.evaluate(() => document.querySelectorAll('.markdown *').length);
        assert.ok(elements < 1000, `${elements} elements`);
        const last = page.locator('.message.assistant').last();
        assert.ok(((await last.textContent()) ?? '').length >= text.length * 0.99);
    }
    assert.deepEqual(faults, []);
}

/** A stream that breaks off keeps what came; errors of the server are said, with what helps. */
export async function brokenStreams(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url);
    mock.answer = () => [...typed('The beginning').slice(0, 3), { wait: 200, cut: true }];
    await send(page, 'Break');
    await page.waitForSelector('.trouble.error:has-text("connection was lost")');
    assert.match((await page.textContent('.markdown')) ?? '', /^The begin/);
    mock.routes['/v1/chat/completions'] = {
        status: 400,
        error: { message: 'Too long.', code: 'context_length_exceeded' },
    };
    await send(page, 'Again');
    await page.waitForSelector('.trouble.error:has-text("--ctx-size")');
    mock.routes['/v1/chat/completions'] = { status: 400, error: { message: 'A base.', code: 'unsupported_model' } };
    await send(page, 'Once more');
    await page.waitForSelector('.trouble.error:has-text("another model")');
    assert.deepEqual(faults, []);
}

/**
 * 100 tokens come each second on a phone with a quarter of this speed. The tasks of more than 50 ms are reported; how many
 * there are depends on the other work of the machine (targets.js has the bound). What can fail is what must not grow with
 * the answer: the markup that is parsed and the elements that are made, which are those of its last block for each frame.
 */
export async function smoothStreaming(/** @type {Tools} */ { browser, mock }) {
    const paragraph =
        'The swift sleeps, eats and mates **in flight**; it lands only to nest. See `apus apus`.\n\n- one\n- two\n\n```c\nint main(void) { return 0; }\n```\n\n';
    const ready = gate();
    mock.answer = () => [{ delta: {}, gate: ready.opened }, ...typed(paragraph.repeat(14), 4, 10)];
    const { page, faults, close } = await openApp(browser, mock.url, profiles.phone);
    const session = await page.context().newCDPSession(page);
    await session.send('Emulation.setCPUThrottlingRate', { rate: 4 });
    await send(page, 'Stream');
    await page.waitForSelector('.waiting');
    await page.evaluate(() => {
        const counts = { elements: 0, frames: 0, parsed: 0, templates: 0 };
        Object.assign(window, { made: counts });
        const count = (/** @type {Node} */ node) =>
            node instanceof Element ? 1 + node.querySelectorAll('*').length : 0;
        const parse = DOMParser.prototype.parseFromString;
        DOMParser.prototype.parseFromString = function (text, type) {
            counts.parsed += String(text).length;
            return parse.call(this, text, type);
        };
        // Each template that a view draws is looked up in a map, by its texts.
        const get = Map.prototype.get;
        Map.prototype.get = function (key) {
            if (Array.isArray(key)) counts.templates++;
            return get.call(this, key);
        };
        new MutationObserver((changes) => {
            counts.frames++;
            for (const change of changes) for (const node of change.addedNodes) counts.elements += count(node);
        }).observe(/** @type {Element} */ (document.querySelector('.messages')), { childList: true, subtree: true });
    });
    const tasks = await tasksWhile(session, async () => {
        ready.open();
        await answered(page);
    });
    const long = tasks.filter((ms) => ms > 50).map(Math.round);
    console.log(`       tasks > 50 ms: ${long.join(' ') || 'none'} of ${tasks.length}`);
    assert.deepEqual(faults, []);
    await page.waitForSelector('.code-block .hl-keyword'); // colours come from a worker
    const { made, shown } = await page.evaluate(() => ({
        made: /** @type {any} */ (window).made,
        shown: document.querySelectorAll('.markdown *').length,
    }));
    console.log(
        `       ${made.frames} changes, ${made.parsed} characters parsed, ${made.elements} elements made, ${shown} shown, ${made.templates} templates`,
    );
    assert.ok(made.parsed > 1000 && made.elements > shown / 2);
    assert.ok(made.elements < 15 * made.frames + 3 * shown, 'blocks that have ended are drawn again');
    assert.ok(made.parsed < 600 * made.frames, 'blocks that have ended are parsed again');
    assert.ok(made.templates < 30 * made.frames + 1000, 'views whose properties are the same are drawn again');
    await close();
}

/** A chat of 500 messages opens at once: only what is near the screen is drawn. */
export async function longChat(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url, profiles.phone);
    const text =
        'A paragraph of an answer with **words** in it.\n\n```js\nconst a = 1;\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n';
    await fillStore(
        page,
        [storedChat('long')],
        storedMessages('long', 500, (i) => `${i}. ${text}`),
    );
    const { ms, drawn } = await page.evaluate(async () => {
        const start = performance.now();
        location.hash = '#/chat/long';
        while (!document.querySelector('.message.last .markdown'))
            await new Promise((done) => requestAnimationFrame(done));
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        return { ms: performance.now() - start, drawn: document.querySelectorAll('.message .markdown').length };
    });
    console.log(`       500 messages: ${Math.round(ms)} ms, ${drawn} are drawn`);
    assert.equal(await page.locator('.message').count(), 500);
    assert.ok(drawn < 50, `${drawn} are drawn`);
    await until(
        () =>
            page.evaluate(() => {
                const box = /** @type {HTMLElement} */ (document.querySelector('.scroller'));
                return box.scrollHeight - box.scrollTop - box.clientHeight < 50;
            }),
        'the end is shown',
    );
    await page.evaluate(() => document.querySelector('.scroller')?.scrollTo(0, 0));
    await page.waitForSelector('.message[data-id="long-00001"] .markdown');
    assert.deepEqual(faults, []);
}

/** The first page asks for little; how quickly it comes is reported. */
export async function firstLoad(/** @type {Tools} */ { browser, url }) {
    const { page } = await openApp(browser, url, profiles.phone);
    const figures = await page.evaluate(() => {
        const loads = /** @type {PerformanceResourceTiming[]} */ (performance.getEntriesByType('resource'));
        const paint = performance.getEntriesByName('first-contentful-paint')[0];
        const shown = performance.getEntriesByName('apus-shown')[0].startTime;
        const first = loads.filter((item) => item.startTime < shown);
        return {
            paint: paint?.startTime ?? 0,
            bytes: first.reduce((sum, item) => sum + item.encodedBodySize, 0),
            unpacked: loads.reduce((sum, item) => sum + item.decodedBodySize, 0), // the service worker's are so
            names: loads.map((item) => item.name),
        };
    });
    console.log(
        `       first paint ${Math.round(figures.paint)} ms, ${figures.bytes} bytes, ${figures.unpacked} with what is fetched when the page is idle`,
    );
    assert.ok(figures.bytes < 80_000, String(figures.bytes));
    assert.ok(figures.unpacked < 600_000, String(figures.unpacked));
    assert.ok(!figures.names.some((name) => /temml|pdf|highlight/.test(name)), figures.names.join());
}

/** When the browser stores no more, the page says so, and the chat goes on while it is open. */
export async function fullStorage(/** @type {Tools} */ { browser, mock }) {
    const { page, context, faults } = await openApp(browser, mock.url);
    const session = await context.newCDPSession(page);
    await session.send('Storage.overrideQuotaForOrigin', { origin: mock.url, quotaSize: 1 });
    mock.answer = () => typed('An answer that is not stored.');
    await send(page, `A message ${'x'.repeat(300_000)}`);
    await noticed(page, 'storage is full', 'error');
    await page.waitForSelector('.message.assistant .markdown:has-text("not stored")');
    await send(page, 'And another one');
    await until(async () => (await page.locator('.message.assistant .markdown').count()) === 2, 'the chat goes on');
    await session.send('Storage.overrideQuotaForOrigin', { origin: mock.url });
    await send(page, 'A third one');
    await answered(page);
    await reloadStored(page);
    await page.waitForSelector('.chat-entry');
    assert.deepEqual(faults, []);
}
