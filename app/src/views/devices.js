import { useEffect } from 'preact/hooks';
import { devices, invite, pairing, refreshDevices, revoke } from '../state/devices.js';
import { lang, t } from '../state/settings.js';
import { copyText, notify } from '../state/ui.js';
import { html } from './html.js';
import { Icon } from './icons.js';
import { Section } from './parts.js';

/** A QR code, dark on light in both themes. @param {{ rows: string[], label: string }} props */
function QrCode({ rows, label }) {
    const size = rows.length + 8; // with the quiet zone
    let path = '';
    for (const [y, row] of rows.entries())
        for (const run of row.matchAll(/1+/g))
            path += `M${(run.index ?? 0) + 4} ${y + 4}h${run[0].length}v1h-${run[0].length}z`;
    return html`<svg class="qr" viewBox="0 0 ${size} ${size}" role="img" aria-label=${label} shape-rendering="crispEdges">
        <rect width=${size} height=${size} fill="#fff" />
        <path d=${path} fill="#000" />
    </svg>`;
}

/** @param {number} seconds since 1970 */
const day = (seconds) =>
    seconds
        ? new Date(seconds * 1000).toLocaleString(lang.value === 'zh' ? 'zh-Hans' : 'en', {
              dateStyle: 'medium',
              timeStyle: 'short',
          })
        : t('never');

export function Devices() {
    useEffect(() => {
        refreshDevices();
        return () => void (pairing.value = null);
    }, []);
    const shown = pairing.value;
    const copy = async () => {
        if (shown) notify((await copyText(shown.url)) ? t('copied') : t('copyFailed'));
    };
    return html`<${Section} title=${t('tab_devices')} hint=${t('devicesHint')}>
        <ul class="cards">
            ${devices.value.map(
                (item) =>
                    html`<li key=${item.id} class="card model-card device">
                        <div class="card-text">
                            <strong>${item.name}</strong>
                            <small>${[t('pairedOn', { when: day(item.created) }), t('lastUsed', { when: day(item.lastUsed) })].join(' · ')}</small>
                        </div>
                        ${item.current && html`<span class="tag good">${t('thisDevice')}</span>`}
                        <div class="card-buttons">
                            <button type="button" class="button small danger" onClick=${() => revoke(item)}>
                                ${t('revoke')}
                            </button>
                        </div>
                    </li>`,
            )}
        </ul>
        ${
            shown
                ? html`<div class="card pairing">
                      ${shown.qr.length > 0 && html`<${QrCode} rows=${shown.qr} label=${t('pairingCode')} />`}
                      <p>${t('pairingText', { n: Math.round(shown.seconds / 60) })}</p>
                      <code>${shown.url}</code>
                      <div class="button-row">
                          <button type="button" class="button" onClick=${copy}>
                              <${Icon} name="copy" size=${17} />${t('copy')}
                          </button>
                          <button type="button" class="button" onClick=${() => {
                              pairing.value = null;
                              refreshDevices();
                          }}>
                              ${t('close')}
                          </button>
                      </div>
                  </div>`
                : html`<div class="button-row">
                      <button type="button" class="button primary" onClick=${invite}>${t('pairDevice')}</button>
                  </div>`
        }
    <//>`;
}
