import assert from 'node:assert/strict';
import test from 'node:test';
import { MarkdownStream, renderMarkdown } from '../../src/lib/markdown.js';

const SAMPLE = `# Title

A paragraph with *stress*, \`code\` and a [link](https://example.org).

- one
- two

  with a paragraph
- three

| a | b |
|---|--:|
| 1 | 2 |

\`\`\`python
def f(x):

    return x  # two blocks of lines
\`\`\`

Inline $x^2$ and \\(y\\), then

$$
E = mc^2
$$

1. first
2. second

> quoted
> twice

~~~
tildes
~~~
The end, with a price of $5 and $6.
`;

test('a text in pieces gives what the whole text gives', () => {
    const whole = renderMarkdown(SAMPLE);
    for (const step of [1, 3, 7, 40]) {
        const stream = new MarkdownStream();
        for (let i = step; i < SAMPLE.length; i += step) stream.update(SAMPLE.slice(0, i), false);
        const pieces = stream.update(SAMPLE, true).map((block) => block.html);
        assert.equal(pieces.join(''), whole, `pieces of ${step}`);
    }
});

test('finished blocks are never made again', () => {
    const stream = new MarkdownStream();
    /** @type {Map<number, object>} */
    const seen = new Map();
    for (let i = 1; i <= SAMPLE.length; i++) {
        stream.update(SAMPLE.slice(0, i), i === SAMPLE.length).forEach((block, at) => {
            if (!block.final) return;
            if (seen.has(at)) assert.equal(seen.get(at), block);
            seen.set(at, block);
        });
    }
    assert.ok(seen.size > 8);
});

test('an open fence is code, whatever it holds', () => {
    const stream = new MarkdownStream();
    const [block] = stream.update('```html\n<script>alert(1)</script>\n\n# no heading\n', false);
    assert.equal(block.kind, 'code');
    assert.equal(block.lang, 'html');
    assert.match(block.raw, /# no heading/);
});

test('a fence of a megabyte costs no more than its size', () => {
    const stream = new MarkdownStream();
    const text = '```\n' + 'line of code\n'.repeat(80_000);
    const start = performance.now();
    for (let i = 0; i < 50; i++) stream.update(text.slice(0, (text.length * (i + 1)) / 50), false);
    stream.update(text + '```\n', true);
    assert.ok(performance.now() - start < 2000, `${performance.now() - start} ms`);
});

test('a paragraph without an end is shown as plain text in pieces', () => {
    const stream = new MarkdownStream();
    const blocks = stream.update('word '.repeat(40_000), false);
    assert.ok(blocks.length > 5 && blocks.slice(0, -2).every((block) => block.kind === 'plain' && block.final));
});

test('formulas and prices', () => {
    const html = renderMarkdown('It costs $5 and $6. But $a+b$ and \\(c\\) and $$d$$.');
    assert.equal(html.match(/class="math"/g)?.length, 3);
    assert.match(html, /\$5 and \$6/);
    assert.match(renderMarkdown('\\[\nx = 1\n\\]'), /math-block/);
});

test('images of other sites are links', () => {
    const html = renderMarkdown('![x](https://evil.example/a.png) ![y](data:image/png;base64,AAAA)');
    assert.match(html, /<a class="remote-image" href="https:\/\/evil\.example\/a\.png">x \(evil\.example\)<\/a>/);
    assert.match(html, /<img src="data:image\/png;base64,AAAA"/);
    assert.equal(html.match(/<img/g)?.length, 1);
});

test('text that is no longer a continuation begins anew', () => {
    const stream = new MarkdownStream();
    stream.update('# One\n\ntext\n\nmore', false);
    const blocks = stream.update('# Two', true);
    assert.equal(blocks.length, 1);
    assert.match(blocks[0].html, /Two/);
});
