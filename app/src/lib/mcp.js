import { readEvents } from './sse.js';

/* A client of the Model Context Protocol over streamable HTTP (revision 2025-06-18): JSON-RPC by POST, answered by JSON
   or by a stream of events. The page's policy allows connections to servers that `apus serve --mcp URL` names. */

const PROTOCOL = '2025-06-18';
const RESULT_MAX = 200_000; // characters of a result that goes to the model
const PAGES_MAX = 20;

/** @typedef {{ name: string, description?: string, inputSchema?: any }} McpTool */

export class McpClient {
    /** @param {import('./types.js').McpServer} server */
    constructor(server) {
        this.server = server;
        this.session = '';
        this.protocol = PROTOCOL;
        this.next = 1;
        this.title = server.name;
    }

    /**
     * @param {string} method
     * @param {unknown} params
     * @param {AbortSignal} [signal]
     * @returns {Promise<any>}
     */
    async #request(method, params, signal) {
        const id = this.next++;
        const answer = await this.#post({ jsonrpc: '2.0', id, method, params }, signal);
        const session = answer.headers.get('mcp-session-id');
        if (session) this.session = session;
        if ((answer.headers.get('content-type') ?? '').startsWith('text/event-stream') && answer.body) {
            for await (const event of readEvents(answer.body)) {
                const message = JSON.parse(event.data);
                if (message.id === id) return this.#result(message);
            }
            throw new Error('The MCP server ended its answer early.');
        }
        return this.#result(await answer.json());
    }

    /** @param {any} message */
    #result(message) {
        if (message.error) throw new Error(String(message.error.message ?? 'The MCP server failed.'));
        return message.result;
    }

    /** @param {unknown} body @param {AbortSignal} [signal] */
    async #post(body, signal) {
        /** @type {Record<string, string>} */
        const headers = { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' };
        if (this.session) {
            headers['Mcp-Session-Id'] = this.session;
            headers['MCP-Protocol-Version'] = this.protocol;
        }
        if (this.server.key) headers.Authorization = `Bearer ${this.server.key}`;
        let answer;
        try {
            answer = await fetch(this.server.url, { method: 'POST', headers, body: JSON.stringify(body), signal });
        } catch (error) {
            if (signal?.aborted) throw error;
            throw new Error('unreachable', { cause: error });
        }
        if (!answer.ok) throw new Error(`The MCP server answered ${answer.status}.`);
        return answer;
    }

    /** @returns {Promise<McpTool[]>} */
    async connect() {
        this.session = '';
        const hello = await this.#request('initialize', {
            protocolVersion: PROTOCOL,
            capabilities: {},
            clientInfo: { name: 'apus', version: '0.1.0' },
        });
        this.protocol = hello.protocolVersion ?? PROTOCOL;
        this.title = hello.serverInfo?.name ?? this.server.name;
        await this.#post({ jsonrpc: '2.0', method: 'notifications/initialized' });
        /** @type {McpTool[]} */
        const tools = [];
        let cursor;
        for (let page = 0; page < PAGES_MAX; page++) {
            const result = await this.#request('tools/list', cursor ? { cursor } : {});
            tools.push(...(result.tools ?? []));
            cursor = result.nextCursor;
            if (!cursor) break;
        }
        return tools;
    }

    /**
     * @param {string} name
     * @param {unknown} args
     * @param {AbortSignal} [signal]
     * @returns {Promise<{ text: string, failed: boolean }>}
     */
    async run(name, args, signal) {
        const result = await this.#request('tools/call', { name, arguments: args }, signal);
        const parts = (result.content ?? []).map((/** @type {any} */ part) =>
            part.type === 'text'
                ? part.text
                : part.type === 'resource'
                  ? (part.resource?.text ?? '')
                  : `[${part.type}]`,
        );
        const text = parts.join('\n') || JSON.stringify(result.structuredContent ?? {});
        return { text: text.slice(0, RESULT_MAX), failed: Boolean(result.isError) };
    }
}
