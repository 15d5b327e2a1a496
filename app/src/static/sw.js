// Keeps the app's own files, so that it opens without the server. Answers of the API are never kept.
const CACHE = 'apus-VERSION';
const FILES = /** @type {string[]} */ (/** @type {unknown} */ ('FILES'));
const worker = /** @type {any} */ (self);

worker.addEventListener('install', (/** @type {any} */ event) => {
    event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES.map((path) => pageRequest(path)))));
});

worker.addEventListener('activate', (/** @type {any} */ event) => {
    const drop = (/** @type {string[]} */ names) =>
        Promise.all(
            names.filter((name) => name.startsWith('apus-') && name !== CACHE).map((name) => caches.delete(name)),
        );
    event.waitUntil(
        caches
            .keys()
            .then(drop)
            .then(() => worker.clients.claim()),
    );
});

/** The page itself is only given to clients that ask for HTML. @param {string} path */
function pageRequest(path) {
    return new Request(path, path === '/' ? { headers: { Accept: 'text/html' } } : {});
}

worker.addEventListener('fetch', (/** @type {any} */ event) => {
    const url = new URL(event.request.url);
    if (event.request.method !== 'GET' || url.origin !== location.origin) return;
    if (event.request.mode === 'navigate' && url.pathname === '/') event.respondWith(fromNetworkFirst(event.request));
    else if (url.pathname.startsWith('/assets/')) event.respondWith(fromCacheFirst(event.request));
});

/** @param {Request} request */
async function fromNetworkFirst(request) {
    try {
        return await fetch(request);
    } catch (error) {
        const kept = await caches.match('/', { ignoreVary: true });
        if (kept) return kept;
        throw error;
    }
}

/** @param {Request} request */
async function fromCacheFirst(request) {
    const kept = await caches.match(request, { ignoreVary: true });
    if (kept) return kept;
    const answer = await fetch(request);
    if (answer.ok) (await caches.open(CACHE)).put(request, answer.clone()).catch(() => {});
    return answer;
}
