/* Options of `apus serve` that the Settings page has, as a command line and as a file. */

/** @typedef {{ option: string, label: string, kind: 'text' | 'secret' | 'flag' | 'choice', placeholder?: string, choices?: string[] }} OptionRow */

/** @type {{ title: string, rows: OptionRow[] }[]} */
export const optionRows = [
    {
        title: 'optNetwork',
        rows: [
            { option: '--host', label: 'optHost', kind: 'text', placeholder: '127.0.0.1' },
            { option: '--port', label: 'optPort', kind: 'text', placeholder: '5413' },
            { option: '--lan', label: 'optLan', kind: 'flag' },
            { option: '--api-key', label: 'optKey', kind: 'secret' },
            { option: '--tls-cert', label: 'optCert', kind: 'text', placeholder: 'cert.pem' },
            { option: '--tls-key', label: 'optCertKey', kind: 'text', placeholder: 'key.pem' },
            { option: '--history', label: 'optHistory', kind: 'text', placeholder: '~/.local/share/apus' },
            { option: '--allow-pull', label: 'optPull', kind: 'flag' },
        ],
    },
    {
        title: 'optAnswers',
        rows: [
            { option: '--slots', label: 'optSlots', kind: 'text', placeholder: '8' },
            { option: '--ctx-size', label: 'optContext', kind: 'text', placeholder: 'auto' },
            { option: '--queue', label: 'optQueue', kind: 'text', placeholder: '256' },
            { option: '--request-timeout', label: 'optTimeout', kind: 'text', placeholder: '5m' },
            { option: '--idle-unload', label: 'optIdle', kind: 'text', placeholder: '10m' },
        ],
    },
    {
        title: 'optMemory',
        rows: [
            { option: '--kv-memory', label: 'optKvMemory', kind: 'text', placeholder: '8G' },
            { option: '--kv-cache', label: 'optKv', kind: 'choice', choices: ['', 'auto', 'f16', 'bf16', 'q8', 'turbo', 'turbo3', 'turbo4', 'turbo5', 'turbo6'] }, // prettier-ignore
            { option: '--cache-dir', label: 'optKvDisk', kind: 'text', placeholder: '~/.cache/apus/kv' },
            { option: '--stream-experts', label: 'optStream', kind: 'flag' },
            { option: '--memory-budget', label: 'optBudget', kind: 'text', placeholder: '16G' },
            { option: '--draft-model', label: 'optDraft', kind: 'text', placeholder: 'gemma-270m' },
            { option: '--threads', label: 'optThreads', kind: 'text', placeholder: 'auto' },
            { option: '--gpu-layers', label: 'optGpu', kind: 'text', placeholder: 'auto' },
        ],
    },
];

const flags = new Set(
    optionRows.flatMap((group) => group.rows.filter((row) => row.kind === 'flag').map((row) => row.option)),
);

/** A word of the shell. @param {string} text */
const quote = (text) => (/^[\w@%+=:,./~-]+$/.test(text) ? text : `'${text.replace(/'/g, `'\\''`)}'`);

/** @param {Record<string, string>} values @param {string[]} models */
export function toCommand(values, models) {
    const parts = ['apus serve', ...(models.length > 0 ? models.map(quote) : ['MODEL'])];
    for (const [option, value] of Object.entries(values))
        parts.push(flags.has(option) ? option : `${option} ${quote(value)}`);
    return parts.join(' ');
}

/** @param {Record<string, string>} values @param {string[]} models */
export function toConfig(values, models) {
    const lines = (models.length > 0 ? models : ['MODEL']).map((name) => `model = ${name}`);
    for (const [option, value] of Object.entries(values))
        lines.push(`${option.slice(2)} = ${flags.has(option) ? 'true' : value}`);
    return lines.join('\n');
}
