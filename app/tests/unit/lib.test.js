import assert from 'node:assert/strict';
import test from 'node:test';
import { attachmentText } from '../../src/lib/attachments.js';
import { bytes, count, duration } from '../../src/lib/format.js';
import { optionRows, toCommand, toConfig } from '../../src/lib/serve_options.js';
import { readEvents } from '../../src/lib/sse.js';
import { below, childrenOf, newId, pathOf, root } from '../../src/lib/tree.js';
import { strings } from '../../src/strings.js';
import { frameStyle } from '../../frame_style.js';

/** @param {string} text @param {number} size of the pieces */
function streamOf(text, size) {
    const all = new TextEncoder().encode(text);
    let at = 0;
    return new ReadableStream({
        pull(controller) {
            if (at >= all.length) return controller.close();
            controller.enqueue(all.slice(at, at + size));
            at += size;
        },
    });
}

test('events in pieces of any size', async () => {
    const text =
        ': comment\n\nid: 1\ndata: {"a":"é"}\n\nevent: x\r\ndata: one\r\ndata:two\r\n\r\ndata: [DONE]\n\ndata: cut';
    for (const size of [1, 2, 5, 1000]) {
        const got = [];
        for await (const event of readEvents(streamOf(text, size))) got.push(event);
        assert.deepEqual(
            got.map((event) => [event.event, event.data, event.id]),
            [
                ['message', '{"a":"é"}', '1'],
                ['x', 'one\ntwo', '1'],
                ['message', '[DONE]', '1'],
            ],
        );
    }
});

/** @param {string} id @param {string | null} parent @param {number} created @returns {any} */
const message = (id, parent, created) => ({ id, parent, created, role: 'user', content: id });

test('branches of a chat', () => {
    const list = [message('a', null, 1), message('b', 'a', 2), message('c', 'a', 3), message('d', 'b', 4)];
    const children = childrenOf(list);
    const ids = (/** @type {Record<string, string>} */ choice) => pathOf(children, choice).map((item) => item.id);
    assert.deepEqual(ids({}), ['a', 'c']);
    assert.deepEqual(ids({ a: 'b' }), ['a', 'b', 'd']);
    assert.deepEqual(ids({ a: 'gone' }), ['a', 'c']);
    assert.deepEqual(below(children, 'b'), ['b', 'd']);
    // A file may hold a circle.
    const circle = [message('x', 'x', 1), message('z', 'y', 3), message('y', 'gone', 2)];
    assert.deepEqual(pathOf(childrenOf(circle), {}), []);
    assert.deepEqual(below(childrenOf(circle), 'x'), ['x']);
    root(circle);
    assert.deepEqual(
        circle.map((item) => item.parent),
        [null, 'y', null],
    );
});

test('ids are in order', () => {
    const ids = Array.from({ length: 100 }, newId);
    assert.deepEqual(ids, [...ids].sort());
    assert.equal(new Set(ids).size, 100);
});

test('numbers for people', () => {
    assert.deepEqual([0, 999, 1000, 1234567, 123456789, 5e12].map(bytes), [
        '0 B',
        '999 B',
        '1.0 kB',
        '1.2 MB',
        '123 MB',
        '5.0 TB',
    ]);
    assert.deepEqual([0.04, 9.9, 61, 3700, 1e9].map(duration), ['0.0 s', '9.9 s', '1 min 1 s', '1 h 1 min', '99 h+']);
    assert.deepEqual([7, 9999, 12345, 123456, 2.5e6].map(count), ['7', '9999', '12.3k', '123k', '2.5M']);
});

test('a file with fences stays in its fence', () => {
    const text = attachmentText({ kind: 'text', name: 'a.md', bytes: 3, text: 'x\n````\ny' });
    assert.match(text, /^File: a\.md\n`{5}md\n/);
});

test('the command line and the file say the same', () => {
    const values = { '--port': '80', '--allow-pull': 'on', '--api-key': "it's" };
    assert.equal(toCommand(values, ['m x']), "apus serve 'm x' --port 80 --allow-pull --api-key 'it'\\''s'");
    assert.equal(toConfig(values, ['m']), "model = m\nport = 80\nallow-pull = true\napi-key = it's");
});

test('every text is there in every language, with the same values', () => {
    const values = (/** @type {string} */ text) => (text.match(/\{\w+\}/g) ?? []).sort().join();
    assert.deepEqual(Object.keys(strings.zh).sort(), Object.keys(strings.en).sort());
    // Forms for one and for many have the same values, too.
    for (const [key, text] of Object.entries(strings.en))
        for (const form of text.split('||'))
            assert.equal(values(strings.zh[/** @type {keyof typeof strings.en} */ (key)]), values(form), key);
    for (const group of optionRows) {
        assert.ok(group.title in strings.en);
        for (const row of group.rows) assert.ok(row.label in strings.en, row.label);
    }
});

test('styles of the frame', () => {
    const css =
        ':root{--a: 1px;--b: var(--c);--c: 2px;--d: red}.in,.out{margin:var(--b)}.in:hover{color:red}.in .out{top:0}' +
        '@media(max-width:9px){.in>p{left:0}.out{left:1px}}@media print{.in{left:2px}}@keyframes x{from{top:0}}';
    const page = '<div id="app"><p class="in more"></p></div><noscript></noscript>';
    assert.equal(
        frameStyle(css, page),
        ':root{--b: var(--c);--c: 2px;}.in{margin:var(--b)}@media(max-width:9px){.in>p{left:0}}',
    );
});
