import { Lexer, Marked } from 'marked';

/* Markdown that grows at its end. Blocks before the last one are final: they are lexed and rendered once, whatever
   comes behind them. */

const PLAIN_FROM = 24_000; // characters of an unfinished block from which it is shown as plain text
const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n]*)\n/;

/** @param {string} text */
export function escapeHtml(text) {
    return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

/** @param {string} href @returns {string} the host of a link, or the link */
function hostOf(href) {
    try {
        return new URL(href).host;
    } catch {
        return href;
    }
}

const mathBlock = {
    name: 'mathBlock',
    level: /** @type {const} */ ('block'),
    /** @param {string} src */
    start: (src) => src.match(/(^|\n) {0,3}(\$\$|\\\[)/)?.index,
    /** @param {string} src */
    tokenizer(src) {
        const found = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/.exec(src);
        return found ? { type: 'mathBlock', raw: found[0], text: (found[1] ?? found[2]).trim() } : undefined;
    },
    /** @param {{ text: string }} token */
    renderer: (token) => `<div class="math-block" data-tex="1">${escapeHtml(token.text)}</div>\n`,
};

const mathInline = {
    name: 'mathInline',
    level: /** @type {const} */ ('inline'),
    /** @param {string} src */
    start: (src) => src.match(/\$|\\\(|\\\[/)?.index,
    /** @param {string} src */
    tokenizer(src) {
        const found =
            /^\$\$([^$]+?)\$\$/.exec(src) ??
            /^\$(?![\s$])((?:\\.|[^\\$\n])+?)(?<!\s)\$(?![\d\p{L}])/u.exec(src) ??
            /^\\\(([\s\S]+?)\\\)/.exec(src) ??
            /^\\\[([\s\S]+?)\\\]/.exec(src);
        return found ? { type: 'mathInline', raw: found[0], text: found[1].trim() } : undefined;
    },
    /** @param {{ text: string }} token */
    renderer: (token) => `<span class="math">${escapeHtml(token.text)}</span>`,
};

const markdown = new Marked({
    gfm: true,
    breaks: false,
    extensions: /** @type {any} */ ([mathBlock, mathInline]),
    renderer: {
        code({ text, lang }) {
            const name = (lang ?? '').trim().split(/\s+/)[0].slice(0, 32);
            return `<div class="code-block"><pre><code data-lang="${escapeHtml(name)}">${escapeHtml(text)}</code></pre></div>\n`;
        },
        image({ href, text }) {
            if (/^data:image\//i.test(href)) return `<img src="${escapeHtml(href)}" alt="${escapeHtml(text)}" />`;
            // An image of another site would tell that site who reads the answer: it is a link.
            const label = escapeHtml(text || hostOf(href));
            return `<a class="remote-image" href="${escapeHtml(href)}">${label} (${escapeHtml(hostOf(href))})</a>`;
        },
        table(token) {
            /** @param {any[]} cells */
            const row = (cells) => `<tr>${cells.map((cell) => this.tablecell(cell)).join('')}</tr>\n`;
            const body = token.rows.map(row).join('');
            return `<div class="table-wrap"><table><thead>${row(token.header)}</thead><tbody>${body}</tbody></table></div>\n`;
        },
    },
});
const options = markdown.defaults;

/**
 * @typedef {object} Block
 * @property {'html' | 'code' | 'plain'} kind code: a fence that is still open; plain: too long for markup
 * @property {string} raw
 * @property {string} html of an html block, not sanitized
 * @property {string} lang of a code block
 * @property {boolean} final nothing can change it any more
 */

/** @param {string} raw @param {any[]} tokens @param {boolean} final @returns {Block} */
function htmlBlock(raw, tokens, final) {
    return { kind: 'html', raw, html: markdown.parser(tokens, options), lang: '', final };
}

/** @param {string} raw @param {boolean} final @returns {Block} */
const plainBlock = (raw, final) => ({ kind: 'plain', raw, html: '', lang: '', final });

/** The end of the fence that a text begins with; -1: it is open. @param {string} text @param {RegExpExecArray} fence */
function fenceEnd(text, fence) {
    const mark = fence[1];
    const closing = new RegExp(`\\n {0,3}\\${mark[0]}{${mark.length},}[ \\t]*(?:\\n|$)`, 'g');
    closing.lastIndex = fence[0].length - 1;
    const found = closing.exec(text);
    return found ? found.index + found[0].length : -1;
}

export class MarkdownStream {
    constructor() {
        /** @type {Block[]} */
        this.blocks = [];
        this.text = '';
        this.from = 0; // of what is not in final blocks
        /** @type {Record<string, any>} definitions of links so far */
        this.links = {};
    }

    /**
     * @param {string} text all of it so far
     * @param {boolean} ended nothing comes behind it
     * @returns {Block[]}
     */
    update(text, ended) {
        if (!text.startsWith(this.text)) {
            this.blocks = [];
            this.from = 0;
            this.links = {};
        }
        this.text = text;
        while (this.blocks.length > 0 && !this.blocks[this.blocks.length - 1].final) this.blocks.pop();
        this.#read(ended);
        return this.blocks;
    }

    /** @param {boolean} ended */
    #read(ended) {
        for (;;) {
            const rest = this.text.slice(this.from);
            if (!rest) return;
            const fence = FENCE.exec(rest);
            if (fence && fence[1][0] === '`' && fence[2].includes('`')) {
                this.#lex(rest, ended);
                return;
            }
            if (!fence) {
                this.#lex(rest, ended);
                return;
            }
            // A fence is not lexed while it is open: its text may be long.
            const end = fenceEnd(rest, fence);
            const lang = fence[2].trim().split(/\s+/)[0] ?? '';
            if (end < 0) {
                const open = rest.slice(fence[0].length);
                if (ended && open.length < PLAIN_FROM) this.#lex(rest, true);
                else this.blocks.push({ kind: 'code', raw: open, html: '', lang, final: ended });
                return;
            }
            const raw = rest.slice(0, end);
            if (raw.length > PLAIN_FROM * 4) {
                const inner = raw.slice(fence[0].length).replace(/\n[^\n]*\n?$/, '\n');
                this.blocks.push({ kind: 'code', raw: inner, html: '', lang, final: true });
            } else {
                this.blocks.push(htmlBlock(raw, this.#tokens(raw), true));
            }
            this.from += end;
        }
    }

    /** @param {string} text */
    #tokens(text) {
        const lexer = new Lexer(options);
        Object.assign(lexer.tokens.links, this.links);
        const tokens = lexer.lex(text);
        Object.assign(this.links, lexer.tokens.links);
        return tokens;
    }

    /** @param {string} rest @param {boolean} ended */
    #lex(rest, ended) {
        const fenceAt = rest.search(/\n {0,3}(`{3,}|~{3,})[^\n]*\n/);
        const head = fenceAt > 0 ? rest.slice(0, fenceAt + 1) : rest;
        if (head.length > PLAIN_FROM && !/\n\s*\n/.test(head)) {
            const cut = PLAIN_FROM / 2;
            this.blocks.push(plainBlock(head.slice(0, cut), true));
            this.from += cut;
            this.#read(ended);
            return;
        }
        const tokens = this.#tokens(rest);
        let last = tokens.length - 1;
        while (last > 0 && tokens[last].type === 'space') last--;
        for (let i = 0; i < last; i++) {
            if (tokens[i].type !== 'space') this.blocks.push(htmlBlock(tokens[i].raw, [tokens[i]], true));
            this.from += tokens[i].raw.length;
            // From the beginning of a fence on, the rest is read again: it may be an open one.
            if (FENCE.test(this.text.slice(this.from, this.from + 200)) && i + 1 <= last) {
                this.#read(ended);
                return;
            }
        }
        const raw = tokens.slice(last).reduce((sum, token) => sum + token.raw, '');
        if (raw.trim()) this.blocks.push(htmlBlock(raw, [tokens[last]], ended));
        if (ended) this.from += raw.length;
    }
}

/** All of a text at once, for tests. @param {string} text @returns {string} not sanitized */
export function renderMarkdown(text) {
    return new MarkdownStream()
        .update(text, true)
        .map((block) => (block.kind === 'html' ? block.html : `<pre>${escapeHtml(block.raw)}</pre>`))
        .join('');
}
