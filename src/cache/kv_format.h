/* The quantisation that an option or a request asks for. The forms that each entry really gets are in KvQuant. */
#pragma once
#include "backend/backend.h"

enum {
    KV_LAYERS_MAX = 256, /* layers that a list can name */
    KV_AFTER = 2048,     /* default of KvFormat.after */
    KV_HOT = 256,        /* default of KvFormat.hot */
    KV_SINK = 128,       /* default of KvFormat.sink */
};

/* Layers whose keys get a form one better than asked for (two, where measured to be needed). */
typedef enum KvRaise { KV_RAISE_NONE, KV_RAISE_MEASURED, KV_RAISE_LISTED } KvRaise;

/* No padding: formats are compared as bytes. */
typedef struct KvFormat {
    KvForm k, v; /* both KV_FULL: nothing is quantised */
    KvRaise raise;
    /* Tokens, multiples of KV_PAGE_TOKENS. */
    int after;                           /* shorter sequences stay in full precision */
    int hot;                             /* newest tokens that stay in full precision, at least one page */
    int sink;                            /* first tokens that stay in full precision */
    uint64_t raised[KV_LAYERS_MAX / 64]; /* bit per layer, of KV_RAISE_LISTED */
} KvFormat;

/* "f16", "turbo" (turbo4, raised where measured), "turbo3" … "turbo6", "q8", or "K/V" of two of these without f16; with
 * the default lengths. ERROR_USAGE names the formats. "bf16" and "auto" are options of an engine, not formats. */
NODISCARD bool kv_format_parse(const char *text, KvFormat *out, Error *error);
/* Writes "turbo4" or "q8/turbo3"; size ≥ KV_FORMAT_NAME_MAX. */
enum { KV_FORMAT_NAME_MAX = 24 };
void kv_format_name(const KvFormat *format, char *out, size_t size);
const char *kv_form_name(KvForm form); /* "exact", "4-bit" */
