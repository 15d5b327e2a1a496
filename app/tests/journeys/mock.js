import { createServer, request } from 'node:http';

/* A server whose answers a test writes; the app itself comes from a real server, with its headers. */

/** @typedef {{ delta?: any, finish?: string, wait?: number, gate?: Promise<void>, usage?: any, timings?: any, cut?: boolean }} Piece gate: what it waits for */

/** A model of the list. @param {string[]} modalities of its input */
export const modelOf = (modalities) => ({
    id: 'mock',
    context_length: 8192,
    status: 'loaded',
    architecture: { input_modalities: modalities, output_modalities: ['text'] },
});

export class Mock {
    /** @param {string} base of the real server */
    constructor(base) {
        this.base = base;
        this.url = '';
        this.reset();
        this.server = createServer((from, to) => this.#serve(from, to));
    }

    /** As it is before a journey. */
    reset() {
        /** @type {(body: any) => Piece[]} */
        this.answer = () => [{ delta: { content: 'Hello.' } }, { finish: 'stop' }];
        /** @type {any[]} bodies of chats */
        this.asked = [];
        /** @type {Record<string, any>} answers of routes; a function gets the body */
        this.routes = {};
        /** @type {any[]} */
        this.models = [modelOf(['text'])];
        this.stream = ''; // id of the stream of answers; empty: they are not kept
    }

    async start() {
        await new Promise((done) => this.server.listen(0, '127.0.0.1', () => done(null)));
        this.url = `http://127.0.0.1:${/** @type {any} */ (this.server.address()).port}`;
        return this;
    }

    stop() {
        this.server.closeAllConnections();
        this.server.close();
    }

    /** @param {import('node:http').IncomingMessage} from @param {import('node:http').ServerResponse} to */
    async #serve(from, to) {
        const path = (from.url ?? '').split('?')[0];
        let text = '';
        for await (const part of from) text += part;
        /** @param {any} value @param {number} [status] */
        const json = (value, status = 200) =>
            to.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(value));
        const route = this.routes[`${from.method} ${path}`] ?? this.routes[path];
        if (route) {
            const value = typeof route === 'function' ? route(text ? JSON.parse(text) : null, from) : route;
            return json(value.error ? value : value, value.error ? (value.status ?? 500) : 200);
        }
        if (path === '/v1/chat/completions') return this.#chat(JSON.parse(text), to);
        if (this.stream && path === `/v1/streams/${this.stream}`) return this.#chat(null, to);
        if (path === '/v1/models') return json({ object: 'list', data: this.models });
        if (path === '/health')
            return json({
                status: 'ok',
                running: 0,
                waiting: 0,
                lan: true,
                memory: { active_mb: 512, total_system_mb: 16384 },
            });
        if (path === '/v1/devices')
            return json({ data: [{ id: 'd1', name: 'Phone', created: 1_700_000_000, last_used: 0, current: true }] });
        if (path === '/v1/devices/pairing')
            return json({ url: 'https://192.0.2.1/#/pair/0', seconds: 600, qr: ['101', '010', '101'] });
        if (path === '/v1/models/local') return json({ object: 'list', data: [], unfinished_bytes: 0 });
        if (path === '/' || path.startsWith('/assets/') || path === '/sw.js') {
            const headers = { ...from.headers };
            delete headers.host;
            delete headers.origin;
            request(this.base + from.url, { headers }, (answer) => {
                to.writeHead(answer.statusCode ?? 502, answer.headers);
                answer.pipe(to);
            }).end();
            return;
        }
        json({ error: { message: 'no such route', code: null } }, 404);
    }

    /** @param {any} body null: a stream is resumed @param {import('node:http').ServerResponse} to */
    async #chat(body, to) {
        if (body) this.asked.push(body);
        to.writeHead(200, {
            'Content-Type': 'text/event-stream',
            ...(this.stream && { 'x-stream-id': this.stream }),
        });
        /** @param {any} value */
        const send = (value) => to.write(`data: ${JSON.stringify(value)}\n\n`);
        for (const piece of this.answer(body)) {
            await piece.gate;
            if (piece.wait) await new Promise((done) => setTimeout(done, piece.wait));
            if (to.destroyed) return;
            if (piece.cut) return void to.destroy();
            if (piece.usage)
                send({ choices: [], usage: piece.usage, timings: { predicted_per_second: 50, ...piece.timings } });
            else send({ choices: [{ index: 0, delta: piece.delta ?? {}, finish_reason: piece.finish ?? null }] });
        }
        to.end('data: [DONE]\n\n');
    }
}

/** Something that is waited for until it is opened. */
export function gate() {
    let open = () => {};
    const opened = /** @type {Promise<void>} */ (new Promise((done) => (open = () => done(undefined))));
    return { opened, open };
}

/** A text as pieces of a few characters each. @param {string} text @param {number} [size] @param {number} [wait] ms @returns {Piece[]} */
export function typed(text, size = 4, wait = 0) {
    /** @type {Piece[]} */
    const out = [];
    for (let i = 0; i < text.length; i += size) out.push({ delta: { content: text.slice(i, i + size) }, wait });
    return [
        ...out,
        { finish: 'stop' },
        { usage: { prompt_tokens: 20, completion_tokens: out.length, prompt_tokens_details: { cached_tokens: 10 } } },
    ];
}

/**
 * The processor time, in ms, of each task of the page's main thread meanwhile.
 * @param {import('playwright-core').CDPSession} session
 * @param {() => Promise<void>} work
 */
export async function tasksWhile(session, work) {
    /** @type {any[]} */
    const events = [];
    session.on('Tracing.dataCollected', ({ value }) => events.push(...value));
    const traceConfig = { includedCategories: ['toplevel', 'devtools.timeline'] };
    await session.send('Tracing.start', { transferMode: 'ReportEvents', traceConfig });
    await work();
    const complete = new Promise((done) => session.once('Tracing.tracingComplete', done));
    await session.send('Tracing.end');
    await complete;
    const frame = events.find((event) => event.name === 'FireAnimationFrame');
    return events
        .filter((event) => event.name === 'ThreadControllerImpl::RunTask' && event.tid === frame?.tid && event.tdur)
        .filter((event) => event.pid === frame.pid)
        .map((event) => event.tdur / 1000);
}
