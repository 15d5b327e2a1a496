import { signal } from '@preact/signals';
import { ApiError, call } from '../lib/api.js';

/* Whether models fit the server's machine, as its plan says. Asked one by one, for the models that are seen. */

/**
 * @typedef {object} ModelFit
 * @property {import('../lib/catalogue.js').Fit | 'unsupported'} fit
 * @property {boolean} later other models have to be unloaded first
 * @property {number} needed bytes
 * @property {number} free bytes, with no other model loaded
 * @property {number} perSecond 0: not known
 * @property {string} family empty: not known
 * @property {number} bits of quantised weights; 0: not known, or not quantised
 * @property {string} reason why the model cannot be run
 */

/** @type {import('@preact/signals').Signal<Record<string, ModelFit>>} by name of the model */
export const fits = signal({});

/** @type {Set<string>} names that were asked for or will be */
const wanted = new Set();
/** @type {string[]} */
const queue = [];
let busy = false;
/** The server does not plan models that it does not have. */
let refused = false;

/** @param {any} answer @returns {ModelFit} */
function readFit(answer) {
    return {
        fit: answer.fit,
        later: answer.now !== answer.fit,
        needed: Number(answer.needed_bytes) || 0,
        free: Number(answer.usable_bytes) || 0,
        perSecond: Number(answer.decode_tokens_per_second) || 0,
        family: typeof answer.model_type === 'string' ? answer.model_type : '',
        bits: Number(answer.bits) || 0,
        reason: '',
    };
}

/** @param {string} id */
async function ask(id) {
    try {
        fits.value = { ...fits.peek(), [id]: readFit(await call('/v1/models/fit', { body: { model: id } })) };
    } catch (error) {
        if (!(error instanceof ApiError)) return;
        const reason = error.message;
        const none = { later: false, needed: 0, free: 0, perSecond: 0, family: '', bits: 0, reason };
        if (error.code === 'unsupported_model') fits.value = { ...fits.peek(), [id]: { fit: 'unsupported', ...none } };
        else if (error.status === 404 && !error.code)
            refused = true; // an older server
        else if (error.status === 0 || error.status >= 500) wanted.delete(id); // another time
    }
}

async function work() {
    if (busy) return;
    busy = true;
    for (let id = queue.shift(); id && !refused; id = queue.shift()) await ask(id);
    busy = false;
}

/** Asks for the fit of a model, once. @param {string} id */
export function wantFit(id) {
    if (refused || wanted.has(id)) return;
    wanted.add(id);
    queue.push(id);
    work();
}

/** What has been loaded or has come changes the answers. */
export function forgetFits() {
    wanted.clear();
}
