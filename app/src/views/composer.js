import { signal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { AttachmentError, readAttachment } from '../lib/attachments.js';
import * as db from '../lib/db.js';
import { bytes } from '../lib/format.js';
import { chat, changeChat, chatModel, chats, path } from '../state/chats.js';
import { busy, live, sendMessage, stop } from '../state/generate.js';
import { greeted, link, served, takesAudio, takesImages } from '../state/server.js';
import { enterSends, t } from '../state/settings.js';
import { notify, panel } from '../state/ui.js';
import { html } from './html.js';
import { Icon } from './icons.js';
import { IconButton } from './parts.js';

/** @typedef {import('../lib/types.js').Attachment} Attachment */

const prepareAnswers = async () => (await import('./markdown.js')).prepareMarkdown();

const text = signal('');
/** @type {import('@preact/signals').Signal<Attachment[]>} */
const attached = signal([]);
const reading = signal(0);
/** The user has sent what waits for files that are read, or for the server's first answer. */
const hasty = signal(false);

/** @param {Iterable<File>} files */
export async function attach(files) {
    for (const file of files) {
        reading.value++;
        const owner = draft.chat;
        try {
            const made = await readAttachment(file);
            await greeted();
            const item = served.peek().find((one) => one.id === chatModel.peek());
            if (item && made.kind === 'image' && !takesImages(item))
                throw new AttachmentError('noImages', { model: item.id });
            if (item && made.kind === 'audio' && !takesAudio(item))
                throw new AttachmentError('noAudio', { model: item.id });
            if (draft.chat === owner) attached.value = [...attached.peek(), made];
        } catch (error) {
            if (error instanceof AttachmentError) notify(t(/** @type {any} */ (error.key), error.values), 'error');
            else notify(t('fileDamaged', { name: file.name }), 'error');
        }
        reading.value--;
    }
}

/** Puts a text where the user writes. @param {string} value */
export function suggest(value) {
    text.value = value;
    document.querySelector('textarea#prompt')?.dispatchEvent(new Event('focus'));
    /** @type {HTMLElement | null} */ (document.querySelector('textarea#prompt'))?.focus();
}

const NEW_DRAFT = 'draft:new';
const DRAFT_AFTER_MS = 300;

/** What the field has: where it is stored, of which chat it is, and what is stored. */
let draft = { key: '', chat: '', saved: '' };
let draftTimer = 0;

/** @param {string} id */
const listed = (id) => chats.peek().some((item) => item.id === id);

/** Stores what is written and not sent. */
function keepDraft() {
    clearTimeout(draftTimer);
    const value = text.peek();
    const { key, chat: owner, saved } = draft;
    if (!key || value === saved || (key !== NEW_DRAFT && !listed(owner))) return;
    draft.saved = value;
    db.putValue(key, value).catch(() => {});
}
document.addEventListener('visibilitychange', () => {
    if (document.hidden) keepDraft();
});

/** @param {string} key @param {string} id */
function showDraft(key, id) {
    if (draft.key === key) return void (draft.chat = id);
    // A new chat has its first message by now: what was written since stays in the field.
    if (draft.key === NEW_DRAFT && draft.chat === id) return void (draft = { key, chat: id, saved: '' });
    keepDraft();
    const shown = { key, chat: id, saved: '' };
    draft = shown;
    hasty.value = false;
    text.value = '';
    attached.value = [];
    db.getValue(key)
        .then((found) => {
            if (draft !== shown || !found || text.peek()) return;
            draft.saved = found;
            text.value = found;
        })
        .catch(() => {});
}

/** Keeps what is written and not sent, for each chat, and while another page of the app is shown. */
function useDraft() {
    const id = chat.value.id;
    // A chat that is new has the draft of new chats, whatever its id will be.
    const key = chats.value.some((item) => item.id === id) ? `draft:${id}` : NEW_DRAFT;
    useLayoutEffect(() => showDraft(key, id), [key, id]);
    const value = text.value;
    useEffect(() => {
        clearTimeout(draftTimer);
        draftTimer = window.setTimeout(keepDraft, DRAFT_AFTER_MS);
    }, [value]);
}

/** @param {{ item: Attachment, onRemove: () => void }} props */
function Chip({ item, onRemove }) {
    return html`<li class="chip">
        ${
            item.kind === 'image'
                ? html`<img src=${item.text} alt="" />`
                : html`<span class="chip-icon"><${Icon} name="file" size=${18} /></span>`
        }
        <span class="chip-text"
            ><span>${item.name}</span
            ><small>${item.pages ? t('pages', { n: item.pages }) : bytes(item.bytes)}</small></span
        >
        <${IconButton} icon="close" size=${15} label=${t('removeFile', { name: item.name })} onClick=${onRemove} />
    </li>`;
}

function AttachMenu() {
    const [open, setOpen] = useState(false);
    const file = useRef(/** @type {HTMLInputElement | null} */ (null));
    const camera = useRef(/** @type {HTMLInputElement | null} */ (null));
    const root = useRef(/** @type {HTMLElement | null} */ (null));
    useLayoutEffect(() => {
        if (!open) return;
        /** @param {Event} event */
        const outside = (event) => {
            const key = /** @type {KeyboardEvent} */ (event).key;
            if (key ? key === 'Escape' : !root.current?.contains(/** @type {Node} */ (event.target))) setOpen(false);
        };
        addEventListener('pointerdown', outside);
        addEventListener('keydown', outside);
        return () => {
            removeEventListener('pointerdown', outside);
            removeEventListener('keydown', outside);
        };
    }, [open]);
    /** @param {any} event */
    const take = (event) => {
        attach([...event.currentTarget.files]);
        event.currentTarget.value = '';
    };
    const images = takesImages(served.value.find((one) => one.id === chatModel.value));
    return html`<span class="menu-root" ref=${root}>
        <${IconButton} icon="plus" label=${t('attach')} expanded=${open} onClick=${() => setOpen(!open)} />
        ${
            open &&
            html`<div class="menu above" role="menu">
                <button
                    type="button"
                    role="menuitem"
                    onClick=${() => {
                        setOpen(false);
                        file.current?.click();
                    }}
                >
                    <${Icon} name="paperclip" size=${18} />${images ? t('attachFiles') : t('attachTexts')}
                </button>
                ${
                    images &&
                    html`<button
                        type="button"
                        role="menuitem"
                        onClick=${() => {
                            setOpen(false);
                            camera.current?.click();
                        }}
                    >
                        <${Icon} name="camera" size=${18} />${t('takePicture')}
                    </button>`
                }
                <button
                    type="button"
                    role="menuitem"
                    onClick=${() => {
                        setOpen(false);
                        panel.value = true;
                    }}
                >
                    <${Icon} name="sliders" size=${18} />${t('chatSettings')}
                </button>
            </div>`
        }
        <input ref=${file} type="file" multiple hidden data-testid="file-input" onChange=${take} />
        <input ref=${camera} type="file" accept="image/*" capture="environment" hidden onChange=${take} />
    </span>`;
}

/** How full the context is. */
function Gauge() {
    const item = served.value.find((one) => one.id === chatModel.value);
    const stats = path.value.findLast((message) => message.stats)?.stats;
    if (!item?.context || !stats) return null;
    const used = stats.promptTokens + stats.tokens;
    const part = Math.min(1, used / item.context);
    const label = t('contextUsed', {
        used: used.toLocaleString(),
        all: item.context.toLocaleString(),
        part: Math.round(part * 100),
    });
    const length = 2 * Math.PI * 7;
    return html`<span class="gauge ${part > 0.9 ? 'full' : ''}" role="img" aria-label=${label} title=${label}>
        <svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">
            <circle cx="9" cy="9" r="7" class="ring-track" />
            <circle
                cx="9"
                cy="9"
                r="7"
                class="ring-value"
                stroke-dasharray=${length}
                stroke-dashoffset=${length * (1 - part)}
            />
        </svg>
        <span>${Math.round(part * 100)} %</span>
    </span>`;
}

export function Composer() {
    useDraft();
    const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
    const value = text.value;
    const running = live.value.size > 0 && busy();
    const filled = (value.trim() !== '' || attached.value.length > 0) && !running;
    const ready = filled && reading.value === 0 && served.value.length > 0;
    const soon = !running && (reading.value > 0 || (filled && link.value === 'starting'));

    useLayoutEffect(() => {
        const element = area.current;
        if (!element) return;
        element.style.height = value ? 'auto' : '';
        // Asking for the height lays the page out: an empty field needs no such work.
        if (value) element.style.height = `${Math.min(element.scrollHeight, innerHeight * 0.4)}px`;
    }, [value]);

    const send = () => {
        hasty.value = !ready && soon;
        if (!ready) return;
        const sent = text.peek();
        const files = attached.peek();
        text.value = '';
        attached.value = [];
        keepDraft();
        if (matchMedia('(pointer: coarse)').matches) area.current?.blur(); // its keyboard leaves, the answer is read
        sendMessage(sent.trim(), files);
    };
    useEffect(() => {
        if (hasty.peek()) send();
    }, [ready, soon]);
    /** @param {KeyboardEvent} event */
    const key = (event) => {
        if (event.key !== 'Enter' || event.isComposing || event.shiftKey) return;
        if (!enterSends.value && !event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        send();
    };
    /** @param {ClipboardEvent} event */
    const paste = (event) => {
        const files = [...(event.clipboardData?.files ?? [])];
        if (files.length === 0) return;
        event.preventDefault();
        attach(files);
    };
    const thinking = chat.value.params.thinking;
    const tools = chat.value.servers.length > 0 || chat.value.tools.trim() !== '';
    return html`<form
        class="composer"
        onSubmit=${(/** @type {Event} */ e) => {
            e.preventDefault();
            send();
        }}
    >
        ${
            attached.value.length > 0 &&
            html`<ul class="chips" aria-label=${t('attachments')}>
                ${attached.value.map(
                    (item, i) =>
                        html`<${Chip}
                            key=${i + item.name}
                            item=${item}
                            onRemove=${() => (attached.value = attached.peek().filter((_, at) => at !== i))}
                        />`,
                )}
            </ul>`
        }
        <textarea
            id="prompt"
            ref=${area}
            rows="1"
            dir="auto"
            aria-label=${t('message')}
            placeholder=${t('messagePlaceholder')}
            enterkeyhint=${enterSends.value ? 'send' : 'enter'}
            value=${value}
            onInput=${(/** @type {any} */ e) => (text.value = e.currentTarget.value)}
            onKeyDown=${key}
            onFocus=${prepareAnswers}
            onPaste=${paste}
        ></textarea>
        <div class="composer-bar" onMouseDown=${(/** @type {Event} */ e) => e.preventDefault()}>
            <${AttachMenu} />
            <button
                type="button"
                class="toggle ${thinking ?? ''}"
                aria-pressed=${thinking === 'on'}
                title=${t('thinkingHint')}
                onClick=${() => {
                    const next = thinking === undefined ? 'on' : thinking === 'on' ? 'off' : undefined;
                    changeChat({ params: { ...chat.peek().params, thinking: next } });
                }}
            >
                <${Icon} name="brain" size=${17} />
                <span>${thinking === 'on' ? t('thinkOn') : thinking === 'off' ? t('thinkOff') : t('thinkAuto')}</span>
            </button>
            ${tools && html`<button type="button" class="toggle on" onClick=${() => (panel.value = true)}><${Icon} name="wrench" size=${16} /><span>${t('tools')}</span></button>`}
            ${chat.value.schema.trim() && html`<button type="button" class="toggle on" onClick=${() => (panel.value = true)}><span>JSON</span></button>`}
            <span class="spacer"></span>
            ${reading.value > 0 && html`<span class="spinner" aria-label=${t('readingFile')}></span>`}
            <${Gauge} />
            ${
                running
                    ? html`<button
                          type="button"
                          class="send stop"
                          aria-label=${t('stop')}
                          title=${t('stop')}
                          onClick=${stop}
                      >
                          <${Icon} name="stop" size=${18} />
                      </button>`
                    : html`<button
                          type="submit"
                          class="send"
                          aria-label=${t('send')}
                          title=${t('send')}
                          disabled=${!ready && !soon}
                      >
                          ${hasty.value ? html`<span class="spinner"></span>` : html`<${Icon} name="send" size=${20} />`}
                      </button>`
            }
        </div>
        ${link.value === 'offline' && html`<p class="composer-note">${t('offlineNote')}</p>`}
    </form>`;
}
