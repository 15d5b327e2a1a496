/* One entry of a model's cache: what one component keeps of every sequence. The model describes entries
 * (model/component.h) and numbers them from 0; the cache stores them. Components that share an entry name the same
 * number. */
#pragma once
#include <stddef.h>

#include "backend/backend.h"

typedef enum CacheKind {
    CACHE_PAGES, /* keys and values of every position, or of a window */
    CACHE_STATE, /* a recurrent state of fixed size; at position 0 its bytes mean nothing and count as the start */
} CacheKind;

typedef struct CacheSpec {
    CacheKind kind;
    int layer;                         /* of the model, the first that uses the entry: for options and messages */
    int kv_heads, head_dim, value_dim; /* PAGES */
    bool latent;                       /* PAGES: as of KvLayout */
    int window;                        /* PAGES; 0: every position */
    const float *k_bias;               /* PAGES: as of KvLayer, bound; NULL: none */
    const Rope *rope;                  /* PAGES: bound; NULL: none */
    size_t state_bytes;                /* STATE */
} CacheSpec;
