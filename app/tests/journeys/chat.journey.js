import assert from 'node:assert/strict';
import { answered, fillStore, INSECURE_HOST, noticed, openApp, openDoor, profiles, reloadStored, send, serve, setDefaults, storedChat, storedTexts, tinyVision, until } from './helpers.js'; // prettier-ignore
import { gate, modelOf, typed } from './mock.js';

/** @typedef {import('./helpers.js').Tools} Tools */

/** A first chat: answer with figures, reload, regenerate, versions, edit, delete and undo. */
export async function firstChat(/** @type {Tools} */ { browser, url }) {
    const { page, faults } = await openApp(browser, url, profiles.phone);
    await setDefaults(page, { max_tokens: 12, temperature: 0 });
    await send(page, 'Say hello.');
    await answered(page);
    const text = await page.textContent('.message.assistant .markdown');
    assert.ok(text && text.trim().length > 0);
    assert.match((await page.textContent('.stats')) ?? '', /tok\/s.*first token.*tokens/);
    await page.click('.topbar button[aria-label="Chats"]');
    assert.equal(await page.textContent('.sidebar.drawn .chat-entry a'), 'Say hello.');
    await page.click('.sidebar.drawn button[aria-label="Close"]');
    await page.waitForSelector('.sidebar', { state: 'detached' });
    await reloadStored(page);
    await page.waitForSelector('.message.assistant .markdown');
    assert.equal(await page.textContent('.message.assistant .markdown'), text);

    await page.click('.message.assistant button[aria-label="Regenerate"]');
    await answered(page);
    await page.waitForSelector('.message.assistant .branches');
    assert.equal(await page.textContent('.message.assistant .branches span'), '2/2');
    await page.click('.message.assistant button[aria-label="Earlier version"]');
    assert.equal(await page.textContent('.message.assistant .branches span'), '1/2');

    await page.setViewportSize({ width: 390, height: 400 });
    const below = await page.evaluate(() => {
        const scroller = document.querySelector('.scroller') ?? document.body;
        scroller.scrollTop = scroller.scrollHeight - scroller.clientHeight - 50; // the page does not follow its end
        return scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
    });
    assert.ok(below > 40, `${below} pixels are below`);
    await page.click('.message.assistant button[aria-label="Edit"]');
    const bottom = (/** @type {string} */ part) =>
        page.evaluate((name) => Number(document.querySelector(name)?.getBoundingClientRect().bottom), part);
    assert.ok((await bottom('.editor .button.primary')) <= (await bottom('.scroller')), 'the button is in view');
    await page.click('.editor .button:not(.primary)');
    await page.setViewportSize(profiles.phone.viewport ?? assert.fail());

    await page.click('.message.user button[aria-label="Edit"]');
    await page.fill('.editor textarea', 'Say goodbye.');
    await page.click('.editor .button.primary');
    await answered(page);
    assert.equal(await page.textContent('.message.user .branches span'), '2/2');
    assert.equal(await page.textContent('.message.user .bubble'), 'Say goodbye.');

    await page.click('.message.user button[aria-label="Delete"]');
    assert.equal(await page.textContent('.message.user .bubble'), 'Say hello.');
    await page.click('.notice-action');
    await page.waitForSelector('.message.user .branches');
    assert.deepEqual(faults, []);
}

/** An answer is stopped, goes on, and the context of a chat is sent again. */
export async function stopAndContinue(/** @type {Tools} */ { browser, url }) {
    const { page, faults } = await openApp(browser, url);
    await setDefaults(page, { max_tokens: 3000, temperature: 0, ignore_eos: true });
    await send(page, 'Count from one to one hundred in words.');
    await page.waitForSelector('.message.assistant .markdown');
    await page.click('button.send.stop');
    await page.waitForSelector('.trouble');
    assert.match((await page.textContent('.trouble')) ?? '', /Stopped/);
    const before = (await page.textContent('.message.assistant .markdown')) ?? '';
    await page.click('.trouble button:has-text("Continue")');
    await until(
        async () => ((await page.textContent('.message.assistant .markdown')) ?? '').length > before.length + 5,
        'the answer goes on',
    );
    await page.keyboard.press('Escape');
    await page.waitForSelector('.trouble');
    assert.ok(
        ((await page.textContent('.message.assistant .markdown')) ?? '').startsWith(before.trimEnd().slice(0, 20)),
    );
    assert.equal(await page.locator('.message.assistant').count(), 1);
    assert.deepEqual(faults, []);
}

/** A page that is closed while an answer is written: the answer goes on, and the next page shows all of it. */
export async function reloadWhileWriting(/** @type {Tools} */ { browser, url }) {
    const { page, faults } = await openApp(browser, url);
    await setDefaults(page, { max_tokens: 30, temperature: 0, seed: 1 });
    await send(page, 'Tell a story about a bird.');
    await answered(page);
    const whole = await page.textContent('.message.assistant .markdown');
    await page.click('.message.assistant button[aria-label="Regenerate"]');
    await until(async () => {
        const last = (await storedTexts(page)).at(-1);
        return Boolean(last.stream) || last.state !== 'streaming';
    }, 'the page has stored which stream it hears');
    await page.reload();
    await answered(page);
    await page.waitForSelector('.branches:has-text("2/2")');
    assert.equal(await page.textContent('.message.assistant .markdown'), whole);
    await page.waitForSelector('.trouble:has-text("length limit")');
    assert.deepEqual(faults, []);
}

/** The figures of an answer that was resumed after a reload are the server's: the page did not hear its beginning. */
export async function figuresAfterReload(/** @type {Tools} */ { browser, mock }) {
    const never = gate();
    mock.stream = 'kept';
    mock.answer = (body) =>
        body
            ? [{ delta: { content: 'One' } }, { delta: {}, gate: never.opened }]
            : [
                  { delta: { content: 'One, two.' } },
                  { finish: 'stop' },
                  { usage: { prompt_tokens: 5, completion_tokens: 4 }, timings: { queued_ms: 1000, prompt_ms: 2400 } },
              ];
    const { page, faults } = await openApp(browser, mock.url);
    await send(page, 'Count');
    await page.waitForSelector('.message.assistant .markdown:has-text("One")');
    await until(async () => (await storedTexts(page)).at(-1).stream === 'kept', 'the stream is known');
    await page.reload();
    await page.waitForSelector('.message.assistant .markdown:has-text("One, two.")');
    await page.waitForSelector('.stats:has-text("3.4 s to first token")');
    never.open();
    assert.deepEqual(faults, []);
}

/** The network goes away for a moment while an answer is written. */
export async function networkChange(/** @type {Tools} */ { browser, url }) {
    const { page, context, faults } = await openApp(browser, url);
    await setDefaults(page, { max_tokens: 30, temperature: 0, seed: 1 });
    await send(page, 'Tell a story about a river.');
    await page.waitForSelector('.message.assistant .markdown');
    await context.setOffline(true);
    await page.waitForTimeout(1200);
    await context.setOffline(false);
    await answered(page);
    await page.waitForSelector('.trouble:has-text("length limit")');
    const text = await page.textContent('.message.assistant .markdown');
    await page.click('.message.assistant button[aria-label="Regenerate"]');
    await answered(page);
    assert.equal(await page.textContent('.message.assistant .markdown'), text);
    assert.deepEqual(faults, []);
}

/** The server ends in the middle of an answer: what came is kept, the page says so, and it connects again. */
export async function serverKilled(/** @type {Tools} */ { browser }) {
    const door = await openDoor();
    const server = await serve(['--port', '0', '--slots', '1']);
    door.lead(server.url);
    const { page, faults } = await openApp(browser, door.url);
    await setDefaults(page, { max_tokens: 3000, temperature: 0, ignore_eos: true });
    await send(page, 'Tell a story about a tree.');
    await page.waitForSelector('.message.assistant .markdown');
    door.lead('');
    await server.stop('SIGKILL');
    await page.waitForSelector('.reconnecting');
    assert.ok(((await page.textContent('.message.assistant .markdown')) ?? '').length > 0);
    await page.waitForSelector('.banner');
    await page.fill('#prompt', 'A draft that must stay');
    const again = await serve(['--port', '0', '--slots', '1']);
    try {
        door.lead(again.url);
        await page.waitForSelector('.banner', { state: 'detached' });
        assert.equal(await page.inputValue('#prompt'), 'A draft that must stay');
        await page.waitForSelector('.trouble:has-text("lost")');
        await page.click('.trouble button:has-text("Try again")');
        await page.click('button.send.stop');
        await page.waitForSelector('.message.assistant .branches:has-text("2/2")');
        assert.deepEqual(faults, []);
    } finally {
        door.close();
        await again.stop('SIGKILL');
    }
}

/** With a schema, answers are JSON of that form; what is no JSON is not used. */
export async function schema(/** @type {Tools} */ { browser, url }) {
    const { page, faults } = await openApp(browser, url);
    await setDefaults(page, { temperature: 0, max_tokens: 40 });
    await page.keyboard.press('Control+.');
    const area = page.getByLabel('JSON schema');
    await area.fill('{"type": "object", "properties"');
    await page.waitForSelector('.wrong-text');
    await area.fill(
        '{"type":"object","properties":{"city":{"type":"string","maxLength":20}},"required":["city"],"additionalProperties":false}',
    );
    await page.waitForSelector('.wrong-text', { state: 'detached' });
    await page.keyboard.press('Escape');
    await send(page, 'The capital of France, as JSON.');
    await answered(page);
    const text = (await page.textContent('.message.assistant .markdown')) ?? '';
    assert.deepEqual(Object.keys(JSON.parse(text)), ['city']);
    assert.deepEqual(faults, []);
}

/** Sound goes to models that take it, and is heard in the chat; others are not sent it. */
export async function sound(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url);
    const wav = Buffer.alloc(44 + 3200);
    wav.write('RIFF', 0);
    wav.writeUInt32LE(36 + 3200, 4);
    wav.write('WAVEfmt ', 8);
    wav.writeUInt32LE(16, 16);
    wav.writeUInt16LE(1, 20);
    wav.writeUInt16LE(1, 22);
    wav.writeUInt32LE(16_000, 24);
    wav.writeUInt32LE(32_000, 28);
    wav.writeUInt16LE(2, 32);
    wav.writeUInt16LE(16, 34);
    wav.write('data', 36);
    wav.writeUInt32LE(3200, 40);
    const file = { name: 'bird.wav', mimeType: 'audio/wav', buffer: wav };
    await page.setInputFiles('[data-testid=file-input]', file);
    await noticed(page, 'does not take sound');
    mock.models = [modelOf(['text', 'audio'])];
    await page.reload();
    await page.setInputFiles('[data-testid=file-input]', file); // before the page knows which models there are
    await page.waitForSelector('.chip:has-text("bird.wav")');
    await send(page, 'Which bird is this?');
    await answered(page);
    const [part, text] = mock.asked[0].messages[0].content;
    assert.deepEqual(part, { type: 'input_audio', input_audio: { data: wav.toString('base64'), format: 'wav' } });
    assert.equal(text.text, 'Which bird is this?');
    await page.waitForSelector('.sound audio');
    await until(
        () => page.evaluate(() => Math.abs((document.querySelector('audio')?.duration ?? 0) - 0.1) < 0.01),
        'it can be played',
    );
    assert.deepEqual(faults, []);
}

/** Code and messages are copied as they were written; the figures have the share of the cache and of the context. */
export async function copies(/** @type {Tools} */ { browser, mock }) {
    const text = 'Some **bold** words.\n\n```js\nlet a = 1;\nlet b = 2;\n```';
    mock.answer = () => typed(text);
    const { page, faults } = await openApp(browser, mock.url, { permissions: ['clipboard-read', 'clipboard-write'] });
    await send(page, 'Some code, please');
    await answered(page);
    const pasted = () => page.evaluate(() => navigator.clipboard.readText());
    await page.click('.code-copy');
    await until(async () => (await pasted()) === 'let a = 1;\nlet b = 2;', 'the code is copied');
    await page.click('.message.assistant button[aria-label="Copy"]');
    await until(async () => (await pasted()) === text, 'the answer is copied');
    await page.click('.message.user button[aria-label="Copy"]');
    await until(async () => (await pasted()) === 'Some code, please', 'the question is copied');
    assert.match((await page.textContent('.stats')) ?? '', /50 % cached/);
    assert.match((await page.getAttribute('.gauge', 'aria-label')) ?? '', /8,192/);
    assert.deepEqual(faults, []);
}

/** Files of every kind by the picker; what is none is refused by name. */
export async function attachments(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url);
    const pdf = `%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>endobj
4 0 obj<</Length 41>>stream
BT /F1 18 Tf 10 50 Td (Swift birds fly) Tj ET
endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
trailer<</Root 1 0 R>>`;
    await page.setInputFiles('[data-testid=file-input]', [
        { name: 'notes.md', mimeType: 'text/markdown', buffer: Buffer.from('# Notes\n```\ncode\n```\n') },
        { name: 'paper.pdf', mimeType: 'application/pdf', buffer: Buffer.from(pdf) },
        { name: 'program.bin', mimeType: 'application/octet-stream', buffer: Buffer.from([0, 1, 2, 3]) },
        {
            name: 'cat.png',
            mimeType: 'image/png',
            buffer: Buffer.from(
                'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
                'base64',
            ),
        },
    ]);
    await page.waitForSelector('.chip:has-text("paper.pdf")');
    await noticed(page, 'program.bin');
    await noticed(page, 'does not take pictures');
    assert.equal(await page.locator('.chip').count(), 2);
    await send(page, 'What is this?');
    await answered(page);
    const content = mock.asked[0].messages[0].content;
    assert.match(content, /^File: notes\.md\n````md\n# Notes/);
    assert.match(content, /File: paper\.pdf\n```\nSwift birds fly\n```\n\nWhat is this\?$/);

    mock.models = [modelOf(['text', 'image'])];
    await reloadStored(page);
    await page.waitForSelector('.message.assistant');
    await page.evaluate(async () => {
        const data = new DataTransfer();
        const canvas = document.createElement('canvas');
        canvas.width = canvas.height = 8;
        const blob = await new Promise((done) => canvas.toBlob(done, 'image/png'));
        data.items.add(new File([/** @type {Blob} */ (blob)], 'pasted.png', { type: 'image/png' }));
        document
            .querySelector('#prompt')
            ?.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));
    });
    await page.waitForSelector('.chip img');
    await send(page, 'And this picture?');
    await answered(page);
    const parts = mock.asked.at(-1).messages.at(-1).content;
    assert.match(parts[0].image_url.url, /^data:image\/png;base64,/);
    assert.deepEqual(faults, []);
}

/** Pictures by picker, paste and drag reach a real model that takes them, and stay in the chat. */
export async function pictures(/** @type {Tools} */ { browser }) {
    const model = tinyVision();
    const server = await serve(['--port', '0'], {}, [model.directory]);
    try {
        const { page, faults } = await openApp(browser, server.url, profiles.phone);
        await setDefaults(page, { max_tokens: 8, temperature: 0 });
        await page.click('.menu-root > button');
        await page.waitForSelector('[role=menuitem]:has-text("Files and pictures")');
        assert.equal(await page.locator('[role=menuitem]:has-text("Take a picture")').count(), 1);
        assert.equal(await page.locator('input[capture=environment]').count(), 1);
        await page.keyboard.press('Escape');
        /** @param {string} kind of the event @param {string} name of the file @param {string} colour */
        const give = (kind, name, colour) =>
            page.evaluate(
                async ([kind, name, colour]) => {
                    const canvas = document.createElement('canvas');
                    canvas.width = canvas.height = 64;
                    const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
                    brush.fillStyle = colour;
                    brush.fillRect(0, 0, 64, 64);
                    /** @type {Blob} */
                    const blob = await new Promise((done) => canvas.toBlob((made) => done(/** @type {Blob} */ (made))));
                    const data = new DataTransfer();
                    data.items.add(new File([blob], name, { type: 'image/png' }));
                    const options = { bubbles: true, cancelable: true };
                    const target = document.querySelector('#prompt');
                    if (kind === 'paste') target?.dispatchEvent(new ClipboardEvent(kind, { ...options, clipboardData: data }));
                    else if (kind === 'drop') target?.dispatchEvent(new DragEvent(kind, { ...options, dataTransfer: data }));
                    else {
                        const picker = /** @type {HTMLInputElement} */ (document.querySelector('[data-testid=file-input]'));
                        picker.files = data.files;
                        picker.dispatchEvent(new Event('change', { bubbles: true }));
                    }
                },
                [kind, name, colour],
            ); // prettier-ignore
        await give('change', 'picked.png', 'red');
        await give('paste', 'pasted.png', 'green');
        await give('drop', 'dropped.png', 'blue');
        await page.waitForFunction(() => document.querySelectorAll('.chip img').length === 3);
        const asking = page.waitForRequest('**/v1/chat/completions');
        await send(page, 'What are these?');
        const parts = (await asking).postDataJSON().messages.at(-1).content;
        assert.deepEqual(
            parts.map((/** @type {any} */ part) => part.type),
            ['image_url', 'image_url', 'image_url', 'text'],
        );
        await answered(page);
        assert.equal(await page.locator('.trouble.error').count(), 0);
        await reloadStored(page);
        await page.waitForSelector('.message.assistant');
        assert.equal(await page.locator('.attached-image img').count(), 3);
        assert.deepEqual(faults, []);
    } finally {
        await server.stop();
        model.remove();
    }
}

/** Reasoning is folded, says how long it took and opens. */
export async function reasoning(/** @type {Tools} */ { browser, mock }) {
    const looked = gate();
    mock.answer = () => [
        ...['Let me ', 'think about ', '$x^2$.'].map((text) => ({ delta: { reasoning_content: text } })),
        { delta: {}, gate: looked.opened },
        ...typed('It is **four**.'),
    ];
    const { page, faults } = await openApp(browser, mock.url);
    await page.click('.toggle');
    await send(page, '2 + 2?');
    await page.waitForSelector('.reasoning.running');
    looked.open();
    await answered(page);
    assert.match((await page.textContent('.reasoning-head')) ?? '', /Thought for \d/);
    assert.equal(await page.locator('.reasoning-text').count(), 0);
    await page.click('.reasoning-head');
    await page.waitForSelector('.reasoning-text math');
    assert.equal(mock.asked[0].enable_thinking, true);
    assert.equal(await page.textContent('.message.assistant strong'), 'four');
    assert.deepEqual(faults, []);
}

/** Search finds words of messages; a chat is exported, deleted and imported. */
export async function searchAndFiles(/** @type {Tools} */ { browser, mock }) {
    mock.answer = () => typed('The albatross sleeps while it flies.');
    const { page, faults } = await openApp(browser, mock.url);
    await send(page, 'Tell me about birds');
    await answered(page);
    await page.keyboard.press('Control+Shift+O');
    await page.waitForSelector('.welcome');
    await page.keyboard.press('Control+k');
    await page.fill('.palette input', 'albatross');
    await page.waitForSelector('.palette li small');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.message.user .bubble:has-text("birds")');

    await page.hover('.chat-entry');
    await page.click('.chat-entry .icon-button');
    const saving = page.waitForEvent('download');
    await page.click('button:has-text("Export as JSON")');
    const file = await (await saving).path();
    await page.click('.chat-entry .icon-button');
    const markdown = page.waitForEvent('download');
    await page.click('button:has-text("Export as Markdown")');
    assert.equal((await markdown).suggestedFilename(), 'Tell me about birds.md');
    await page.click('.chat-entry .icon-button');
    await page.click('.menu button:has-text("Delete")');
    await until(async () => (await page.locator('.chat-entry').count()) === 0, 'the chat is gone');
    await page.goto(mock.url + '/#/settings/data');
    await page.setInputFiles('[data-testid=import-input]', file);
    await page.waitForSelector('.message.assistant:has-text("albatross")');
    await page.goto(mock.url + '/#/settings/data');
    await page.setInputFiles('[data-testid=import-input]', {
        name: 'x.json',
        mimeType: 'application/json',
        buffer: Buffer.from('{"a":1}'),
    });
    await noticed(page, 'no chats', 'error');
    assert.deepEqual(faults, []);
}

/** What is written and not sent is there after a reload, for each chat. */
export async function drafts(/** @type {Tools} */ { browser, mock }) {
    mock.answer = () => typed('Yes.');
    const { page, faults } = await openApp(browser, mock.url);
    await send(page, 'One');
    await answered(page);
    await page.fill('#prompt', 'half a thought');
    await page.click('.sidebar button:has-text("New chat")');
    await page.waitForSelector('.welcome');
    assert.equal(await page.inputValue('#prompt'), '');
    await page.fill('#prompt', 'a question');
    await page.click('.sidebar a:has-text("Models")');
    await page.waitForSelector('.page .hub');
    await page.click('.sidebar button:has-text("New chat")');
    await page.waitForSelector('.welcome');
    assert.equal(await page.inputValue('#prompt'), 'a question');
    await page.click('.chat-entry a');
    await until(async () => (await page.inputValue('#prompt')) === 'half a thought', 'the draft is there');
    await page.reload();
    await until(async () => (await page.inputValue('#prompt')) === 'half a thought', 'the draft was stored');
    assert.deepEqual(faults, []);
}

/** Two tabs show the same chats. */
export async function twoTabs(/** @type {Tools} */ { browser, mock }) {
    mock.answer = () => typed('From the first tab.');
    const { page, context, faults } = await openApp(browser, mock.url);
    const other = await context.newPage();
    await other.goto(mock.url);
    await other.waitForSelector('#prompt');
    await send(page, 'Hello from one');
    await answered(page);
    await other.waitForSelector('.chat-entry:has-text("Hello from one")');
    await other.click('.chat-entry a');
    await other.waitForSelector('.message.assistant:has-text("From the first tab.")');
    await send(page, 'And again');
    await answered(page);
    await until(async () => (await other.locator('.message').count()) === 4, 'the other tab has it');

    // While one tab writes, the other one follows; it can stop the answer, and what came stays.
    const rest = gate();
    mock.answer = () => [...typed('A part,').slice(0, 2), { delta: { content: ' and the rest' }, gate: rest.opened }];
    await send(page, 'Slowly');
    await other.waitForSelector('.message.user:has-text("Slowly")');
    await other.click('button.send.stop');
    await page.waitForSelector('.trouble:has-text("Stopped")');
    await other.waitForSelector('.trouble:has-text("Stopped")');
    rest.open();
    const texts = (await storedTexts(page)).filter((message) => message.role === 'assistant');
    assert.deepEqual(texts.map((message) => message.state).sort(), ['done', 'done', 'stopped']);
    assert.deepEqual(faults, []);
}

/** The same over plain HTTP, where browsers have no locks: no tab takes an answer for lost that another one writes. */
export async function twoTabsOverHttp(/** @type {Tools} */ { browser, mock }) {
    const url = mock.url.replace('127.0.0.1', INSECURE_HOST);
    const { page, context, faults } = await openApp(browser, url, { allow: /Cross-Origin-Opener-Policy/ });
    assert.ok(await page.evaluate(() => !isSecureContext && !navigator.locks));
    const rest = gate();
    const never = gate();
    mock.answer = () => [...typed('A part,').slice(0, 2), { delta: { content: ' and the rest' }, gate: rest.opened }];
    await send(page, 'Slowly');
    await page.waitForSelector('.message.assistant .markdown:has-text("A part,")');
    const other = await context.newPage();
    await other.goto(page.url());
    await other.waitForSelector('.message.user:has-text("Slowly")');
    await other.waitForSelector('button.send.stop, .trouble');
    await other.waitForTimeout(500); // where it takes the answer for lost, it does so by then
    const answers = async () => (await storedTexts(page)).filter((message) => message.role === 'assistant');
    assert.deepEqual((await answers()).map((message) => message.state), ['streaming']); // prettier-ignore
    rest.open();
    for (const tab of [page, other]) {
        await tab.waitForSelector('.message.assistant .markdown:has-text("A part, and the rest")');
        await answered(tab);
        assert.equal(await tab.locator('.trouble').count(), 0);
    }

    // A tab that is closed while it writes: the other one says what is lost of an answer that the server does not keep.
    mock.answer = () => [
        { delta: { content: 'A beginning' } },
        { delta: { content: ' of it' }, wait: 1100 }, // what came is stored once per second
        { delta: {}, gate: never.opened },
    ];
    await send(page, 'Again');
    await other.waitForSelector('.message.user:has-text("Again")');
    await until(async () => (await answers()).at(-1).content === 'A beginning of it', 'it is stored');
    await page.close();
    await other.waitForSelector('.trouble:has-text("The rest of this answer is lost")');
    await other.waitForSelector('.message.assistant.last .markdown:has-text("A beginning of it")');

    // The same of a tab that has crashed, and left its note.
    const text = { id: 'left-1', chat: 'left', parent: null, role: 'assistant', content: 'Once', created: 1, state: 'streaming' }; // prettier-ignore
    await other.evaluate(() => localStorage.setItem('apus.lock.apus-answer-left-1', 'crashed'));
    await fillStore(other, [storedChat('left')], [text]);
    await other.click('.chat-entry:has-text("Chat left") a');
    await other.waitForSelector('.trouble:has-text("The rest of this answer is lost")');
    never.open();
    assert.deepEqual(faults, []);
}

/** The key is asked for, a wrong one is said to be wrong, and it is kept for the tab. */
export async function apiKey(/** @type {Tools} */ { browser }) {
    const server = await serve(['--port', '0', '--api-key', 'secret', '--slots', '1']);
    const { page } = await openApp(browser, server.url);
    await page.waitForSelector('dialog[open]');
    await page.fill('dialog input', 'wrong');
    await page.click('dialog .button.primary');
    await page.waitForSelector('dialog:has-text("does not accept")');
    await page.fill('dialog input', 'secret');
    await page.click('dialog .button.primary');
    await page.waitForSelector('.dot.loaded');
    await page.reload();
    await page.waitForSelector('.dot.loaded');
    assert.equal(await page.evaluate(() => localStorage.getItem('apus.key')), null);
    await server.stop();
}

/** Tools: a function by hand, and an MCP server whose calls are allowed one by one. */
export async function tools(/** @type {Tools} */ { browser, mock }) {
    mock.routes['POST /mcp'] = (/** @type {any} */ body) => {
        const results = /** @type {any} */ ({
            initialize: { protocolVersion: '2025-06-18', serverInfo: { name: 'Clock' }, capabilities: {} },
            'tools/list': {
                tools: [
                    {
                        name: 'time_now',
                        description: 'The time',
                        inputSchema: { type: 'object', properties: { zone: { type: 'string' } } },
                    },
                ],
            },
            'tools/call': { content: [{ type: 'text', text: 'noon' }] },
        });
        return { jsonrpc: '2.0', id: body.id, result: results[body.method] ?? {} };
    };
    mock.answer = (/** @type {any} */ body) =>
        body.messages.at(-1).role === 'tool'
            ? typed(`The tool said ${body.messages.at(-1).content}.`)
            : [{ delta: { tool_calls: [{ index: 0, id: 'call_1', type: 'function', function: { name: 'time_now', arguments: '' } }] } },
               { delta: { tool_calls: [{ index: 0, function: { arguments: '{"zone":"UTC"}' } }] } }, { finish: 'tool_calls' }]; // prettier-ignore
    const { page, faults } = await openApp(browser, mock.url);
    await page.goto(mock.url + '/#/settings/tools');
    const form = page.locator('form');
    await form.getByLabel('Name').fill('clock');
    await form.getByLabel('Address').fill(mock.url + '/mcp');
    await form.getByRole('button', { name: 'Add server' }).click();
    await page.waitForSelector('.card >> text=/\\b1 tool\\b/');
    await page.goto(mock.url + '/#/chat');
    await page.keyboard.press('Control+.');
    await page.getByRole('switch', { name: /clock/ }).check();
    await page.waitForSelector('.tool-list:has-text("time_now")');
    await page.keyboard.press('Escape');
    await send(page, 'What time is it?');
    await page.waitForSelector('.call.asked');
    assert.equal(mock.asked[0].tools[0].function.name, 'time_now');
    assert.equal(await page.locator('.tool-result').count(), 0, 'nothing runs before it is allowed');
    await page.click('button:has-text("Allow once")');
    await page.waitForSelector('.message.assistant:has-text("The tool said noon.")');

    await send(page, 'And now?');
    await page.waitForSelector('.call.asked');
    await page.click('button:has-text("Deny")');
    await page.waitForSelector('.message.assistant:has-text("not allowed this call")');
    assert.deepEqual(faults, []);
}

/** An address that the policy does not allow is not asked, and the page says which option allows it. */
export async function mcpBlocked(/** @type {Tools} */ { browser, mock }) {
    const { page, faults } = await openApp(browser, mock.url, {
        allow: /Content Security Policy|Fetch API cannot load|127\.0\.0\.1:9/,
    });
    await page.goto(mock.url + '/#/settings/tools');
    const form = page.locator('form');
    await form.getByLabel('Name').fill('far');
    await form.getByLabel('Address').fill('http://127.0.0.1:9/mcp');
    await form.getByRole('button', { name: 'Add server' }).click();
    await page.waitForSelector('.card:has-text("--mcp http://127.0.0.1:9")');
    assert.deepEqual(faults, []);
}
