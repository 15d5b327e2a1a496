import * as db from '../lib/db.js';
import { childrenOf, newId, pathOf, root } from '../lib/tree.js';
import { attachmentText } from '../lib/attachments.js';
import { chats, loadChats } from './chats.js';
import { t } from './settings.js';
import { download, go, notify } from './ui.js';

/* Chats as files, and back. */

/** @typedef {import('../lib/types.js').Chat} Chat */
/** @typedef {import('../lib/types.js').Message} Message */

const FORMAT = 'apus-chats';
const CHATS_MAX = 20_000;

/** @param {Chat} chat @param {Message[]} messages @returns {string} the shown path */
export function toMarkdown(chat, messages) {
    const parts = [`# ${chat.title || t('untitled')}`];
    if (chat.system.trim()) parts.push(`> **${t('systemPrompt')}**: ${chat.system.trim().replace(/\n/g, '\n> ')}`);
    for (const message of pathOf(childrenOf(messages), chat.choice)) {
        const name = message.role === 'user' ? t('you') : message.role === 'tool' ? message.callName : message.model;
        parts.push(`## ${name ?? message.role}`);
        if (message.reasoning)
            parts.push(`<details><summary>${t('reasoning')}</summary>\n\n${message.reasoning}\n\n</details>`);
        for (const item of message.attachments ?? [])
            parts.push(item.kind === 'image' ? `![${item.name}](${item.text})` : item.kind === 'audio' ? `[${item.name}](${item.text})` : attachmentText(item)); // prettier-ignore
        if (message.content) parts.push(message.content);
        for (const call of message.calls ?? [])
            parts.push('```json\n' + JSON.stringify({ [call.name]: call.arguments }) + '\n```');
    }
    return parts.join('\n\n') + '\n';
}

/** @param {string} id @param {'markdown' | 'json'} form */
export async function exportChat(id, form) {
    const chat = chats.peek().find((item) => item.id === id);
    if (!chat) return;
    const messages = await db.getMessages(id);
    const name = chat.title || t('untitled');
    if (form === 'markdown') return download(`${name}.md`, toMarkdown(chat, messages), 'text/markdown');
    const value = { format: FORMAT, version: 1, chats: [{ ...chat, messages }] };
    download(`${name}.json`, JSON.stringify(value, null, 1), 'application/json');
}

export async function exportAll() {
    const all = [];
    for (const chat of chats.peek()) all.push({ ...chat, messages: await db.getMessages(chat.id) });
    const day = new Date().toISOString().slice(0, 10);
    download(`apus-${day}.json`, JSON.stringify({ format: FORMAT, version: 1, chats: all }), 'application/json');
}

/** @param {any} value @returns {string} */
const textOf = (value) => (typeof value === 'string' ? value : '');

/** A message of a file, with new ids. @param {any} item @param {string} chat @param {(id: any) => string | null} idOf @returns {Message} */
function readMessage(item, chat, idOf) {
    const role = ['user', 'assistant', 'tool'].includes(item.role) ? item.role : 'user';
    /** @type {Message} */
    const made = {
        id: /** @type {string} */ (idOf(item.id)),
        chat,
        parent: item.parent ? idOf(item.parent) : null,
        role,
        content: textOf(item.content),
        created: Number(item.created) || Date.now(),
        state: 'done',
    };
    if (textOf(item.reasoning)) made.reasoning = item.reasoning;
    if (textOf(item.model)) made.model = item.model;
    if (Array.isArray(item.attachments))
        made.attachments = item.attachments
            .filter(
                (/** @type {any} */ one) =>
                    ['text', 'image', 'pdf', 'audio'].includes(one?.kind) && typeof one.text === 'string',
            )
            .filter(
                (/** @type {any} */ one) =>
                    (one.kind !== 'image' || /^data:image\/(png|jpeg|webp|gif);base64,/.test(one.text)) &&
                    (one.kind !== 'audio' || /^data:audio\/[\w.+-]+;base64,[\w+/]*=*$/.test(one.text)),
            )
            .map((/** @type {any} */ one) => ({
                kind: one.kind,
                name: textOf(one.name),
                bytes: Number(one.bytes) || 0,
                text: one.text,
            }));
    if (Array.isArray(item.calls))
        made.calls = item.calls.map((/** @type {any} */ one) => ({
            id: textOf(one?.id),
            name: textOf(one?.name),
            arguments: textOf(one?.arguments),
        }));
    if (textOf(item.callId)) made.callId = item.callId;
    if (textOf(item.callName)) made.callName = item.callName;
    return made;
}

/** A chat of a file: ours, or a list of messages as the API has them. @param {any} value */
function readChat(value) {
    /** @type {Map<any, string>} */
    const ids = new Map();
    const idOf = (/** @type {any} */ id) => {
        if (!ids.has(id)) ids.set(id, newId());
        return /** @type {string} */ (ids.get(id));
    };
    const now = Date.now();
    let list = value.messages;
    if (!Array.isArray(list)) throw new Error(t('importNoChats'));
    let system = textOf(value.system);
    if (list.some((/** @type {any} */ item) => item?.id === undefined)) {
        system ||= textOf(list.find((/** @type {any} */ item) => item?.role === 'system')?.content);
        list = list.filter((/** @type {any} */ item) => item && item.role !== 'system');
        list = list.map((/** @type {any} */ item, /** @type {number} */ i) => ({
            ...item,
            id: i + 1,
            parent: i || null,
            created: now + i,
        }));
    }
    const id = newId();
    const messages = list.map((/** @type {any} */ item) => readMessage(item, id, idOf));
    root(messages);
    const title =
        textOf(value.title) ||
        messages.find((/** @type {Message} */ item) => item.role === 'user')?.content.slice(0, 60) ||
        t('untitled');
    /** @type {Record<string, string>} */
    const choice = {};
    for (const [key, child] of Object.entries(value.choice ?? {}))
        if (ids.has(child)) choice[key === '' ? '' : idOf(key)] = idOf(child);
    /** @type {Chat} */
    const chat = {
        id,
        title: title.slice(0, 200),
        created: Number(value.created) || now,
        updated: Number(value.updated) || now,
        model: textOf(value.model),
        system,
        params: value.params && typeof value.params === 'object' ? value.params : {},
        schema: textOf(value.schema),
        tools: textOf(value.tools),
        servers: [],
        allowed: [], // what was allowed elsewhere is asked for again
        choice,
    };
    if (value.pinned === true) chat.pinned = true;
    return { chat, messages };
}

/** @param {string} text @returns {{ chat: Chat, messages: Message[] }[]} */
export function parseImport(text) {
    const value = JSON.parse(text);
    const list = Array.isArray(value?.chats)
        ? value.chats
        : Array.isArray(value) && value[0]?.messages
          ? value
          : [Array.isArray(value) ? { messages: value } : value];
    if (list.length > CHATS_MAX) throw new Error(t('importTooMany'));
    return list.map(readChat);
}

/** @param {File} file */
export async function importFile(file) {
    try {
        const read = parseImport(await file.text());
        await db.put(
            read.map((item) => item.chat),
            read.flatMap((item) => item.messages),
        );
        await loadChats();
        notify(t('imported', { n: read.length }));
        if (read.length === 1) go('chat', read[0].chat.id);
    } catch (error) {
        notify(t('importFailed', { why: error instanceof Error ? error.message : '' }), 'error');
    }
}
