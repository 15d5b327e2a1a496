import { Component, h } from 'preact';

/** @param {any} a @param {any} b */
function same(a, b) {
    for (const key in a) if (a[key] !== b[key]) return false;
    for (const key in b) if (!(key in a)) return false;
    return true;
}

/**
 * A component that is drawn again only when its properties have changed.
 * @template P
 * @param {(props: P) => any} view
 * @param {(a: P, b: P) => boolean} [equal]
 * @returns {import('preact').ComponentType<P>}
 */
export function memo(view, equal = same) {
    return /** @type {any} */ (
        class extends Component {
            /** @param {any} next */
            shouldComponentUpdate(next) {
                return !equal(/** @type {any} */ (this.props), next);
            }
            render() {
                return h(/** @type {any} */ (view), this.props);
            }
        }
    );
}
