#include "cache/kv_format.h"

#include <stdio.h>
#include <string.h>

typedef struct Name {
    const char *name;
    KvForm k, v;
    KvRaise raise;
} Name;

static const Name names[] = {
    {"f16", KV_FULL, KV_FULL, KV_RAISE_NONE},
    {"turbo", KV_Q4, KV_Q4, KV_RAISE_MEASURED},
    {"turbo3", KV_Q4, KV_Q3, KV_RAISE_NONE},
    {"turbo4", KV_Q4, KV_Q4, KV_RAISE_NONE},
    {"turbo5", KV_Q5, KV_Q4, KV_RAISE_NONE},
    {"turbo6", KV_Q6, KV_Q5, KV_RAISE_NONE},
    {"q8", KV_Q8, KV_Q8, KV_RAISE_NONE},
};
enum { NAMES = sizeof names / sizeof *names };

static const Name *find_name(const char *text, size_t length) {
    for (int i = 0; i < NAMES; i++)
        if (strlen(names[i].name) == length && !memcmp(names[i].name, text, length)) return &names[i];
    return NULL;
}

bool kv_format_parse(const char *text, KvFormat *out, Error *error) {
    const char *slash = strchr(text, '/');
    const Name *k = find_name(text, slash ? (size_t)(slash - text) : strlen(text));
    const Name *v = slash ? find_name(slash + 1, strlen(slash + 1)) : k;
    if (!k || !v || (k->k == KV_FULL) != (v->v == KV_FULL))
        return fail(error, ERROR_USAGE,
            "\"%.40s\" is no format of a KV cache: f16, turbo, turbo3, turbo4, turbo5, turbo6 and q8 are, and two "
            "quantised ones as KEYS/VALUES",
            text);
    *out = (KvFormat){.k = k->k, .v = v->v, .raise = k->raise, .after = KV_AFTER, .hot = KV_HOT, .sink = KV_SINK};
    return true;
}

void kv_format_name(const KvFormat *format, char *out, size_t size) {
    /* Which name says a half's form; for keys that are raised where measured it is "turbo". */
    static const char *const k_names[KV_FORMS] = {"f16", "3-bit", "turbo4", "turbo5", "turbo6", "q8"};
    static const char *const v_names[KV_FORMS] = {"f16", "turbo3", "turbo4", "turbo6", "6-bit", "q8"};
    const KvRaise raise = format->raise == KV_RAISE_MEASURED ? KV_RAISE_MEASURED : KV_RAISE_NONE;
    for (int i = 0; i < NAMES; i++) {
        if (names[i].k != format->k || names[i].v != format->v || names[i].raise != raise) continue;
        snprintf(out, size, "%s", names[i].name);
        return;
    }
    snprintf(out, size, "%s/%s", raise ? "turbo" : k_names[format->k], v_names[format->v]);
}

const char *kv_form_name(KvForm form) {
    static const char *const form_names[KV_FORMS] = {"exact", "3-bit", "4-bit", "5-bit", "6-bit", "8-bit"};
    return form_names[form];
}
