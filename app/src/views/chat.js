import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { chat, chatModel, messages, openChat, opened, path, setModel } from '../state/chats.js';
import { live, pickUpLost } from '../state/generate.js';
import { health, link, linkReason, refresh, served } from '../state/server.js';
import { sidebarOpen, t } from '../state/settings.js';
import { drawer, go, panel, place } from '../state/ui.js';
import { attach, Composer, suggest } from './composer.js';
import { html } from './html.js';
import { Icon, Logo } from './icons.js';
import { later } from './later.js';
import { Empty, IconButton } from './parts.js';
import { connectAll } from '../state/tools.js';

export const MessageList = later(async () => (await import('./message.js')).MessageList);
export const ChatPanel = later(async () => (await import('./panel.js')).ChatPanel);
const askAgain = async () => (await import('../state/calls.js')).askAgain();

function ModelPicker() {
    const list = served.value;
    const id = chatModel.value;
    const item = list.find((one) => one.id === id);
    const dot = link.value !== 'ok' ? 'off' : (item?.status ?? 'off');
    const status = item ? t(/** @type {any} */ (`status_${item.status}`)) : t('status_unloaded');
    return html`<label class="model-picker">
        <span class="dot ${dot}" title=${status}></span>
        <span class="model-name">${id || t('noModel')}</span>
        <${Icon} name="down" size=${14} />
        <select
            aria-label=${t('modelOfChat')}
            value=${id}
            onChange=${(/** @type {any} */ e) => {
                if (e.currentTarget.value === '\n') {
                    e.currentTarget.value = id;
                    go('models');
                } else setModel(e.currentTarget.value);
            }}
        >
            ${!item && id && html`<option value=${id}>${t('modelGone', { name: id })}</option>`}
            ${list.map((one) => html`<option key=${one.id} value=${one.id}>${one.id}</option>`)}
            <option value=${'\n'}>${t('manageModels')}</option>
        </select>
    </label>`;
}

function Welcome() {
    const state = link.value;
    if (state === 'starting') return html`<div class="starting"><${Logo} size=${56} /></div>`; // as in index.html
    if (state === 'offline')
        return html`<${Empty} icon="warn" title=${t('offlineTitle')} text=${t('offlineText')}>
            <button type="button" class="button" onClick=${refresh}>${t('tryAgain')}</button>
        <//>`;
    if (state === 'loading')
        return html`<${Empty} title=${t('loadingTitle')} text=${linkReason.value || t('loadingText')}>
            <span class="spinner large"></span>
        <//>`;
    if (served.value.length === 0)
        return html`<${Empty} icon="cube" title=${t('noModelTitle')} text=${t('noModelText')}>
            <button type="button" class="button primary" onClick=${() => go('models')}>${t('chooseModel')}</button>
        <//>`;
    const ideas = /** @type {const} */ (['idea1', 'idea2', 'idea3', 'idea4']);
    return html`<div class="welcome">
        <span class="welcome-logo"><${Logo} size=${56} /></span>
        <h1>${t('welcome')}</h1>
        <p class="hint">${t('welcomeText')}</p>
        <div class="ideas">
            ${ideas.map(
                (key) =>
                    html`<button key=${key} type="button" class="idea" onClick=${() => suggest(t(key))}>
                        ${t(key)}
                    </button>`,
            )}
        </div>
    </div>`;
}

/** A line over the chat when the server is not well. */
function Banner() {
    const state = link.value;
    const text =
        state === 'offline'
            ? t('bannerOffline')
            : state === 'loading'
              ? t('bannerLoading')
              : state === 'unwell'
                ? t('bannerUnwell', { status: health.value?.status ?? '', reason: linkReason.value })
                : '';
    if (!text || path.value.length === 0) return null;
    return html`<div class="banner" role="status"><${Icon} name="warn" size=${17} />${text}</div>`;
}

/** Keeps the end in sight while it grows, unless the user has scrolled away from it. */
function useFollow() {
    const scroller = useRef(/** @type {HTMLElement | null} */ (null));
    const inner = useRef(/** @type {HTMLElement | null} */ (null));
    const follows = useRef(true);
    const moved = useRef(false);
    const [away, setAway] = useState(false);
    const showEnd = (/** @type {HTMLElement} */ element) => {
        moved.current = true;
        element.scrollTop = element.scrollHeight;
    };
    const toEnd = () => {
        const element = scroller.current;
        if (!element) return;
        follows.current = true;
        // A page that is new needs no layout for this.
        if (path.peek().length > 0) showEnd(element);
        else if (moved.current) element.scrollTop = 0;
        setAway(false);
    };
    useLayoutEffect(toEnd, [chat.value.id, opened.value]);
    useEffect(() => {
        const element = scroller.current;
        const content = inner.current;
        if (!element || !content) return;
        let top = element.scrollTop;
        const onScroll = () => {
            moved.current = true;
            const left = element.scrollHeight - element.scrollTop - element.clientHeight;
            // Only the user moves upwards; what grows moves the end away.
            if (element.scrollTop < top - 1 && left > 40) follows.current = false;
            if (left < 40) follows.current = true;
            top = element.scrollTop;
            setAway(left > 400);
        };
        const sizes = new ResizeObserver(() => {
            if (follows.current && path.peek().length > 0) showEnd(element);
            else onScroll();
        });
        element.addEventListener('scroll', onScroll, { passive: true });
        sizes.observe(content);
        sizes.observe(element);
        return () => {
            element.removeEventListener('scroll', onScroll);
            sizes.disconnect();
        };
    }, []);
    // A message that is sent is looked at.
    const count = path.value.length;
    useLayoutEffect(toEnd, [count]);
    return { scroller, inner, away, toEnd };
}

export function ChatPage() {
    const { scroller, inner, away, toEnd } = useFollow();
    const [dragged, setDragged] = useState(false);
    const id = place.value.id;
    useEffect(() => {
        openChat(id);
    }, [id]);
    // Before the first frame of the chat: an answer that goes on is never shown as one that has ended.
    useLayoutEffect(() => {
        if (opened.value) pickUpLost();
    }, [chat.value.id, opened.value, messages.value]);
    useEffect(() => {
        if (!opened.value) return;
        if (messages.peek().size > 0) askAgain();
        connectAll(chat.peek());
    }, [chat.value.id, opened.value, messages.value.size]);
    const list = path.value;
    /** @param {DragEvent} event */
    const over = (event) => {
        if (!event.dataTransfer?.types.includes('Files')) return;
        event.preventDefault();
        setDragged(true);
    };
    return html`<div
        class="chat-page"
        onDragOver=${over}
        onDragLeave=${(/** @type {DragEvent} */ e) => {
            const inside = /** @type {HTMLElement} */ (e.currentTarget).contains(/** @type {Node} */ (e.relatedTarget));
            if (!inside) setDragged(false);
        }}
        onDrop=${(/** @type {DragEvent} */ e) => {
            e.preventDefault();
            setDragged(false);
            attach([...(e.dataTransfer?.files ?? [])]);
        }}
    >
        <header class="topbar">
            <${IconButton} icon="menu" kind="only-phone" label=${t('chats')} onClick=${() => (drawer.value = true)} />
            ${!sidebarOpen.value && html`<${IconButton} icon="sidebar" kind="only-desktop" label=${t('showChats')} onClick=${() => (sidebarOpen.value = true)} />`}
            <${ModelPicker} />
            <span class="spacer"></span>
            <${IconButton} icon="compose" kind="only-phone" label=${t('newChat')} onClick=${() => go('chat')} />
            <${IconButton}
                icon="sliders"
                label=${t('chatSettings')}
                expanded=${panel.value}
                onClick=${() => (panel.value = !panel.value)}
            />
        </header>
        <${Banner} />
        <div class="chat-body">
            <main class="scroller" ref=${scroller} tabindex="0" aria-label=${chat.value.title || t('newChat')}>
                <div class="column" ref=${inner}>
                    ${
                        list.length === 0
                            ? opened.value && html`<${Welcome} />`
                            : html`<h1 class="offscreen">${chat.value.title}</h1>
                                  <${MessageList} list=${list} />`
                    }
                </div>
            </main>
            ${away && html`<button type="button" class="to-end" aria-label=${t('toEnd')} onClick=${toEnd}><${Icon} name="down" size=${18} />${live.value.size > 0 && html`<span class="spinner"></span>`}</button>`}
            <div class="composer-wrap"><${Composer} /></div>
        </div>
        ${panel.value && html`<${ChatPanel} />`}
        ${dragged && html`<div class="drop-here"><${Icon} name="paperclip" size=${28} /><span>${t('dropHere')}</span></div>`}
    </div>`;
}
