// A short journey in WebKitGTK, which has Safari's engine:  node tests/journeys/webkit.js
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createServer } from 'node:net';
import { LONG_MS, serve } from './helpers.js';
import { Mock, typed } from './mock.js';

const driverPath = '/usr/bin/WebKitWebDriver';
const folders = ['/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu'];
const browser = folders.map((folder) => `${folder}/webkit2gtk-4.1/MiniBrowser`).find(existsSync);
if (!existsSync(driverPath) || !browser || !existsSync('/usr/bin/Xvfb')) {
    console.log('skipped: no WebKitGTK driver here (apt install webkit2gtk-driver xvfb)');
    process.exit(77);
}

const free = createServer().listen(0, '127.0.0.1');
await once(free, 'listening');
const PORT = /** @type {import('node:net').AddressInfo} */ (free.address()).port;
free.close();
// The screen takes a number that is free, and says which when it is ready.
const screen = spawn('Xvfb', ['-displayfd', '3', '-screen', '0', '1280x900x24', '-nolisten', 'tcp'], {
    stdio: ['ignore', 'ignore', 'ignore', 'pipe'],
});
const [number] = await once(/** @type {import('node:stream').Readable} */ (screen.stdio[3]), 'data');
const environment = {
    ...process.env,
    DISPLAY: `:${String(number).trim()}`,
    WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS: '1',
    LIBGL_ALWAYS_SOFTWARE: '1',
};
const driver = spawn(driverPath, [`--port=${PORT}`], { env: environment, stdio: 'ignore' });

/** @param {string} method @param {string} path @param {any} [body] @returns {Promise<any>} */
async function wire(method, path, body) {
    const answer = await fetch(`http://127.0.0.1:${PORT}${path}`, { method, body: body && JSON.stringify(body) });
    const { value } = await answer.json();
    if (value?.error) throw new Error(`${value.error}: ${value.message}`);
    return value;
}

let session = '';
/** The value of an expression in the page. @param {string} expression */
const look = (expression) =>
    wire('POST', `/session/${session}/execute/sync`, { script: `return ${expression}`, args: [] });

/** @param {string} expression @param {string} what */
async function until(expression, what) {
    for (const end = Date.now() + LONG_MS; Date.now() < end;) {
        if (await look(expression)) return;
        await new Promise((done) => setTimeout(done, 100));
    }
    assert.fail(`never: ${what}`);
}

/** @param {string} selector @returns {Promise<string>} */
async function find(selector) {
    const found = await wire('POST', `/session/${session}/element`, { using: 'css selector', value: selector });
    return Object.values(found)[0];
}
/** @param {string} selector */
const click = async (selector) => wire('POST', `/session/${session}/element/${await find(selector)}/click`, {});
/** @param {string} selector @param {string} text */
const type = async (selector, text) =>
    wire('POST', `/session/${session}/element/${await find(selector)}/value`, { text });

const real = await serve(['--port', '0']);
const mock = await new Mock(real.url).start();
mock.answer = () =>
    typed(
        '# Title\n\nSome **bold** text, $x^2$.\n\n```js\nlet a = 1;\n```\n\n| a |\n|--|\n| 1 |\n\n<img src=x onerror=alert(1)>',
        6,
        5,
    );
let failed = false;
try {
    for (let tries = 0; !session; tries++) {
        try {
            const options = { binary: browser, args: ['--automation'] };
            const made = await wire('POST', '/session', {
                capabilities: { alwaysMatch: { 'webkitgtk:browserOptions': options } },
            });
            session = made.sessionId;
        } catch (error) {
            if (tries > LONG_MS / 500) throw error;
            await new Promise((done) => setTimeout(done, 500));
        }
    }
    await wire('POST', `/session/${session}/url`, { url: mock.url });
    await until("document.querySelector('#prompt')", 'the page is there');
    await look("(window.addEventListener('error', (e) => (window.failure = e.message)), true)");
    await type('#prompt', 'Hello');
    await until("!document.querySelector('button.send').disabled", 'the button is ready');
    await click('button.send');
    await until(
        "document.querySelector('.message.assistant .actions') && document.querySelector('math')",
        'the answer is there',
    );
    assert.equal(await look("document.querySelector('.markdown strong').textContent"), 'bold');
    assert.equal(await look("document.querySelectorAll('.markdown img').length"), 0);
    await until("document.querySelector('.hl-keyword')", 'code has colours');
    await wire('POST', `/session/${session}/refresh`, {});
    await until("document.querySelector('.message.assistant .markdown')", 'the chat is kept');
    await look("(location.hash = '#/models', true)");
    await until("document.querySelector('.model-card')", 'the models are there');
    await look("(location.hash = '#/settings/about', true)");
    await until("document.querySelector('.facts')", 'the settings are there');
    assert.equal(await look('window.failure ?? null'), null);
    console.log('app: WebKitGTK passed');
} catch (error) {
    failed = true;
    console.log(error);
}
if (session) await wire('DELETE', `/session/${session}`).catch(() => {});
driver.kill();
screen.kill();
mock.stop();
await real.stop();
process.exit(failed ? 1 : 0);
