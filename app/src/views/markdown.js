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

/** An answer. @param {{ text: string, ended: boolean }} props */
export function Markdown({ text, ended }) {
    const stream = useRef(/** @type {MarkdownStream | null} */ (null));
    stream.current ??= new MarkdownStream();
    const blocks = stream.current.update(text, ended);
    return html`<div class="markdown">
        ${blocks.map((block, i) => html`<${BlockView} key=${i} block=${block} />`)}
    </div>`;
}
