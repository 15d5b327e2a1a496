import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { callText } from '../lib/api.js';
import { bytes, count, duration, rate } from '../lib/format.js';
import { optionRows, toCommand, toConfig } from '../lib/serve_options.js';
import { chats, deleteEverything } from '../state/chats.js';
import { history } from '../state/history.js';
import { health, link, served } from '../state/server.js';
import * as settings from '../state/settings.js';
import { t } from '../state/settings.js';
import { connect, connections } from '../state/tools.js';
import { exportAll, importFile } from '../state/transfer.js';
import { ask, copyText, drawer, go, notify, place } from '../state/ui.js';
import { Devices } from './devices.js';
import { html } from './html.js';
import { Icon, Logo } from './icons.js';
import { ParamsForm } from './panel.js';
import { IconButton, Section, Select, Switch, TextRow } from './parts.js';

const tabs = /** @type {const} */ (['general', 'answers', 'tools', 'server', 'devices', 'data', 'about']);

function General() {
    return html`<${Section} title=${t('appearance')}>
            <div class="rows">
                <${Select}
                    label=${t('theme')}
                    value=${settings.theme.value}
                    onChange=${(/** @type {any} */ v) => (settings.theme.value = v)}
                    options=${[
                        { value: 'system', label: t('themeSystem') },
                        { value: 'light', label: t('themeLight') },
                        { value: 'dark', label: t('themeDark') },
                    ]}
                />
                <${Select}
                    label=${t('textSize')}
                    value=${settings.textSize.value}
                    onChange=${(/** @type {any} */ v) => (settings.textSize.value = v)}
                    options=${[
                        { value: 'small', label: t('small') },
                        { value: 'medium', label: t('medium') },
                        { value: 'large', label: t('large') },
                    ]}
                />
                <${Select}
                    label=${t('language')}
                    value=${settings.language.value}
                    onChange=${(/** @type {any} */ v) => (settings.language.value = v)}
                    options=${[
                        { value: 'auto', label: t('languageAuto') },
                        { value: 'en', label: 'English' },
                        { value: 'zh', label: '简体中文' },
                    ]}
                />
            </div>
        <//>
        <${Section} title=${t('behaviour')}>
            <div class="rows">
                <${Switch}
                    label=${t('enterSends')}
                    value=${settings.enterSends.value}
                    onChange=${(/** @type {boolean} */ v) => (settings.enterSends.value = v)}
                    hint=${t('enterSendsHint')}
                />
                <${Switch}
                    label=${t('showStats')}
                    value=${settings.showStats.value}
                    onChange=${(/** @type {boolean} */ v) => (settings.showStats.value = v)}
                    hint=${t('showStatsHint')}
                />
                <${Switch}
                    label=${t('openReasoning')}
                    value=${settings.openReasoning.value}
                    onChange=${(/** @type {boolean} */ v) => (settings.openReasoning.value = v)}
                />
                <${Switch}
                    label=${t('wrapCode')}
                    value=${settings.wrapCode.value}
                    onChange=${(/** @type {boolean} */ v) => (settings.wrapCode.value = v)}
                />
            </div>
        <//>
        <${Section} title=${t('apiKey')} hint=${t('apiKeyHint')}>
            <div class="rows">
                <${TextRow}
                    label=${t('apiKey')}
                    type="password"
                    value=${settings.apiKey.value}
                    onChange=${(/** @type {string} */ v) => (settings.apiKey.value = v.trim())}
                />
                <${Switch}
                    label=${t('rememberKey')}
                    value=${settings.rememberKey.value}
                    onChange=${(/** @type {boolean} */ v) => (settings.rememberKey.value = v)}
                    hint=${t('rememberKeyHint')}
                />
            </div>
        <//>`;
}

function Answers() {
    return html`<${Section} title=${t('newChats')} hint=${t('newChatsHint')}>
            <label class="field"
                ><span>${t('systemPrompt')}</span>
                <textarea
                    rows="4"
                    dir="auto"
                    placeholder=${t('systemPlaceholder')}
                    value=${settings.defaultSystem.value}
                    onChange=${(/** @type {any} */ e) => (settings.defaultSystem.value = e.currentTarget.value)}
                ></textarea>
            </label>
            <${ParamsForm}
                params=${settings.defaultParams.value}
                onChange=${(/** @type {any} */ v) => (settings.defaultParams.value = v)}
            />
        <//>
        <${Section} title=${t('presets')} hint=${t('presetsHint')}>
            <ul class="cards">
                ${settings.presets.value.map(
                    (item) =>
                        html`<li key=${item.id} class="card">
                            <div class="card-text">
                                <strong>${item.name}</strong
                                ><small class="one-line">${item.system || Object.keys(item.params).join(', ')}</small>
                            </div>
                            <${IconButton}
                                icon="trash"
                                label=${t('removeOf', { model: item.name })}
                                onClick=${() => (settings.presets.value = settings.presets.peek().filter((one) => one.id !== item.id))}
                            />
                        </li>`,
                )}
            </ul>
            ${settings.presets.value.length === 0 && html`<p class="hint">${t('noPresets')}</p>`}
        <//>`;
}

function Tools() {
    const [name, setName] = useState('');
    const [url, setUrl] = useState('');
    const [key, setKey] = useState('');
    const valid = name.trim() && /^https?:\/\/[^\s]+$/.test(url.trim());
    /** @param {Event} event */
    const add = (event) => {
        event.preventDefault();
        if (!valid) return;
        const made = { name: name.trim(), url: url.trim(), key: key.trim() };
        settings.mcpServers.value = [...settings.mcpServers.peek().filter((item) => item.name !== made.name), made];
        connect(made.name);
        setName('');
        setUrl('');
        setKey('');
    };
    return html`<${Section} title=${t('mcpServers')} hint=${t('mcpHint')}>
        <ul class="cards">
            ${settings.mcpServers.value.map((item) => {
                const state = connections.value[item.name];
                const hint = !state
                    ? ''
                    : state.state === 'ready'
                      ? t('toolsCount', { n: state.tools.length })
                      : state.state === 'failed'
                        ? state.error
                        : t('connecting');
                return html`<li key=${item.name} class="card">
                    <span
                        class="dot ${state?.state === 'ready' ? 'loaded' : state?.state === 'failed' ? 'failed' : 'unloaded'}"
                    ></span>
                    <div class="card-text">
                        <strong>${item.name}</strong
                        ><small>${item.url}</small
                        >${hint && html`<small class=${state?.state === 'failed' ? 'wrong-text' : ''}>${hint}</small>`}
                    </div>
                    <div class="card-buttons">
                        <button type="button" class="button small" onClick=${() => connect(item.name)}>
                            ${t('test')}
                        </button>
                        <${IconButton}
                            icon="trash"
                            label=${t('removeOf', { model: item.name })}
                            onClick=${() => (settings.mcpServers.value = settings.mcpServers.peek().filter((one) => one.name !== item.name))}
                        />
                    </div>
                </li>`;
            })}
        </ul>
        <form class="rows form" onSubmit=${add}>
            <label class="row"
                ><span class="row-text">${t('name')}</span
                ><input
                    value=${name}
                    placeholder="files"
                    onInput=${(/** @type {any} */ e) => setName(e.currentTarget.value)}
            /></label>
            <label class="row"
                ><span class="row-text">${t('address')}</span
                ><input
                    type="url"
                    value=${url}
                    placeholder="http://127.0.0.1:9000/mcp"
                    onInput=${(/** @type {any} */ e) => setUrl(e.currentTarget.value)}
            /></label>
            <label class="row"
                ><span class="row-text">${t('bearerKey')}</span
                ><input
                    type="password"
                    autocomplete="off"
                    value=${key}
                    onInput=${(/** @type {any} */ e) => setKey(e.currentTarget.value)}
            /></label>
            <div class="form-end">
                <button type="submit" class="button primary" disabled=${!valid}>${t('addServer')}</button>
            </div>
        </form>
    <//>`;
}

/** A text with a button that copies it. @param {{ title: string, text: string }} props */
function Copied({ title, text }) {
    const copy = async () => notify((await copyText(text)) ? t('copied') : t('copyFailed'));
    return html`<div class="code-block">
        <div class="code-bar">
            <span>${title}</span><button type="button" class="code-copy" onClick=${copy}>${t('copy')}</button>
        </div>
        <pre tabindex="0" role="region" aria-label=${title}><code>${text}</code></pre>
    </div>`;
}

function Server() {
    const values = settings.serverOptions.value;
    /** @param {string} name @param {string} value */
    const set = (name, value) => {
        const next = { ...values };
        if (value) next[name] = value;
        else delete next[name];
        settings.serverOptions.value = next;
    };
    const models = served.value.map((item) => item.id);
    return html`<${Section} title=${t('serverOptions')} hint=${t('serverHint')}>
        ${optionRows.map(
            (group) =>
                html`<h3 key=${group.title}>${t(/** @type {any} */ (group.title))}</h3>
                    <div class="rows">
                        ${group.rows.map((row) => {
                            const label = t(/** @type {any} */ (row.label));
                            const hint = row.option;
                            if (row.kind === 'flag')
                                return html`<${Switch}
                                    key=${row.option}
                                    label=${label}
                                    hint=${hint}
                                    value=${values[row.option] === 'on'}
                                    onChange=${(/** @type {boolean} */ v) => set(row.option, v ? 'on' : '')}
                                />`;
                            if (row.kind === 'choice')
                                return html`<${Select}
                                    key=${row.option}
                                    label=${label}
                                    hint=${hint}
                                    value=${values[row.option] ?? ''}
                                    onChange=${(/** @type {string} */ v) => set(row.option, v)}
                                    options=${(row.choices ?? []).map((value) => ({ value, label: value || t('automatic') }))}
                                />`;
                            return html`<${TextRow}
                                key=${row.option}
                                label=${label}
                                hint=${hint}
                                type=${row.kind === 'secret' ? 'password' : 'text'}
                                value=${values[row.option] ?? ''}
                                placeholder=${row.placeholder}
                                onChange=${(/** @type {string} */ v) => set(row.option, v.trim())}
                            />`;
                        })}
                    </div>`,
        )}
        <h3>${t('equivalent')}</h3>
        <${Copied} title=${t('commandLine')} text=${toCommand(values, models)} />
        <${Copied} title=${t('configFile')} text=${toConfig(values, models)} />
        ${values['--api-key'] && html`<p class="hint">${t('keyShown')}</p>`}
    <//>`;
}

function Data() {
    const [use, setUse] = useState(/** @type {StorageEstimate | null} */ (null));
    const file = useRef(/** @type {HTMLInputElement | null} */ (null));
    useEffect(() => {
        navigator.storage?.estimate?.().then(setUse, () => {});
    }, [chats.value.length]);
    const clear = async () => {
        const sure = await ask({
            title: t('deleteAllTitle'),
            text: t('deleteAllText', { n: chats.value.length }),
            confirm: t('deleteAll'),
            danger: true,
        });
        if (sure !== null) deleteEverything();
    };
    return html`<${Section} title=${t('history')} hint=${t(history.value === 'off' ? 'historyHint' : 'historyServerHint')}>
        ${history.value === 'full' && html`<p class="wrong-text" role="alert">${t('historyFull')}</p>`}
        ${history.value === 'failed' && html`<p class="wrong-text" role="alert">${t('historyFailed')}</p>`}
        <p class="hint">
            ${t('chatsCount', { n: chats.value.length })}${use?.usage ? ` · ${t('storageUse', { bytes: bytes(use.usage) })}` : ''}
        </p>
        <div class="button-row">
            <button type="button" class="button" onClick=${exportAll}>
                <${Icon} name="download" size=${17} />${t('exportAll')}
            </button>
            <button type="button" class="button" onClick=${() => file.current?.click()}>
                <${Icon} name="upload" size=${17} />${t('import')}
            </button>
            <button type="button" class="button danger" onClick=${clear}>
                <${Icon} name="trash" size=${17} />${t('deleteAll')}
            </button>
        </div>
        <input
            ref=${file}
            type="file"
            accept=".json,application/json"
            hidden
            data-testid="import-input"
            onChange=${(/** @type {any} */ e) => {
                const one = e.currentTarget.files?.[0];
                if (one) importFile(one);
                e.currentTarget.value = '';
            }}
        />
    <//>`;
}

/** Numbers of /metrics that people ask for. @param {string} text @param {string} name */
function metric(text, name) {
    let sum = NaN;
    for (const line of text.split('\n'))
        if (line.startsWith(name + ' ') || line.startsWith(name + '{'))
            sum = (Number.isNaN(sum) ? 0 : sum) + Number(line.slice(line.lastIndexOf(' ') + 1));
    return sum;
}

function About() {
    const [metrics, setMetrics] = useState('');
    const state = health.value;
    useEffect(() => {
        callText('/metrics').then(setMetrics, () => {});
    }, [state]);
    const up = metric(metrics, 'process_start_time_seconds');
    /** @type {[string, string][]} */
    const rows = [];
    rows.push([t('serverState'), link.value === 'ok' ? t('stateOk') : (state?.status ?? t('stateOffline'))]);
    rows.push([t('address'), location.origin]);
    if (!Number.isNaN(up)) rows.push([t('upFor'), duration(Date.now() / 1000 - up)]);
    if (state?.memory)
        rows.push([
            t('memory'),
            t('memoryPair', {
                used: bytes(state.memory.active_mb * 1048576),
                all: bytes(state.memory.total_system_mb * 1048576),
            }),
        ]);
    if (state)
        rows.push([
            t('kvMemory'),
            t('memoryPair', { used: bytes(state.kv_bytes ?? 0), all: bytes(state.kv_bytes_total ?? 0) }),
        ]);
    if (state?.stats)
        rows.push([
            t('requests'),
            t('requestsText', {
                n: count(state.stats.requests_total),
                tokens: count(state.stats.tokens_generated),
                rate: rate(state.stats.avg_tokens_per_sec),
            }),
        ]);
    if (state) rows.push([t('nowRunning'), t('runningText', { n: state.running ?? 0, waiting: state.waiting ?? 0 })]);
    const keys = [
        ['Ctrl/⌘ K', t('search')],
        ['Ctrl/⌘ Shift O', t('newChat')],
        ['Ctrl/⌘ B', t('showChats')],
        ['Ctrl/⌘ .', t('chatSettings')],
        ['Enter', t('send')],
        ['Shift Enter', t('newLine')],
        ['Esc', t('stop')],
    ];
    return html`<div class="about-head">
            <${Logo} size=${44} />
            <div>
                <h2>Apus</h2>
                <p class="hint">${t('aboutText')}</p>
            </div>
        </div>
        <${Section} title=${t('server')}
            ><dl class="facts">
                ${rows.map(
                    ([name, value]) =>
                        html`<div key=${name}>
                            <dt>${name}</dt>
                            <dd>${value}</dd>
                        </div>`,
                )}
            </dl>
            <p class="hint">${t('doctorHint')} <code>apus doctor</code></p><//
        >
        <${Section} title=${t('keys')}
            ><dl class="facts keys">
                ${keys.map(
                    ([name, value]) =>
                        html`<div key=${name}>
                            <dt><kbd>${name}</kbd></dt>
                            <dd>${value}</dd>
                        </div>`,
                )}
            </dl><//
        >
        <${Section} title=${t('install')}
            ><p class="hint">${isSecureContext ? t('installText') : t('installInsecure')}</p><//
        >`;
}

const views = { general: General, answers: Answers, tools: Tools, server: Server, devices: Devices, data: Data, about: About }; // prettier-ignore

export function SettingsPage() {
    const shown = tabs.filter((name) => name !== 'devices' || health.value?.lan);
    const tab = shown.find((name) => name === place.value.id) ?? 'general';
    const nav = useRef(/** @type {HTMLElement | null} */ (null));
    // On a phone some tabs are beside the screen.
    useLayoutEffect(
        () => nav.current?.querySelector('.here')?.scrollIntoView({ block: 'nearest', inline: 'center' }),
        [tab],
    );
    return html`<div class="page">
        <header class="topbar">
            <${IconButton} icon="menu" kind="only-phone" label=${t('chats')} onClick=${() => (drawer.value = true)} />
            <h1>${t('tabSettings')}</h1>
        </header>
        <nav class="sub-tabs" ref=${nav} aria-label=${t('tabSettings')}>
            ${shown.map((name) => html`<button key=${name} type="button" aria-current=${tab === name ? 'page' : undefined} class=${tab === name ? 'here' : ''} onClick=${() => go('settings', name)}>${t(/** @type {any} */ (`tab_${name}`))}</button>`)}
        </nav>
        <main class="scroller" tabindex="0">
            <div class="column"><${views[tab]} /></div>
        </main>
    </div>`;
}
