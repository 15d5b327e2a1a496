/* Formulas as MathML, by Temml, loaded when the first one is shown. */

const TEXT_MAX = 8_000; // characters of a formula

/** @type {Promise<any> | null} */
let loading = null;

/** @param {Iterable<HTMLElement>} elements whose text is TeX */
export async function renderMaths(elements) {
    loading ??= import('temml').then((module) => module.default);
    const temml = await loading;
    for (const element of elements) {
        const tex = element.textContent ?? '';
        if (element.dataset.done || tex.length > TEXT_MAX) continue;
        element.dataset.done = '1';
        element.title = tex;
        const options = { displayMode: element.classList.contains('math-block'), throwOnError: true, trust: false };
        try {
            const made = document.createElement('span');
            temml.render(tex, made, { ...options, maxExpand: 1000, maxSize: [20, 200] });
            element.replaceChildren(...made.childNodes);
        } catch {
            element.classList.add('math-wrong'); // stays as TeX
        }
    }
}
