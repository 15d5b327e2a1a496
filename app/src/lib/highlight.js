/* Colours of code, by a worker that is started when the first fence is complete. */

import { scriptUrl } from './trusted.js';

const TEXT_MAX = 60_000; // characters; longer code stays plain

const ALIASES = /** @type {Record<string, string>} */ ({
    sh: 'bash', shell: 'bash', zsh: 'bash', console: 'bash', py: 'python', js: 'javascript', jsx: 'javascript',
    mjs: 'javascript', ts: 'typescript', tsx: 'typescript', html: 'xml', svg: 'xml', vue: 'xml', h: 'c', 'c++': 'cpp',
    cc: 'cpp', hpp: 'cpp', cuda: 'cpp', rs: 'rust', golang: 'go', yml: 'yaml', md: 'markdown', kt: 'kotlin',
    cs: 'csharp', 'c#': 'csharp', rb: 'ruby', patch: 'diff', toml: 'ini', jsonc: 'json', jsonl: 'json',
}); // prettier-ignore

/** @type {Worker | null} */
let worker = null;
/** @type {Map<number, HTMLElement>} code that the worker has, by number */
const asked = new Map();
let count = 0;

function startWorker() {
    const url = document.body.dataset.highlightWorker ?? '';
    worker = new Worker(/** @type {string} */ (scriptUrl(url)), { type: 'module' });
    worker.addEventListener('message', ({ data }) => {
        const code = asked.get(data.id);
        asked.delete(data.id);
        if (code && data.tree) code.replaceChildren(toNodes(data.tree));
    });
    return worker;
}

/** @param {HTMLElement} code whose text is replaced by coloured text */
export function highlightCode(code) {
    const given = (code.dataset.lang ?? '').toLowerCase();
    const language = ALIASES[given] ?? given;
    const text = code.textContent ?? '';
    if (!language || text.length > TEXT_MAX || code.dataset.done) return;
    code.dataset.done = '1';
    asked.set(++count, code);
    (worker ?? startWorker()).postMessage({ id: count, text, language });
}

/** The tree of scopes as elements, without markup as text. @param {any} node @returns {DocumentFragment} */
function toNodes(node) {
    const out = document.createDocumentFragment();
    for (const child of node.children) {
        if (typeof child === 'string') {
            out.append(child);
            continue;
        }
        const span = document.createElement('span');
        if (child.scope) span.className = `hl-${child.scope}`;
        span.append(toNodes(child));
        out.append(span);
    }
    return out;
}
