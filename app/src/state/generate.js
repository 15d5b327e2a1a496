import { signal } from '@preact/signals';
import { ApiError, call, callStream } from '../lib/api.js';
import { attachmentText, audioPart } from '../lib/attachments.js';
import * as db from '../lib/db.js';
import { alone } from '../lib/locks.js';
import { newId } from '../lib/tree.js';
import { addMessages, catchUp, chat, chats, chatModel, elsewhere, messages, path, reread, tell, updateMessage, writing } from './chats.js'; // prettier-ignore
import { served, takesAudio, takesImages, watch } from './server.js';
import { t } from './settings.js';
import { toolsOf } from './tools.js';
import { announcement, go } from './ui.js';

/* Answers while they are written. What comes is collected and shown once per frame. */

/** @typedef {import('../lib/types.js').Message} Message */
/** @typedef {import('../lib/types.js').Chat} Chat */

/**
 * @typedef {object} Live
 * @property {string} content
 * @property {string} reasoning
 * @property {import('../lib/types.js').ToolCall[]} calls
 * @property {'queued' | 'reading' | 'thinking' | 'writing' | 'reconnecting'} phase
 * @property {number} read tokens of the prompt so far
 * @property {number} toRead
 * @property {number} perSecond
 */

/** By message. @type {import('@preact/signals').Signal<Map<string, import('@preact/signals').Signal<Live>>>} */
export const live = signal(new Map());
/** @type {Map<string, AbortController>} by message */
const running = new Map();

const SAVE_MS = 1000;
const HIDDEN_MS = 300;
const CONNECT_WAIT_MS = 8000; // at most, between two tries
const LOOK_MS = 300;
const KEEP_S = 1800; // an answer goes on for so long without this page

/** One tab of a browser writes an answer, the others show what it has stored. @param {string} id */
const turnOf = (id) => `apus-answer-${id}`;

/** This tab writes an answer. @param {string} id @returns {() => void} what says that it does so no longer */
function hold(id) {
    let free = () => {};
    const held = new Promise((done) => (free = () => done(null)));
    alone(turnOf(id), () => held).catch(() => {});
    return free;
}

/** Answers that another tab writes. @type {Map<string, Writer>} by message */
const followed = new Map();
elsewhere.written = (message) => followed.get(message.id)?.follow(message);
elsewhere.stopped = (id) => running.get(id)?.abort();

/** Whether the shown chat is being answered. */
export function busy() {
    for (const id of live.value.keys()) if (messages.value.get(id)?.chat === chat.value.id) return true;
    return false;
}

export function stop() {
    for (const [id, controller] of running) if (messages.peek().get(id)?.chat === chat.peek().id) controller.abort();
}

/** @param {string} text */
function titleOf(text) {
    const line = text.replace(/\s+/g, ' ').trim();
    return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line;
}

/**
 * Sends a message of the user and has it answered.
 * @param {string} text
 * @param {import('../lib/types.js').Attachment[]} attachments
 * @param {string | null} [parent] behind which message; the end of the shown path if it is not given
 */
export function sendMessage(text, attachments, parent = path.peek().at(-1)?.id ?? null) {
    /** @type {Message} */
    const message = { id: newId(), chat: chat.peek().id, parent, role: 'user', content: text, created: Date.now() };
    if (attachments.length > 0) message.attachments = attachments;
    addMessages([message], titleOf(text || attachments[0]?.name || ''));
    go('chat', chat.peek().id);
    return answer(message.id);
}

/** What a model takes beside text. @typedef {{ images: boolean, audio: boolean }} Takes */

/** @param {Message} message @param {Takes} takes */
function contentOf(message, takes) {
    const list = message.attachments ?? [];
    const texts = list.filter((item) => item.kind === 'text' || item.kind === 'pdf').map(attachmentText);
    const text = [...texts, message.content].filter(Boolean).join('\n\n');
    /** @type {any[]} */
    const media = [];
    for (const item of list) {
        if (item.kind === 'image' && takes.images) media.push({ type: 'image_url', image_url: { url: item.text } });
        if (item.kind === 'audio' && takes.audio) media.push(audioPart(item));
    }
    return media.length === 0 ? text : [...media, { type: 'text', text: text || ' ' }];
}

/**
 * The messages of a request.
 * @param {Chat} owner
 * @param {Message[]} list
 * @param {Takes} takes
 */
export function requestMessages(owner, list, takes) {
    /** @type {any[]} */
    const out = owner.system.trim() ? [{ role: 'system', content: owner.system }] : [];
    for (const message of list) {
        if (message.role === 'tool') {
            out.push({ role: 'tool', tool_call_id: message.callId, content: message.content });
        } else if (message.role === 'user') {
            out.push({ role: 'user', content: contentOf(message, takes) });
        } else if (message.content || message.calls?.length) {
            /** @type {any} */
            const made = { role: 'assistant', content: message.content };
            if (message.calls?.length)
                made.tool_calls = message.calls.map((item) => ({
                    id: item.id,
                    type: 'function',
                    function: { name: item.name, arguments: item.arguments },
                }));
            out.push(made);
        }
    }
    return out;
}

/** What a chat's settings add to a request. @param {Chat} owner */
function requestOptions(owner) {
    const { thinking, reasoning_effort, thinking_budget, stop: stops, ...numbers } = owner.params;
    /** @type {Record<string, any>} */
    const body = {};
    for (const [key, value] of Object.entries(numbers)) if (value !== undefined && value !== null) body[key] = value;
    if (stops?.length) body.stop = stops;
    if (thinking) body.enable_thinking = thinking === 'on';
    if (reasoning_effort && thinking !== 'off') body.reasoning_effort = reasoning_effort;
    if (thinking_budget !== undefined && thinking !== 'off') body.thinking_budget = thinking_budget;
    if (owner.schema.trim()) {
        const schema = JSON.parse(owner.schema);
        body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } };
    }
    const tools = toolsOf(owner);
    if (tools.length > 0) body.tools = tools;
    return body;
}

/**
 * Answers a message.
 * @param {string | null} parent
 * @param {string} [modelId] another than the chat's
 */
export async function answer(parent, modelId) {
    const owner = chat.peek();
    /** @type {Message} */
    const message = {
        id: newId(),
        chat: owner.id,
        parent,
        role: 'assistant',
        content: '',
        created: Date.now(),
        model: modelId ?? chatModel.peek(),
        state: 'streaming',
    };
    addMessages([message]);
    await write(message, []);
}

/** Nothing is written any more. @param {Writer} writer */
function close(writer) {
    running.delete(writer.message.id);
    followed.delete(writer.message.id);
    writer.close();
    writing.delete(writer.message.chat);
}

/** Shows and stores what has been written. @param {Writer} writer */
async function finish(writer) {
    close(writer);
    const stored = updateMessage(writer.message);
    announce(writer.message);
    await stored;
    await catchUp(writer.message.chat);
}

/** Goes on with an answer that was cut. @param {Message} message */
export async function goOn(message) {
    const next = { ...message, state: /** @type {const} */ ('streaming'), error: undefined };
    updateMessage(next);
    await write(next, next.content || next.reasoning ? [next] : []);
}

/** The messages before one. @param {Message} message */
function before(message) {
    const list = [];
    const all = messages.peek();
    for (let id = message.parent; id; id = all.get(id)?.parent ?? null) {
        const found = all.get(id);
        if (!found) break;
        list.unshift(found);
    }
    return list;
}

/**
 * @param {Message} message what is written; its content so far stays
 * @param {Message[]} begun it, if it goes on from its content
 */
async function write(message, begun) {
    const owner = chats.peek().find((item) => item.id === message.chat) ?? chat.peek();
    const controller = new AbortController();
    running.set(message.id, controller);
    writing.add(owner.id);
    const writer = new Writer(message);
    const free = hold(message.id);
    await ask(writer, owner, begun, controller.signal);
    await finish(writer);
    free();
    await runTools(writer.message);
}

/** @param {Writer} writer @param {Chat} owner @param {Message[]} begun @param {AbortSignal} signal */
async function ask(writer, owner, begun, signal) {
    const message = writer.message;
    try {
        const item = served.peek().find((one) => one.id === message.model);
        if (item && item.status !== 'loaded') setTimeout(watch, LOOK_MS); // the request has it loaded
        const history = requestMessages(owner, before(message), { images: takesImages(item), audio: takesAudio(item) });
        const body = {
            model: message.model,
            ...requestOptions(owner),
            stream: true,
            stream_options: { include_usage: true },
            return_progress: true,
        };
        const continues = begun.length > 0 && Boolean(message.content);
        if (continues) {
            history.push({ role: 'assistant', content: message.content });
            Object.assign(body, { continue_final_message: true });
        } else {
            message.content = '';
            message.reasoning = '';
        }
        await receive(writer, { ...body, messages: history }, signal);
        writer.end();
    } catch (error) {
        writer.fail(error, signal.aborted);
    }
}

/** Says an answer to screen readers. @param {Message} message */
function announce(message) {
    if (message.state !== 'done' || message.calls?.length || chat.peek().id !== message.chat) return;
    announcement.value = `${t('answerReady')}: ${message.content.slice(0, 400)}`;
}

/** @param {Message} message */
async function runTools(message) {
    if (message.state !== 'done' || !message.calls?.length) return;
    const { runCalls } = await import('./calls.js');
    await runCalls(message);
}

/**
 * Takes the events in. Where the server keeps streams, a lost connection is made again and goes on behind the last event.
 * @param {Writer} writer
 * @param {any} body
 * @param {AbortSignal} signal
 */
async function receive(writer, body, signal) {
    let stream = '';
    let last = '';
    try {
        const events = callStream('/v1/chat/completions', {
            body,
            signal,
            headers: { 'x-stream-keep': String(KEEP_S) },
            onOpen: (headers) => {
                stream = headers.get('x-stream-id') ?? '';
                if (!stream) return;
                writer.message = { ...writer.message, stream, streamFrom: writer.message.content.length };
                updateMessage(writer.message, true);
            },
        });
        for await (const event of events) {
            last = event.eventId ?? last;
            writer.take(event);
        }
        return;
    } catch (error) {
        if (!stream || !(error instanceof ApiError) || error.code !== 'stream_cut' || signal.aborted) throw error;
    }
    await resume(writer, stream, last, signal);
}

/** Some time, or until the network or the page is back. @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
function pause(ms, signal) {
    return new Promise((done) => {
        const end = () => {
            clearTimeout(timer);
            removeEventListener('online', end);
            document.removeEventListener('visibilitychange', end);
            signal.removeEventListener('abort', end);
            done();
        };
        const timer = setTimeout(end, ms);
        addEventListener('online', end);
        document.addEventListener('visibilitychange', end);
        signal.addEventListener('abort', end);
    });
}

/**
 * @param {Writer} writer
 * @param {string} stream
 * @param {string} last number of the last event that came
 * @param {AbortSignal} signal
 */
async function resume(writer, stream, last, signal) {
    let heard = Date.now();
    for (let tries = 0; ; tries++) {
        try {
            const query = last ? `?after=${encodeURIComponent(last)}` : '';
            for await (const event of callStream(`/v1/streams/${encodeURIComponent(stream)}${query}`, { signal })) {
                last = event.eventId ?? last;
                tries = 0;
                heard = Date.now();
                writer.take(event);
            }
            return;
        } catch (error) {
            // 503: the server has been started anew and loads its models.
            const cut =
                error instanceof ApiError &&
                (error.code === 'stream_cut' || error.code === 'unreachable' || error.status === 503);
            if (!cut || signal.aborted || Date.now() - heard > KEEP_S * 1000) throw error;
            writer.reconnecting();
            if (tries === 0) watch(); // the page shows what the server's state is
            await pause(Math.min(CONNECT_WAIT_MS, 500 * 2 ** tries), signal);
        }
    }
}

/** Answers that were being written when the page was closed, or that another tab writes. @param {Message} message */
export async function pickUp(message) {
    if (running.has(message.id)) return;
    const controller = new AbortController();
    running.set(message.id, controller);
    writing.add(message.chat);
    const writer = new Writer(message);
    followed.set(message.id, writer);
    let mine = false;
    try {
        const work = async () => {
            followed.delete(message.id);
            const now = (await db.getMessage(message.id).catch(() => undefined)) ?? writer.message;
            mine = now.state === 'streaming'; // the tab that wrote it is closed
            if (!mine) return;
            await takeOver(writer, now, controller.signal);
            await finish(writer);
        };
        await alone(turnOf(message.id), work, controller.signal);
    } catch {
        tell({ stop: message.id }); // the user has stopped it here
    }
    if (mine) return runTools(writer.message);
    close(writer);
    await reread(message.chat);
}

/** @param {Writer} writer @param {Message} message as it is stored @param {AbortSignal} signal */
async function takeOver(writer, message, signal) {
    if (!message.stream) {
        writer.message = { ...message, state: 'lost' };
        return;
    }
    writer.again(message);
    try {
        await resume(writer, message.stream, '', signal);
        writer.end();
    } catch (error) {
        // The server has nothing of it any more: what was stored stays.
        const gone = error instanceof ApiError && error.status === 404 && !writer.message.content;
        if (gone) writer.message = { ...message, state: 'lost', stream: undefined, streamFrom: undefined };
        else writer.fail(error, signal.aborted);
    }
}

/** Has the server stop a stream that this page no longer hears. @param {string} id */
export const cancelStream = (id) => call(`/v1/streams/${encodeURIComponent(id)}`, { method: 'DELETE' }).catch(() => {});

/** Collects what comes of one answer, shows it once per frame and stores it once per second. */
class Writer {
    /** @param {Message} message */
    constructor(message) {
        this.message = message;
        this.started = performance.now();
        this.firstMs = 0;
        this.thinkingFrom = 0;
        this.counted = 0;
        this.saved = this.started;
        this.frame = 0;
        this.timer = 0;
        this.finish = '';
        this.late = false; // this page has not heard its beginning
        /** @type {Live} */
        this.state = {
            content: message.content,
            reasoning: message.reasoning ?? '',
            calls: [],
            phase: 'queued',
            read: 0,
            toRead: 0,
            perSecond: 0,
        };
        this.view = signal({ ...this.state });
        live.value = new Map(live.peek()).set(message.id, this.view);
    }

    /** What another tab has written. @param {Message} message */
    follow(message) {
        this.message = message;
        const { content, reasoning = '', calls = [] } = message;
        Object.assign(this.state, { content, reasoning, calls, phase: content || !reasoning ? 'writing' : 'thinking' });
        this.#show(false);
    }

    /** The server sends it again: from where the stream began. @param {Message} message as it is stored */
    again(message) {
        const content = message.content.slice(0, message.streamFrom ?? 0);
        const reasoning = content ? message.reasoning : '';
        this.message = { ...message, content, reasoning, calls: undefined };
        this.late = true;
        Object.assign(this.state, { content, reasoning: reasoning ?? '', calls: [] });
    }

    /** @param {any} event a chunk of a chat completion */
    take(event) {
        const progress = event.prompt_progress;
        if (progress) {
            this.state.phase = 'reading';
            this.state.read = progress.processed ?? 0;
            this.state.toRead = progress.total ?? 0;
        }
        const choice = event.choices?.[0];
        const delta = choice?.delta ?? {};
        if (delta.reasoning_content) {
            if (!this.thinkingFrom) this.thinkingFrom = performance.now();
            this.#first();
            this.state.phase = 'thinking';
            this.state.reasoning += delta.reasoning_content;
        }
        if (delta.content) {
            this.#first();
            this.#endThinking();
            this.state.phase = 'writing';
            this.state.content += delta.content;
        }
        for (const piece of delta.tool_calls ?? []) {
            this.#first();
            this.#endThinking();
            this.state.phase = 'writing';
            this.#takeCall(piece);
        }
        if (choice?.finish_reason) this.finish = choice.finish_reason;
        if (event.usage) this.#takeUsage(event);
        this.#show();
    }

    /** @param {any} piece */
    #takeCall(piece) {
        const calls = this.state.calls;
        const at = piece.index ?? calls.length;
        while (calls.length <= at) calls.push({ id: '', name: '', arguments: '' });
        const entry = { ...calls[at] };
        entry.id ||= piece.id ?? '';
        entry.name += piece.function?.name ?? '';
        entry.arguments += piece.function?.arguments ?? '';
        this.state.calls = calls.map((item, i) => (i === at ? entry : item));
    }

    #first() {
        this.counted++;
        if (!this.firstMs) this.firstMs = performance.now() - this.started;
        else this.state.perSecond = (1000 * this.counted) / (performance.now() - this.started - this.firstMs + 1);
    }

    #endThinking() {
        if (!this.thinkingFrom || this.message.reasoningMs) return;
        this.message = { ...this.message, reasoningMs: performance.now() - this.thinkingFrom };
    }

    /** @param {any} event */
    #takeUsage(event) {
        const usage = event.usage;
        const timings = event.timings ?? {};
        const served = (timings.queued_ms ?? 0) + (timings.prompt_ms ?? 0);
        this.message = {
            ...this.message,
            stats: {
                firstMs: this.late ? served : this.firstMs,
                promptTokens: usage.prompt_tokens ?? 0,
                cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
                tokens: usage.completion_tokens ?? 0,
                perSecond: timings.predicted_per_second ?? this.state.perSecond,
                promptPerSecond: timings.prompt_per_second ?? 0,
                totalMs: this.late ? served + (timings.predicted_ms ?? 0) : performance.now() - this.started,
            },
        };
    }

    reconnecting() {
        this.state.phase = 'reconnecting';
        this.#show();
    }

    #show(saves = true) {
        if (this.frame || this.timer) return;
        // Frames do not come to a page that is hidden.
        if (document.hidden) this.timer = window.setTimeout(() => this.#draw(saves), HIDDEN_MS);
        else this.frame = requestAnimationFrame(() => this.#draw(saves));
    }

    /** @param {boolean} saves */
    #draw(saves) {
        cancelAnimationFrame(this.frame);
        clearTimeout(this.timer);
        this.frame = this.timer = 0;
        this.view.value = { ...this.state };
        const now = performance.now();
        if (!saves || now - this.saved < SAVE_MS) return;
        this.saved = now;
        this.#copy();
        updateMessage(this.message, true);
    }

    #copy() {
        const { content, reasoning, calls } = this.state;
        this.message = { ...this.message, content };
        if (reasoning) this.message.reasoning = reasoning;
        if (calls.length > 0) this.message.calls = calls;
    }

    end() {
        this.#endThinking();
        this.#copy();
        this.message.state = this.finish === 'length' ? 'length' : 'done';
        delete this.message.error;
        delete this.message.stream;
        delete this.message.streamFrom;
    }

    /** @param {unknown} error @param {boolean} stopped */
    fail(error, stopped) {
        this.#endThinking();
        this.#copy();
        delete this.message.calls; // a call that was cut cannot be run
        if (stopped) {
            if (this.message.stream) cancelStream(this.message.stream);
            this.message.state = 'stopped';
        } else if (error instanceof ApiError && error.code === 'stream_not_found') {
            this.message.state = 'lost'; // the server has been started anew, or it took too long
        } else {
            this.message.state = 'error';
            const known = error instanceof ApiError;
            const code = known ? error.code || String(error.status) : 'app';
            this.message.error = { message: error instanceof Error ? error.message : String(error), code };
        }
        delete this.message.stream;
        delete this.message.streamFrom;
    }

    close() {
        cancelAnimationFrame(this.frame);
        clearTimeout(this.timer);
        const rest = new Map(live.peek());
        rest.delete(this.message.id);
        live.value = rest;
    }
}

/** Answers in the shown chat that nothing in this page writes. */
export function pickUpLost() {
    for (const message of messages.peek().values()) {
        if (message.state === 'streaming' && !running.has(message.id)) pickUp(message);
    }
}
