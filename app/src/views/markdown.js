import { memo } from './memo.js';
import { useLayoutEffect, useMemo, useRef } from 'preact/hooks';
import { highlightCode } from '../lib/highlight.js';
import { MarkdownStream } from '../lib/markdown.js';
import { renderMaths } from '../lib/maths.js';
import { sanitize } from '../lib/sanitize.js';
import { t } from '../state/settings.js';
import { copyText, notify } from '../state/ui.js';
import { html } from './html.js';

const LINES_PER_PIECE = 200;
const BLOCKS_PER_GROUP = 12;

/** The bar above code: its language and what can be done with it. @param {HTMLElement} block */
function addCodeBar(block) {
    const code = block.querySelector('code');
    if (!code || block.querySelector('.code-bar')) return;
    const bar = document.createElement('div');
    bar.className = 'code-bar';
    const lang = document.createElement('span');
    lang.textContent = code.dataset.lang || t('codePlain');
    const copy = document.createElement('button');
    copy.type = 'button';
    copy.className = 'code-copy';
    copy.textContent = t('copy');
    copy.addEventListener('click', async () => {
        if (!(await copyText(code.textContent ?? ''))) return notify(t('copyFailed'), 'error');
        copy.textContent = t('copied');
        setTimeout(() => (copy.textContent = t('copy')), 1500);
    });
    bar.append(lang, copy);
    block.prepend(bar);
    const pre = block.querySelector('pre');
    pre?.setAttribute('tabindex', '0');
    pre?.setAttribute('role', 'region');
    pre?.setAttribute('aria-label', t('codeOf', { lang: code.dataset.lang || t('codePlain') }));
}

/** @param {HTMLElement} element @param {boolean} final nothing changes it any more */
function decorate(element, final) {
    for (const block of element.querySelectorAll('.code-block')) {
        addCodeBar(/** @type {HTMLElement} */ (block));
        const code = block.querySelector('code');
        if (final && code) highlightCode(code);
    }
    for (const box of element.querySelectorAll('input'))
        box.setAttribute('aria-label', box.checked ? t('taskDone') : t('taskOpen'));
    for (const wrap of element.querySelectorAll('.table-wrap')) {
        wrap.setAttribute('tabindex', '0');
        wrap.setAttribute('role', 'region');
        wrap.setAttribute('aria-label', t('table'));
    }
    const maths = element.querySelectorAll('.math, .math-block');
    if (maths.length > 0) renderMaths(/** @type {any} */ ([...maths]));
}

/** @param {{ markup: string, final: boolean }} props */
function HtmlBlock({ markup, final }) {
    const ref = useRef(/** @type {HTMLElement | null} */ (null));
    const clean = useMemo(() => sanitize(markup), [markup]);
    useLayoutEffect(() => {
        if (ref.current) decorate(ref.current, final);
    }, [markup, final]);
    return html`<div class="block" dir="auto" ref=${ref} dangerouslySetInnerHTML=${{ __html: clean }}></div>`;
}

/** Code that is still written, or very long: lines in pieces, of which only the last one changes. @param {{ text: string, lang: string }} props */
function OpenCode({ text, lang }) {
    const lines = text.split('\n');
    const pieces = [];
    for (let i = 0; i < lines.length; i += LINES_PER_PIECE) {
        const end = i + LINES_PER_PIECE;
        pieces.push(lines.slice(i, end).join('\n') + (end < lines.length ? '\n' : ''));
    }
    return html`<div class="block">
        <div class="code-block">
            <div class="code-bar">
                <span>${lang || t('codePlain')}</span>
                <button type="button" class="code-copy" onClick=${() => copyText(text)}>${t('copy')}</button>
            </div>
            <pre tabindex="0" role="region" aria-label=${t('codeOf', { lang: lang || t('codePlain') })}><code>
                ${pieces.map((piece, i) => html`<${Piece} key=${i} text=${piece} />`)}
            </code></pre>
        </div>
    </div>`;
}

const Piece = memo((/** @type {{ text: string }} */ { text }) => html`<span class="piece">${text}</span>`);

const BlockView = memo((/** @type {{ block: import('../lib/markdown.js').Block }} */ { block }) => {
    if (block.kind === 'code') return html`<${OpenCode} text=${block.raw} lang=${block.lang} />`;
    if (block.kind === 'plain') return html`<div class="block plain" dir="auto">${block.raw}</div>`;
    return html`<${HtmlBlock} markup=${block.html} final=${block.final} />`;
}, (a, b) => a.block === b.block || (a.block.raw === b.block.raw && a.block.final === b.block.final && a.block.kind === b.block.kind)); // prettier-ignore

/** @typedef {import('../lib/markdown.js').Block[]} Blocks */

/** Neighbouring blocks, looked at again only when one of them has changed. */
const BlockGroup = memo((/** @type {{ blocks: Blocks, settled: boolean }} */ { blocks, settled }) => html`<div class="blocks ${settled ? 'settled' : ''}">
        ${blocks.map((block, i) => html`<${BlockView} key=${i} block=${block} />`)}
    </div>`, (a, b) => a.settled === b.settled && a.blocks.length === b.blocks.length && a.blocks.every((block, i) => block === b.blocks[i])); // prettier-ignore

/** @param {Blocks} blocks @param {boolean} grows */
function groupsOf(blocks, grows) {
    const groups = [];
    for (let i = 0; i < blocks.length; i += BLOCKS_PER_GROUP) {
        const group = blocks.slice(i, i + BLOCKS_PER_GROUP);
        groups.push({ blocks: group, settled: grows && i + BLOCKS_PER_GROUP < blocks.length });
    }
    return groups;
}

const whenIdle = window.requestIdleCallback ?? ((/** @type {() => void} */ work) => setTimeout(work, 200));
let prepared = false;

/** Has the browser compile what draws an answer, so that its first words need not wait for that. */
export function prepareMarkdown() {
    if (prepared) return;
    prepared = true;
    whenIdle(() => {
        const blocks = new MarkdownStream().update('A **word** of `code`.\n\n- item\n\n| a |\n|--|\n| b |\n', false);
        whenIdle(() => blocks.forEach((block) => sanitize(block.html)));
    });
}

/** An answer. @param {{ text: string, ended: boolean }} props */
export function Markdown({ text, ended }) {
    const stream = useRef(/** @type {MarkdownStream | null} */ (null));
    // What was seen growing keeps its groups: their sizes are known, and its end draws nothing anew.
    const grows = useRef(!ended);
    stream.current ??= new MarkdownStream();
    const groups = groupsOf(stream.current.update(text, ended), grows.current);
    return html`<div class="markdown">
        ${groups.map((group, i) => html`<${BlockGroup} key=${i} ...${group} />`)}
    </div>`;
}
