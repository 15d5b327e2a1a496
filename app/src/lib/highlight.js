/* Colours of code, loaded when the first fence is complete. */

const TEXT_MAX = 60_000; // characters; longer code stays plain

const ALIASES = /** @type {Record<string, string>} */ ({
    sh: 'bash', shell: 'bash', zsh: 'bash', console: 'bash', py: 'python', js: 'javascript', jsx: 'javascript',
    mjs: 'javascript', ts: 'typescript', tsx: 'typescript', html: 'xml', svg: 'xml', vue: 'xml', h: 'c', 'c++': 'cpp',
    cc: 'cpp', hpp: 'cpp', cuda: 'cpp', rs: 'rust', golang: 'go', yml: 'yaml', md: 'markdown', kt: 'kotlin',
    cs: 'csharp', 'c#': 'csharp', rb: 'ruby', patch: 'diff', toml: 'ini', jsonc: 'json', jsonl: 'json',
}); // prettier-ignore

/** @type {Promise<import('highlight.js').HLJSApi> | null} */
let loading = null;

/** @param {HTMLElement} code whose text is replaced by coloured text */
export async function highlightCode(code) {
    const given = (code.dataset.lang ?? '').toLowerCase();
    const lang = ALIASES[given] ?? given;
    const text = code.textContent ?? '';
    if (!lang || text.length > TEXT_MAX || code.dataset.done) return;
    code.dataset.done = '1';
    loading ??= import('./languages.js').then((module) => module.loadLanguages());
    const hljs = await loading;
    if (!hljs.getLanguage(lang)) return;
    const emitter = hljs.highlight(text, { language: lang, ignoreIllegals: true });
    code.replaceChildren(toNodes(/** @type {any} */ (emitter._emitter).rootNode));
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
        if (child.scope) span.className = `hl-${String(child.scope).split('.')[0]}`;
        span.append(toNodes(child));
        out.append(span);
    }
    return out;
}
