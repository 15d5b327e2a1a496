/* The script in index.html, whose frame of the page has its own styles. When that frame has been painted, this asks for all
   styles and the app's code, and sends the first requests, whose answers are there when that code runs. No imports. */

/** @param {Storage} storage @param {string} name @returns {string} */
const read = (storage, name) => storage.getItem(`apus.${name}`) ?? '';

let key = '';
try {
    const theme = read(localStorage, 'theme').replaceAll('"', '');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
    if (read(localStorage, 'sidebar') === 'false') document.querySelector('.sidebar')?.remove();
    key = read(sessionStorage, 'key') || read(localStorage, 'key');
} catch {
    // The system's theme then, and no key.
}

/** @template {'link' | 'meta'} Name @param {Name} name @param {Record<string, string>} attributes */
function add(name, attributes) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    document.head.append(element);
    return element;
}

/** What the browser's own frame and the page's installation need of the head. */
function describe() {
    add('link', { rel: 'apple-touch-icon', href: '/assets/icon-192.png' });
    add('link', { rel: 'manifest', href: '/assets/app.webmanifest' });
    add('meta', { name: 'apple-mobile-web-app-capable', content: 'yes' });
    add('meta', { name: 'theme-color', content: '#f5f4f1', media: '(prefers-color-scheme: light)' });
    add('meta', { name: 'theme-color', content: '#121314', media: '(prefers-color-scheme: dark)' });
}

async function boot() {
    const { scripts = '', style: styles = '' } = document.body.dataset;
    for (const href of scripts.split(' ')) add('link', { rel: 'preload', as: 'script', crossorigin: '', href });
    const style = add('link', { rel: 'stylesheet', href: styles });
    const styled = new Promise((done) => (style.onload = style.onerror = done));
    /** @type {Map<string, Promise<Response>>} by path */
    const answers = new Map();
    // A pairing in the address brings the key that the requests need.
    for (const path of location.hash.startsWith('#/pair/') ? [] : ['/health', '/v1/models']) {
        const headers = { Accept: 'application/json', ...(key && { Authorization: `Bearer ${key}` }) };
        const answer = fetch(path, { headers, cache: 'no-store' });
        answer.catch(() => {}); // the app sees the failure
        answers.set(path, answer);
    }
    const { start } = await import('./main.js');
    await start(answers, key, styled);
    describe();
}

// A page that is hidden gets no frames.
if (document.hidden) boot();
else requestAnimationFrame(() => setTimeout(boot));
