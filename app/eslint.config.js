import js from '@eslint/js';
import globals from 'globals';

export default [
    { ignores: ['dist', 'node_modules'] },
    js.configs.recommended,
    {
        languageOptions: { globals: { ...globals.browser } },
        rules: {
            eqeqeq: 'error',
            'no-eval': 'error',
            'no-implied-eval': 'error',
            'no-unused-vars': ['error', { args: 'none' }],
            'prefer-const': 'error',
            'no-restricted-properties': [
                'error',
                { property: 'innerHTML', message: 'Markup goes through lib/sanitize.js.' },
                { property: 'outerHTML', message: 'Markup goes through lib/sanitize.js.' },
            ],
        },
    },
    { files: ['src/static/sw.js'], languageOptions: { globals: { ...globals.serviceworker } } },
    { files: ['*.js', 'tests/**'], languageOptions: { globals: { ...globals.node, ...globals.browser } } },
];
