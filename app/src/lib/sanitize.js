import createPurify from 'dompurify';

/* Elements that an answer may contain. No class but the renderer's own, no id, no style: an answer cannot look like
   a part of the app, and nothing in it loads or sends anything. */
const TAGS = (
    'a abbr b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img input ins kbd li mark ' +
    'ol p pre q rp rt ruby s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var wbr'
).split(' ');
const ATTRIBUTES = [
    'align',
    'alt',
    'checked',
    'class',
    'colspan',
    'dir',
    'disabled',
    'href',
    'lang',
    'open',
    'rowspan',
];
const OURS = new Set(['table-wrap', 'code-block', 'math', 'math-block', 'remote-image', 'task']);
const IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[a-z0-9+/=\s]+$/i;
const LINK = /^(https?:|mailto:|#)/i;

const purify = createPurify(window);

purify.addHook('uponSanitizeAttribute', (node, data) => {
    if (data.attrName === 'class' && !OURS.has(data.attrValue)) data.keepAttr = false;
    if (data.attrName === 'src' && !IMAGE.test(data.attrValue)) data.keepAttr = false;
    if (data.attrName === 'href' && !LINK.test(data.attrValue.trim())) data.keepAttr = false;
});

purify.addHook('afterSanitizeAttributes', (node) => {
    if (node.nodeName === 'A' && node.hasAttribute('href')) {
        node.setAttribute('target', '_blank');
        node.setAttribute('rel', 'noopener noreferrer nofollow');
    }
    if (node.nodeName === 'IMG' && !node.hasAttribute('src')) node.remove();
    if (node.nodeName === 'INPUT') {
        if (node.getAttribute('type') !== 'checkbox') node.remove();
        node.setAttribute('disabled', '');
    }
});

/**
 * Markup of an answer that is safe to show; where the browser has trusted types, of such a type.
 * @param {string} html
 * @returns {string}
 */
export function sanitize(html) {
    const clean = purify.sanitize(html, {
        ALLOWED_TAGS: TAGS,
        ALLOWED_ATTR: [...ATTRIBUTES, 'rel', 'src', 'start', 'target', 'title', 'type', 'data-lang', 'data-tex'],
        ALLOW_DATA_ATTR: false,
        ALLOW_ARIA_ATTR: false,
        RETURN_TRUSTED_TYPE: true,
    });
    return /** @type {string} */ (/** @type {unknown} */ (clean));
}
