/* The page's policy asks for trusted types where the browser has them: only this file says which scripts may be loaded. */

/** @type {any} */
const factory = /** @type {any} */ (window).trustedTypes;
const policy = factory?.createPolicy('apus', {
    /** @param {string} url */
    createScriptURL(url) {
        if (url === '/sw.js' || /^\/assets\/[\w-]+\.js$/.test(url)) return url;
        throw new TypeError(`not a script of the app: ${url}`);
    },
});

/** @param {string} url @returns {any} */
export const scriptUrl = (url) => (policy ? policy.createScriptURL(url) : url);
