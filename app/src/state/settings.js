import { computed, effect, signal } from '@preact/signals';
import { credentials } from '../lib/api.js';
import { strings } from '../strings.js';

/* What belongs to this browser: small values in localStorage, so that the first frame has them. */

/**
 * @template T
 * @param {string} name
 * @param {T} start
 * @param {(value: any) => boolean} [fits] what is stored may be of another version
 * @returns {import('@preact/signals').Signal<T>}
 */
export function stored(name, start, fits = (value) => typeof value === typeof start) {
    let value = start;
    try {
        const text = localStorage.getItem(`apus.${name}`);
        const parsed = text === null ? start : JSON.parse(text);
        if (fits(parsed)) value = parsed;
    } catch {
        // The start value then.
    }
    const made = signal(value);
    let read = true;
    made.subscribe((now) => {
        if (read) return void (read = false); // it is as it was stored
        try {
            if (JSON.stringify(now) === JSON.stringify(start)) localStorage.removeItem(`apus.${name}`);
            else localStorage.setItem(`apus.${name}`, JSON.stringify(now));
        } catch {
            // Kept until the page is closed.
        }
    });
    return made;
}

/** @param {string[]} values */
const oneOf = (values) => (/** @type {any} */ value) => values.includes(value);
const isList = Array.isArray;
const isObject = (/** @type {any} */ value) => typeof value === 'object' && value !== null && !isList(value);

export const theme = stored('theme', 'system', oneOf(['system', 'light', 'dark']));
export const textSize = stored('textSize', 'medium', oneOf(['small', 'medium', 'large']));
export const language = stored('language', 'auto', oneOf(['auto', 'en', 'zh']));
export const enterSends = stored('enterSends', !matchMedia('(pointer: coarse)').matches);
export const showStats = stored('showStats', true);
export const openReasoning = stored('openReasoning', false);
export const wrapCode = stored('wrapCode', false);
export const model = stored('model', '');
export const sidebarOpen = stored('sidebar', true);
/** @type {import('@preact/signals').Signal<import('../lib/types.js').Params>} */
export const defaultParams = stored('params', {}, isObject);
export const defaultSystem = stored('system', '');
/** @type {import('@preact/signals').Signal<import('../lib/types.js').Preset[]>} */
export const presets = stored('presets', [], isList);
/** @type {import('@preact/signals').Signal<import('../lib/types.js').McpServer[]>} */
export const mcpServers = stored('mcp', [], isList);
/** Options of `apus serve` as the Settings page has them. @type {import('@preact/signals').Signal<Record<string, string>>} */
export const serverOptions = stored('server', {}, isObject);
export const rememberKey = stored('rememberKey', false);

/** @returns {string} */
function storedKey() {
    try {
        return sessionStorage.getItem('apus.key') ?? localStorage.getItem('apus.key') ?? '';
    } catch {
        return '';
    }
}
export const apiKey = signal(storedKey());
effect(() => {
    credentials.key = apiKey.value;
    const remember = rememberKey.value;
    try {
        for (const store of [localStorage, sessionStorage]) {
            const keeps = apiKey.value && (store === sessionStorage || remember);
            if (keeps) store.setItem('apus.key', apiKey.value);
            else store.removeItem('apus.key');
        }
    } catch {
        // It lives as long as the page.
    }
});

/** @type {import('@preact/signals').ReadonlySignal<'en' | 'zh'>} */
export const lang = computed(() => {
    if (language.value !== 'auto') return /** @type {'en' | 'zh'} */ (language.value);
    return navigator.language.toLowerCase().startsWith('zh') ? 'zh' : 'en';
});

/**
 * A text of the app in the user's language; {name} stands for a value.
 * @param {keyof typeof strings.en} key
 * @param {Record<string, string | number>} [values]
 * @returns {string}
 */
export function t(key, values) {
    const forms = (strings[lang.value][key] ?? strings.en[key] ?? key).split('||');
    const text = forms[forms.length > 1 && Number(values?.n) !== 1 ? 1 : 0];
    return values ? text.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole)) : text;
}

effect(() => {
    const root = document.documentElement;
    if (theme.value === 'system') delete root.dataset.theme;
    else root.dataset.theme = theme.value;
    root.dataset.text = textSize.value;
    root.lang = lang.value === 'zh' ? 'zh-Hans' : 'en';
    root.toggleAttribute('data-wrap', wrapCode.value);
});
