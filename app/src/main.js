import { effect, untracked } from '@preact/signals';
import { Component, render } from 'preact';
import { chat, chats, loadChats } from './state/chats.js';
import { refreshJobs } from './state/downloads.js';
import { busy, stop } from './state/generate.js';
import './state/history.js';
import { giveEarly } from './lib/api.js';
import { link, refresh, watch } from './state/server.js';
import { apiKey, sidebarOpen, t } from './state/settings.js';
import { announcement, ask, drawer, go, narrow, palette, panel, place } from './state/ui.js';
import { scriptUrl } from './lib/trusted.js';
import { ChatPage, ChatPanel, MessageList } from './views/chat.js';
import { html } from './views/html.js';
import { later } from './views/later.js';
import { Notices, QuestionDialog } from './views/parts.js';
import { Sidebar, Tabs } from './views/sidebar.js';

const ModelsPage = later(async () => (await import('./views/models.js')).ModelsPage);
const SettingsPage = later(async () => (await import('./views/settings.js')).SettingsPage);
const Palette = later(async () => (await import('./views/palette.js')).Palette);

/** Keys that work everywhere, also while the code of what they open is on its way. @param {KeyboardEvent} event */
function onKey(event) {
    const command = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    if (event.key === 'Escape' && !palette.peek() && !document.querySelector('dialog[open]')) {
        if (panel.peek()) panel.value = false;
        else if (busy()) stop();
    }
    if (!command) return;
    if (key === 'k' && !event.shiftKey) palette.value = !palette.peek();
    else if (key === 'o' && event.shiftKey) go('chat');
    else if (key === 'b' && !event.shiftKey) {
        sidebarOpen.value = !sidebarOpen.peek();
        if (narrow.peek()) drawer.value = !drawer.peek();
    } else if (key === '.') panel.value = !panel.peek();
    else return;
    event.preventDefault();
}

/** Asks for the key while the server wants one. */
async function unlock() {
    while (link.peek() === 'locked') {
        const text = apiKey.peek() ? t('keyWrong') : t('keyText');
        const key = await ask({ title: t('keyTitle'), text, input: t('apiKey'), secret: true, confirm: t('unlock') });
        if (key === null) return;
        apiKey.value = key.trim();
        await refresh();
    }
}

/** A failure of the page itself must not leave an empty one. */
class Guard extends Component {
    constructor() {
        super();
        this.state = { error: null };
    }
    /** @param {unknown} error */
    componentDidCatch(error) {
        console.error(error);
        this.setState({ error });
    }
    render() {
        const { error } = /** @type {any} */ (this.state);
        if (!error) return /** @type {any} */ (this.props).children;
        return html`<div class="empty">
            <h2>${t('pageFailed')}</h2>
            <p>${String(error.message ?? error)}</p>
            <button type="button" class="button primary" onClick=${() => location.reload()}>${t('reload')}</button>
        </div>`;
    }
}

function App() {
    const page = place.value.page;
    return html`<a
            class="skip"
            href="#prompt"
            onClick=${(/** @type {Event} */ e) => {
                e.preventDefault();
                document.getElementById('prompt')?.focus();
            }}
            >${t('skip')}</a
        >
        <div class="shell">
            ${(!narrow.value || drawer.value) && html`<${Sidebar} />`}
            <div class="content">
                <${Guard}
                    >${page === 'models' ? html`<${ModelsPage} />` : page === 'settings' ? html`<${SettingsPage} />` : html`<${ChatPage} />`}<//
                >
            </div>
            ${narrow.value && html`<${Tabs} />`}
        </div>
        ${palette.value && html`<${Palette} />`}
        <${QuestionDialog} />
        <${Notices} />
        <div class="offscreen" aria-live="polite">${announcement.value}</div>`;
}

effect(() => {
    if (link.value === 'locked') untracked(unlock);
});
effect(() => {
    const title =
        place.value.page === 'chat'
            ? chat.value.title
            : place.value.page === 'models'
              ? t('tabModels')
              : t('tabSettings');
    document.title = title ? `${title} – Apus` : 'Apus';
});

const FIRST_WAIT_MS = 100; // at most, for what the server has: the first frame shows it
const REST_AFTER_MS = 500;

/** @param {number} ms */
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const whenIdle = window.requestIdleCallback ?? ((/** @type {() => void} */ work) => setTimeout(work, 200));

/** A pairing in the page's address gives the key that the first requests need. */
async function pair() {
    if (location.hash.startsWith('#/pair/')) await (await import('./state/devices.js')).pairFromAddress();
}

/**
 * Called by boot.js.
 * @param {Map<string, Promise<Response>>} answers to requests that it has sent @param {string} key that it sent
 * @param {Promise<unknown>} styled when all styles are there
 */
export async function start(answers, key, styled) {
    giveEarly(answers, key);
    const looked = pair().then(watch);
    const read = loadChats();
    const named = place.peek().page === 'chat' && place.peek().id !== ''; // the address names a chat
    if (named) MessageList.prepare();
    await Promise.race([looked, wait(FIRST_WAIT_MS)]);
    if (named) await read;
    await styled;
    const root = /** @type {HTMLElement} */ (document.getElementById('app'));
    addEventListener('keydown', onKey);
    root.replaceChildren(); // the frame of index.html
    render(html`<${App} />`, root);
    performance.mark('apus-shown');
    whenIdle(refreshJobs);
    // What a click or an answer needs next, one after the other; a chat of the list is likely opened soon.
    await read;
    if (chats.peek().length === 0) await wait(REST_AFTER_MS);
    for (const view of [MessageList, ChatPanel, Palette, ModelsPage, SettingsPage]) {
        await new Promise((done) => whenIdle(() => done(null)));
        await view.prepare();
    }
}

/** Keeps the app for the next start. */
function registerWorker() {
    navigator.serviceWorker.register(scriptUrl('/sw.js')).catch(() => {});
}
if ('serviceWorker' in navigator && isSecureContext) {
    if (document.readyState === 'complete') registerWorker();
    else addEventListener('load', registerWorker);
}
