/* The data of the app. */

/**
 * @typedef {object} Attachment
 * @property {'text' | 'image' | 'pdf' | 'audio'} kind
 * @property {string} name
 * @property {number} bytes
 * @property {string} text of a text or a pdf; of an image or a sound its data URL
 * @property {number} [pages] of a pdf
 */

/**
 * @typedef {object} ToolCall
 * @property {string} id
 * @property {string} name
 * @property {string} arguments JSON
 */

/**
 * @typedef {object} Stats
 * @property {number} firstMs until the first token
 * @property {number} promptTokens
 * @property {number} cachedTokens
 * @property {number} tokens
 * @property {number} perSecond
 * @property {number} promptPerSecond
 * @property {number} totalMs
 */

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string} chat
 * @property {string | null} parent
 * @property {'user' | 'assistant' | 'tool'} role
 * @property {string} content
 * @property {number} created
 * @property {string} [reasoning]
 * @property {number} [reasoningMs]
 * @property {Attachment[]} [attachments]
 * @property {ToolCall[]} [calls]
 * @property {string} [callId] of a tool's result
 * @property {string} [callName]
 * @property {boolean} [failed] of a tool's result
 * @property {string} [model]
 * @property {Stats} [stats]
 * @property {'done' | 'streaming' | 'stopped' | 'length' | 'error' | 'lost'} [state]
 * @property {{ message: string, code: string }} [error]
 * @property {string} [stream] id of the stream on the server while it runs
 * @property {number} [streamFrom] characters of the content that were there before that stream
 */

/**
 * @typedef {object} Params what is sent with a request; absent: the server's
 * @property {number} [temperature]
 * @property {number} [top_p]
 * @property {number} [top_k]
 * @property {number} [min_p]
 * @property {number} [repetition_penalty]
 * @property {number} [frequency_penalty]
 * @property {number} [presence_penalty]
 * @property {number} [seed]
 * @property {number} [max_tokens]
 * @property {string[]} [stop]
 * @property {string} [kv_cache]
 * @property {boolean} [cache_prompt]
 * @property {'on' | 'off'} [thinking]
 * @property {string} [reasoning_effort]
 * @property {number} [thinking_budget]
 */

/**
 * @typedef {object} Chat
 * @property {string} id
 * @property {string} title
 * @property {number} created
 * @property {number} updated
 * @property {string} model
 * @property {string} system
 * @property {Params} params
 * @property {string} schema of the answers; empty: none
 * @property {string} tools JSON list of functions; empty: none
 * @property {string[]} servers names of the MCP servers whose tools it uses
 * @property {string[]} allowed tools that need no more approval here
 * @property {Record<string, string>} choice the child that is shown, by parent ('' is the beginning)
 * @property {boolean} [pinned]
 */

/** @typedef {{ id: string, name: string, system: string, params: Params }} Preset */
/** @typedef {{ name: string, url: string, key: string }} McpServer */

export {};
