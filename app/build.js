// Builds app/dist: hashed assets, each compressed with gzip, and assets.inc, the list that src/server/web.c embeds.
//   node build.js            writes dist/
//   node build.js --check    fails if dist/ is not what the sources make, or if it is over its budgets
//   node build.js --sizes    prints the size of every asset
import { build } from 'esbuild';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, extname, join } from 'node:path';
import { brotliCompressSync, gunzipSync, gzipSync } from 'node:zlib';
import { frameStyle } from './frame_style.js';

const here = import.meta.dirname;
const dist = join(here, 'dist');
const FIRST_LOAD_MAX = 150_000; // bytes of brotli that the first page needs
const ALL_MAX = 1_000_000; // bytes of gzip, everything

const types = {
    '.html': 'text/html; charset=utf-8',
    '.js': 'text/javascript; charset=utf-8',
    '.css': 'text/css; charset=utf-8',
    '.svg': 'image/svg+xml',
    '.png': 'image/png',
    '.json': 'application/json',
    '.webmanifest': 'application/manifest+json',
};

/** @typedef {{ path: string, bytes: Buffer, immutable: boolean, first: boolean, soon?: boolean }} Asset */

/** @param {Buffer} bytes */
const hashOf = (bytes) => createHash('sha256').update(bytes).digest('hex').slice(0, 16);

/**
 * What is loaded later imports main.js, so that all code that both have is in main's file: otherwise each set of files
 * that shares something gets a file of its own, a request of the first load.
 * @type {import('esbuild').Plugin}
 */
const sharedWithMain = {
    name: 'shared-with-main',
    setup(build) {
        const main = join(here, 'src/main.js');
        /** @type {Set<string>} */
        const laterFiles = new Set();
        for (const name of readdirSync(join(here, 'src'), { recursive: true })) {
            const file = join(here, 'src', String(name));
            if (!file.endsWith('.js')) continue;
            for (const [, path] of readFileSync(file, 'utf8').matchAll(/await import\('(\.[^']+)'\)/g))
                laterFiles.add(join(dirname(file), path));
        }
        laterFiles.delete(main);
        build.onLoad({ filter: /src\/(lib|state|views)\/.*\.js$/ }, ({ path }) => {
            if (!laterFiles.has(path)) return undefined;
            return { contents: `${readFileSync(path, 'utf8')}\nimport ${JSON.stringify(main)};\n`, loader: 'js' };
        });
    },
};

/** @returns {Promise<Asset[]>} every file of the app, by its path on the server */
async function makeAssets() {
    const result = await build({
        absWorkingDir: here,
        entryPoints: [
            { in: 'src/boot.js', out: 'app' },
            { in: 'src/styles/app.css', out: 'app' },
            { in: 'pdfjs-dist/build/pdf.worker.mjs', out: 'pdf-worker' },
            { in: 'src/lib/languages.js', out: 'highlight-worker' },
        ],
        bundle: true,
        splitting: true,
        format: 'esm',
        target: ['es2022', 'chrome111', 'safari16.4', 'firefox115'],
        minify: true,
        legalComments: 'none',
        charset: 'utf8',
        outdir: 'out',
        entryNames: '[name]-[hash]',
        chunkNames: '[name]-[hash]',
        metafile: true,
        write: false,
        logLevel: 'warning',
        external: ['node:*', 'fs', 'http', 'https', 'url', 'canvas', 'module'],
        plugins: [sharedWithMain],
    });
    /** @type {Asset[]} */
    const assets = [];
    const outputs = result.metafile.outputs;
    /** @type {Set<string>} names that the page loads at once */
    const first = new Set();
    /** @param {string} name */
    const need = (name) => {
        if (first.has(name)) return;
        first.add(name);
        for (const item of outputs[name].imports) if (item.kind === 'import-statement') need(item.path);
    };
    let script = '';
    let style = '';
    let worker = '';
    let highlighter = '';
    /** @type {Set<string>} names that the app loads when it is idle */
    const soon = new Set();
    /** @param {string} name */
    const needSoon = (name) => {
        if (first.has(name) || soon.has(name)) return;
        soon.add(name);
        for (const item of outputs[name].imports) if (item.kind === 'import-statement') needSoon(item.path);
    };
    for (const [name, output] of Object.entries(outputs)) {
        if (output.entryPoint === 'src/boot.js') {
            script = basename(name);
            need(name);
            for (const item of output.imports) need(item.path); // the app
        }
        if (output.entryPoint === 'src/styles/app.css') {
            style = basename(name);
            first.add(name);
        }
        if (/^src\/(views|state)\//.test(output.entryPoint ?? '')) needSoon(name);
        if (output.entryPoint?.endsWith('pdf.worker.mjs')) worker = basename(name);
        if (output.entryPoint === 'src/lib/languages.js') highlighter = basename(name);
    }
    for (const file of result.outputFiles) {
        const name = basename(file.path);
        if (name === script) continue; // it is in index.html
        assets.push({
            path: `/assets/${name}`,
            bytes: Buffer.from(file.contents),
            immutable: true,
            first: first.has(`out/${name}`),
            soon: soon.has(`out/${name}`),
        });
    }
    for (const name of readdirSync(join(here, 'src/static')).sort()) {
        if (name === 'sw.js' || name === 'index.html') continue;
        const bytes = readFileSync(join(here, 'src/static', name));
        assets.push({ path: `/assets/${name}`, bytes, immutable: false, first: name === 'icon.svg' });
    }
    const logo = /LOGO =\s*'([^']+)'/.exec(readFileSync(join(here, 'src/views/icons.js'), 'utf8'))?.[1] ?? '';
    const chunks = [...first].map((name) => basename(name)).filter((name) => name.endsWith('.js') && name !== script);
    const frame = readFileSync(join(here, 'src/static/index.html'), 'utf8');
    const textOf = (/** @type {string} */ name) =>
        Buffer.from(result.outputFiles.find((file) => basename(file.path) === name)?.contents ?? []).toString();
    inline.style = frameStyle(textOf(style), frame);
    inline.script = textOf(script).trim().replaceAll('import("./', 'import("/assets/');
    const page = frame
        .replace(/<style>\s*FRAME_STYLE\s*<\/style>/, () => `<style>${inline.style}</style>`)
        .replace(/(<script type="module">)\s*BOOT\s*(<\/script>)/, (_, begin, end) => begin + inline.script + end)
        .replace('SCRIPTS', chunks.map((name) => `/assets/${name}`).join(' '))
        .replaceAll('STYLE', `/assets/${style}`)
        .replace('PDF_WORKER', `/assets/${worker}`)
        .replace('HIGHLIGHT_WORKER', `/assets/${highlighter}`)
        .replace('LOGO', logo);
    assets.push({ path: '/', bytes: Buffer.from(page), immutable: false, first: true });
    const cached = assets
        .filter((asset) => (asset.first || asset.soon) && asset.path !== '/')
        .map((asset) => asset.path);
    const version = hashOf(Buffer.concat(assets.map((asset) => asset.bytes)));
    const worker_script = readFileSync(join(here, 'src/static/sw.js'), 'utf8')
        .replace('VERSION', version)
        .replace("'FILES'", JSON.stringify(['/', ...cached]));
    assets.push({ path: '/sw.js', bytes: Buffer.from(worker_script), immutable: false, first: false });
    return assets.sort((a, b) => (a.path < b.path ? -1 : 1));
}

/** @param {Asset} asset */
const fileOf = (asset) => (asset.path === '/' ? 'index.html' : basename(asset.path)) + '.gz';

/** What index.html has itself. */
const inline = { style: '', script: '' };
/** How the policy names it. @param {string} text */
const sourceOf = (text) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

/** @param {Asset[]} assets */
function listOf(assets) {
    const lines = assets.map((asset, i) => {
        const type = types[/** @type {keyof typeof types} */ (extname(fileOf(asset).replace(/\.gz$/, '')))];
        return `ASSET(${i}, "${asset.path}", "${fileOf(asset)}", "${type}", "${hashOf(asset.bytes)}", ${asset.immutable})`;
    });
    return `/* Made by app/build.js: number, path, file, type, hash of the content, whether the path names that hash; for the
 * policy, the scripts and styles that the page may have. */
${lines.join('\n')}
SOURCES("script-src 'self' ${sourceOf(inline.script)}; style-src 'self' ${sourceOf(inline.style)}")
`;
}

/** @param {Asset[]} assets */
function check(assets) {
    const wrong = [];
    const wanted = new Set(['assets.inc', ...assets.map(fileOf)]);
    for (const name of existsSync(dist) ? readdirSync(dist) : [])
        if (!wanted.has(name)) wrong.push(`dist/${name} is not made by the sources`);
    for (const asset of assets) {
        const path = join(dist, fileOf(asset));
        // The content is compared: compressors of other versions may write other bytes of the same content.
        if (!existsSync(path)) wrong.push(`dist/${fileOf(asset)} is missing`);
        else if (!gunzipSync(readFileSync(path)).equals(asset.bytes)) wrong.push(`dist/${fileOf(asset)} is outdated`);
    }
    const list = join(dist, 'assets.inc');
    if (!existsSync(list) || readFileSync(list, 'utf8') !== listOf(assets)) wrong.push('dist/assets.inc is outdated');
    return wrong;
}

/** @param {Asset[]} assets */
function sizesOf(assets) {
    const first = assets.filter((asset) => asset.first);
    return {
        first: first.reduce((sum, asset) => sum + brotliCompressSync(asset.bytes).length, 0),
        all: assets.reduce((sum, asset) => sum + gzipSync(asset.bytes, { level: 9 }).length, 0),
    };
}

const assets = await makeAssets();
const sizes = sizesOf(assets);
const over = [];
if (sizes.first > FIRST_LOAD_MAX) over.push(`first load: ${sizes.first} bytes of brotli, budget ${FIRST_LOAD_MAX}`);
if (sizes.all > ALL_MAX) over.push(`all assets: ${sizes.all} bytes of gzip, budget ${ALL_MAX}`);

if (process.argv.includes('--check')) {
    over.push(...check(assets));
    if (over.some((line) => line.includes('dist'))) over.push('run `npm --prefix app run build` and commit app/dist');
} else {
    mkdirSync(dist, { recursive: true });
    const wanted = new Set(assets.map(fileOf));
    for (const name of readdirSync(dist)) if (!wanted.has(name)) rmSync(join(dist, name));
    for (const asset of assets) {
        const path = join(dist, fileOf(asset));
        if (existsSync(path) && gunzipSync(readFileSync(path)).equals(asset.bytes)) continue;
        writeFileSync(path, gzipSync(asset.bytes, { level: 9 }));
    }
    writeFileSync(join(dist, 'assets.inc'), listOf(assets));
}
if (process.argv.includes('--sizes'))
    for (const asset of assets)
        console.log(`${gzipSync(asset.bytes).length.toString().padStart(8)} ${asset.first ? '*' : ' '} ${asset.path}`);
for (const line of over) console.error(line);
console.log(`app: ${assets.length} assets; first load ${sizes.first} bytes (brotli), all ${sizes.all} bytes (gzip)`);
process.exitCode = over.length > 0 ? 1 : 0;
