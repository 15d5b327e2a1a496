/* What a layer remembers of a sequence. Said by the model's parts, stored by the cache. */
#pragma once
#include <stddef.h>

#include "backend/backend.h"

typedef enum CacheKind {
    CACHE_NONE,
    CACHE_PAGES,  /* keys and values of every position, or of a window */
    CACHE_STATE,  /* a recurrent state of fixed size; at position 0 its bytes mean nothing and count as the start */
    CACHE_SHARED, /* another layer's */
} CacheKind;

typedef struct CacheSpec {
    CacheKind kind;
    int kv_heads, head_dim, value_dim; /* PAGES */
    bool latent;                       /* PAGES: as of KvLayout */
    int window;                        /* PAGES; 0: every position */
    const float *k_bias;               /* PAGES: as of KvLayer, bound; NULL: none */
    const Rope *rope;                  /* PAGES: bound; NULL: none */
    size_t state_bytes;                /* STATE */
    int layer;                         /* SHARED: an earlier one, which does not share itself */
} CacheSpec;
