import { signal } from '@preact/signals';
import { McpClient } from '../lib/mcp.js';
import { mcpServers, t } from './settings.js';

/* Tools: those of MCP servers, and functions that the user describes and answers. */

/** @typedef {{ state: 'connecting' | 'ready' | 'failed', title: string, tools: import('../lib/mcp.js').McpTool[], error: string, client: McpClient | null }} Connection */

/** By the name of the server. @type {import('@preact/signals').Signal<Record<string, Connection>>} */
export const connections = signal({});

/** Origins that the page's policy has refused. @type {Set<string>} */
const refused = new Set();
document.addEventListener('securitypolicyviolation', (event) => {
    if (event.effectiveDirective !== 'connect-src') return;
    const origin = originOf(event.blockedURI);
    refused.add(origin);
    // The event comes behind the failure of the request.
    for (const { name, url } of mcpServers.peek()) {
        const one = connections.peek()[name];
        if (one?.state === 'failed' && originOf(url) === origin)
            connections.value = { ...connections.peek(), [name]: { ...one, error: t('mcpBlocked', { origin }) } };
    }
});

/** @param {string} url */
const originOf = (url) => {
    try {
        return new URL(url).origin;
    } catch {
        return url;
    }
};

/** @param {string} name */
export async function connect(name) {
    const server = mcpServers.peek().find((item) => item.name === name);
    if (!server || connections.peek()[name]?.state === 'connecting') return;
    /** @param {Partial<Connection>} change */
    const set = (change) => {
        const start = { state: /** @type {const} */ ('connecting'), title: name, tools: [], error: '', client: null };
        connections.value = { ...connections.peek(), [name]: { ...start, ...change } };
    };
    set({});
    const client = new McpClient(server);
    try {
        const tools = await client.connect();
        set({ state: 'ready', title: client.title, tools, client });
    } catch (error) {
        let text = error instanceof Error ? error.message : String(error);
        const origin = originOf(server.url);
        if (text === 'unreachable') text = refused.has(origin) ? t('mcpBlocked', { origin }) : t('mcpUnreachable');
        set({ state: 'failed', error: text });
    }
}

/** Tools that a chat has described by hand. @param {string} text @returns {any[]} */
export function parseTools(text) {
    if (!text.trim()) return [];
    const value = JSON.parse(text);
    const list = Array.isArray(value) ? value : [value];
    return list.map((item) => {
        const made = item.function ? item : { type: 'function', function: item };
        if (typeof made.function?.name !== 'string') throw new Error(t('toolNeedsName'));
        return made;
    });
}

/** @param {import('../lib/types.js').Chat} chat @returns {any[]} the tools of a request */
export function toolsOf(chat) {
    const out = parseTools(chat.tools);
    for (const name of chat.servers)
        for (const tool of connections.peek()[name]?.tools ?? [])
            out.push({
                type: 'function',
                function: {
                    name: tool.name,
                    description: tool.description ?? '',
                    parameters: tool.inputSchema ?? { type: 'object' },
                },
            });
    return out;
}

/** The server that has a tool. @param {import('../lib/types.js').Chat} chat @param {string} tool */
export function ownerOf(chat, tool) {
    return chat.servers.find((name) => connections.peek()[name]?.tools.some((item) => item.name === tool));
}

/** Connects to the servers of a chat that are not yet. @param {import('../lib/types.js').Chat} chat */
export function connectAll(chat) {
    for (const name of chat.servers) if (!connections.peek()[name]) connect(name);
}
