import { computed, signal } from '@preact/signals';
import { ApiError, call, callStream } from '../lib/api.js';
import { t } from './settings.js';
import { notify } from './ui.js';

/* Downloads. Where the server has jobs they run there and outlive the page; otherwise a download runs as long as a page
   listens to it, and goes on from where it was when it is asked for again. */

/**
 * @typedef {object} Download
 * @property {string} model
 * @property {'running' | 'paused' | 'failed' | 'done'} state
 * @property {string} phase asking, downloading, checking, waiting
 * @property {number} bytes
 * @property {number} total
 * @property {number} perSecond
 * @property {number | null} left seconds
 * @property {string} [error]
 * @property {string} [code]
 * @property {string} [job] id on the server
 */

const KEY = 'apus.downloads';
const POLL_MS = 700;
const QUEUE_MS = 1500;

/** @returns {Download[]} */
function stored() {
    try {
        const list = JSON.parse(localStorage.getItem(KEY) ?? '[]');
        return Array.isArray(list) ? list.filter((item) => typeof item?.model === 'string') : [];
    } catch {
        return [];
    }
}

export const downloads = signal(stored());
export const downloadsActive = computed(() => downloads.value.filter((item) => item.state === 'running').length);
/** Called when a model has come. @type {Set<() => void>} */
export const onDone = new Set();
/** @type {Map<string, AbortController>} by model */
const running = new Map();
/** Whether the server has jobs; undefined: not asked yet. @type {boolean | undefined} */
let hasJobs;
let leaving = false;
addEventListener('pagehide', () => (leaving = true));
addEventListener('pageshow', () => (leaving = false));

/** @param {string} model @param {Partial<Download>} change */
function set(model, change) {
    const start = {
        model,
        state: /** @type {const} */ ('running'),
        phase: 'asking',
        bytes: 0,
        total: 0,
        perSecond: 0,
        left: null,
    };
    const before = downloads.peek().find((item) => item.model === model);
    const next = { ...start, ...before, ...change };
    downloads.value = before
        ? downloads.peek().map((item) => (item.model === model ? next : item))
        : [...downloads.peek(), next];
    try {
        localStorage.setItem(KEY, JSON.stringify(downloads.peek()));
    } catch {
        // It is forgotten with the page.
    }
}

/** @param {string} model */
export function forget(model) {
    downloads.value = downloads.peek().filter((item) => item.model !== model);
    try {
        localStorage.setItem(KEY, JSON.stringify(downloads.peek()));
    } catch {
        // Nothing is lost.
    }
}

/** @param {any} value of an event or of a job */
function progressOf(value) {
    return {
        phase: String(value.status ?? 'downloading'),
        bytes: value.completed_bytes ?? 0,
        total: value.total_bytes ?? 0,
        perSecond: value.bytes_per_second ?? 0,
        left: value.seconds_left ?? null,
    };
}

/** @param {string} model */
export async function start(model) {
    if (running.has(model)) return;
    const controller = new AbortController();
    running.set(model, controller);
    set(model, { state: 'running', phase: 'asking', error: undefined, code: undefined });
    try {
        await fetchModel(model, controller.signal);
        set(model, { state: 'done' });
        notify(t('downloadDone', { model }));
        forget(model);
        for (const act of onDone) act();
    } catch (error) {
        // A page that is left breaks its connections: the next page goes on.
        if (leaving) return;
        if (controller.signal.aborted) set(model, { state: 'paused', perSecond: 0, left: null });
        else {
            const known = error instanceof ApiError;
            set(model, {
                state: 'failed',
                perSecond: 0,
                left: null,
                error: error instanceof Error ? error.message : String(error),
                code: known ? error.code : '',
            });
        }
    }
    running.delete(model);
}

/** Waits for its turn where the server brings one model at a time. @param {string} model @param {AbortSignal} signal */
async function fetchModel(model, signal) {
    for (;;) {
        try {
            const job = await startJob(model, signal);
            return job ? await followJob(model, job, signal) : await pull(model, signal);
        } catch (error) {
            if (!(error instanceof ApiError) || error.code !== 'pull_in_progress') throw error;
        }
        set(model, { phase: 'queued' });
        await new Promise((done) => setTimeout(done, QUEUE_MS));
        signal.throwIfAborted();
    }
}

/** @param {string} model @param {AbortSignal} signal */
async function pull(model, signal) {
    for await (const event of callStream('/v1/models/pull', { body: { model }, signal })) set(model, progressOf(event));
}

/** @param {string} model @param {AbortSignal} signal @returns {Promise<string | null>} the job; null: the server has none */
async function startJob(model, signal) {
    if (hasJobs === false) return null;
    try {
        const known = downloads.peek().find((item) => item.model === model)?.job;
        const list = await call('/v1/jobs', { signal });
        hasJobs = true;
        const same = (list.data ?? []).find(
            (/** @type {any} */ item) => item.model === model && item.state === 'running',
        );
        if (same) return same.id;
        if (known && (list.data ?? []).some((/** @type {any} */ item) => item.id === known && item.state === 'running'))
            return known;
        const made = await call('/v1/jobs', { body: { type: 'download', model }, signal });
        return made.id;
    } catch (error) {
        if (!(error instanceof ApiError) || (error.status !== 404 && error.status !== 405)) throw error;
        hasJobs = false;
        return null;
    }
}

/** @param {string} model @param {string} job @param {AbortSignal} signal */
async function followJob(model, job, signal) {
    set(model, { job });
    for (;;) {
        const state = await call(`/v1/jobs/${encodeURIComponent(job)}`, { signal });
        set(model, {
            ...progressOf({ ...state, ...state.progress }),
            phase: state.progress?.status ?? state.phase ?? 'downloading',
        });
        if (state.state === 'done') return;
        if (state.state === 'failed')
            throw new ApiError(503, state.error?.message ?? '', state.error?.code ?? 'pull_failed');
        if (state.state === 'cancelled') throw new ApiError(0, t('downloadCancelled'), 'cancelled');
        await new Promise((done) => setTimeout(done, POLL_MS));
    }
}

/** @param {string} model */
function stopJob(model) {
    const job = downloads.peek().find((item) => item.model === model)?.job;
    if (job) call(`/v1/jobs/${encodeURIComponent(job)}`, { method: 'DELETE' }).catch(() => {});
}

/** @param {string} model */
export function pause(model) {
    stopJob(model);
    running.get(model)?.abort();
}

/** @param {string} model what has come stays in the cache until the model is removed */
export function cancel(model) {
    stopJob(model);
    running.get(model)?.abort();
    setTimeout(() => forget(model), 50);
}

/** Goes on with what ran when the page was closed. */
export function resumeDownloads() {
    for (const item of downloads.peek()) if (item.state === 'running') start(item.model);
}
