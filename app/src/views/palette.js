import { useEffect, useRef, useState } from 'preact/hooks';
import * as db from '../lib/db.js';
import { chats } from '../state/chats.js';
import { t } from '../state/settings.js';
import { go, palette, panel } from '../state/ui.js';
import { html } from './html.js';
import { Icon } from './icons.js';
import { Dialog } from './parts.js';

/** @typedef {{ key: string, icon: any, title: string, text?: string, run: () => void }} Entry */

const TITLES_MAX = 8;
const TEXTS_MAX = 30;

/** @param {string} text @param {string} needle the words around the first place where it occurs */
function excerpt(text, needle) {
    const at = text.toLowerCase().indexOf(needle); // of the text as it is written
    const from = Math.max(0, at - 40);
    return (
        (from > 0 ? '…' : '') +
        text
            .slice(from, at + needle.length + 80)
            .replace(/[*_`#>|]+/g, '')
            .replace(/\s+/g, ' ')
    );
}

/** @returns {Entry[]} */
const commands = () => [
    { key: 'new', icon: 'compose', title: t('newChat'), run: () => go('chat') },
    { key: 'models', icon: 'cube', title: t('tabModels'), run: () => go('models') },
    { key: 'settings', icon: 'gear', title: t('tabSettings'), run: () => go('settings') },
    { key: 'panel', icon: 'sliders', title: t('chatSettings'), run: () => (panel.value = true) },
];

function PaletteBody() {
    const [query, setQuery] = useState('');
    const [found, setFound] = useState(/** @type {import('../lib/types.js').Message[]} */ ([]));
    const [at, setAt] = useState(0);
    const list = useRef(/** @type {HTMLElement | null} */ (null));
    const needle = query.trim().toLowerCase();
    useEffect(() => {
        setAt(0);
        if (needle.length < 2) return setFound([]);
        const controller = new AbortController();
        const timer = setTimeout(() => {
            db.findMessages(needle, TEXTS_MAX, controller.signal)
                .then((messages) => !controller.signal.aborted && setFound(messages))
                .catch(() => {});
        }, 120);
        return () => {
            clearTimeout(timer);
            controller.abort();
        };
    }, [needle]);
    /** @type {Entry[]} */
    const entries = commands().filter((item) => !needle || item.title.toLowerCase().includes(needle));
    const titled = chats.value
        .filter((item) => !needle || item.title.toLowerCase().includes(needle))
        .slice(0, TITLES_MAX);
    for (const item of titled)
        entries.push({
            key: item.id,
            icon: 'chat',
            title: item.title || t('untitled'),
            run: () => go('chat', item.id),
        });
    for (const message of found) {
        const owner = chats.value.find((item) => item.id === message.chat);
        if (owner)
            entries.push({
                key: message.id,
                icon: 'search',
                title: owner.title || t('untitled'),
                text: excerpt(message.content, needle),
                run: () => go('chat', owner.id),
            });
    }
    const close = () => (palette.value = false);
    /** @param {Entry} entry */
    const take = (entry) => {
        close();
        entry.run();
    };
    /** @param {KeyboardEvent} event */
    const key = (event) => {
        const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
        if (step) {
            event.preventDefault();
            const next = (at + step + entries.length) % Math.max(1, entries.length);
            setAt(next);
            list.current?.children[next]?.scrollIntoView({ block: 'nearest' });
        }
        if (event.key === 'Enter' && entries[at]) {
            event.preventDefault();
            take(entries[at]);
        }
    };
    return html`<${Dialog} label=${t('search')} kind="palette" onClose=${close}>
        <label class="palette-input">
            <${Icon} name="search" />
            <input
                type="search"
                role="combobox"
                aria-expanded="true"
                aria-controls="palette-list"
                aria-activedescendant=${entries[at] ? `entry-${at}` : undefined}
                aria-label=${t('searchPlaceholder')}
                placeholder=${t('searchPlaceholder')}
                autofocus
                value=${query}
                onInput=${(/** @type {any} */ e) => setQuery(e.currentTarget.value)}
                onKeyDown=${key}
            />
            <kbd class="only-desktop">Esc</kbd>
        </label>
        <ul id="palette-list" role="listbox" aria-label=${t('results')} ref=${list}>
            ${entries.map(
                (entry, i) =>
                    html`<li
                        key=${entry.key}
                        id=${`entry-${i}`}
                        role="option"
                        aria-selected=${i === at}
                        class=${i === at ? 'here' : ''}
                        onClick=${() => take(entry)}
                        onMouseMove=${() => at !== i && setAt(i)}
                    >
                        <${Icon} name=${entry.icon} size=${17} />
                        <span dir="auto" class="palette-title">${entry.title}</span>
                        ${entry.text && html`<small dir="auto">${entry.text}</small>`}
                    </li>`,
            )}
        </ul>
        ${entries.length === 0 && html`<p class="hint">${t('nothingFound')}</p>`}
    <//>`;
}

export function Palette() {
    return palette.value ? html`<${PaletteBody} />` : null;
}
