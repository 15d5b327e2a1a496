import { html } from './html.js';

/* Icons of 24 by 24, drawn with lines. */

const paths = {
    menu: 'M4 7h16M4 12h16M4 17h16',
    plus: 'M12 5v14M5 12h14',
    search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4',
    chat: 'M5 5h14a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2h-7l-5 4v-4H5a2 2 0 0 1-2-2V7a2 2 0 0 1 2-2z',
    edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
    compose:
        'M11 5H6a2 2 0 0 0-2 2v11a2 2 0 0 0 2 2h11a2 2 0 0 0 2-2v-5M18.4 3.6a1.9 1.9 0 0 1 2.7 2.7L13 14.5l-4 1 1-4z',
    cube: 'M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9',
    gear: 'M12 15a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM19.4 13.5a7.6 7.6 0 0 0 0-3l2-1.5-2-3.4-2.3 1a7.6 7.6 0 0 0-2.6-1.5L14.2 3h-4l-.4 2.2a7.6 7.6 0 0 0-2.6 1.5l-2.3-1-2 3.4 2 1.4a7.6 7.6 0 0 0 0 3l-2 1.5 2 3.4 2.3-1a7.6 7.6 0 0 0 2.6 1.5l.4 2.1h4l.4-2.2a7.6 7.6 0 0 0 2.6-1.5l2.3 1 2-3.4z',
    send: 'M12 19V5M6 11l6-6 6 6',
    stop: 'M7 7h10v10H7z',
    copy: 'M9 9h10v11H9zM15 9V5a1 1 0 0 0-1-1H6a1 1 0 0 0-1 1v10a1 1 0 0 0 1 1h3',
    check: 'M5 13l4 4L19 7',
    close: 'M6 6l12 12M18 6L6 18',
    refresh: 'M20 11a8 8 0 0 0-14.3-4L3 9.5M3 4v5.5h5.5M4 13a8 8 0 0 0 14.3 4l2.7-2.5M21 20v-5.5h-5.5',
    trash: 'M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5',
    left: 'M15 5l-7 7 7 7',
    right: 'M9 5l7 7-7 7',
    down: 'M5 9l7 7 7-7',
    brain: 'M9.5 20A3.5 3.5 0 0 1 6 16.5a3.5 3.5 0 0 1-1.6-6A3.5 3.5 0 0 1 7.5 5 3 3 0 0 1 12 4.8 3 3 0 0 1 16.5 5a3.5 3.5 0 0 1 3.1 5.5 3.5 3.5 0 0 1-1.6 6A3.5 3.5 0 0 1 14.5 20a2.5 2.5 0 0 1-2.5-1.500A2.5 2.5 0 0 1 9.5 20zM12 5v13.5',
    paperclip: 'M20 11l-8.5 8.500a5 5 0 0 1-7-7L13 4a3.4 3.4 0 0 1 4.8 4.800L9.5 17a1.7 1.7 0 0 1-2.4-2.400L14.5 7.2',
    camera: 'M4 8h3l2-3h6l2 3h3v11H4zM12 16.500a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7z',
    image: 'M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.500h.01',
    file: 'M6 3h8l4 4v14H6zM14 3v4h4',
    sliders: 'M4 7h10M18 7h2M4 17h2M10 17h10M16 4.500v5M8 14.500v5',
    wrench: 'M14.5 6.500a4 4 0 0 1 5-2L17 7l2 2 2.5-2.500a4 4 0 0 1-5.2 5L8 20a2 2 0 0 1-3-3l8.5-8.300a4 4 0 0 1 1-2.200z',
    download: 'M12 4v11M7 11l5 5 5-5M5 20h14',
    upload: 'M12 16V5M7 9l5-5 5 5M5 20h14',
    pause: 'M8 5v14M16 5v14',
    play: 'M8 5l11 7-11 7z',
    pin: 'M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v6',
    more: 'M6 12h.01M12 12h.01M18 12h.01',
    info: 'M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 11v5M12 8h.01',
    warn: 'M12 4l9 16H3zM12 10v4M12 17h.01',
    sun: 'M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.600l1.4 1.400M17 17l1.4 1.400M5.6 18.400L7 17M17 7l1.4-1.4',
    external: 'M14 4h6v6M20 4l-9 9M18 14v6H4V6h6',
    key: 'M14.5 14a4.5 4.5 0 1 0-4.2-2.800L4 17.500V20h3v-2h2v-2h2l1.3-2.300A4.5 4.5 0 0 0 14.5 14zM16 8h.01',
    bolt: 'M13 3L5 14h6l-1 7 8-11h-6z',
    sidebar: 'M4 5h16v14H4zM9.5 5v14',
    globe: 'M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM3 12h18M12 3c3 3 3.5 6 3.5 9s-.5 6-3.5 9c-3-3-3.5-6-3.5-9s.5-6 3.5-9z',
};

/** @param {{ name: keyof typeof paths, size?: number }} props */
export function Icon({ name, size = 20 }) {
    return html`<svg
        class="icon"
        width=${size}
        height=${size}
        viewBox="0 0 24 24"
        fill=${name === 'stop' || name === 'play' ? 'currentColor' : 'none'}
        stroke="currentColor"
        stroke-width=${name === 'more' || name === 'send' ? 2.4 : 1.8}
        stroke-linecap="round"
        stroke-linejoin="round"
        aria-hidden="true"
    >
        <path d=${paths[name]} />
    </svg>`;
}

/** The swift. */
export const LOGO =
    'M72 148c78 4 136 34 171 86 9-13 20-24 34-30 20-9 41-6 58 8 21-26 56-50 105-64-26 33-45 62-57 92-13 33-33 57-60 72-14 8-29 12-44 14 8 22 22 43 44 64-38-8-66-25-85-50-19 14-44 22-74 24 19-18 33-37 41-57-41-9-69-32-84-68-14-34-30-65-49-91z';

/** @param {{ size?: number }} props */
export function Logo({ size = 28 }) {
    return html`<svg class="logo" width=${size} height=${size} viewBox="56 120 390 310" aria-hidden="true">
        <path
            fill="currentColor"
            d=${LOGO}
        />
    </svg>`;
}
