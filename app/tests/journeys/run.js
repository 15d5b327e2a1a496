// Journeys through the app in Debian's Chromium.
//   node run.js [--long] [NAME…]      those whose names hold one of the words; --long: those that take long
import { chromium } from 'playwright-core';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { INSECURE_HOST, serve, startHub } from './helpers.js';
import { Mock } from './mock.js';

const executable = process.env.CHROMIUM ?? ['/usr/bin/chromium', '/usr/bin/google-chrome'].find(existsSync);
if (!executable) {
    console.log('skipped: no Chromium here (apt install chromium)');
    process.exit(77);
}

const kind = process.argv.includes('--long') ? '.long.js' : '.journey.js';
const words = process.argv.slice(2).filter((word) => word !== '--long');
/** @type {[string, (tools: any) => Promise<void>][]} */
const journeys = [];
for (const file of readdirSync(import.meta.dirname)
    .filter((name) => name.endsWith(kind))
    .sort()) {
    const module = await import(join(import.meta.dirname, file));
    for (const [name, run] of Object.entries(module))
        journeys.push([`${file.split('.')[0]}/${name}`, /** @type {any} */ (run)]);
}
const chosen = journeys.filter(([name]) => words.length === 0 || words.some((word) => name.includes(word)));

const start = Date.now();
const hub = await startHub();
const real = await serve(['--port', '0', '--allow-pull', '--slots', '2'], hub.environment);
const mock = await new Mock(real.url).start();
const browser = await chromium.launch({
    executablePath: executable,
    args: [
        '--no-sandbox',
        '--disable-gpu',
        '--disable-background-networking',
        '--no-first-run',
        '--disable-sync',
        '--disable-component-update',
        `--host-resolver-rules=MAP ${INSECURE_HOST} 127.0.0.1`,
    ],
});
let failed = 0;
for (const [name, run] of chosen) {
    const begun = Date.now();
    try {
        mock.reset();
        await hub.fault({});
        await run({ browser, url: real.url, mock, hub });
        console.log(`ok     ${name} ${((Date.now() - begun) / 1000).toFixed(1)} s`);
    } catch (error) {
        failed++;
        console.log(
            `FAILED ${name} ${((Date.now() - begun) / 1000).toFixed(1)} s\n${/** @type {Error} */ (error).stack}`,
        );
        for (const page of browser.contexts().flatMap((context) => context.pages())) {
            const text = await page.evaluate(() => document.body.innerText).catch(String);
            console.log(`       ${page.url()} showed:\n${text.slice(0, 2000).replace(/^/gm, '       | ')}`);
        }
    }
    for (const context of browser.contexts()) await context.close().catch(() => {});
}
await browser.close();
mock.stop();
await real.stop();
hub.stop();
console.log(
    `app: ${chosen.length - failed} journeys passed, ${failed} failed, ${Math.round((Date.now() - start) / 1000)} s`,
);
process.exit(failed ? 1 : 0);
