/* The first script: index.html has a frame of the page, which is painted before the app's code is compiled. It has no
   imports, and sends the first requests, whose answers are there when that code runs. */

let key = '';
try {
    const theme = JSON.parse(localStorage.getItem('apus.theme') ?? '""');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
    if (localStorage.getItem('apus.sidebar') === 'false') document.querySelector('.sidebar')?.remove();
    key = sessionStorage.getItem('apus.key') ?? localStorage.getItem('apus.key') ?? '';
} catch {
    // The system's theme then, and no key.
}

/** @type {Map<string, Promise<Response>>} by path */
const answers = new Map();
// A pairing in the address brings the key that the requests need.
for (const path of location.hash.startsWith('#/pair/') ? [] : ['/health', '/v1/models']) {
    const headers = { Accept: 'application/json', ...(key && { Authorization: `Bearer ${key}` }) };
    const answer = fetch(path, { headers, cache: 'no-store' });
    answer.catch(() => {}); // the app sees the failure
    answers.set(path, answer);
}

const start = async () => (await import('./main.js')).start(answers, key);
// A page that is hidden gets no frames.
if (document.hidden) start();
else requestAnimationFrame(() => setTimeout(start));
