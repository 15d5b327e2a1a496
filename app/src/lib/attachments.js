/** @typedef {import('./types.js').Attachment} Attachment */

export const TEXT_MAX = 4_000_000; // bytes of a text file
export const FILE_MAX = 64_000_000; // bytes of a pdf or an image
export const AUDIO_MAX = 20_000_000; // bytes of a sound: what a request holds
const PDF_PAGES_MAX = 500;
const IMAGE_SIDE_MAX = 2048; // pixels

const TEXT_NAMES =
    /\.(txt|md|markdown|csv|tsv|json|jsonl|ya?ml|toml|ini|cfg|conf|xml|html?|css|scss|m?[jt]sx?|c|h|cc|cpp|hpp|cu|cuh|m|mm|swift|rs|go|py|rb|php|pl|lua|sh|bash|zsh|fish|ps1|bat|sql|java|kt|kts|scala|cs|fs|hs|ml|ex|exs|erl|clj|r|jl|dart|vue|svelte|tex|bib|log|diff|patch|srt|vtt|cmake|dockerfile|makefile|gradle|proto|graphql|env|gitignore|asm|s|zig|nim|v|sv|vhd)$/i;

const AUDIO_NAMES = /\.(wav|mp3|flac|ogg|oga|opus)$/i;

/** A failure with the name of a string of i18n. */
export class AttachmentError extends Error {
    /** @param {string} key @param {Record<string, string>} values */
    constructor(key, values) {
        super(key);
        this.key = key;
        this.values = values;
    }
}

/** @param {File} file @returns {Attachment['kind'] | null} */
export function kindOf(file) {
    if (file.type === 'application/pdf' || /\.pdf$/i.test(file.name)) return 'pdf';
    if (file.type.startsWith('image/') && file.type !== 'image/svg+xml') return 'image';
    if (file.type.startsWith('audio/') || AUDIO_NAMES.test(file.name)) return 'audio';
    if (file.type.startsWith('text/') || file.type === 'image/svg+xml' || TEXT_NAMES.test(file.name)) return 'text';
    if (/^(makefile|dockerfile|license|readme|changelog)$/i.test(file.name) || /json|xml|javascript/.test(file.type))
        return 'text';
    return null;
}

/** @param {File} file @returns {Promise<Attachment>} */
export async function readAttachment(file) {
    const kind = kindOf(file);
    const name = file.name || (kind === 'image' ? 'image.png' : 'file');
    const most = kind === 'text' ? TEXT_MAX : kind === 'audio' ? AUDIO_MAX : FILE_MAX;
    if (file.size > most) throw new AttachmentError('fileTooLarge', { name });
    if (kind === 'pdf') return readPdf(file, name);
    if (kind === 'image') return { kind, name, bytes: file.size, text: await readImage(file, name) };
    if (kind === 'audio') return { kind, name, bytes: file.size, text: await readAudio(file) };
    const bytes = new Uint8Array(await file.arrayBuffer());
    if (bytes.subarray(0, 8000).includes(0)) throw new AttachmentError('fileNotText', { name });
    try {
        const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
        return { kind: 'text', name, bytes: file.size, text };
    } catch {
        if (!kind) throw new AttachmentError('fileNotText', { name });
        return { kind: 'text', name, bytes: file.size, text: new TextDecoder('windows-1252').decode(bytes) };
    }
}

/** @param {File} file @param {string} name @returns {Promise<Attachment>} */
async function readPdf(file, name) {
    const { pdfText } = await import('./pdf.js');
    try {
        const { text, pages } = await pdfText(new Uint8Array(await file.arrayBuffer()), PDF_PAGES_MAX);
        if (!text.trim()) throw new AttachmentError('pdfNoText', { name });
        return { kind: 'pdf', name, bytes: file.size, text, pages };
    } catch (error) {
        if (error instanceof AttachmentError) throw error;
        throw new AttachmentError('fileDamaged', { name });
    }
}

/** A picture as a data URL of PNG or JPEG, upright, not larger than models use. @param {File} file @param {string} name */
async function readImage(file, name) {
    let bitmap;
    try {
        bitmap = await createImageBitmap(file, { imageOrientation: 'from-image' });
    } catch {
        throw new AttachmentError('fileDamaged', { name });
    }
    const scale = Math.min(1, IMAGE_SIDE_MAX / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement('canvas');
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext('2d')?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    return file.type === 'image/png' ? canvas.toDataURL('image/png') : canvas.toDataURL('image/jpeg', 0.9);
}

/** A sound as a data URL, as it is: the server decodes it. @param {File} file @returns {Promise<string>} */
async function readAudio(file) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    let text = '';
    for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
    const type = /^audio\/[\w.+-]+$/.test(file.type) ? file.type : 'audio/wav';
    return `data:${type};base64,${btoa(text)}`;
}

/** The part of a message that is a sound. @param {Attachment} attachment */
export function audioPart(attachment) {
    const format = /\.(\w+)$/.exec(attachment.name)?.[1]?.toLowerCase() ?? 'wav';
    const data = attachment.text.slice(attachment.text.indexOf(',') + 1);
    return { type: 'input_audio', input_audio: { data, format } };
}

/** The bytes of a data URL as an address that a player may have. @param {string} url @returns {string} to be revoked */
export function playableUrl(url) {
    const [head, data = ''] = url.split(',', 2);
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    return URL.createObjectURL(new Blob([bytes], { type: /^data:(audio\/[\w.+-]+)/.exec(head)?.[1] ?? '' }));
}

/** How a text goes into a message. @param {Attachment} attachment */
export function attachmentText(attachment) {
    const fence = '`'.repeat(Math.max(3, ...(attachment.text.match(/`{3,}/g) ?? []).map((run) => run.length + 1)));
    const lang = attachment.kind === 'pdf' ? '' : (/\.(\w+)$/.exec(attachment.name)?.[1] ?? '');
    return `File: ${attachment.name}\n${fence}${lang}\n${attachment.text}\n${fence}`;
}
