import { signal } from '@preact/signals';
import { ApiError, call, callIfThere } from '../lib/api.js';
import { onDone } from './downloads.js';
import { refreshModels } from './server.js';
import { t } from './settings.js';
import { notify } from './ui.js';

/* Models of this machine, and those that could be. */

/** @typedef {{ id: string, format: string, bytes: number, lastUsed: number }} LocalModel */
/**
 * @typedef {object} CatalogueModel
 * @property {string} id
 * @property {string} name
 * @property {string} family
 * @property {number} bytes of the download
 * @property {'fits' | 'tight' | 'streams' | 'too_large' | ''} fit
 * @property {number} memory bytes that it needs
 * @property {number} perSecond expected tokens; 0: unknown
 * @property {string} note
 * @property {boolean} recommended
 * @property {boolean} local
 */
/** @typedef {{ id: string, downloads: number, likes: number, bytes: number, updated: string, gated: boolean }} Found */

/** @type {import('@preact/signals').Signal<LocalModel[] | null>} null: not known yet */
export const local = signal(null);
export const localError = signal('');
export const unfinishedBytes = signal(0);
/** @type {import('@preact/signals').Signal<CatalogueModel[] | null>} null: the server has none */
export const catalogue = signal(null);
/** What the server is doing with models, by id. @type {import('@preact/signals').Signal<Record<string, string>>} */
export const changing = signal({});

export async function refreshLocal() {
    try {
        const answer = await call('/v1/models/local');
        local.value = (answer.data ?? []).map((/** @type {any} */ item) => ({
            id: String(item.id),
            format: item.format ?? '',
            bytes: item.bytes ?? 0,
            lastUsed: item.last_used ?? 0,
        }));
        unfinishedBytes.value = answer.unfinished_bytes ?? 0;
        localError.value = '';
    } catch (error) {
        local.value ??= [];
        localError.value = error instanceof Error ? error.message : String(error);
    }
}

export async function refreshCatalogue() {
    const answer = await callIfThere('/v1/models/catalogue').catch(() => undefined);
    catalogue.value = answer
        ? (answer.data ?? []).map((/** @type {any} */ item) => ({
              id: String(item.id),
              name: item.name ?? item.id,
              family: item.family ?? '',
              bytes: item.bytes ?? 0,
              fit: item.fit ?? '',
              memory: item.memory_bytes ?? 0,
              perSecond: item.tokens_per_second ?? 0,
              note: item.note ?? '',
              recommended: Boolean(item.recommended),
              local: Boolean(item.local),
          }))
        : null;
}
onDone.add(() => {
    refreshLocal();
    refreshModels();
});

/** @param {string} id @param {'load' | 'unload'} what */
export async function change(id, what) {
    changing.value = { ...changing.peek(), [id]: what };
    try {
        await call(`/v1/models/${what}`, { body: { model: id } });
        await refreshModels();
    } catch (error) {
        const inUse = error instanceof ApiError && error.code === 'model_in_use';
        notify(
            inUse ? t('modelInUse', { model: id }) : error instanceof Error ? error.message : String(error),
            'error',
        );
    }
    const rest = { ...changing.peek() };
    delete rest[id];
    changing.value = rest;
}

/** @param {string} id */
export async function removeLocal(id) {
    try {
        await call(`/v1/models/local/${id.split('/').map(encodeURIComponent).join('/')}`, { method: 'DELETE' });
        notify(t('modelRemoved', { model: id }));
    } catch (error) {
        const there = error instanceof ApiError && (error.status === 404 || error.status === 405);
        notify(there ? t('cannotRemove', { model: id }) : error instanceof Error ? error.message : '', 'error');
    }
    await refreshLocal();
}

/**
 * Models of the hub.
 * @param {string} query
 * @param {string} sort downloads, likes, trending or updated
 * @param {AbortSignal} signal
 * @returns {Promise<Found[] | null>} null: the server cannot search
 */
export async function searchHub(query, sort, signal) {
    try {
        const answer = await call(`/v1/models/search?q=${encodeURIComponent(query)}&sort=${sort}`, { signal });
        return (answer.data ?? []).map((/** @type {any} */ item) => ({
            id: String(item.id),
            downloads: item.downloads ?? 0,
            likes: item.likes ?? 0,
            bytes: item.bytes ?? 0,
            updated: item.updated ?? '',
            gated: Boolean(item.gated),
        }));
    } catch (error) {
        if (error instanceof ApiError && (error.status === 404 || error.status === 405)) return null;
        throw error;
    }
}

/** Something like ORG/NAME, or the address of such a page. @param {string} text @returns {string} empty: it is none */
export function modelName(text) {
    const name = text
        .trim()
        .replace(/^https?:\/\/(www\.)?huggingface\.co\//, '')
        .replace(/\/(tree|blob)\/.*$/, '')
        .replace(/\/$/, '');
    return /^[\w.-]{1,96}\/[\w.-]{1,96}(:[\w./-]+)?(@[\w./-]+)?$/.test(name) ? name : '';
}
