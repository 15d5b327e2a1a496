/* Numbers for people. */

/** @param {number} bytes */
export function bytes(bytes) {
    const units = ['B', 'kB', 'MB', 'GB', 'TB'];
    let i = 0;
    let value = bytes;
    while (value >= 999.5 && i < units.length - 1) {
        value /= 1000;
        i++;
    }
    return `${i === 0 || value >= 99.5 ? Math.round(value) : value.toPrecision(2)} ${units[i]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
    const s = Math.round(seconds);
    if (s < 60) return seconds < 9.95 ? `${Math.max(seconds, 0).toFixed(1)} s` : `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    if (s < 356_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return '99 h+';
}

/** @param {number} count */
export function count(count) {
    if (count < 10_000) return String(Math.round(count));
    if (count < 999_500) return `${(count / 1000).toFixed(count < 99_500 ? 1 : 0)}k`;
    return `${(count / 1_000_000).toFixed(1)}M`;
}

/** @param {number} rate */
export const rate = (rate) => (rate >= 99.5 ? String(Math.round(rate)) : rate.toFixed(1));
