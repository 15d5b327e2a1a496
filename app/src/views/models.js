import { useEffect, useRef, useState } from 'preact/hooks';
import { bytes, count, duration, rate } from '../lib/format.js';
import {
    cancel,
    downloads,
    isActive,
    jobOf,
    pause,
    refreshJobs,
    resume,
    serveLocal,
    start,
} from '../state/downloads.js';
import { catalogue, fitOf, recommended } from '../lib/catalogue.js';
import { fits, wantFit } from '../state/fits.js';
import { change, changing, local, localError, modelName, refreshLocal, removeLocal, searchHub, unfinishedBytes } from '../state/library.js'; // prettier-ignore
import { health, link, served } from '../state/server.js';
import { lang, t } from '../state/settings.js';
import { ask, drawer, go } from '../state/ui.js';
import { setModel } from '../state/chats.js';
import { html } from './html.js';
import { Icon } from './icons.js';
import { Empty, IconButton, Ring, Section } from './parts.js';

/** @param {{ item: import('../state/server.js').ServedModel }} props */
function ServedCard({ item }) {
    const doing = changing.value[item.id];
    const status = doing === 'load' ? 'loading' : doing === 'unload' ? 'unloading' : item.status;
    const busy = /ing$/.test(status);
    const size = local.value?.find((one) => one.id === item.id || one.id.endsWith(`/${item.id}`))?.bytes;
    const details = [t(/** @type {any} */ (`status_${status}`)), t('contextOf', { n: count(item.context) })];
    if (size) details.push(bytes(size));
    return html`<li class="card model-card">
        <span class="dot ${status}"></span>
        <div class="card-text">
            <strong>${item.id}</strong>
            <small>${details.join(' · ')}</small>
            ${busy && html`<progress aria-label=${t(/** @type {any} */ (`status_${status}`))}></progress>`}
        </div>
        <div class="card-buttons">
            ${
                status === 'loaded' &&
                html`<button
                        type="button"
                        class="button small primary"
                        onClick=${() => {
                            setModel(item.id);
                            go('chat');
                        }}
                    >
                        ${t('startChat')}
                    </button>
                    <button type="button" class="button small" onClick=${() => change(item.id, 'unload')}>
                        ${t('unload')}
                    </button>`
            }
            ${status === 'unloaded' && html`<button type="button" class="button small primary" onClick=${() => change(item.id, 'load')}>${t('load')}</button>`}
            ${busy && html`<span class="spinner"></span>`}
        </div>
    </li>`;
}

/** What a failed download means. @param {string} code @param {string} text */
function remedyOf(code, text) {
    if (code === 'pull_not_allowed') return t('remedyAllowPull');
    if (/gated/i.test(text)) return t('remedyGated');
    if (code === 'model_not_found') return t('remedyName');
    if (/space|disk/i.test(text)) return t('remedyDisk');
    const network = code === 'unreachable' || code === 'stream_cut' || /cannot reach|connection|timed out/i.test(text);
    return network ? t('remedyNetwork') : '';
}

/** @param {{ item: import('../state/downloads.js').Job }} props */
function DownloadCard({ item }) {
    const fraction = item.total > 0 ? item.bytes / item.total : -1;
    const percent = fraction >= 0 ? `${Math.floor(fraction * 100)} %` : '';
    const phase = t(/** @type {any} */ (`phase_${item.state === 'running' ? item.stage || 'running' : item.state}`));
    const remedy = item.state === 'failed' ? remedyOf(item.code ?? '', item.error ?? '') : '';
    const details = [phase];
    if (item.total > 0) details.push(t('ofBytes', { done: bytes(item.bytes), all: bytes(item.total) }));
    if (item.state === 'running' && item.perSecond > 0) details.push(`${bytes(item.perSecond)}/s`);
    if (item.state === 'running' && item.left !== null) details.push(t('timeLeft', { time: duration(item.left) }));
    return html`<li class="card download-card ${item.state}">
        <${Ring}
            fraction=${isActive(item) || fraction >= 0 ? fraction : 0}
            label=${t('downloadOf', { model: item.model })}
        >
            ${item.state === 'failed' ? html`<${Icon} name="warn" size=${17} />` : percent || html`<${Icon} name="download" size=${17} />`}
        <//>
        <div class="card-text">
            <strong>${item.model}</strong>
            <small>${details.join(' · ')}</small>
            ${item.error && html`<small class="wrong-text">${item.error}</small>`}
            ${remedy && html`<small>${remedy}</small>`}
        </div>
        <div class="card-buttons">
            ${isActive(item) && html`<${IconButton} icon="pause" label=${t('pause')} onClick=${() => pause(item)} />`}
            ${!isActive(item) && html`<${IconButton} icon="play" label=${t('resume')} onClick=${() => resume(item)} />`}
            <${IconButton} icon="close" label=${t('cancelDownload')} onClick=${() => cancel(item)} />
        </div>
    </li>`;
}

/** @param {number} seconds since 1970 */
function ago(seconds) {
    if (!seconds) return t('never');
    const days = Math.round((seconds * 1000 - Date.now()) / 86_400_000);
    const locale = lang.value === 'zh' ? 'zh-Hans' : 'en';
    return new Intl.RelativeTimeFormat(locale, { numeric: 'auto' }).format(days, 'day');
}

/** @param {string} id of a local model */
const isServed = (id) => served.value.some((one) => id === one.id || id.endsWith(`/${one.id}`));

/** @param {{ item: import('../state/library.js').LocalModel }} props */
function LocalCard({ item }) {
    const inUse = isServed(item.id);
    const remove = async () => {
        const sure = await ask({
            title: t('removeTitle', { model: item.id }),
            text: t('removeText', { bytes: bytes(item.bytes) }),
            confirm: t('delete'),
            danger: true,
        });
        if (sure !== null) removeLocal(item.id);
    };
    const loading = jobOf('load', item.id);
    const plan = fits.value[item.id];
    const details = [];
    if (loading) details.push(t(/** @type {any} */ (`phase_${loading.stage || loading.state}`)));
    else {
        details.push(bytes(item.bytes), item.format === 'gguf' ? 'GGUF' : 'MLX / safetensors');
        if (plan?.family) details.push(plan.family);
        if (plan?.bits) details.push(t('bitsOf', { n: plan.bits }));
        if (plan?.needed) details.push(t('memoryOf', { bytes: bytes(plan.needed) }));
        details.push(t('lastUsed', { when: ago(item.lastUsed) }));
    }
    return html`<li class="card model-card">
        <span class="card-icon"><${Icon} name="cube" /></span>
        <div class="card-text">
            <strong>${item.id}</strong>
            <small>${details.join(' · ')}</small>
        </div>
        <div class="card-buttons">
            ${inUse && html`<span class="tag">${t('inUse')}</span>`}
            <${FitTag} id=${item.id} hidden=${inUse} />
            ${
                !inUse &&
                !loading &&
                html`<button type="button" class="button small" onClick=${() => serveLocal(item.id)}>${t('load')}</button>
                    <${IconButton} icon="trash" label=${t('removeOf', { model: item.id })} onClick=${remove} />`
            }
            ${loading && html`<span class="spinner"></span>`}
        </div>
    </li>`;
}

/**
 * Whether a model fits: the server's plan as soon as the tag is seen, until then an estimate from its bytes.
 * @param {{ id: string, size?: number, mixture?: boolean, hidden?: boolean }} props hidden: it is asked for, not shown
 */
function FitTag({ id, size = 0, mixture = false, hidden = false }) {
    const place = useRef(/** @type {HTMLElement | null} */ (null));
    useEffect(() => {
        const seen = new IntersectionObserver((list) => {
            if (!list.some((item) => item.isIntersecting)) return;
            seen.disconnect();
            wantFit(id);
        });
        if (place.current) seen.observe(place.current);
        return () => seen.disconnect();
    }, [id]);
    const plan = fits.value[id];
    const fit = plan?.fit ?? fitOf(size, machineMemory(), mixture);
    const parts = fit ? [t(/** @type {any} */ (`fit_${fit}`))] : [];
    if (plan?.perSecond) parts.push(t('tokensPerSecond', { n: rate(plan.perSecond) }));
    let title = plan?.reason ?? '';
    if (plan?.needed) title = t('fitNeeds', { needed: bytes(plan.needed), free: bytes(plan.free) });
    if (plan?.later) title += ` ${t('fitLater')}`;
    return html`<span ref=${place} class="fit-place">
        ${fit && !hidden && html`<span class="tag fit ${fit}" title=${title}>${parts.join(' · ')}</span>`}
    </span>`;
}

/** The button of a model that is not here. @param {{ id: string, name: string }} props */
function GetButton({ id, name }) {
    const there = local.value?.find((one) => one.id === id || one.id.startsWith(`${id}:`));
    if (there) {
        const idle = !isServed(there.id) && !jobOf('load', there.id);
        return html`<span class="tag">${t('downloaded')}</span>
            ${idle && html`<button type="button" class="button small" onClick=${() => serveLocal(there.id)}>${t('load')}</button>`}`;
    }
    const coming = downloads.value.some((item) => item.model === id);
    const label = t('downloadNamed', { model: name });
    return html`<${IconButton} icon="download" label=${label} disabled=${coming} onClick=${() => start(id)} />`;
}

const CATALOGUE_FIRST = 4;

/** Bytes of memory of the server's machine; 0: unknown. */
const machineMemory = () => (health.value?.memory?.total_system_mb ?? 0) * 1048576;

function Catalogue() {
    const [all, setAll] = useState(false);
    const memory = machineMemory();
    const best = memory ? recommended(memory) : '';
    const fitting = catalogue.filter((item) => fitOf(item.bytes, memory, item.mixture) !== 'too_large');
    const first = [...fitting].sort((a, b) => Number(b.id === best) - Number(a.id === best));
    const list = all ? catalogue : first.slice(0, CATALOGUE_FIRST);
    return html`<ul class="cards">
            ${list.map(
                (item) => html`<li key=${item.id} class="card model-card">
                    <div class="card-text">
                        <strong>${item.name}</strong>
                        <small>${[bytes(item.bytes), t(/** @type {any} */ (`use_${item.use}`))].join(' · ')}</small>
                    </div>
                    <div class="card-buttons">
                        ${item.id === best && html`<span class="tag good">${t('recommended')}</span>`}
                        <${FitTag} id=${item.id} size=${item.bytes} mixture=${item.mixture} />
                        <${GetButton} id=${item.id} name=${item.name} />
                    </div>
                </li>`,
            )}
        </ul>
        ${
            !all &&
            html`<button type="button" class="button quiet" onClick=${() => setAll(true)}>
                ${t('showAll', { n: catalogue.length })}
            </button>`
        }`;
}

/** @type {[string, number, number][]} */
const SIZES = [
    ['', 0, Infinity],
    ['≤ 1 GB', 0, 1e9],
    ['1–4 GB', 1e9, 4e9],
    ['4–10 GB', 4e9, 1e10],
    ['> 10 GB', 1e10, Infinity],
];

function HubSearch() {
    const [query, setQuery] = useState('');
    const [sort, setSort] = useState('downloads');
    const [size, setSize] = useState(0);
    const [found, setFound] = useState(
        /** @type {import('../state/library.js').Found[] | null | undefined} */ (undefined),
    );
    const [error, setError] = useState('');
    const [busy, setBusy] = useState(false);
    const direct = modelName(query);
    useEffect(() => {
        setError('');
        if (query.trim().length < 2) return setFound(undefined);
        const controller = new AbortController();
        const timer = setTimeout(async () => {
            setBusy(true);
            try {
                setFound(await searchHub(query.trim(), sort, controller.signal));
            } catch (why) {
                if (!controller.signal.aborted) setError(why instanceof Error ? why.message : String(why));
            }
            if (!controller.signal.aborted) setBusy(false);
        }, 300);
        return () => {
            clearTimeout(timer);
            controller.abort();
        };
    }, [query, sort]);
    const [, least, most] = SIZES[size];
    /** @param {import('../state/library.js').Found} item */
    const details = (item) => {
        const parts = item.form ? [item.form] : [];
        if (item.bytes) parts.push(bytes(item.bytes));
        else if (item.parameters) parts.push(t('parameters', { n: count(item.parameters) }));
        parts.push(`↓ ${count(item.downloads)}`, `♥ ${count(item.likes)}`);
        if (item.updated) parts.push(item.updated.slice(0, 10));
        return parts;
    };
    const list = (found ?? []).filter((item) => size === 0 || (item.bytes >= least && item.bytes < most));
    return html`<div class="hub">
        <div class="hub-bar">
            <label class="search-field">
                <${Icon} name="search" size=${18} />
                <input
                    type="search"
                    aria-label=${t('hubSearch')}
                    placeholder=${t('hubPlaceholder')}
                    value=${query}
                    onInput=${(/** @type {any} */ e) => setQuery(e.currentTarget.value)}
                />
                ${busy && html`<span class="spinner"></span>`}
            </label>
            ${
                found &&
                html`<select
                        aria-label=${t('sortBy')}
                        value=${sort}
                        onChange=${(/** @type {any} */ e) => setSort(e.currentTarget.value)}
                    >
                        <option value="downloads">${t('sortDownloads')}</option>
                        <option value="likes">${t('sortLikes')}</option>
                        <option value="trending">${t('sortTrending')}</option>
                        <option value="updated">${t('sortUpdated')}</option>
                    </select>
                    <select
                        aria-label=${t('size')}
                        value=${String(size)}
                        onChange=${(/** @type {any} */ e) => setSize(Number(e.currentTarget.value))}
                    >
                        ${SIZES.map(([name], i) => html`<option key=${i} value=${String(i)}>${name || t('anySize')}</option>`)}
                    </select>`
            }
        </div>
        ${
            direct &&
            html`<div class="card direct">
                <div class="card-text"><strong>${direct}</strong><small>${t('directText')}</small></div>
                <button
                    type="button"
                    class="button small primary"
                    onClick=${() => {
                        start(direct);
                        setQuery('');
                    }}
                >
                    ${t('download')}
                </button>
            </div>`
        }
        ${error && html`<p class="wrong-text" role="alert">${error}</p>`}
        ${found === null && !direct && html`<p class="hint">${t('noHubSearch')}</p>`}
        ${found && list.length === 0 && !busy && html`<p class="hint">${t('nothingFound')}</p>`}
        <ul class="cards">
            ${list.map(
                (item) =>
                    html`<li key=${item.id} class="card model-card">
                        <div class="card-text">
                            <strong>${item.id}</strong>
                            <small>${details(item).join(' · ')}</small>
                        </div>
                        <div class="card-buttons">
                            ${item.gated && html`<span class="tag">${t('gated')}</span>`}
                            <${FitTag} id=${item.id} size=${item.bytes} />
                            <${GetButton} id=${item.id} name=${item.id} />
                        </div>
                    </li>`,
            )}
        </ul>
    </div>`;
}

export function ModelsPage() {
    useEffect(() => {
        refreshLocal();
        refreshJobs();
    }, [link.value]);
    const memory = health.value?.memory;
    const list = local.value;
    const total = (list ?? []).reduce((sum, item) => sum + item.bytes, 0) + unfinishedBytes.value;
    return html`<div class="page">
        <header class="topbar">
            <${IconButton} icon="menu" kind="only-phone" label=${t('chats')} onClick=${() => (drawer.value = true)} />
            <h1>${t('tabModels')}</h1>
            <span class="spacer"></span>
            <${IconButton}
                icon="refresh"
                label=${t('refresh')}
                onClick=${refreshLocal}
            />
        </header>
        <main class="scroller" tabindex="0">
            <div class="column">
                ${link.value === 'offline' && html`<div class="banner" role="status"><${Icon} name="warn" size=${17} />${t('bannerOffline')}</div>`}
                <${Section}
                    title=${t('servedModels')}
                    hint=${memory ? t('memoryUse', { used: bytes(memory.active_mb * 1048576), all: bytes(memory.total_system_mb * 1048576) }) : undefined}
                >
                    <ul class="cards">
                        ${served.value.map((item) => html`<${ServedCard} key=${item.id} item=${item} />`)}
                    </ul>
                    ${served.value.length === 0 && link.value === 'ok' && html`<p class="hint">${t('noModelText')}</p>`}
                <//>
                ${
                    downloads.value.length > 0 &&
                    html`<${Section} title=${t('downloads')}
                        ><ul class="cards">
                            ${downloads.value.map((item) => html`<${DownloadCard} key=${item.model} item=${item} />`)}
                        </ul><//
                    >`
                }
                <${Section}
                    title=${t('localModels')}
                    hint=${list && list.length > 0 ? t('diskUse', { n: list.length, bytes: bytes(total) }) : undefined}
                >
                    ${localError.value && html`<p class="wrong-text" role="alert">${localError.value}</p>`}
                    <ul class="cards">
                        ${(list ?? []).map((item) => html`<${LocalCard} key=${item.id} item=${item} />`)}
                    </ul>
                    ${list?.length === 0 && !localError.value && html`<${Empty} icon="cube" title=${t('noLocal')} text=${t('noLocalText')} />`}
                <//>
                <${Section} title=${t('getModels')} hint=${t('getModelsHint')}><${HubSearch} /><//>
                <${Section} title=${t('catalogue')} hint=${t('catalogueHint')}><${Catalogue} /><//>
            </div>
        </main>
    </div>`;
}
