/* In which form a sequence keeps what has left its hot window. Asked for by an option or a request; what a layer really
 * has is in KvQuant. */
#pragma once
#include "backend/backend.h"

enum {
    KV_LAYERS_MAX = 256, /* that a list can name */
    KV_AFTER = 2048,     /* defaults, in tokens: before so many nothing is coded; */
    KV_HOT = 256,        /* the newest are not; */
    KV_SINK = 128,       /* the first are not */
};

/* Which layers get keys of one form better than asked for: two where that was measured to be needed. */
typedef enum KvRaise { KV_RAISE_NONE, KV_RAISE_MEASURED, KV_RAISE_LISTED } KvRaise;

/* No padding: formats are compared as bytes. */
typedef struct KvFormat {
    KvForm k, v; /* both EXACT: nothing is coded */
    KvRaise raise;
    int after, hot, sink; /* tokens, multiples of KV_PAGE_TOKENS; hot at least one page */
    uint64_t raised[KV_LAYERS_MAX / 64];
} KvFormat;

/* "f16", "turbo" (turbo4, raised where measured), "turbo3" … "turbo6", "q8", or "K/V" of two of these without f16; with
 * the default lengths. ERROR_USAGE names what there is. "bf16" and "auto" are not a sequence's to say. */
NODISCARD bool kv_format_parse(const char *text, KvFormat *out, Error *error);
/* "turbo4", "q8/turbo3": for people; size ≥ KV_FORMAT_NAME_MAX. */
enum { KV_FORMAT_NAME_MAX = 24 };
void kv_format_name(const KvFormat *format, char *out, size_t size);
const char *kv_form_name(KvForm form); /* "exact", "4-bit" */
