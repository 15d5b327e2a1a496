/* The first script: index.html has a frame of the page, which is painted before the app's code is compiled. */

try {
    const theme = JSON.parse(localStorage.getItem('apus.theme') ?? '""');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
    if (localStorage.getItem('apus.sidebar') === 'false') document.querySelector('.sidebar')?.remove();
} catch {
    // The system's theme then.
}

const start = () => import('./main.js');
// A page that is hidden gets no frames.
if (document.hidden) start();
else requestAnimationFrame(() => setTimeout(start));
