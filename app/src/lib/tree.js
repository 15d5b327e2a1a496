/* The messages of a chat are a tree: an edit or a new answer is a sibling of what it replaces. */

/** @typedef {import('./types.js').Message} Message */

/** @typedef {Map<string, Message[]>} Children by parent; '' holds the first messages */

/** @param {Iterable<Message>} messages @returns {Children} */
export function childrenOf(messages) {
    /** @type {Children} */
    const children = new Map();
    for (const message of messages) {
        const key = message.parent ?? '';
        const list = children.get(key);
        if (list) list.push(message);
        else children.set(key, [message]);
    }
    for (const list of children.values()) list.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
    return children;
}

/**
 * The messages that are shown: from the beginning, at each branch the chosen child or else the newest.
 * @param {Children} children
 * @param {Record<string, string>} choice
 * @returns {Message[]}
 */
export function pathOf(children, choice) {
    const path = [];
    const seen = new Set();
    let key = '';
    for (;;) {
        const list = children.get(key);
        if (!list || seen.has(key)) return path;
        seen.add(key);
        const next = list.find((message) => message.id === choice[key]) ?? list[list.length - 1];
        path.push(next);
        key = next.id;
    }
}

/** @param {Children} children @param {string} id @returns {string[]} it and all below it */
export function below(children, id) {
    const ids = new Set([id]);
    for (const one of ids) for (const child of children.get(one) ?? []) ids.add(child.id); // also those that are added
    return [...ids];
}

/** Messages of a file whose parents are missing, or in a circle, begin: nothing of it is out of reach. @param {Message[]} messages */
export function root(messages) {
    const known = new Set(messages.map((message) => message.id));
    for (const message of messages) if (message.parent && !known.has(message.parent)) message.parent = null;
    const children = childrenOf(messages);
    const reached = new Set(below(children, ''));
    for (const message of messages) {
        if (reached.has(message.id)) continue;
        message.parent = null;
        for (const id of below(children, message.id)) reached.add(id);
    }
}

let last = 0;
/** An id that sorts by time. @returns {string} */
export function newId() {
    last = Math.max(Date.now(), last + 1);
    const random = crypto.getRandomValues(new Uint8Array(6));
    return last.toString(36) + '-' + Array.from(random, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
