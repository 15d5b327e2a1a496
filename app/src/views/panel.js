import { useEffect, useState } from 'preact/hooks';
import { newId } from '../lib/tree.js';
import { changeChat, chat } from '../state/chats.js';
import { defaultParams, defaultSystem, mcpServers, presets, t } from '../state/settings.js';
import { connect, connections, parseTools } from '../state/tools.js';
import { ask, go, notify, panel } from '../state/ui.js';
import { html } from './html.js';
import { IconButton, NumberRow, Section, Select, Switch, TextRow } from './parts.js';

/** @typedef {import('../lib/types.js').Params} Params */

const FORMS = ['', 'f16', 'q8', 'turbo6', 'turbo5', 'turbo4', 'turbo3'];

/** Sampling, reasoning and cache. @param {{ params: Params, onChange: (params: Params) => void }} props */
export function ParamsForm({ params, onChange }) {
    /** @param {Partial<Params>} change */
    const set = (change) => {
        /** @type {Record<string, any>} */
        const next = { ...params, ...change };
        for (const key of Object.keys(next)) if (next[key] === undefined || next[key] === '') delete next[key];
        onChange(next);
    };
    return html`<div class="rows">
            <${NumberRow}
                label=${t('temperature')}
                value=${params.temperature}
                min=${0}
                max=${2}
                onChange=${(/** @type {any} */ v) => set({ temperature: v })}
                hint=${t('temperatureHint')}
            />
            <${NumberRow}
                label="Top P"
                value=${params.top_p}
                min=${0}
                max=${1}
                onChange=${(/** @type {any} */ v) => set({ top_p: v })}
            />
            <${NumberRow}
                label="Top K"
                value=${params.top_k}
                min=${0}
                step=${1}
                onChange=${(/** @type {any} */ v) => set({ top_k: v })}
            />
            <${NumberRow}
                label="Min P"
                value=${params.min_p}
                min=${0}
                max=${1}
                step=${0.01}
                onChange=${(/** @type {any} */ v) => set({ min_p: v })}
            />
            <${NumberRow}
                label=${t('repetitionPenalty')}
                value=${params.repetition_penalty}
                min=${0.01}
                max=${2}
                onChange=${(/** @type {any} */ v) => set({ repetition_penalty: v })}
            />
            <${NumberRow}
                label=${t('frequencyPenalty')}
                value=${params.frequency_penalty}
                min=${-2}
                max=${2}
                onChange=${(/** @type {any} */ v) => set({ frequency_penalty: v })}
            />
            <${NumberRow}
                label=${t('presencePenalty')}
                value=${params.presence_penalty}
                min=${-2}
                max=${2}
                onChange=${(/** @type {any} */ v) => set({ presence_penalty: v })}
            />
            <${NumberRow}
                label=${t('maxTokens')}
                value=${params.max_tokens}
                min=${1}
                step=${1}
                onChange=${(/** @type {any} */ v) => set({ max_tokens: v })}
                placeholder=${t('noLimit')}
            />
            <${NumberRow}
                label=${t('seed')}
                value=${params.seed}
                min=${0}
                step=${1}
                onChange=${(/** @type {any} */ v) => set({ seed: v })}
                placeholder=${t('random')}
                hint=${t('seedHint')}
            />
            <${TextRow}
                label=${t('stopTexts')}
                value=${(params.stop ?? []).join(' | ')}
                placeholder="END | ###"
                hint=${t('stopHint')}
                onChange=${(/** @type {string} */ v) =>
                    set({
                        stop: v.trim()
                            ? v
                                  .split('|')
                                  .map((s) => s.trim())
                                  .filter(Boolean)
                                  .slice(0, 4)
                            : undefined,
                    })}
            />
        </div>
        <h3>${t('reasoning')}</h3>
        <div class="rows">
            <${Select}
                label=${t('thinkingMode')}
                value=${params.thinking ?? ''}
                onChange=${(/** @type {any} */ v) => set({ thinking: v || undefined })}
                options=${[
                    { value: '', label: t('automatic') },
                    { value: 'on', label: t('on') },
                    { value: 'off', label: t('off') },
                ]}
            />
            <${Select}
                label=${t('effort')}
                value=${params.reasoning_effort ?? ''}
                onChange=${(/** @type {any} */ v) => set({ reasoning_effort: v || undefined })}
                options=${[
                    { value: '', label: t('automatic') },
                    { value: 'low', label: t('low') },
                    { value: 'medium', label: t('medium') },
                    { value: 'high', label: t('high') },
                ]}
                hint=${t('effortHint')}
            />
            <${NumberRow}
                label=${t('budget')}
                value=${params.thinking_budget}
                min=${0}
                step=${1}
                onChange=${(/** @type {any} */ v) => set({ thinking_budget: v })}
                placeholder=${t('noLimit')}
            />
        </div>
        <h3>${t('cache')}</h3>
        <div class="rows">
            <${Select}
                label=${t('kvForm')}
                value=${params.kv_cache ?? ''}
                onChange=${(/** @type {any} */ v) => set({ kv_cache: v || undefined })}
                hint=${t('kvHint')}
                options=${FORMS.map((value) => ({ value, label: value || t('serversChoice') }))}
            />
            <${Switch}
                label=${t('keepPrompt')}
                value=${params.cache_prompt ?? true}
                onChange=${(/** @type {boolean} */ v) => set({ cache_prompt: v ? undefined : false })}
                hint=${t('keepPromptHint')}
            />
        </div>`;
}

function Presets() {
    const current = chat.value;
    const save = async () => {
        const name = await ask({ title: t('savePreset'), input: t('name'), confirm: t('save') });
        if (!name?.trim()) return;
        const made = { id: newId(), name: name.trim().slice(0, 80), system: current.system, params: current.params };
        presets.value = [...presets.peek().filter((item) => item.name !== made.name), made];
        notify(t('presetSaved'));
    };
    return html`<div class="preset-bar">
        <select
            aria-label=${t('presets')}
            value=""
            onChange=${(/** @type {any} */ e) => {
                const found = presets.peek().find((item) => item.id === e.currentTarget.value);
                if (found) changeChat({ system: found.system, params: { ...found.params } });
                e.currentTarget.value = '';
            }}
        >
            <option value="">${t('presets')}</option>
            ${presets.value.map((item) => html`<option key=${item.id} value=${item.id}>${item.name}</option>`)}
        </select>
        <button type="button" class="button small" onClick=${save}>${t('savePreset')}</button>
    </div>`;
}

/** A text that has to be of some form. @param {{ label: string, value: string, onChange: (value: string) => void, check: (value: string) => void, placeholder: string, rows?: number }} props */
function CheckedText({ label, value, onChange, check, placeholder, rows = 6 }) {
    const [text, setText] = useState(value);
    const [wrong, setWrong] = useState('');
    useEffect(() => setText(value), [value]);
    return html`<label class="field"
        ><span>${label}</span>
        <textarea
            class="mono ${wrong ? 'wrong' : ''}"
            rows=${rows}
            spellcheck=${false}
            placeholder=${placeholder}
            aria-invalid=${Boolean(wrong)}
            value=${text}
            onInput=${(/** @type {any} */ e) => {
                const next = e.currentTarget.value;
                setText(next);
                try {
                    if (next.trim()) check(next);
                    setWrong('');
                    onChange(next);
                } catch (error) {
                    setWrong(error instanceof Error ? error.message : String(error));
                }
            }}
        ></textarea>
        ${wrong && html`<small class="wrong-text" role="alert">${wrong} ${t('notUsedYet')}</small>`}
    </label>`;
}

const SCHEMA_EXAMPLE =
    '{\n  "type": "object",\n  "properties": { "city": { "type": "string" } },\n  "required": ["city"]\n}';
const TOOLS_EXAMPLE =
    '[{ "name": "weather", "description": "…", "parameters": { "type": "object", "properties": {} } }]';

function Servers() {
    const current = chat.value;
    /** @param {string} name @param {boolean} on */
    const toggle = (name, on) => {
        const servers = current.servers.filter((item) => item !== name);
        if (on) servers.push(name);
        changeChat({ servers });
        if (on) connect(name);
    };
    return html`<div class="rows">
        ${mcpServers.value.map((server) => {
            const state = connections.value[server.name];
            const on = current.servers.includes(server.name);
            const hint = !on
                ? server.url
                : state?.state === 'failed'
                  ? state.error
                  : state?.state === 'ready'
                    ? t('toolsCount', { n: state.tools.length })
                    : t('connecting');
            return html`<div key=${server.name}>
                <${Switch}
                    label=${server.name}
                    value=${on}
                    hint=${hint}
                    onChange=${(/** @type {boolean} */ v) => toggle(server.name, v)}
                />
                ${
                    on &&
                    state?.state === 'ready' &&
                    html`<ul class="tool-list">
                        ${state.tools.map((tool) => html`<li key=${tool.name}><strong>${tool.name}</strong> <small>${tool.description}</small></li>`)}
                    </ul>`
                }
                ${on && state?.state === 'failed' && html`<button type="button" class="button small" onClick=${() => connect(server.name)}>${t('tryAgain')}</button>`}
            </div>`;
        })}
        <button
            type="button"
            class="button small"
            onClick=${() => {
                panel.value = false;
                go('settings', 'tools');
            }}
        >
            ${t('addServer')}
        </button>
    </div>`;
}

/** The settings of the shown chat. */
export function ChatPanel() {
    const current = chat.value;
    return html`<div class="scrim" onClick=${() => (panel.value = false)}></div>
        <aside class="panel" aria-label=${t('chatSettings')}>
            <header class="panel-head">
                <h2>${t('chatSettings')}</h2>
                <${IconButton} icon="close" label=${t('close')} onClick=${() => (panel.value = false)} />
            </header>
            <div class="panel-body">
                <${Presets} />
                <label class="field"
                    ><span>${t('systemPrompt')}</span>
                    <textarea
                        rows="5"
                        dir="auto"
                        placeholder=${t('systemPlaceholder')}
                        value=${current.system}
                        onChange=${(/** @type {any} */ e) => changeChat({ system: e.currentTarget.value })}
                    ></textarea>
                </label>
                <${Section} title=${t('sampling')} hint=${t('samplingHint')}>
                    <${ParamsForm}
                        params=${current.params}
                        onChange=${(/** @type {Params} */ params) => changeChat({ params })}
                    />
                <//>
                <${Section} title=${t('answerForm')} hint=${t('answerFormHint')}>
                    <${CheckedText}
                        label=${t('jsonSchema')}
                        value=${current.schema}
                        placeholder=${SCHEMA_EXAMPLE}
                        check=${(/** @type {string} */ v) => JSON.parse(v)}
                        onChange=${(/** @type {string} */ schema) => changeChat({ schema })}
                    />
                <//>
                <${Section} title=${t('tools')} hint=${t('toolsHint')}>
                    <${Servers} />
                    <${CheckedText}
                        label=${t('ownTools')}
                        value=${current.tools}
                        placeholder=${TOOLS_EXAMPLE}
                        rows=${4}
                        check=${parseTools}
                        onChange=${(/** @type {string} */ tools) => changeChat({ tools })}
                    />
                    ${current.allowed.length > 0 && html`<p class="hint">${t('allowedTools', { list: current.allowed.join(', ') })} <button type="button" class="link" onClick=${() => changeChat({ allowed: [] })}>${t('revoke')}</button></p>`}
                <//>
                <div class="panel-foot">
                    <button
                        type="button"
                        class="button"
                        onClick=${() => {
                            defaultParams.value = { ...current.params };
                            defaultSystem.value = current.system;
                            notify(t('defaultsSaved'));
                        }}
                    >
                        ${t('useForNew')}
                    </button>
                    <button
                        type="button"
                        class="button"
                        onClick=${() => changeChat({ params: {}, schema: '', tools: '', system: '' })}
                    >
                        ${t('reset')}
                    </button>
                </div>
            </div>
        </aside>`;
}
