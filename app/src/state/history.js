import { effect, signal } from '@preact/signals';
import { ApiError, call } from '../lib/api.js';
import * as db from '../lib/db.js';
import { alone } from '../lib/locks.js';
import { loaded, showChanged } from './chats.js';
import { health, link } from './server.js';
import { stored, t } from './settings.js';
import { notify } from './ui.js';

/* The history that the server keeps for several devices (apus serve --history): changes here are noted in IndexedDB and
 * sent, changes of others are fetched. The last writer of an item wins. The server's copy is a copy: the page works
 * without it, and sends what it has noted later. */

const SOON_MS = 600;
const EVERY_MS = 8000;
const ITEMS_MAX = 100;
const BYTES_MAX = 8_000_000;

/** The history of the server and the last change that is here. */
const known = stored('history', { id: '', last: 0 }, (value) => typeof value?.id === 'string' && value.last >= 0);

/** 'off': the server keeps none. @type {import('@preact/signals').Signal<'off' | 'on' | 'full' | 'failed'>} */
export const history = signal('off');

let timer = 0;
let busy = false;

/** @param {number} ms */
function later(ms) {
    clearTimeout(timer);
    timer = window.setTimeout(sync, ms);
}

db.noting.on = known.peek().id !== '';
db.noting.changed = () => {
    if (history.peek() !== 'off') later(SOON_MS);
};

/** Another file than the one that was known: everything here is sent, everything there is fetched. @param {string} id */
async function meet(id) {
    if (known.peek().id === id) return;
    db.noting.on = true;
    await db.noteAll();
    known.value = { id, last: 0 };
}

/** Sends what is noted. An answer that is being written waits until it is whole. */
async function push() {
    for (let skipped = 0; ;) {
        const notes = (await db.getNotes(skipped + ITEMS_MAX)).slice(skipped);
        /** @type {any[]} */
        const items = [];
        const sent = [];
        let size = 0;
        for (const note of notes) {
            const value = note.removed ? null : await db.getNoted(note);
            if (value?.state === 'streaming') {
                skipped++;
                continue;
            }
            const { kind, id, chat, updated } = note;
            const item = value ? { kind, id, chat, updated, value } : { kind, id, chat, updated, removed: true };
            const more = JSON.stringify(item).length;
            if (items.length && size + more > BYTES_MAX) break;
            size += more;
            items.push(item);
            sent.push(note);
        }
        if (!items.length) return;
        await send(items, sent);
    }
}

/** @param {any[]} items @param {db.Note[]} sent */
async function send(items, sent) {
    try {
        const answer = await call('/v1/history/changes', { body: { items } });
        await db.dropNotes(sent);
        // Nothing came between: these need not be fetched.
        const { id, last } = known.peek();
        if (answer.id === id && answer.latest === last + items.length) known.value = { id, last: answer.latest };
    } catch (error) {
        const large = error instanceof ApiError && (error.code === 'item_too_large' || error.status === 413);
        if (!large) throw error;
        if (items.length > 1) for (const [i, item] of items.entries()) await send([item], [sent[i]]);
        else {
            await db.dropNotes(sent);
            notify(t('historyTooLarge'), 'error');
        }
    }
}

/** @param {any} item */
const isChange = (item) =>
    (item.kind === 'chat' || item.kind === 'message') &&
    typeof item.id === 'string' &&
    typeof item.chat === 'string' &&
    (item.removed || (item.value?.id === item.id && typeof item.value === 'object'));

/** Fetches what others have changed. */
async function pull() {
    for (;;) {
        const { id, last } = known.peek();
        const answer = await call(`/v1/history/changes?after=${last}`);
        if (answer.id !== id) return meet(answer.id);
        const changes = answer.data.filter(isChange);
        if (changes.length) {
            await db.takeChanges(changes);
            await showChanged(new Set(changes.map((/** @type {any} */ item) => item.chat)));
        }
        if (answer.last > last) known.value = { id, last: answer.last };
        if (!answer.more) return;
    }
}

async function exchange() {
    const answer = await call('/v1/history');
    await meet(answer.id);
    history.value = 'on';
    if (answer.latest < known.peek().last) known.value = { id: answer.id, last: 0 }; // an older copy was put back
    await push();
    if (answer.latest > known.peek().last) await pull();
}

/** One tab at a time. */
async function sync() {
    if (!health.peek()?.history) return void (history.value = 'off');
    if (busy || !loaded.peek() || document.hidden || link.peek() !== 'ok') return later(EVERY_MS);
    busy = true;
    try {
        await alone('apus-history', exchange);
    } catch (error) {
        const code = error instanceof ApiError ? error.code : '';
        const off = code === 'history_off';
        if (code === 'history_full' && history.peek() !== 'full') notify(t('historyFull'), 'error');
        history.value = off ? 'off' : code === 'history_full' ? 'full' : 'failed';
    }
    busy = false;
    later(EVERY_MS);
}

effect(() => {
    if (link.value === 'ok' && health.value?.history && history.peek() === 'off') later(0);
});
document.addEventListener('visibilitychange', () => {
    if (!document.hidden) later(0);
});
