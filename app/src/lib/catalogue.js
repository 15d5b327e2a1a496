/* Models to begin with, and whether they fit a machine. Bytes are those of the download. */

/**
 * @typedef {object} CatalogueModel
 * @property {string} id on the hub
 * @property {string} name
 * @property {string} size parameters
 * @property {number} bytes
 * @property {boolean} [mixture] experts may be streamed from the SSD
 * @property {'everyday' | 'small' | 'code' | 'large'} use
 */

/** @type {CatalogueModel[]} */
export const catalogue = [
    { id: 'mlx-community/Qwen3-0.6B-4bit', name: 'Qwen3 0.6B', size: '0.6B', bytes: 0.35e9, use: 'small' },
    { id: 'mlx-community/gemma-3-1b-it-4bit', name: 'Gemma 3 1B', size: '1B', bytes: 0.73e9, use: 'small' },
    { id: 'mlx-community/Llama-3.2-1B-Instruct-4bit', name: 'Llama 3.2 1B', size: '1B', bytes: 0.71e9, use: 'small' },
    { id: 'mlx-community/Qwen3-1.7B-4bit', name: 'Qwen3 1.7B', size: '1.7B', bytes: 0.98e9, use: 'small' },
    { id: 'mlx-community/Llama-3.2-3B-Instruct-4bit', name: 'Llama 3.2 3B', size: '3B', bytes: 1.8e9, use: 'everyday' },
    { id: 'mlx-community/SmolLM3-3B-4bit', name: 'SmolLM3 3B', size: '3B', bytes: 1.75e9, use: 'everyday' },
    { id: 'mlx-community/Qwen3-4B-4bit', name: 'Qwen3 4B', size: '4B', bytes: 2.3e9, use: 'everyday' },
    { id: 'mlx-community/Mistral-7B-Instruct-v0.3-4bit', name: 'Mistral 7B', size: '7B', bytes: 4.1e9, use: 'everyday' },
    { id: 'mlx-community/Qwen2.5-Coder-7B-Instruct-4bit', name: 'Qwen2.5 Coder 7B', size: '7B', bytes: 4.3e9, use: 'code' },
    { id: 'mlx-community/Qwen3-8B-4bit', name: 'Qwen3 8B', size: '8B', bytes: 4.6e9, use: 'everyday' },
    { id: 'mlx-community/Qwen3-14B-4bit', name: 'Qwen3 14B', size: '14B', bytes: 8.3e9, use: 'large' },
    { id: 'mlx-community/gpt-oss-20b-MXFP4-Q4', name: 'gpt-oss 20B', size: '21B-A3.6B', bytes: 11.8e9, mixture: true, use: 'large' },
    { id: 'mlx-community/Qwen3-30B-A3B-4bit', name: 'Qwen3 30B-A3B', size: '30B-A3B', bytes: 17.2e9, mixture: true, use: 'large' },
    { id: 'mlx-community/Qwen3-32B-4bit', name: 'Qwen3 32B', size: '32B', bytes: 18.4e9, use: 'large' },
]; // prettier-ignore

const OVERHEAD = 1.1; // what a model takes beside its weights
const CACHE_BYTES = 0.5e9; // of a chat

/** @typedef {'fits' | 'tight' | 'streams' | 'too_large' | ''} Fit */

/**
 * Whether a model of so many bytes fits a memory.
 * @param {number} bytes
 * @param {number} memory 0: unknown
 * @param {boolean} mixture
 * @returns {Fit}
 */
export function fitOf(bytes, memory, mixture = false) {
    if (!memory || !bytes) return '';
    const part = (bytes * OVERHEAD + CACHE_BYTES) / memory;
    if (part <= 0.75) return 'fits';
    if (part <= 0.9) return 'tight';
    return mixture && part <= 3 ? 'streams' : 'too_large';
}

/** The largest model for every day that leaves a machine room. @param {number} memory @returns {string} its id */
export function recommended(memory) {
    const room = catalogue.filter((item) => item.use !== 'code' && item.bytes * OVERHEAD + CACHE_BYTES <= memory / 3);
    return (room.filter((item) => item.bytes <= 5e9).at(-1) ?? catalogue[0]).id;
}
