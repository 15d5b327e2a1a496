import { signal } from '@preact/signals';
import { t } from '../state/settings.js';
import { html } from './html.js';
import { Empty } from './parts.js';

/** The code is not there: the server has another version by now, or cannot be reached. */
function Missing() {
    return html`<${Empty} icon="warn" title=${t('pageFailed')}>
        <button type="button" class="button primary" onClick=${() => location.reload()}>${t('reload')}</button>
    <//>`;
}

/**
 * A view whose code is loaded when it is shown first, or before, by prepare().
 * @param {() => Promise<any>} load
 */
export function later(load) {
    /** @type {import('@preact/signals').Signal<any>} */
    const view = signal(null);
    let asked = false;
    let shown = false;
    async function prepare() {
        if (asked) return;
        asked = true;
        try {
            view.value = { is: await load() };
        } catch {
            asked = false; // again when it is shown
            if (shown) view.value = { is: Missing };
        }
    }
    /** @param {any} props */
    function Later(props) {
        shown = true;
        if (!view.value) prepare();
        return view.value && html`<${view.value.is} ...${props} />`;
    }
    return Object.assign(Later, { prepare });
}
