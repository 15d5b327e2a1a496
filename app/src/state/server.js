import { computed, effect, signal } from '@preact/signals';
import { ApiError, call, takeEarly } from '../lib/api.js';
import { apiKey, model } from './settings.js';

/* What the server is and has. */

/** input: null until the model was loaded once.
 * @typedef {{ id: string, context: number, status: string, input: string[] | null }} ServedModel */

/** @type {import('@preact/signals').Signal<ServedModel[]>} */
export const served = signal([]);
/** @type {import('@preact/signals').Signal<any>} the last answer of /health */
export const health = signal(null);
/** @type {import('@preact/signals').Signal<'starting' | 'ok' | 'offline' | 'locked' | 'loading' | 'unwell'>} */
export const link = signal('starting');
export const linkReason = signal('');

/** Until the server has been looked at for the first time. @returns {Promise<void>} */
export const greeted = () =>
    new Promise((done) => {
        const end = effect(() => {
            if (link.value === 'starting') return;
            done();
            queueMicrotask(() => end());
        });
    });

/** The model that new answers come from. */
export const chosen = computed(() => {
    const list = served.value;
    return list.find((item) => item.id === model.value) ?? list[0];
});

const FAST_MS = 2000;
const SLOW_MS = 15_000;

export async function refreshModels() {
    const answer = await call('/v1/models');
    served.value = (answer.data ?? []).map((/** @type {any} */ item) => ({
        id: String(item.id),
        context: item.context_length ?? 0,
        status: item.status ?? 'loaded',
        input: item.architecture?.input_modalities ?? null,
    }));
}

/** Whether images may be sent to a model. @param {ServedModel | undefined} item */
export const takesImages = (item) => Boolean(item && (!item.input || item.input.includes('image')));

/** Whether sounds may be sent to a model. @param {ServedModel | undefined} item */
export const takesAudio = (item) => Boolean(item?.input?.includes('audio'));

export async function refresh() {
    const key = apiKey.peek();
    try {
        const asked = takeEarly('/health');
        const headers = key ? { Authorization: `Bearer ${key}` } : undefined;
        const answer = await (asked ?? fetch('/health', { headers, cache: 'no-store' }));
        const body = await answer.json();
        health.value = body;
        linkReason.value = body.reason ?? '';
        if (body.status === 'loading' || body.status === 'restarting') {
            link.value = 'loading';
            return;
        }
        await refreshModels();
        link.value = body.status === 'ok' ? 'ok' : 'unwell';
    } catch (error) {
        if (apiKey.peek() !== key) return; // the key was entered meanwhile
        if (error instanceof ApiError && error.status === 401) link.value = 'locked';
        else if (error instanceof ApiError && error.status === 503) link.value = 'loading';
        else link.value = 'offline';
    }
}

let timer = 0;
/** Looks at the server again and again: often while it is not well, seldom while the page is hidden. */
export function watch() {
    clearTimeout(timer);
    return refresh().finally(() => {
        clearTimeout(timer); // of another look at the same time
        const busy = link.value !== 'ok' || served.value.some((item) => /ing$/.test(item.status));
        timer = window.setTimeout(watch, document.hidden ? SLOW_MS * 4 : busy ? FAST_MS : SLOW_MS);
    });
}
document.addEventListener('visibilitychange', () => {
    if (!document.hidden) watch();
});
addEventListener('online', watch);
