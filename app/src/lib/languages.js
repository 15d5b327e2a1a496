import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import c from 'highlight.js/lib/languages/c';
import cpp from 'highlight.js/lib/languages/cpp';
import csharp from 'highlight.js/lib/languages/csharp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import ini from 'highlight.js/lib/languages/ini';
import java from 'highlight.js/lib/languages/java';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import kotlin from 'highlight.js/lib/languages/kotlin';
import markdown from 'highlight.js/lib/languages/markdown';
import php from 'highlight.js/lib/languages/php';
import python from 'highlight.js/lib/languages/python';
import ruby from 'highlight.js/lib/languages/ruby';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import swift from 'highlight.js/lib/languages/swift';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';

const languages = {
    bash, c, cpp, csharp, css, diff, go, ini, java, javascript, json, kotlin, markdown, php, python, ruby, rust, sql,
    swift, typescript, xml, yaml,
}; // prettier-ignore

/* A worker that colours code. A grammar is compiled when its first code comes, which takes a slow phone long: here it
   holds up no answer that is being written. */

/** @type {any} */
const worker = self;

worker.addEventListener('message', (/** @type {any} */ event) => {
    const { id, text, language } = event.data;
    const grammar = languages[/** @type {keyof typeof languages} */ (language)];
    let tree = null;
    if (grammar) {
        if (!hljs.getLanguage(language)) hljs.registerLanguage(language, grammar);
        const made = /** @type {any} */ (hljs.highlight(text, { language, ignoreIllegals: true }));
        tree = plain(made._emitter.rootNode);
    }
    worker.postMessage({ id, tree });
});

/** What can be sent of a tree of scopes. @param {any} node @returns {any} */
function plain(node) {
    const children = node.children.map((/** @type {any} */ child) =>
        typeof child === 'string' ? child : plain(child),
    );
    return { scope: node.scope ? String(node.scope).split('.')[0] : '', children };
}
