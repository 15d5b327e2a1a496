import { signal } from '@preact/signals';

/* Where the user is, and what lies over the page. */

/** @typedef {{ page: 'chat' | 'models' | 'settings', id: string }} Place */

/** @returns {Place} */
function readPlace() {
    const [page, id = ''] = location.hash.replace(/^#\/?/, '').split('/');
    if (page === 'models' || page === 'settings') return { page, id };
    return { page: 'chat', id: page === 'chat' ? decodeURIComponent(id) : '' };
}

export const place = signal(readPlace());
addEventListener('hashchange', () => {
    place.value = readPlace();
    drawer.value = false;
});

/** @param {Place['page']} page @param {string} [id] */
export function go(page, id = '') {
    const hash = `#/${page}${id ? `/${encodeURIComponent(id)}` : ''}`;
    if (location.hash !== hash) location.hash = hash;
    drawer.value = false;
}

const narrowScreen = matchMedia('(max-width: 899px)'); // as in app.css
/** Pages are tabs below, and the list of chats is a drawer. */
export const narrow = signal(narrowScreen.matches);
narrowScreen.addEventListener('change', () => (narrow.value = narrowScreen.matches));

export const drawer = signal(false); // the list of chats on a phone
export const panel = signal(false); // the settings of the chat
export const palette = signal(false); // search

/** @typedef {{ id: number, text: string, kind: 'info' | 'error', action?: { label: string, run: () => void } }} Notice */
/** @type {import('@preact/signals').Signal<Notice[]>} */
export const notices = signal([]);
let next = 1;

/** @param {string} text @param {Notice['kind']} [kind] @param {Notice['action']} [action] */
export function notify(text, kind = 'info', action) {
    const id = next++;
    notices.value = [...notices.value.filter((notice) => notice.text !== text), { id, text, kind, action }].slice(-3);
    setTimeout(() => dismiss(id), kind === 'error' || action ? 10_000 : 4000);
}

/** @param {number} id */
export function dismiss(id) {
    notices.value = notices.value.filter((notice) => notice.id !== id);
}

/** Polite announcements to screen readers. */
export const announcement = signal('');

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {string} [text]
 * @property {string} confirm
 * @property {boolean} [danger]
 * @property {string} [input] label of a text that is asked for
 * @property {string} [value]
 * @property {boolean} [secret]
 * @property {(answer: string | null) => void} done null: cancelled
 */
/** @type {import('@preact/signals').Signal<Question | null>} */
export const question = signal(null);

/** @param {Omit<Question, 'done'>} asked @returns {Promise<string | null>} */
export function ask(asked) {
    return new Promise((resolve) => {
        question.value?.done(null);
        question.value = {
            ...asked,
            done: (answer) => {
                question.value = null;
                resolve(answer);
            },
        };
    });
}

/** @param {string} text @returns {Promise<boolean>} */
export async function copyText(text) {
    try {
        if (navigator.clipboard) {
            await navigator.clipboard.writeText(text);
            return true;
        }
    } catch {
        // Without a secure context there is the older way.
    }
    const area = document.createElement('textarea');
    area.value = text;
    area.setAttribute('aria-hidden', 'true');
    area.className = 'offscreen';
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    if (focused instanceof HTMLElement) focused.focus();
    return done;
}

/** @param {string} name @param {string} text @param {string} type */
export function download(name, text, type) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    const link = document.createElement('a');
    link.href = url;
    link.download = name
        .replace(/[\\/:*?"<>|]+/g, '-')
        .replace(/\p{Cc}/gu, '')
        .slice(0, 120);
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
