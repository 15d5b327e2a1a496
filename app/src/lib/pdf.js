import * as pdfjs from 'pdfjs-dist';
import { scriptUrl } from './trusted.js';

/**
 * The text of a document, page by page.
 * @param {Uint8Array} data
 * @param {number} pagesMax
 */
export async function pdfText(data, pagesMax) {
    const url = document.body.dataset.pdfWorker ?? '';
    const port = new Worker(/** @type {string} */ (scriptUrl(url)), { type: 'module' });
    const worker = pdfjs.PDFWorker.create({ port });
    try {
        const pdf = await pdfjs.getDocument({
            data,
            worker,
            isEvalSupported: false,
            useWasm: false,
            stopAtErrors: false,
        }).promise;
        const pages = [];
        for (let i = 1; i <= Math.min(pdf.numPages, pagesMax); i++) {
            const content = await (await pdf.getPage(i)).getTextContent();
            let text = '';
            for (const item of content.items) if ('str' in item) text += item.str + (item.hasEOL ? '\n' : '');
            pages.push(text.trim());
        }
        return { text: pages.join('\n\n'), pages: pdf.numPages };
    } finally {
        worker.destroy();
        port.terminate();
    }
}
