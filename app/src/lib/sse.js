/** @typedef {{ event: string, data: string, id: string }} ServerEvent */

/**
 * Events of a stream (WHATWG HTML, 9.2.6), as their bytes come.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<ServerEvent>}
 */
export async function* readEvents(body) {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let text = '';
    let event = { event: 'message', data: '', id: '' };
    let seen = false;
    try {
        for (;;) {
            const { value, done } = await reader.read();
            text += done ? decoder.decode() : decoder.decode(value, { stream: true });
            let at = 0;
            for (;;) {
                const end = text.indexOf('\n', at);
                if (end < 0) break;
                const line = text.slice(at, text[end - 1] === '\r' ? end - 1 : end);
                at = end + 1;
                if (line === '') {
                    if (seen) yield { ...event, data: event.data.slice(0, -1) };
                    event = { event: 'message', data: '', id: event.id };
                    seen = false;
                    continue;
                }
                const colon = line.indexOf(':');
                const name = colon < 0 ? line : line.slice(0, colon);
                const content = colon < 0 ? '' : line.slice(colon + (line[colon + 1] === ' ' ? 2 : 1));
                if (name === 'data') {
                    event.data += content + '\n';
                    seen = true;
                } else if (name === 'event') event.event = content;
                else if (name === 'id') event.id = content;
            }
            text = text.slice(at);
            if (done) return;
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}
