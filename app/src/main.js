import { effect, untracked } from '@preact/signals';
import { Component, render } from 'preact';
import { useEffect } from 'preact/hooks';
import { chat, loadChats } from './state/chats.js';
import { pairFromAddress } from './state/devices.js';
import { refreshJobs } from './state/downloads.js';
import { busy, stop } from './state/generate.js';
import './state/history.js';
import { link, refresh, watch } from './state/server.js';
import { apiKey, sidebarOpen, t } from './state/settings.js';
import { announcement, ask, drawer, go, palette, panel, place } from './state/ui.js';
import { scriptUrl } from './lib/trusted.js';
import { ChatPage } from './views/chat.js';
import { html } from './views/html.js';
import { ModelsPage } from './views/models.js';
import { Palette } from './views/palette.js';
import { Notices, QuestionDialog } from './views/parts.js';
import { SettingsPage } from './views/settings.js';
import { Sidebar, Tabs } from './views/sidebar.js';

/** Keys that work everywhere. @param {KeyboardEvent} event */
function onKey(event) {
    const command = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    if (event.key === 'Escape' && !palette.peek() && !panel.peek() && busy() && !document.querySelector('dialog[open]'))
        stop();
    if (!command) return;
    if (key === 'k' && !event.shiftKey) palette.value = !palette.peek();
    else if (key === 'o' && event.shiftKey) go('chat');
    else if (key === 'b' && !event.shiftKey) {
        sidebarOpen.value = !sidebarOpen.peek();
        if (innerWidth < 900) drawer.value = !drawer.peek();
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
    useEffect(() => {
        addEventListener('keydown', onKey);
        return () => removeEventListener('keydown', onKey);
    }, []);
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
            <${Sidebar} />
            <div class="content">
                <${Guard}
                    >${page === 'models' ? html`<${ModelsPage} />` : page === 'settings' ? html`<${SettingsPage} />` : html`<${ChatPage} />`}<//
                >
            </div>
            <${Tabs} />
        </div>
        <${Palette} />
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

loadChats().then(() => {
    const root = /** @type {HTMLElement} */ (document.getElementById('app'));
    root.replaceChildren(); // the frame of index.html
    render(html`<${App} />`, root);
    refreshJobs();
});
pairFromAddress().then(watch);
/** Keeps the app for the next start. */
function registerWorker() {
    navigator.serviceWorker.register(scriptUrl('/sw.js')).catch(() => {});
}
if ('serviceWorker' in navigator && isSecureContext) {
    if (document.readyState === 'complete') registerWorker();
    else addEventListener('load', registerWorker);
}
