import { signal } from '@preact/signals';
import { ApiError, call } from '../lib/api.js';
import { refresh } from './server.js';
import { apiKey, rememberKey, t } from './settings.js';
import { ask, notify } from './ui.js';

/* Devices that are paired with a server in the local network (apus serve --lan). */

/** @typedef {{ id: string, name: string, created: number, lastUsed: number, current: boolean }} Device */
/** @typedef {{ url: string, qr: string[], seconds: number }} Pairing */

/** @type {import('@preact/signals').Signal<Device[]>} */
export const devices = signal([]);
/** The pairing that is shown. @type {import('@preact/signals').Signal<Pairing | null>} */
export const pairing = signal(null);

/** @param {unknown} error */
const complain = (error) => notify(error instanceof Error ? error.message : String(error), 'error');

export async function refreshDevices() {
    try {
        const answer = await call('/v1/devices');
        devices.value = answer.data.map((/** @type {any} */ item) => ({
            id: String(item.id),
            name: String(item.name),
            created: Number(item.created) || 0,
            lastUsed: Number(item.last_used) || 0,
            current: item.current === true,
        }));
    } catch (error) {
        complain(error);
    }
}

export async function invite() {
    try {
        pairing.value = await call('/v1/devices/pairing', { body: {} });
    } catch (error) {
        complain(error);
    }
}

/** @param {Device} device */
export async function revoke(device) {
    const sure = await ask({
        title: t('revokeTitle', { name: device.name }),
        text: t(device.current ? 'revokeOwn' : 'revokeText'),
        confirm: t('revoke'),
        danger: true,
    });
    if (sure === null) return;
    try {
        await call(`/v1/devices/${device.id}`, { method: 'DELETE' });
        if (device.current) apiKey.value = '';
        else await refreshDevices();
    } catch (error) {
        complain(error);
    }
    if (device.current) refresh();
}

/** What this device is called in the list. @returns {string} */
function ownName() {
    const agent = navigator.userAgent;
    const system = /iPhone|iPad|Android|Macintosh|Windows|Linux/.exec(agent)?.[0] ?? '';
    const browser = /Edg|Firefox|Chrome|Safari/.exec(agent)?.[0].replace('Edg', 'Edge') ?? '';
    return [system.replace('Macintosh', 'Mac'), browser].filter(Boolean).join(', ') || 'browser';
}

/** Takes a pairing from the page's address, where it is behind the #, so that it was not sent. */
export async function pairFromAddress() {
    const found = /^#\/pair\/([0-9a-f]{32})$/.exec(location.hash);
    if (!found) return;
    history.replaceState(null, '', `${location.pathname}#/chat`);
    try {
        const answer = await call('/v1/devices/pair', { body: { secret: found[1], name: ownName() } });
        rememberKey.value = true;
        apiKey.value = String(answer.key);
        notify(t('paired'));
    } catch (error) {
        const over = error instanceof ApiError && error.code === 'pairing_over';
        notify(over ? t('pairingOver') : error instanceof Error ? error.message : String(error), 'error');
    }
}
