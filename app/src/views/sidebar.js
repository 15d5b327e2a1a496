import { signal } from '@preact/signals';
import { useState } from 'preact/hooks';
import { changeListed, chat, chats, deleteChat, loaded } from '../state/chats.js';
import { downloadsActive } from '../state/downloads.js';
import { live } from '../state/generate.js';
import { sidebarOpen, t } from '../state/settings.js';
import { ask, drawer, go, palette, place } from '../state/ui.js';
import { html } from './html.js';
import { Icon, Logo } from './icons.js';
import { IconButton } from './parts.js';

/** @typedef {import('../lib/types.js').Chat} Chat */

/** @param {string} id @param {'markdown' | 'json'} form */
const exportChat = async (id, form) => (await import('../state/transfer.js')).exportChat(id, form);

const DAY_MS = 86_400_000;
const SHOWN_FIRST = 100;

/** The chat whose menu is open. */
const menu = signal('');
addEventListener('pointerdown', (event) => {
    if (menu.peek() && !(event.target instanceof Element && event.target.closest('.chat-menu'))) menu.value = '';
});
addEventListener('keydown', (event) => {
    if (event.key === 'Escape') menu.value = '';
});

/** @param {Chat} item */
function groupOf(item) {
    if (item.pinned) return t('pinned');
    const today = new Date().setHours(0, 0, 0, 0);
    if (item.updated >= today) return t('today');
    if (item.updated >= today - DAY_MS) return t('yesterday');
    if (item.updated >= today - 7 * DAY_MS) return t('lastWeek');
    return new Date(item.updated).toLocaleDateString(document.documentElement.lang, { year: 'numeric', month: 'long' });
}

/** @param {{ item: Chat }} props */
function ChatMenu({ item }) {
    /** @param {() => void} act */
    const run = (act) => () => {
        menu.value = '';
        act();
    };
    const rename = async () => {
        const title = await ask({ title: t('rename'), input: t('title'), value: item.title, confirm: t('save') });
        if (title?.trim()) changeListed(item.id, { title: title.trim().slice(0, 200) });
    };
    const pin = () => changeListed(item.id, { pinned: !item.pinned });
    return html`<div class="menu" role="menu">
        <button type="button" role="menuitem" onClick=${run(pin)}>
            <${Icon} name="pin" size=${17} />${item.pinned ? t('unpin') : t('pin')}
        </button>
        <button type="button" role="menuitem" onClick=${run(rename)}>
            <${Icon} name="edit" size=${17} />${t('rename')}
        </button>
        <button type="button" role="menuitem" onClick=${run(() => exportChat(item.id, 'markdown'))}>
            <${Icon} name="download" size=${17} />${t('exportMarkdown')}
        </button>
        <button type="button" role="menuitem" onClick=${run(() => exportChat(item.id, 'json'))}>
            <${Icon} name="download" size=${17} />${t('exportJson')}
        </button>
        <button type="button" role="menuitem" class="danger" onClick=${run(() => deleteChat(item.id))}>
            <${Icon} name="trash" size=${17} />${t('delete')}
        </button>
    </div>`;
}

/** @param {{ item: Chat }} props */
function ChatEntry({ item }) {
    const here = place.value.page === 'chat' && chat.value.id === item.id;
    return html`<li class="chat-entry ${here ? 'here' : ''}">
        <a
            href="#/chat/${encodeURIComponent(item.id)}"
            aria-current=${here ? 'page' : undefined}
            onClick=${() => (drawer.value = false)}
        >
            <span dir="auto">${item.title || t('untitled')}</span>
        </a>
        <span class="chat-menu">
            <${IconButton}
                icon="more"
                size=${18}
                label=${t('menuOf', { title: item.title })}
                expanded=${menu.value === item.id}
                onClick=${() => (menu.value = menu.value === item.id ? '' : item.id)}
            />
            ${menu.value === item.id && html`<${ChatMenu} item=${item} />`}
        </span>
    </li>`;
}

function ChatList() {
    const [all, setAll] = useState(false);
    const list = all ? chats.value : chats.value.slice(0, SHOWN_FIRST);
    /** @type {[string, Chat[]][]} */
    const groups = [];
    for (const item of list) {
        const name = groupOf(item);
        if (groups.at(-1)?.[0] !== name) groups.push([name, []]);
        groups.at(-1)?.[1].push(item);
    }
    return html`<nav class="chat-list" aria-label=${t('chats')}>
        ${groups.map(
            ([name, items]) =>
                html`<section key=${name}>
                    <h2>${name}</h2>
                    <ul>
                        ${items.map((item) => html`<${ChatEntry} key=${item.id} item=${item} />`)}
                    </ul>
                </section>`,
        )}
        ${
            list.length < chats.value.length &&
            html`<button type="button" class="button quiet" onClick=${() => setAll(true)}>
                ${t('showAll', { n: chats.value.length })}
            </button>`
        }
        ${list.length === 0 && loaded.value && html`<p class="hint">${t('noChats')}</p>`}
    </nav>`;
}

const pages = /** @type {const} */ ([
    ['chat', 'chat', 'tabChat'],
    ['models', 'cube', 'tabModels'],
    ['settings', 'gear', 'tabSettings'],
]);

function openSearch() {
    drawer.value = false;
    palette.value = true;
}

export function Sidebar() {
    const open = sidebarOpen.value;
    return html`<aside class="sidebar ${drawer.value ? 'drawn' : ''} ${open ? '' : 'closed'}" aria-label=${t('chats')}>
            <div class="brand">
                <${Logo} />
                <span>Apus</span>
                <span class="spacer"></span>
                <${IconButton}
                    icon="sidebar"
                    kind="only-desktop"
                    label=${t('hideChats')}
                    onClick=${() => (sidebarOpen.value = false)}
                />
                <${IconButton}
                    icon="close"
                    kind="only-phone"
                    label=${t('close')}
                    onClick=${() => (drawer.value = false)}
                />
            </div>
            <div class="sidebar-top">
                <button type="button" class="side-button primary" onClick=${() => go('chat')}>
                    <${Icon} name="compose" size=${18} /><span>${t('newChat')}</span>
                </button>
                <button type="button" class="side-button" onClick=${openSearch}>
                    <${Icon} name="search" size=${18} /><span>${t('search')}</span
                    ><kbd class="only-desktop">${/Mac|iP/.test(navigator.platform) ? '⌘K' : 'Ctrl K'}</kbd>
                </button>
            </div>
            <${ChatList} />
            <div class="sidebar-bottom only-desktop">
                ${pages.slice(1).map(
                    ([page, icon, key]) =>
                        html`<a
                            key=${page}
                            class="side-button ${place.value.page === page ? 'here' : ''}"
                            href="#/${page}"
                            aria-current=${place.value.page === page ? 'page' : undefined}
                        >
                            <${Icon} name=${icon} size=${18} /><span>${t(key)}</span>
                            ${page === 'models' && downloadsActive.value > 0 && html`<span class="badge">${downloadsActive.value}</span>`}
                        </a>`,
                )}
            </div>
        </aside>
        ${drawer.value && html`<div class="scrim" onClick=${() => (drawer.value = false)}></div>`}`;
}

/** The pages on a phone. */
export function Tabs() {
    return html`<nav class="tabs" aria-label=${t('pagesNav')}>
        ${pages.map(([page, icon, key]) => {
            const here = place.value.page === page;
            const target =
                page === 'chat' && chats.value.some((item) => item.id === chat.value.id)
                    ? `chat/${encodeURIComponent(chat.value.id)}`
                    : page;
            return html`<a
                key=${page}
                class=${here ? 'here' : ''}
                href="#/${target}"
                aria-current=${here ? 'page' : undefined}
            >
                <span class="tab-icon"
                    ><${Icon} name=${icon} size=${22} />
                    ${page === 'models' && downloadsActive.value > 0 && html`<span class="badge">${downloadsActive.value}</span>`}
                    ${page === 'chat' && live.value.size > 0 && !here && html`<span class="badge dot-badge"></span>`}</span
                >
                <span>${t(key)}</span>
            </a>`;
        })}
    </nav>`;
}
