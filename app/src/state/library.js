import { signal } from '@preact/signals';
import { ApiError, call } from '../lib/api.js';
import { onDone } from './downloads.js';
import { forgetFits } from './fits.js';
import { refreshModels } from './server.js';
import { t } from './settings.js';
import { notify } from './ui.js';

/* Models of this machine, and those that could be. */

/** @typedef {{ id: string, format: string, bytes: number, lastUsed: number }} LocalModel */
/** @typedef {{ id: string, downloads: number, likes: number, bytes: number, parameters: number, updated: string, gated: boolean, form: string }} Found */

/** @type {import('@preact/signals').Signal<LocalModel[] | null>} null: not known yet */
export const local = signal(null);
export const localError = signal('');
export const unfinishedBytes = signal(0);
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

onDone.add(() => {
    forgetFits();
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
        const there = error instanceof ApiError && (error.status === 405 || error.code === 'pull_not_allowed');
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
        const answer = await call('/v1/models/search', { body: { query, sort }, signal });
        return (answer.data ?? []).map((/** @type {any} */ item) => ({
            id: String(item.id),
            downloads: Number(item.downloads) || 0,
            likes: Number(item.likes) || 0,
            bytes: Number(item.bytes) || 0,
            parameters: Number(item.parameters) || 0,
            updated: typeof item.updated === 'string' ? item.updated : '',
            gated: Boolean(item.gated),
            form: item.mlx ? 'MLX' : item.gguf ? 'GGUF' : '',
        }));
    } catch (error) {
        const none = error instanceof ApiError && (error.status === 404 || error.status === 405);
        if (none || (error instanceof ApiError && error.code === 'pull_not_allowed')) return null;
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
