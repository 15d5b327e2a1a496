/* Work that one tab of a browser does at a time, by a name. Browsers have locks for pages over HTTPS and of localhost. Over
 * plain HTTP the tab that has a name notes it where all tabs read, until its work ends or it is closed. The others ask
 * it whether it is there, as a tab that has crashed leaves its note. */

const REPLY_MS = 3000; // at most, also where the tab is busy
const AGAIN_MS = 500;

const tab = Array.from(crypto.getRandomValues(new Uint32Array(2))).join('-');
/** @type {Set<string>} */
const held = new Set();
/** @type {Map<string, () => void>} */
const replies = new Map();
const channel = !navigator.locks && 'BroadcastChannel' in window ? new BroadcastChannel('apus-locks') : null;
channel?.addEventListener('message', ({ data }) => {
    if (data.held) replies.get(data.held)?.();
    else if (held.has(data.asked)) channel.postMessage({ held: data.asked });
});
addEventListener('pagehide', () => held.forEach(forget));

/** @param {string} name */
const keyOf = (name) => `apus.lock.${name}`;

/** The tab that has a name. @param {string} name */
function ownerOf(name) {
    try {
        return localStorage.getItem(keyOf(name));
    } catch {
        return null; // the browser stores nothing: each tab is alone
    }
}

/** @param {string} name */
function note(name) {
    held.add(name);
    try {
        localStorage.setItem(keyOf(name), tab);
    } catch {
        // Without a note each tab is alone.
    }
}

/** @param {string} name */
function forget(name) {
    if (ownerOf(name) === tab) localStorage.removeItem(keyOf(name));
}

/**
 * @param {number} ms @param {AbortSignal | undefined} signal
 * @param {(done: () => void) => void} [begin] of what ends it earlier
 * @returns {Promise<boolean>} whether it was ended
 */
function pause(ms, signal, begin) {
    return new Promise((done, fail) => {
        const stop = () => fail(signal?.reason);
        if (signal?.aborted) return stop();
        signal?.addEventListener('abort', stop, { once: true });
        const end = (/** @type {boolean} */ early) => {
            signal?.removeEventListener('abort', stop);
            clearTimeout(timer);
            done(early);
        };
        const timer = setTimeout(() => end(false), ms);
        begin?.(() => end(true));
    });
}

/** Whether the tab that has a name replies. @param {string} name @param {AbortSignal} [signal] */
async function replied(name, signal) {
    try {
        return await pause(REPLY_MS, signal, (end) => {
            replies.set(name, end);
            channel?.postMessage({ asked: name });
        });
    } finally {
        replies.delete(name);
    }
}

/** @param {string} name @param {() => Promise<unknown>} work @param {AbortSignal} [signal] */
async function takeTurn(name, work, signal) {
    for (let owner = ownerOf(name); owner; owner = ownerOf(name)) {
        if (await replied(name, signal)) await pause(AGAIN_MS, signal);
        else if (ownerOf(name) === owner) break; // it has crashed, and no other tab has taken its place
    }
    note(name);
    try {
        await work();
    } finally {
        held.delete(name);
        forget(name);
    }
}

/**
 * Does the work when no other tab does work of this name.
 * @param {string} name
 * @param {() => Promise<unknown>} work
 * @param {AbortSignal} [signal] ends the waiting with its reason
 * @returns {Promise<unknown>}
 */
export function alone(name, work, signal) {
    if (navigator.locks) return navigator.locks.request(name, { signal }, work);
    return channel ? takeTurn(name, work, signal) : work();
}
