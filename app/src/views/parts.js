import { useEffect, useRef } from 'preact/hooks';
import { dismiss, notices, question } from '../state/ui.js';
import { t } from '../state/settings.js';
import { html } from './html.js';
import { Icon } from './icons.js';

/* Parts that several pages use. */

/** @param {{ icon: any, label: string, onClick?: (event: any) => void, kind?: string, pressed?: boolean, disabled?: boolean, expanded?: boolean, size?: number, testid?: string }} props */
export function IconButton({ icon, label, onClick, kind = '', pressed, disabled, expanded, size, testid }) {
    return html`<button
        type="button"
        class="icon-button ${kind}"
        aria-label=${label}
        title=${label}
        aria-pressed=${pressed}
        aria-expanded=${expanded}
        disabled=${disabled}
        onClick=${onClick}
        data-testid=${testid}
    >
        <${Icon} name=${icon} size=${size} />
    </button>`;
}

/** @param {{ label: string, value: boolean, onChange: (value: boolean) => void, hint?: string }} props */
export function Switch({ label, value, onChange, hint }) {
    return html`<label class="row switch-row">
        <span class="row-text"><span>${label}</span>${hint && html`<small>${hint}</small>`}</span>
        <input
            type="checkbox"
            role="switch"
            class="switch"
            checked=${value}
            onChange=${(/** @type {any} */ e) => onChange(e.currentTarget.checked)}
        />
    </label>`;
}

/** @param {{ label: string, value: string, options: { value: string, label: string }[], onChange: (value: string) => void, hint?: string }} props */
export function Select({ label, value, options, onChange, hint }) {
    return html`<label class="row">
        <span class="row-text"><span>${label}</span>${hint && html`<small>${hint}</small>`}</span>
        <select value=${value} onChange=${(/** @type {any} */ e) => onChange(e.currentTarget.value)}>
            ${options.map((item) => html`<option key=${item.value} value=${item.value}>${item.label}</option>`)}
        </select>
    </label>`;
}

/** A number that may be absent. @param {{ label: string, value: number | undefined, onChange: (value: number | undefined) => void, min?: number, max?: number, step?: number, hint?: string, placeholder?: string }} props */
export function NumberRow({ label, value, onChange, min, max, step = 0.05, hint, placeholder }) {
    return html`<label class="row">
        <span class="row-text"><span>${label}</span>${hint && html`<small>${hint}</small>`}</span>
        <input
            type="number"
            class="number"
            inputmode=${step % 1 ? 'decimal' : 'numeric'}
            min=${min}
            max=${max}
            step=${step}
            placeholder=${placeholder ?? t('automatic')}
            value=${value ?? ''}
            onChange=${(/** @type {any} */ e) => {
                const input = e.currentTarget;
                if (input.value === '') return onChange(undefined);
                let number = Number(input.value);
                if (!Number.isFinite(number)) return onChange(undefined);
                if (min !== undefined) number = Math.max(min, number);
                if (max !== undefined) number = Math.min(max, number);
                input.value = String(number);
                onChange(number);
            }}
        />
    </label>`;
}

/** @param {{ label: string, value: string, onChange: (value: string) => void, placeholder?: string, type?: string, hint?: string }} props */
export function TextRow({ label, value, onChange, placeholder, type = 'text', hint }) {
    return html`<label class="row">
        <span class="row-text"><span>${label}</span>${hint && html`<small>${hint}</small>`}</span>
        <input
            type=${type}
            value=${value}
            placeholder=${placeholder}
            autocomplete="off"
            spellcheck=${false}
            onChange=${(/** @type {any} */ e) => onChange(e.currentTarget.value)}
        />
    </label>`;
}

/** @param {{ title: string, children?: any, hint?: string, action?: any }} props */
export function Section({ title, children, hint, action }) {
    return html`<section class="section">
        <header class="section-head">
            <h2>${title}</h2>
            ${action}
        </header>
        ${hint && html`<p class="hint">${hint}</p>`} ${children}
    </section>`;
}

/** @param {{ fraction: number, size?: number, label: string, children?: any }} props fraction below 0: unknown */
export function Ring({ fraction, size = 44, label, children }) {
    const radius = size / 2 - 3;
    const length = 2 * Math.PI * radius;
    const known = fraction >= 0;
    return html`<div
        class="ring ${known ? '' : 'spinning'}"
        role="progressbar"
        aria-label=${label}
        aria-valuemin="0"
        aria-valuemax="100"
        aria-valuenow=${known ? Math.round(fraction * 100) : undefined}
    >
        <svg width=${size} height=${size} viewBox="0 0 ${size} ${size}" aria-hidden="true">
            <circle cx=${size / 2} cy=${size / 2} r=${radius} class="ring-track" />
            <circle
                cx=${size / 2}
                cy=${size / 2}
                r=${radius}
                class="ring-value"
                stroke-dasharray=${length}
                stroke-dashoffset=${length * (1 - (known ? Math.min(1, fraction) : 0.25))}
            />
        </svg>
        <span class="ring-inside">${children}</span>
    </div>`;
}

/** @param {{ icon?: any, title: string, text?: string, children?: any }} props */
export function Empty({ icon, title, text, children }) {
    return html`<div class="empty">
        ${icon && html`<span class="empty-icon"><${Icon} name=${icon} size=${28} /></span>`}
        <h2>${title}</h2>
        ${text && html`<p>${text}</p>`} ${children}
    </div>`;
}

/** Something over the page; Escape and the backdrop close it. @param {{ label: string, kind?: string, onClose: () => void, children?: any }} props */
export function Dialog({ label, kind = '', onClose, children }) {
    const ref = useRef(/** @type {HTMLDialogElement | null} */ (null));
    useEffect(() => {
        const dialog = ref.current;
        const before = document.activeElement;
        dialog?.showModal();
        return () => {
            dialog?.close();
            if (before instanceof HTMLElement && before.isConnected) before.focus();
        };
    }, []);
    return html`<dialog
        ref=${ref}
        class="dialog ${kind}"
        aria-label=${label}
        onCancel=${(/** @type {Event} */ e) => {
            e.preventDefault();
            onClose();
        }}
        onMouseDown=${(/** @type {MouseEvent} */ e) => {
            if (e.target === ref.current) onClose();
        }}
    >
        ${children}
    </dialog>`;
}

/** The question that is asked, if one is. */
export function QuestionDialog() {
    const asked = question.value;
    if (!asked) return null;
    return html`<${QuestionForm} key=${asked.title} asked=${asked} />`;
}

/** @param {{ asked: import('../state/ui.js').Question }} props */
function QuestionForm({ asked }) {
    const input = useRef(/** @type {HTMLInputElement | null} */ (null));
    /** @param {Event} event */
    const submit = (event) => {
        event.preventDefault();
        asked.done(input.current ? input.current.value : '');
    };
    return html`<${Dialog} label=${asked.title} kind="question" onClose=${() => asked.done(null)}>
        <form onSubmit=${submit}>
            <h2>${asked.title}</h2>
            ${asked.text && html`<p>${asked.text}</p>`}
            ${
                asked.input &&
                html`<label class="field"
                    ><span>${asked.input}</span>
                    <input
                        ref=${input}
                        type=${asked.secret ? 'password' : 'text'}
                        autocomplete="off"
                        value=${asked.value ?? ''}
                        autofocus
                    />
                </label>`
            }
            <div class="dialog-buttons">
                <button type="button" class="button" onClick=${() => asked.done(null)}>${t('cancel')}</button>
                <button type="submit" class="button ${asked.danger ? 'danger' : 'primary'}">${asked.confirm}</button>
            </div>
        </form>
    <//>`;
}

export function Notices() {
    return html`<div class="notices" role="status">
        ${notices.value.map(
            (notice) =>
                html`<div key=${notice.id} class="notice ${notice.kind}">
                    <${Icon} name=${notice.kind === 'error' ? 'warn' : 'info'} size=${18} />
                    <span>${notice.text}</span>
                    ${
                        notice.action &&
                        html`<button
                            type="button"
                            class="notice-action"
                            onClick=${() => {
                                notice.action?.run();
                                dismiss(notice.id);
                            }}
                        >
                            ${notice.action.label}
                        </button>`
                    }
                    <${IconButton} icon="close" size=${16} label=${t('dismiss')} onClick=${() => dismiss(notice.id)} />
                </div>`,
        )}
    </div>`;
}
