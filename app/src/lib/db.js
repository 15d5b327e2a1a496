/* What the app keeps: in IndexedDB, or in memory where the browser gives none (private windows). */

/** @typedef {import('./types.js').Chat} Chat */
/** @typedef {import('./types.js').Message} Message */

const NAME = 'apus';
const VERSION = 1;

/** @type {Promise<IDBDatabase> | null} */
let opened = null;

function open() {
    opened ??= new Promise((resolve, reject) => {
        const request = indexedDB.open(NAME, VERSION);
        request.onupgradeneeded = () => {
            const db = request.result;
            db.createObjectStore('chats', { keyPath: 'id' });
            db.createObjectStore('messages', { keyPath: 'id' }).createIndex('chat', 'chat');
            db.createObjectStore('values');
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

/** @returns {Promise<Chat[]>} */
export const getChats = () => run('chats', 'readonly', (t) => t.objectStore('chats').getAll());
/** @param {string} id @returns {Promise<Chat | undefined>} */
export const getChat = (id) => run('chats', 'readonly', (t) => t.objectStore('chats').get(id));
/** @param {string} chat @returns {Promise<Message[]>} */
export const getMessages = (chat) =>
    run('messages', 'readonly', (t) => t.objectStore('messages').index('chat').getAll(chat));

/** @param {Chat[]} chats @param {Message[]} messages @returns {Promise<void>} */
export const put = (chats, messages) =>
    run(['chats', 'messages'], 'readwrite', (t) => {
        for (const chat of chats) t.objectStore('chats').put(chat);
        for (const message of messages) t.objectStore('messages').put(message);
    });

/** @param {string[]} ids @returns {Promise<void>} */
export const removeMessages = (ids) =>
    run('messages', 'readwrite', (t) => {
        for (const id of ids) t.objectStore('messages').delete(id);
    });

/** @param {string} id @returns {Promise<void>} */
export const removeChat = (id) =>
    run(['chats', 'messages', 'values'], 'readwrite', (t) => {
        t.objectStore('chats').delete(id);
        t.objectStore('values').delete(`draft:${id}`);
        const cursor = t.objectStore('messages').index('chat').openKeyCursor(id);
        cursor.onsuccess = () => {
            if (!cursor.result) return;
            t.objectStore('messages').delete(cursor.result.primaryKey);
            cursor.result.continue();
        };
    });

/** @returns {Promise<void>} */
export const removeAll = () =>
    run(['chats', 'messages', 'values'], 'readwrite', (t) => {
        t.objectStore('chats').clear();
        t.objectStore('messages').clear();
        t.objectStore('values').clear();
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
