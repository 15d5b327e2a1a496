import htm from 'htm';
import { h } from 'preact';

/** Markup as tagged templates. @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = /** @type {any} */ (htm.bind(h));
