import { computed, signal } from '@preact/signals';
import { ApiError, call } from '../lib/api.js';
import { t } from './settings.js';
import { notify } from './ui.js';

/* Jobs of the server: downloads, conversions and loads. They run there, so they outlive the page and are seen by all. */

/**
 * @typedef {object} Job
 * @property {string} id empty: it could not be started
 * @property {'download' | 'convert' | 'load'} kind
 * @property {string} model
 * @property {'queued' | 'running' | 'paused' | 'done' | 'failed' | 'cancelled'} state
 * @property {string} stage of a running one
 * @property {number} bytes
 * @property {number} total
 * @property {number} perSecond
 * @property {number | null} left seconds
 * @property {string} served id of the loaded model
 * @property {string} error
 * @property {string} code
 */

const POLL_MS = 700;

/** @type {import('@preact/signals').Signal<Job[]>} */
export const jobs = signal([]);
/** Those that are shown as downloads. */
export const downloads = computed(() =>
    jobs.value.filter((job) => job.kind === 'download' && !['done', 'cancelled'].includes(job.state)),
);
export const downloadsActive = computed(() => downloads.value.filter((job) => isActive(job)).length);
/** Called when a model has come or was loaded. @type {Set<() => void>} */
export const onDone = new Set();

/** Starts that the server has refused. @type {Map<string, Job>} by kind and model */
const refused = new Map();
/** Ids of jobs that were active when they were looked at last. @type {Set<string>} */
let active = new Set();
let timer = 0;
let looks = 0;

/** @param {Job} job */
export const isActive = (job) => job.state === 'running' || job.state === 'queued';

/** The unfinished job of a model, if there is one. @param {Job['kind']} kind @param {string} model */
export const jobOf = (kind, model) =>
    jobs.value.find((job) => job.kind === kind && job.model === model && isActive(job));

/** @param {any} item @returns {Job} */
function readJob(item) {
    return {
        id: String(item.id),
        kind: item.kind,
        model: String(item.model),
        state: item.state,
        stage: item.stage ?? '',
        bytes: Number(item.completed_bytes) || 0,
        total: Number(item.total_bytes) || 0,
        perSecond: Number(item.bytes_per_second) || 0,
        left: item.seconds_left ?? null,
        served: item.served ?? '',
        error: item.error?.message ?? '',
        code: item.error?.code ?? '',
    };
}

/** @param {Job[]} list */
function tellEnded(list) {
    for (const job of list) {
        if (!active.has(job.id) || isActive(job)) continue;
        if (job.state === 'done') {
            notify(t(job.kind === 'load' ? 'loadDone' : 'downloadDone', { model: job.served || job.model }));
            for (const act of onDone) act();
        } else if (job.state === 'failed' && job.kind !== 'download') notify(job.error, 'error');
    }
    active = new Set(list.filter(isActive).map((job) => job.id));
}

/** Looks at the jobs, and again while some are active. */
export async function refreshJobs() {
    clearTimeout(timer);
    const look = ++looks;
    try {
        const answer = await call('/v1/jobs');
        if (look !== looks) return; // it may be of a time before a job was started; a later look is on its way
        const list = /** @type {Job[]} */ (
            (answer.data ?? []).map(readJob).filter((/** @type {Job} */ job) => !hidden.has(job.id))
        );
        // A newer job of a model takes the place of one that ended.
        const newest = new Map(list.map((job) => [job.kind + job.model, job]));
        for (const [key, job] of newest) if (isActive(job)) refused.delete(key);
        jobs.value = [...newest.values(), ...refused.values()];
        tellEnded(list);
    } catch (error) {
        if (error instanceof ApiError && error.status === 404) return;
    }
    if (look !== looks) return;
    if (jobs.peek().some(isActive)) timer = window.setTimeout(refreshJobs, POLL_MS);
}

/** @param {Job['kind']} kind @param {string} model */
async function startJob(kind, model) {
    refused.delete(kind + model);
    try {
        const job = readJob(await call('/v1/jobs', { body: { kind, model } }));
        active.add(job.id);
    } catch (error) {
        const message = error instanceof Error ? error.message : String(error);
        const code = error instanceof ApiError ? error.code : '';
        if (kind === 'load') notify(message, 'error');
        else
            refused.set(kind + model, { id: '', kind, model, state: 'failed', stage: '', bytes: 0, total: 0, perSecond: 0, left: null, served: '', error: message, code }); // prettier-ignore
        jobs.value = [...jobs.peek().filter((job) => job.id), ...refused.values()];
    }
    await refreshJobs();
}

/** @param {Job} job @param {'pause' | 'resume' | 'cancel'} action */
async function act(job, action) {
    try {
        await call(`/v1/jobs/${encodeURIComponent(job.id)}/${action}`, { body: {} });
        if (action === 'resume') active.add(job.id);
    } catch (error) {
        notify(error instanceof Error ? error.message : String(error), 'error');
    }
    await refreshJobs();
}

/** @param {string} model */
export const start = (model) => startJob('download', model);
/** Loads a local model and has it served. @param {string} model */
export const serveLocal = (model) => startJob('load', model);
/** @param {Job} job */
export const pause = (job) => act(job, 'pause');
/** @param {Job} job */
export const resume = (job) => (job.id && job.state === 'paused' ? act(job, 'resume') : startJob(job.kind, job.model));

/** What has come stays in the cache until the model is removed. @param {Job} job */
export function cancel(job) {
    if (job.id && job.state !== 'failed') return act(job, 'cancel');
    refused.delete(job.kind + job.model);
    hidden.add(job.id);
    jobs.value = jobs.peek().filter((one) => one !== job);
}

/** Failed jobs that the user has put away. @type {Set<string>} */
const hidden = new Set();
