import { signal } from '@preact/signals';
import { newId } from '../lib/tree.js';
import { addMessages, changeChat, chat, chats, path } from './chats.js';
import { answer } from './generate.js';
import { connections, ownerOf } from './tools.js';

/* Calls of tools that an answer asks for. None is run before the user has allowed it. */

/** @typedef {{ message: string, call: import('../lib/types.js').ToolCall, server: string | undefined, done: (verdict: Verdict) => void }} Waiting */
/** @typedef {{ kind: 'run' | 'deny' } | { kind: 'result', text: string }} Verdict */

/** @type {import('@preact/signals').Signal<Waiting[]>} */
export const waiting = signal([]);
/** Calls that run now. @type {import('@preact/signals').Signal<Set<string>>} */
export const active = signal(new Set());

/** @param {import('../lib/types.js').Message} message @param {import('../lib/types.js').ToolCall} call @returns {Promise<Verdict>} */
function approve(message, call) {
    const owner = chats.peek().find((item) => item.id === message.chat) ?? chat.peek();
    const server = ownerOf(owner, call.name);
    if (server && owner.allowed.includes(call.name)) return Promise.resolve({ kind: 'run' });
    return new Promise((resolve) => {
        /** @param {Verdict} verdict */
        const done = (verdict) => {
            waiting.value = waiting.peek().filter((item) => item.call !== call);
            resolve(verdict);
        };
        waiting.value = [...waiting.peek(), { message: message.id, call, server, done }];
    });
}

/** @param {string} tool */
export function allowAlways(tool) {
    changeChat({ allowed: [...new Set([...chat.peek().allowed, tool])] });
}

/** @param {import('../lib/types.js').ToolCall} call @param {string | undefined} server @returns {Promise<{ text: string, failed: boolean }>} */
async function run(call, server) {
    const client = server && connections.peek()[server]?.client;
    if (!client) return { text: 'The tool is not connected.', failed: true };
    active.value = new Set(active.peek()).add(call.id);
    try {
        return await client.run(call.name, JSON.parse(call.arguments || '{}'));
    } catch (error) {
        return { text: error instanceof Error ? error.message : String(error), failed: true };
    } finally {
        const rest = new Set(active.peek());
        rest.delete(call.id);
        active.value = rest;
    }
}

/** Asks for each call, runs what is allowed, and has the model go on with the results. @param {import('../lib/types.js').Message} message */
export async function runCalls(message) {
    let parent = message.id;
    for (const call of message.calls ?? []) {
        const verdict = await approve(message, call);
        if (chat.peek().id !== message.chat) return; // the user has left; the calls are asked for again when it is opened
        const owner = chat.peek();
        const result =
            verdict.kind === 'run'
                ? await run(call, ownerOf(owner, call.name))
                : verdict.kind === 'result'
                  ? { text: verdict.text, failed: false }
                  : { text: 'The user has not allowed this call.', failed: true };
        /** @type {import('../lib/types.js').Message} */
        const made = {
            id: newId(),
            chat: message.chat,
            parent,
            role: 'tool',
            content: result.text,
            created: Date.now(),
            callId: call.id,
            callName: call.name,
            failed: result.failed,
        };
        if (chat.peek().id !== message.chat) return;
        addMessages([made]);
        parent = made.id;
    }
    if (path.peek().at(-1)?.id === parent) await answer(parent);
}

/** Calls at the end of the shown path that have no result yet: of another run of the page. */
export function askAgain() {
    const last = path.peek().at(-1);
    if (last?.role !== 'assistant' || last.state !== 'done' || !last.calls?.length) return;
    if (waiting.peek().some((item) => item.message === last.id)) return;
    runCalls(last);
}
