import { readEvents } from './sse.js';

/** A failure of a request; status 0: the server could not be reached. */
export class ApiError extends Error {
    /**
     * @param {number} status
     * @param {string} message
     * @param {string} [code]
     * @param {string} [param]
     */
    constructor(status, message, code = '', param = '') {
        super(message);
        this.status = status;
        this.code = code;
        this.param = param;
    }
}

/** @type {{ key: string }} sent with every request; empty: none */
export const credentials = { key: '' };

/** Requests that were sent before this code ran. @type {Map<string, Promise<Response>>} */
let early = new Map();

/** @param {typeof early} answers by path @param {string} key that they were sent with */
export function giveEarly(answers, key) {
    if (key === credentials.key) early = answers;
}

/** The answer to the early request of a path, once. @param {string} path @returns {Promise<Response> | undefined} */
export function takeEarly(path) {
    const answer = early.get(path);
    early.delete(path);
    return answer;
}

/** @param {number} status @param {any} body */
function errorOf(status, body) {
    const error = body?.error ?? {};
    const message = typeof error === 'string' ? error : (error.message ?? `The server answered ${status}.`);
    return new ApiError(status, String(message), error.code ?? '', error.param ?? '');
}

/**
 * @param {string} path
 * @param {{ method?: string, body?: unknown, signal?: AbortSignal, headers?: Record<string, string> }} [options]
 */
async function send(path, options = {}) {
    /** @type {Record<string, string>} */
    const headers = { Accept: 'application/json', ...options.headers };
    if (credentials.key) headers.Authorization = `Bearer ${credentials.key}`;
    if (options.body !== undefined) headers['Content-Type'] = 'application/json';
    let answer;
    try {
        const early = options.body || options.method ? undefined : takeEarly(path);
        answer = await (early ??
            fetch(path, {
                method: options.method ?? (options.body === undefined ? 'GET' : 'POST'),
                headers,
                body: options.body === undefined ? undefined : JSON.stringify(options.body),
                signal: options.signal,
                cache: 'no-store',
            }));
    } catch (error) {
        if (options.signal?.aborted) throw error;
        throw new ApiError(0, 'The server cannot be reached.', 'unreachable');
    }
    if (answer.ok) return answer;
    const body = await answer.json().catch(() => null);
    throw errorOf(answer.status, body);
}

/**
 * The JSON that a route answers.
 * @param {string} path
 * @param {{ method?: string, body?: unknown, signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function call(path, options) {
    const answer = await send(path, options);
    const text = await answer.text();
    return text ? JSON.parse(text) : null;
}

/** The text that a route answers. @param {string} path @returns {Promise<string>} */
export async function callText(path) {
    return (await send(path, { headers: { Accept: 'text/plain' } })).text();
}

/**
 * The events of a stream, parsed; an error event is thrown, and so is an end without [DONE].
 * @param {string} path
 * @param {{ body?: unknown, signal?: AbortSignal, headers?: Record<string, string>, onOpen?: (headers: Headers) => void }} options
 * @returns {AsyncGenerator<any>}
 */
export async function* callStream(path, { body, signal, headers, onOpen }) {
    const answer = await send(path, { body, signal, headers: { Accept: 'text/event-stream', ...headers } });
    onOpen?.(answer.headers);
    if (!answer.body) throw new ApiError(0, 'The answer has no body.', 'stream_cut');
    try {
        for await (const event of readEvents(answer.body)) {
            if (event.data === '[DONE]') return;
            const value = JSON.parse(event.data);
            if (value.error) throw errorOf(500, value);
            if (event.id) Object.defineProperty(value, 'eventId', { value: event.id });
            yield value;
        }
    } catch (error) {
        if (error instanceof ApiError || signal?.aborted) throw error;
        throw new ApiError(0, 'The connection was lost.', 'stream_cut');
    }
    throw new ApiError(0, 'The connection was lost.', 'stream_cut');
}
