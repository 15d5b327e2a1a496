/* The styles that index.html needs before app.css is there: the rules that its elements match, and the variables of these. */

const STATES = /:(?:hover|focus|active|disabled|has|checked)|::|:focus-visible/;

/** The blocks of a minified style sheet: what stands before the braces, and what is in them. @param {string} css @returns {[string, string][]} */
function blocksOf(css) {
    /** @type {[string, string][]} */
    const blocks = [];
    let depth = 0;
    let begin = 0;
    let open = 0;
    for (let i = 0; i < css.length; i++) {
        if (css[i] === '{' && depth++ === 0) open = i;
        if (css[i] !== '}' || --depth > 0) continue;
        blocks.push([css.slice(begin, open), css.slice(open + 1, i)]);
        begin = i + 1;
    }
    return blocks;
}

/** @param {string} selector @param {Set<string>} known names of classes (with a dot) and of elements in the page */
function matches(selector, known) {
    if (STATES.test(selector)) return false;
    const plain = selector.replace(/:root|:not\([^)]*\)|\[[^\]]*\]|[>+~*]/g, ' ');
    return (plain.match(/\.?[\w-]+/g) ?? []).every((name) => known.has(name));
}

/** @param {string} css @param {Set<string>} known @returns {string} */
function kept(css, known) {
    let out = '';
    for (const [head, body] of blocksOf(css)) {
        if (/^@media(?! print)/.test(head)) {
            const inside = kept(body, known);
            if (inside) out += `${head}{${inside}}`;
        } else if (!head.startsWith('@')) {
            const selectors = head.split(/,(?![^(]*\))/).filter((selector) => matches(selector, known));
            if (selectors.length > 0) out += `${selectors.join()}{${body}}`;
        }
    }
    return out;
}

/** @param {string} css minified @param {string} page HTML with the frame @returns {string} */
export function frameStyle(css, page) {
    const known = new Set(['html', 'body']);
    const body = page.slice(page.indexOf('<div id="app">'), page.lastIndexOf('<noscript'));
    for (const [, name] of body.matchAll(/<(\w+)/g)) known.add(name);
    for (const [, names] of body.matchAll(/ class="([^"]+)"/g))
        for (const name of names.split(' ')) known.add(`.${name}`);
    const rules = kept(css, known);
    // Variables that no kept rule has are left out, and so are those of values that are left out.
    const uses = (/** @type {string} */ text) => [...text.matchAll(/var\((--[\w-]+)/g)].map(([, name]) => name);
    const used = new Set(uses(rules.replace(/--[\w-]+:[^;}]*/g, '')));
    for (const name of used)
        for (const [, value] of rules.matchAll(new RegExp(`${name}:([^;}]*)`, 'g')))
            uses(value).forEach((one) => used.add(one));
    return rules
        .replace(/(--[\w-]+):[^;}]*;?/g, (whole, name) => (used.has(name) ? whole : ''))
        .replace(/[^{}]+\{\}/g, '');
}
