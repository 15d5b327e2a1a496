/* What the app keeps: in IndexedDB, or in memory where the browser gives none (private windows). */

/** @typedef {import('./types.js').Chat} Chat */
/** @typedef {import('./types.js').Message} Message */

const NAME = 'apus';
const VERSION = 2;

/** @type {Promise<IDBDatabase> | null} */
let opened = null;

function open() {
    opened ??= new Promise((resolve, reject) => {
        const request = indexedDB.open(NAME, VERSION);
        request.onupgradeneeded = () => {
            const db = request.result;
            const has = (/** @type {string} */ name) => db.objectStoreNames.contains(name);
            if (!has('chats')) db.createObjectStore('chats', { keyPath: 'id' });
            if (!has('messages')) db.createObjectStore('messages', { keyPath: 'id' }).createIndex('chat', 'chat');
            if (!has('values')) db.createObjectStore('values');
            if (!has('outbox')) db.createObjectStore('outbox', { keyPath: 'key' });
        };
        request.onsuccess = () => {
            // Another tab wants a newer form: it must not wait for this one.
            request.result.onversionchange = () => request.result.close();
            resolve(request.result);
        };
        request.onerror = () => reject(request.error);
        request.onblocked = () => reject(new Error('Another tab keeps the history locked.'));
    });
    return opened;
}

/**
 * @template T
 * @param {string | string[]} stores
 * @param {IDBTransactionMode} mode
 * @param {(transaction: IDBTransaction) => IDBRequest<T> | void} work
 * @returns {Promise<T>}
 */
async function run(stores, mode, work) {
    const db = await open();
    return new Promise((resolve, reject) => {
        const transaction = db.transaction(stores, mode);
        const request = work(transaction);
        transaction.oncomplete = () => resolve(/** @type {T} */ (request ? request.result : undefined));
        transaction.onerror = () => reject(transaction.error);
        transaction.onabort = () => reject(transaction.error ?? new Error('aborted'));
    });
}

/**
 * A change that the server's history does not have yet.
 * @typedef {{ key: string, kind: 'chat' | 'message', id: string, chat: string, updated: number, removed: boolean }} Note
 */

/** Whether changes are noted for the server's history. */
export const noting = { on: false, changed: () => {} };

/** @param {Note['kind']} kind @param {string} id */
const keyOf = (kind, id) => `${kind}:${id}`;

/** @param {IDBTransaction} t @param {Note['kind']} kind @param {string} id @param {string} chat @param {boolean} removed */
function note(t, kind, id, chat, removed) {
    if (!noting.on) return;
    t.objectStore('outbox').put({ key: keyOf(kind, id), kind, id, chat, updated: Date.now(), removed });
    noting.changed();
}

/** @returns {Promise<Chat[]>} */
export const getChats = () => run('chats', 'readonly', (t) => t.objectStore('chats').getAll());
/** @param {string} id @returns {Promise<Chat | undefined>} */
export const getChat = (id) => run('chats', 'readonly', (t) => t.objectStore('chats').get(id));
/** @param {string} id @returns {Promise<Message | undefined>} */
export const getMessage = (id) => run('messages', 'readonly', (t) => t.objectStore('messages').get(id));
/** @param {string} chat @returns {Promise<Message[]>} */
export const getMessages = (chat) =>
    run('messages', 'readonly', (t) => t.objectStore('messages').index('chat').getAll(chat));

/** @param {Chat[]} chats @param {Message[]} messages @returns {Promise<void>} */
export const put = (chats, messages) =>
    run(['chats', 'messages', 'outbox'], 'readwrite', (t) => {
        for (const chat of chats) {
            t.objectStore('chats').put(chat);
            note(t, 'chat', chat.id, chat.id, false);
        }
        for (const message of messages) {
            t.objectStore('messages').put(message);
            note(t, 'message', message.id, message.chat, false);
        }
    });

/** @param {string} chat @param {string[]} ids @returns {Promise<void>} */
export const removeMessages = (chat, ids) =>
    run(['messages', 'outbox'], 'readwrite', (t) => {
        for (const id of ids) {
            t.objectStore('messages').delete(id);
            note(t, 'message', id, chat, true);
        }
    });

/** The chat, its messages and what is noted of them. @param {IDBTransaction} t @param {string} id */
function dropChat(t, id) {
    t.objectStore('chats').delete(id);
    t.objectStore('values').delete(`draft:${id}`);
    const cursor = t.objectStore('messages').index('chat').openKeyCursor(id);
    cursor.onsuccess = () => {
        if (!cursor.result) return;
        t.objectStore('messages').delete(cursor.result.primaryKey);
        t.objectStore('outbox').delete(keyOf('message', String(cursor.result.primaryKey)));
        cursor.result.continue();
    };
}

const ALL_STORES = ['chats', 'messages', 'values', 'outbox'];

/** @param {string} id @returns {Promise<void>} */
export const removeChat = (id) =>
    run(ALL_STORES, 'readwrite', (t) => {
        dropChat(t, id);
        note(t, 'chat', id, id, true);
    });

/** @returns {Promise<void>} */
export const removeAll = () =>
    run(ALL_STORES, 'readwrite', (t) => {
        t.objectStore('outbox').clear();
        const chats = t.objectStore('chats').getAllKeys();
        chats.onsuccess = () => {
            for (const id of chats.result) note(t, 'chat', String(id), String(id), true);
            t.objectStore('chats').clear();
            t.objectStore('messages').clear();
            t.objectStore('values').clear();
        };
    });

/* ---- what the server's history lacks, and what it has ---- */

/** @param {number} limit @returns {Promise<Note[]>} */
export const getNotes = (limit) => run('outbox', 'readonly', (t) => t.objectStore('outbox').getAll(null, limit));

/** The notes that have been sent, unless there was another change since. @param {Note[]} sent @returns {Promise<void>} */
export const dropNotes = (sent) =>
    run('outbox', 'readwrite', (t) => {
        const outbox = t.objectStore('outbox');
        for (const item of sent) {
            const now = outbox.get(item.key);
            now.onsuccess = () => {
                if (now.result?.updated === item.updated) outbox.delete(item.key);
            };
        }
    });

/** Notes all that there is, with the times it has. @returns {Promise<void>} */
export const noteAll = () =>
    run(['chats', 'messages', 'outbox'], 'readwrite', (t) => {
        const outbox = t.objectStore('outbox');
        for (const kind of /** @type {const} */ (['chat', 'message'])) {
            const cursor = t.objectStore(`${kind}s`).openCursor();
            cursor.onsuccess = () => {
                if (!cursor.result) return;
                const { id, chat = id, updated, created } = cursor.result.value;
                outbox.put({ key: keyOf(kind, id), kind, id, chat, updated: updated ?? created, removed: false });
                cursor.result.continue();
            };
        }
    });

/** The value that a note is about. @param {Note} item @returns {Promise<any>} */
export const getNoted = (item) => run(`${item.kind}s`, 'readonly', (t) => t.objectStore(`${item.kind}s`).get(item.id));

/**
 * Takes changes of the server's history over, but for those that a later change here is noted for.
 * @param {{ kind: 'chat' | 'message', id: string, chat: string, updated: number, removed: boolean, value: any }[]} changes
 * @returns {Promise<void>}
 */
export const takeChanges = (changes) =>
    run(ALL_STORES, 'readwrite', (t) => {
        for (const item of changes) {
            const store = t.objectStore(`${item.kind}s`);
            const noted = t.objectStore('outbox').get(keyOf(item.kind, item.id));
            noted.onsuccess = () => {
                if (noted.result?.updated >= item.updated) return;
                t.objectStore('outbox').delete(keyOf(item.kind, item.id));
                if (item.removed && item.kind === 'chat') dropChat(t, item.id);
                else if (item.removed) store.delete(item.id);
                else if (item.kind === 'message') store.put(item.value);
                else {
                    const own = store.get(item.id); // which tools need no approval is decided on each device
                    own.onsuccess = () => store.put({ ...item.value, allowed: own.result?.allowed ?? [] });
                }
            };
        }
    });

/** @param {string} key @returns {Promise<any>} */
export const getValue = (key) => run('values', 'readonly', (t) => t.objectStore('values').get(key));
/** @param {string} key @param {unknown} value @returns {Promise<void>} */
export const putValue = (key, value) =>
    run('values', 'readwrite', (t) => {
        if (value === undefined || value === '') t.objectStore('values').delete(key);
        else t.objectStore('values').put(value, key);
    });

/**
 * Messages that contain a text, newest chats first is the caller's business.
 * @param {string} needle lower case
 * @param {number} limit
 * @param {AbortSignal} signal
 * @returns {Promise<Message[]>}
 */
export async function findMessages(needle, limit, signal) {
    const db = await open();
    return new Promise((resolve, reject) => {
        /** @type {Message[]} */
        const found = [];
        const cursor = db.transaction('messages').objectStore('messages').openCursor(null, 'prev');
        cursor.onerror = () => reject(cursor.error);
        cursor.onsuccess = () => {
            if (!cursor.result || found.length >= limit || signal.aborted) return resolve(found);
            if (cursor.result.value.content?.toLowerCase().includes(needle)) found.push(cursor.result.value);
            cursor.result.continue();
        };
    });
}
