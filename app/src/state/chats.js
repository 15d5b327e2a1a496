import { batch, computed, signal } from '@preact/signals';
import * as db from '../lib/db.js';
import { below, childrenOf, newId, pathOf } from '../lib/tree.js';
import { defaultParams, defaultSystem, model, t } from './settings.js';
import { chosen } from './server.js';
import { notify, place } from './ui.js';

/** @typedef {import('../lib/types.js').Chat} Chat */
/** @typedef {import('../lib/types.js').Message} Message */

/** All chats, newest first. @type {import('@preact/signals').Signal<Chat[]>} */
export const chats = signal([]);
export const loaded = signal(false);
/** The chat that is shown; a new one is not stored until its first message. @type {import('@preact/signals').Signal<Chat>} */
export const chat = signal(freshChat());
/** Its messages. @type {import('@preact/signals').Signal<Map<string, Message>>} */
export const messages = signal(new Map());
export const children = computed(() => childrenOf(messages.value.values()));
export const path = computed(() => pathOf(children.value, chat.value.choice));
/** The chat has been read from the store. */
export const opened = signal(true);

const channel = 'BroadcastChannel' in window ? new BroadcastChannel('apus') : null;

/** @returns {Chat} */
function freshChat() {
    const now = Date.now();
    return {
        id: newId(),
        title: '',
        created: now,
        updated: now,
        model: '',
        system: defaultSystem.peek(),
        params: { ...defaultParams.peek() },
        schema: '',
        tools: '',
        servers: [],
        allowed: [],
        choice: {},
    };
}

/** Whether the chat is in the list. @param {string} id */
const known = (id) => chats.peek().some((item) => item.id === id);

/** @param {unknown} error */
function storageFailed(error) {
    const full = error instanceof DOMException && error.name === 'QuotaExceededError';
    notify(full ? t('storageFull') : t('storageFailed'), 'error');
}

/** @param {Chat[]} list */
function sorted(list) {
    return list.sort((a, b) => Number(b.pinned ?? false) - Number(a.pinned ?? false) || b.updated - a.updated);
}

export async function loadChats() {
    try {
        const found = await db.getChats();
        // A chat that began while the list was read is not in it.
        const begun = loaded.peek() ? [] : chats.peek().filter((item) => !found.some((one) => one.id === item.id));
        chats.value = sorted([...begun, ...found]);
    } catch (error) {
        storageFailed(error);
    }
    loaded.value = true;
}

/** Shows a chat, or a new one. @param {string} id */
export async function openChat(id) {
    if (id === chat.peek().id && (id === '' || messages.peek().size > 0)) return;
    if (!id || !known(id)) {
        batch(() => {
            if (messages.peek().size > 0 || known(chat.peek().id)) chat.value = freshChat();
            messages.value = new Map();
            opened.value = true;
        });
        return;
    }
    opened.value = false;
    try {
        const [found, list] = await Promise.all([db.getChat(id), db.getMessages(id)]);
        if (place.peek().id !== id || !found) return;
        batch(() => {
            chat.value = found;
            messages.value = new Map(list.map((message) => [message.id, message]));
            opened.value = true;
        });
    } catch (error) {
        storageFailed(error);
        opened.value = true;
    }
}

/**
 * Stores messages and the chat as they are now, and tells other tabs.
 * @param {Chat} changed
 * @param {Message[]} [list]
 * @param {boolean} [silent] other tabs need not read it anew yet: they get the messages
 */
export async function store(changed, list = [], silent = false) {
    try {
        await db.put([changed], list);
        channel?.postMessage(silent ? { written: list } : { chat: changed.id });
    } catch (error) {
        storageFailed(error);
    }
}

/** Changes the shown chat. @param {Partial<Chat>} changes */
export function changeChat(changes) {
    const next = { ...chat.peek(), ...changes };
    chat.value = next;
    if (!known(next.id)) return;
    chats.value = sorted(chats.peek().map((item) => (item.id === next.id ? next : item)));
    store(next);
}

/** Puts messages into the shown chat, if it is still that one, and stores them. @param {Message[]} list @param {string} [title] */
export function addMessages(list, title) {
    const current = chat.peek();
    const choice = { ...current.choice };
    for (const message of list) choice[message.parent ?? ''] = message.id;
    const next = { ...current, choice, updated: Date.now(), model: current.model || chosen.peek()?.id || '' };
    if (!next.title && title) next.title = title;
    batch(() => {
        chat.value = next;
        const all = new Map(messages.peek());
        for (const message of list) all.set(message.id, message);
        messages.value = all;
        chats.value = sorted([next, ...chats.peek().filter((item) => item.id !== next.id)]);
    });
    store(next, list);
}

/** A message as it is now, in the shown chat or in the store only. @param {Message} message @param {boolean} [silent] */
export function updateMessage(message, silent = false) {
    const owner = chats.peek().find((item) => item.id === message.chat);
    if (!owner) return;
    if (chat.peek().id === message.chat && messages.peek().has(message.id)) {
        const all = new Map(messages.peek());
        all.set(message.id, message);
        messages.value = all;
    }
    return store(owner, [message], silent);
}

/** @param {string} parent '' for the beginning @param {string} id */
export function choose(parent, id) {
    changeChat({ choice: { ...chat.peek().choice, [parent]: id } });
}

/** Removes a message and all that follows it. @param {Message} message */
export function removeMessage(message) {
    const ids = below(children.peek(), message.id);
    const all = new Map(messages.peek());
    const removed = ids.map((id) => /** @type {Message} */ (all.get(id)));
    for (const id of ids) all.delete(id);
    messages.value = all;
    const owner = chat.peek();
    db.removeMessages(owner.id, ids).catch(storageFailed);
    notify(t('messageDeleted'), 'info', {
        label: t('undo'),
        run: () => {
            if (chat.peek().id === owner.id) {
                const again = new Map(messages.peek());
                for (const item of removed) again.set(item.id, item);
                messages.value = again;
            }
            store(owner, removed);
        },
    });
}

/** @param {string} id */
export async function deleteChat(id) {
    const gone = chats.peek().find((item) => item.id === id);
    const list = await db.getMessages(id).catch(() => []);
    chats.value = chats.peek().filter((item) => item.id !== id);
    if (chat.peek().id === id) {
        location.hash = '#/chat';
        openChat('');
    }
    await db.removeChat(id).catch(storageFailed);
    channel?.postMessage({ chat: id });
    if (!gone) return;
    notify(t('chatDeleted'), 'info', {
        label: t('undo'),
        run: () => {
            chats.value = sorted([...chats.peek(), gone]);
            store(gone, list);
        },
    });
}

/** @param {string} id @param {Partial<Chat>} changes */
export function changeListed(id, changes) {
    if (chat.peek().id === id) return changeChat(changes);
    const list = chats.peek().map((item) => (item.id === id ? { ...item, ...changes } : item));
    chats.value = sorted(list);
    const next = list.find((item) => item.id === id);
    if (next) store(next);
}

export async function deleteEverything() {
    await db.removeAll().catch(storageFailed);
    batch(() => {
        chats.value = [];
        chat.value = freshChat();
        messages.value = new Map();
    });
    channel?.postMessage({ chat: '' });
}

/** The model of the shown chat. */
export const chatModel = computed(() => chat.value.model || chosen.value?.id || '');

/** @param {string} id */
export function setModel(id) {
    model.value = id;
    changeChat({ model: id });
}

/** @type {Set<string>} chats of which this tab writes an answer */
export const writing = new Set();

/** Chats that have changed while this tab wrote in them. @type {Set<string>} */
const missed = new Set();
/** Called for what other tabs write, and for an answer of this tab that they stop. */
export const elsewhere = {
    written: (/** @type {Message} */ _message) => {},
    stopped: (/** @type {string} */ _id) => {},
};
/** @param {{ stop: string }} value to the other tabs */
export const tell = (value) => channel?.postMessage(value);

/** Reads a chat anew that has changed while this tab wrote in it. @param {string} id */
export async function catchUp(id) {
    if (missed.delete(id)) await reread(id);
}

/** Reads the list and a chat anew, as another tab or device has changed them. @param {string} id */
export async function reread(id) {
    chats.value = sorted(await db.getChats().catch(() => chats.peek()));
    if (writing.has(id)) missed.add(id);
    if (id !== chat.peek().id || writing.has(id)) return;
    const read = await Promise.all([db.getChat(id), db.getMessages(id)]).catch(() => null);
    const [found, list] = read ?? [undefined, []];
    if (!found || id !== chat.peek().id || writing.has(id)) return;
    batch(() => {
        chat.value = found;
        messages.value = new Map(list.map((message) => [message.id, message]));
    });
}

channel?.addEventListener('message', ({ data }) => {
    if (data?.written) data.written.forEach(elsewhere.written);
    else if (data?.stop) elsewhere.stopped(data.stop);
    else reread(data?.chat);
});

/** Another device has changed chats: shows them here and in other tabs. @param {Iterable<string>} ids */
export async function showChanged(ids) {
    for (const id of ids) channel?.postMessage({ chat: id });
    const shown = chat.peek().id;
    const known = [...ids].includes(shown);
    await reread(known ? shown : '');
    if (!known || chats.peek().some((item) => item.id === shown) || writing.has(shown)) return;
    location.hash = '#/chat'; // it was removed
    openChat('');
}
