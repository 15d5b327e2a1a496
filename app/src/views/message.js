import { signal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { playableUrl } from '../lib/attachments.js';
import { bytes, count, duration, rate } from '../lib/format.js';
import { children, choose, chat, chatModel, removeMessage, updateMessage } from '../state/chats.js';
import { active, allowAlways, waiting } from '../state/calls.js';
import { answer, busy, goOn, live, sendMessage } from '../state/generate.js';
import { served } from '../state/server.js';
import { openReasoning, showStats, t } from '../state/settings.js';
import { copyText, notify } from '../state/ui.js';
import { html } from './html.js';
import { Icon } from './icons.js';
import { Markdown } from './markdown.js';
import { memo } from './memo.js';
import { IconButton } from './parts.js';

/** @typedef {import('../lib/types.js').Message} Message */

/** The message that is being edited. @type {import('@preact/signals').Signal<string>} */
const editing = signal('');

/** A sound with its player. @param {{ attachment: import('../lib/types.js').Attachment }} props */
function Sound({ attachment }) {
    const [url, setUrl] = useState('');
    useEffect(() => {
        const made = playableUrl(attachment.text);
        setUrl(made);
        return () => URL.revokeObjectURL(made);
    }, [attachment]);
    return html`<figure class="attached sound">
        <figcaption>${attachment.name} <small>${bytes(attachment.bytes)}</small></figcaption>
        ${url && html`<audio controls preload="metadata" src=${url} aria-label=${attachment.name}></audio>`}
    </figure>`;
}

/** @param {{ attachment: import('../lib/types.js').Attachment }} props */
function AttachmentView({ attachment }) {
    if (attachment.kind === 'image')
        return html`<a class="attached-image" href=${attachment.text} download=${attachment.name}>
            <img src=${attachment.text} alt=${attachment.name} loading="lazy" />
        </a>`;
    if (attachment.kind === 'audio') return html`<${Sound} attachment=${attachment} />`;
    return html`<details class="attached">
        <summary>
            <${Icon} name="file" size=${18} />
            <span class="attached-name">${attachment.name}</span>
            <small>${attachment.pages ? t('pages', { n: attachment.pages }) : bytes(attachment.bytes)}</small>
        </summary>
        <pre tabindex="0">${attachment.text.slice(0, 20_000)}</pre>
    </details>`;
}

/** @param {{ text: string, ms: number | undefined, running: boolean }} props */
function Reasoning({ text, ms, running }) {
    const [open, setOpen] = useState(openReasoning.peek());
    const scroll = useRef(/** @type {HTMLElement | null} */ (null));
    useLayoutEffect(() => {
        if (running && scroll.current) scroll.current.scrollTop = scroll.current.scrollHeight;
    }, [text, open]);
    const title = running ? t('thinking') : ms ? t('thoughtFor', { time: duration(ms / 1000) }) : t('reasoning');
    return html`<div class="reasoning ${running ? 'running' : ''}">
        <button type="button" class="reasoning-head" aria-expanded=${open} onClick=${() => setOpen(!open)}>
            <${Icon} name="brain" size=${17} />
            <span>${title}</span>
            <span class="chevron ${open ? 'up' : ''}"><${Icon} name="down" size=${14} /></span>
        </button>
        ${
            open &&
            html`<div class="reasoning-text" ref=${scroll} tabindex="0" role="region" aria-label=${t('reasoning')}>
                <${Markdown} text=${text} ended=${!running} />
            </div>`
        }
    </div>`;
}

/** @param {string} text */
function prettyJson(text) {
    try {
        return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
        return text;
    }
}

/** @param {{ call: import('../lib/types.js').ToolCall, message: Message }} props */
function CallView({ call, message }) {
    const asked = waiting.value.find((item) => item.message === message.id && item.call.id === call.id);
    const running = active.value.has(call.id);
    const [text, setText] = useState('');
    return html`<div class="call ${asked ? 'asked' : ''}">
        <details open=${Boolean(asked)}>
            <summary>
                <${Icon} name="wrench" size=${17} />
                <span class="call-name">${call.name || '…'}</span>
                ${running && html`<span class="spinner" aria-label=${t('running')}></span>`}
            </summary>
            <pre tabindex="0">${prettyJson(call.arguments)}</pre>
        </details>
        ${
            asked &&
            html`<div class="call-ask" role="group" aria-label=${t('allowCall')}>
                ${
                    asked.server
                        ? html`<p>${t('callQuestion', { tool: call.name, server: asked.server })}</p>
                              <div class="call-buttons">
                                  <button
                                      type="button"
                                      class="button primary"
                                      onClick=${() => asked.done({ kind: 'run' })}
                                  >
                                      ${t('allowOnce')}
                                  </button>
                                  <button
                                      type="button"
                                      class="button"
                                      onClick=${() => {
                                          allowAlways(call.name);
                                          asked.done({ kind: 'run' });
                                      }}
                                  >
                                      ${t('allowInChat')}
                                  </button>
                                  <button type="button" class="button" onClick=${() => asked.done({ kind: 'deny' })}>
                                      ${t('deny')}
                                  </button>
                              </div>`
                        : html`<p>${t('callByHand', { tool: call.name })}</p>
                              <textarea
                                  rows="3"
                                  aria-label=${t('toolResult')}
                                  value=${text}
                                  onInput=${(/** @type {any} */ e) => setText(e.currentTarget.value)}
                              ></textarea>
                              <div class="call-buttons">
                                  <button
                                      type="button"
                                      class="button primary"
                                      disabled=${!text}
                                      onClick=${() => asked.done({ kind: 'result', text })}
                                  >
                                      ${t('sendResult')}
                                  </button>
                                  <button type="button" class="button" onClick=${() => asked.done({ kind: 'deny' })}>
                                      ${t('deny')}
                                  </button>
                              </div>`
                }
            </div>`
        }
    </div>`;
}

/** @param {{ message: Message }} props */
function Branches({ message }) {
    const siblings = children.value.get(message.parent ?? '') ?? [];
    if (siblings.length < 2) return null;
    const at = siblings.findIndex((item) => item.id === message.id);
    /** @param {number} step */
    const move = (step) => choose(message.parent ?? '', siblings[at + step].id);
    return html`<span class="branches" role="group" aria-label=${t('versions')}>
        <${IconButton}
            icon="left"
            size=${16}
            label=${t('earlierVersion')}
            disabled=${at === 0}
            onClick=${() => move(-1)}
        />
        <span>${at + 1}/${siblings.length}</span>
        <${IconButton}
            icon="right"
            size=${16}
            label=${t('laterVersion')}
            disabled=${at === siblings.length - 1}
            onClick=${() => move(1)}
        />
    </span>`;
}

/** @param {string} text */
async function copyMessage(text) {
    if (await copyText(text)) notify(t('copied'));
    else notify(t('copyFailed'), 'error');
}

/** @param {{ message: Message }} props */
function Editor({ message }) {
    const [text, setText] = useState(message.content);
    const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
    useEffect(() => {
        area.current?.focus();
        area.current?.setSelectionRange(text.length, text.length);
        area.current?.closest('.editor')?.scrollIntoView({ block: 'nearest' }); // its buttons, too
    }, []);
    const user = message.role === 'user';
    const save = () => {
        editing.value = '';
        if (!user) updateMessage({ ...message, content: text });
        else if (text.trim() || message.attachments?.length)
            sendMessage(text, message.attachments ?? [], message.parent);
    };
    return html`<div class="editor">
        <textarea
            ref=${area}
            dir="auto"
            aria-label=${t('editMessage')}
            value=${text}
            onInput=${(/** @type {any} */ e) => setText(e.currentTarget.value)}
            onKeyDown=${(/** @type {KeyboardEvent} */ e) => {
                if (e.key === 'Escape') editing.value = '';
                if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) save();
            }}
        ></textarea>
        <div class="dialog-buttons">
            <button type="button" class="button" onClick=${() => (editing.value = '')}>${t('cancel')}</button>
            <button type="button" class="button primary" disabled=${user && busy()} onClick=${save}>
                ${user ? t('send') : t('save')}
            </button>
        </div>
    </div>`;
}

/** @param {{ message: Message }} props */
function UserMessage({ message }) {
    if (editing.value === message.id) return html`<${Editor} message=${message} />`;
    return html`<div class="bubble-line">
            ${
                message.attachments &&
                html`<div class="attachments">
                    ${message.attachments.map((item, i) => html`<${AttachmentView} key=${i} attachment=${item} />`)}
                </div>`
            }
            ${message.content && html`<div class="bubble" dir="auto">${message.content}</div>`}
        </div>
        <div class="actions">
            <${Branches} message=${message} />
            <${IconButton} icon="copy" size=${17} label=${t('copy')} onClick=${() => copyMessage(message.content)} />
            <${IconButton} icon="edit" size=${17} label=${t('edit')} onClick=${() => (editing.value = message.id)} />
            <${IconButton} icon="trash" size=${17} label=${t('delete')} onClick=${() => removeMessage(message)} />
        </div>`;
}

/** What is said while nothing is written yet. @param {{ state: import('../state/generate.js').Live, model: string }} props */
function Waiting({ state, model }) {
    const reads = state.phase === 'reading' && state.toRead > 0;
    const part = reads ? state.read / state.toRead : 0;
    const status = served.value.find((item) => item.id === model)?.status ?? 'loaded';
    const text = reads
        ? t('readingPrompt', { part: Math.round(part * 100), n: count(state.toRead) })
        : t(status === 'loaded' ? 'waiting' : 'waitingLoad');
    return html`<div class="waiting">
        <span class="dots" aria-hidden="true"><i></i><i></i><i></i></span>
        <span>${text}</span>
        ${reads && html`<progress max="1" value=${part} aria-label=${text}></progress>`}
    </div>`;
}

/** @param {{ message: Message }} props */
function Stats({ message }) {
    const stats = message.stats;
    if (!stats || !showStats.value) return null;
    const share = stats.promptTokens > 0 ? Math.round((100 * stats.cachedTokens) / stats.promptTokens) : 0;
    const details = t('statsDetails', {
        prompt: count(stats.promptTokens),
        cached: share,
        tokens: count(stats.tokens),
        promptRate: rate(stats.promptPerSecond),
        total: duration(stats.totalMs / 1000),
    });
    return html`<span class="stats" title=${details}>
        <span>${t('tokensPerSecond', { n: rate(stats.perSecond) })}</span>
        <span>${t('firstAfter', { time: duration(stats.firstMs / 1000) })}</span>
        <span>${t('tokensCount', { n: count(stats.tokens) })}</span>
        ${share > 0 && html`<span>${t('cachedShare', { n: share })}</span>`}
    </span>`;
}

/** What a failure means and what helps. @param {{ message: Message, last: boolean }} props */
function Trouble({ message, last }) {
    const code = message.error?.code ?? '';
    const remedy =
        code === 'context_length_exceeded'
            ? t('remedyContext')
            : code === 'queue_full' || code === 'overloaded' || code === 'queue_timeout'
              ? t('remedyBusy')
              : code === 'unreachable' || code === 'stream_cut'
                ? t('remedyLost')
                : code === 'invalid_api_key' || code === '401'
                  ? t('remedyKey')
                  : code === 'out_of_memory'
                    ? t('remedyMemory')
                    : code === 'model_not_found' || code === 'unsupported_model'
                      ? t('remedyModel')
                      : '';
    const text =
        message.state === 'error'
            ? code === 'unreachable'
                ? t('errorUnreachable')
                : code === 'stream_cut'
                  ? t('errorCut')
                  : message.error?.message
            : message.state === 'length'
              ? t('cutByLength')
              : message.state === 'lost'
                ? t('wasLost')
                : t('wasStopped');
    const canGoOn = last && message.content && !message.calls?.length;
    return html`<div class="trouble ${message.state === 'error' ? 'error' : ''}" role="note">
        <${Icon} name=${message.state === 'error' ? 'warn' : 'info'} size=${18} />
        <span class="trouble-text">${text}${remedy && html`<small>${remedy}</small>`}</span>
        ${
            canGoOn &&
            html`<button type="button" class="button small" disabled=${busy()} onClick=${() => goOn(message)}>
                ${t('continue')}
            </button>`
        }
        ${
            last &&
            message.state !== 'length' &&
            html`<button type="button" class="button small" disabled=${busy()} onClick=${() => answer(message.parent)}>
                ${t('tryAgain')}
            </button>`
        }
    </div>`;
}

/** @param {{ message: Message, last: boolean }} props */
function AssistantMessage({ message, last }) {
    const view = live.value.get(message.id);
    const state = view?.value;
    if (editing.value === message.id) return html`<${Editor} message=${message} />`;
    const content = state ? state.content : message.content;
    const reasoning = state ? state.reasoning : message.reasoning;
    const calls = state ? state.calls : (message.calls ?? []);
    const troubled = !state && message.state && !['done', 'streaming'].includes(message.state);
    const other = served.value.filter((item) => item.id !== message.model);
    return html`${
        reasoning &&
        html`<${Reasoning} text=${reasoning} ms=${message.reasoningMs} running=${state?.phase === 'thinking'} />`
    }
    ${content && html`<${Markdown} text=${content} ended=${!state} />`}
    ${calls.map((call, i) => html`<${CallView} key=${call.id || i} call=${call} message=${message} />`)}
    ${
        state?.phase === 'reconnecting' &&
        html`<div class="waiting reconnecting"><span class="spinner"></span>${t('reconnecting')}</div>`
    }
    ${state && !content && !['thinking', 'reconnecting'].includes(state.phase) && calls.length === 0 && html`<${Waiting} state=${state} model=${message.model ?? ''} />`}
    ${state && content && state.perSecond > 0 && showStats.value && html`<div class="actions"><span class="stats">${t('tokensPerSecond', { n: rate(state.perSecond) })}</span></div>`}
    ${!state && !content && !calls.length && message.state === 'done' && html`<p class="hint">${t('emptyAnswer')}</p>`}
    ${troubled && html`<${Trouble} message=${message} last=${last} />`}
    ${
        !state &&
        html`<div class="actions">
            <${Branches} message=${message} />
            <${IconButton} icon="copy" size=${17} label=${t('copy')} onClick=${() => copyMessage(message.content)} />
            <${IconButton}
                icon="refresh"
                size=${17}
                label=${t('regenerate')}
                disabled=${busy()}
                onClick=${() => answer(message.parent)}
            />
            ${
                other.length > 0 &&
                html`<select
                    class="retry-model"
                    aria-label=${t('regenerateWith')}
                    title=${t('regenerateWith')}
                    disabled=${busy()}
                    value=""
                    onChange=${(/** @type {any} */ e) => {
                        answer(message.parent, e.currentTarget.value);
                        e.currentTarget.value = '';
                    }}
                >
                    <option value="">⇄</option>
                    ${other.map((item) => html`<option key=${item.id} value=${item.id}>${item.id}</option>`)}
                </select>`
            }
            <${IconButton} icon="edit" size=${17} label=${t('edit')} onClick=${() => (editing.value = message.id)} />
            <${IconButton} icon="trash" size=${17} label=${t('delete')} onClick=${() => removeMessage(message)} />
            <${Stats} message=${message} />
        </div>`
    }`;
}

/** @param {{ message: Message }} props */
function ToolMessage({ message }) {
    return html`<details class="tool-result ${message.failed ? 'failed' : ''}">
        <summary>
            <${Icon} name=${message.failed ? 'warn' : 'check'} size=${16} />
            <span>${t('resultOf', { tool: message.callName ?? '' })}</span>
        </summary>
        <pre tabindex="0">${prettyJson(message.content).slice(0, 50_000)}</pre>
    </details>`;
}

/** Watches which messages come near the screen; one observer for all. */
const near = new WeakMap();
const observer = new IntersectionObserver(
    (entries) => {
        for (const entry of entries) if (entry.isIntersecting) near.get(entry.target)?.();
    },
    { rootMargin: '1500px 0px' },
);

/**
 * A message, which is drawn when it comes near the screen; before that its text alone stands in its place.
 * @param {{ message: Message, last: boolean, early: boolean }} props early: drawn at once
 */
function MessageView({ message, last, early }) {
    const [drawn, setDrawn] = useState(early);
    const ref = useRef(/** @type {HTMLElement | null} */ (null));
    useEffect(() => {
        const element = ref.current;
        if (drawn || !element) return;
        near.set(element, () => {
            observer.unobserve(element);
            setDrawn(true);
        });
        observer.observe(element);
        return () => observer.unobserve(element);
    }, [drawn]);
    const role = message.role === 'user' ? t('you') : message.role === 'tool' ? t('tool') : message.model || t('model');
    return html`<article
        ref=${ref}
        class="message ${message.role} ${last ? 'last' : ''}"
        aria-label=${role}
        data-id=${message.id}
    >
        ${
            !drawn
                ? html`<div class="undrawn" dir="auto">${message.content.slice(0, 4000)}</div>`
                : message.role === 'user'
                  ? html`<${UserMessage} message=${message} />`
                  : message.role === 'tool'
                    ? html`<${ToolMessage} message=${message} />`
                    : html`${message.model !== chatModel.value && html`<div class="from-model">${message.model}</div>`}
                          <${AssistantMessage} message=${message} last=${last} />`
        }
    </article>`;
}

const MemoMessage = memo(MessageView);

const DRAWN_AT_ONCE = 8;

/** @param {{ list: Message[] }} props */
export function MessageList({ list }) {
    const shown = chat.value.id;
    return html`<div class="messages" data-testid="messages">
        ${list.map(
            (message, i) =>
                html`<${MemoMessage}
                    key=${shown + message.id}
                    message=${message}
                    last=${i === list.length - 1}
                    early=${i >= list.length - DRAWN_AT_ONCE}
                />`,
        )}
    </div>`;
}
