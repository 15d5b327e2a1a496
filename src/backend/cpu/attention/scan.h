/* Scans of coded pages (kv_quant.h): products of integers, for all queries of a kv head that visit a page together.
 *
 * A query is rotated and rounded to int8 with one step for the whole head. Codes of 16 tokens (keys) or 16 dims
 * (values) are looked up, in registers, a byte each, and four of them meet four of the query's or four weights in each
 * lane. Weights
 * are p · scale of the token, rounded to bytes with one step per page and group of dims; what the rounding of a token
 * leaves is carried to the token 16 further, so that many small weights beside a large one do not vanish. Every integer
 * sum is exact, and floats are added in one order whatever the number of queries: a query's result depends on itself
 * and the page alone.
 *
 * No page is passed over. A bound on its weight from its mean and its largest norm lies 35 nats above what it weighs
 * (qwen-0.5b, 5,800 tokens of prose), and none of 6,048 pages weighed less than a millionth for all queries of its
 * head.
 */
#pragma once
#include "backend/cpu/attention/attention.h"
#include "backend/kv_quant.h"

enum {
    SCAN_GROUPS_MAX = 16, /* groups of dims of a head */
    SCAN_TABLE = 64,
    SCAN_TILE_MAX = 6, /* queries of a register tile */
    SCAN_CHUNK = 4,    /* blocks that are looked up at a time where many queries meet them */
};

/* A query as scans use it: this, then float rotated[d], then int8_t codes[d]. */
typedef struct ScanQuery {
    _Alignas(64) float step;             /* rotated ≈ step · codes */
    float sums[SCAN_GROUPS_MAX];         /* of a group's codes */
    float turns[KV_QUANT_BIAS_PAIRS][2]; /* of bias pair n: ⟨q, b⟩ and q × b, times the rope's scale */
} ScanQuery;
static inline size_t scan_query_bytes(int d) { return sizeof(ScanQuery) + ((size_t)d * 5 + 63) / 64 * 64; }
static inline float *scan_rotated(const ScanQuery *query) {
    return (float *)(void *)((uint8_t *)query + sizeof *query);
}
static inline int8_t *scan_codes(const ScanQuery *query, int d) { return (int8_t *)(scan_rotated(query) + d); }

/* The record of the keys that rotate behind that of a latent of `width`. */
static inline ScanQuery *scan_rotating(const ScanQuery *query, int width) {
    return (ScanQuery *)(void *)((uint8_t *)query + scan_query_bytes(width));
}

/* One half of a layer's coded pages. */
typedef struct ScanForm {
    KvForm form;
    KvQuantLayout layout;
    uint8_t table[SCAN_TABLE]; /* of the kernel's: what an index stands for */
} ScanForm;

/* How many lines of what comes next are fetched at a time while half a page is computed: of its values with its keys,
 * of the next keys with its values. In a burst they would wait for memory, and loads behind them, and memory would idle
 * while floats are computed. */
typedef struct ScanFetch {
    int product, query; /* in a piece of a product; in a pass over a query's floats */
} ScanFetch;

/* A page of a kv head: its two halves (KvHalf). */
typedef struct ScanPage {
    const ScanForm *keys, *values;
    const uint8_t *k, *v;
    const uint8_t *next_k;                                                    /* of the page after this, or of this */
    ScanFetch fetch_k, fetch_v;                                               /* of these and of v; 0: none */
    int pairs;                                                                /* whose bias was taken out of the keys */
    const float *cosines[KV_QUANT_BIAS_PAIRS], *sines[KV_QUANT_BIAS_PAIRS];   /* [KV_PAGE_TOKENS] turns of offsets */
    float start_cosine[KV_QUANT_BIAS_PAIRS], start_sine[KV_QUANT_BIAS_PAIRS]; /* of the page's first token */
    const ScanQuery *queries;                                                 /* of the tile */
    size_t stride;                                                            /* from query to query in bytes */
} ScanPage;

/* Weights of queries for the tokens of a page. */
typedef struct ScanWeights {
    float step[ATTENTION_QUERIES][SCAN_GROUPS_MAX];
    float half[ATTENTION_QUERIES][SCAN_GROUPS_MAX]; /* half the sum of the bytes: a code stands for value + 1/2 */
    _Alignas(64) uint8_t bytes[ATTENTION_QUERIES * SCAN_GROUPS_MAX * KV_PAGE_TOKENS]; /* [query][group][token] */
} ScanWeights;

/* Lines that are on their way while something is computed. */
typedef struct ScanAhead {
    const uint8_t *at;
    int left;
    ScanFetch fetch;
} ScanAhead;

/* Work space of a thread. What vectors are loaded from begins on a line of the cache. */
typedef struct ScanWork {
    _Alignas(64) uint8_t unpacked[ATTENTION_HEAD_MAX * KV_PAGE_TOKENS]; /* some blocks; of latents the page */
    _Alignas(64) uint8_t rotated[KV_QUANT_GROUP * KV_PAGE_TOKENS];      /* latents of a group as values lie */
    _Alignas(64) int32_t sums[SCAN_TILE_MAX * KV_PAGE_TOKENS];
    _Alignas(64) float scales[SCAN_GROUPS_MAX * KV_PAGE_TOKENS];
    _Alignas(64) float p[ATTENTION_QUERIES * KV_PAGE_TOKENS];
    _Alignas(64) float mean[ATTENTION_HEAD_MAX];
    float most[ATTENTION_QUERIES];     /* of scores */
    float factor[ATTENTION_QUERIES];   /* for what values gave before this page */
    float constant[ATTENTION_QUERIES]; /* what a page's mean adds to all its scores */
    float weight[ATTENTION_QUERIES];   /* of a page's tokens together */
    _Alignas(64) ScanWeights weights;
    ScanAhead ahead;
} ScanWork;

struct ScanKernels {
    void (*table)(KvForm form, bool values, uint8_t table[SCAN_TABLE]);
    /* Sets what is fetched at a time where so many queries meet a page. */
    void (*plan)(ScanPage *page, int queries);
    /* The query's step, codes and sums for keys of this form, from what it is rotated. */
    void (*quantise)(ScanQuery *query, KvForm form, int d, int group);
    /* Scores of queries first ≤ i < first + count of the page: work->p[i − first][token]. */
    void (*scores)(const ScanPage *page, int first, int count, ScanWork *work);
    /* The largest code of a query, or the largest weight, for codes of this form. */
    int (*most)(KvForm form, bool values);
    /* o[i] ← o[i] · work->factor[i] + work->p[i] · values, in the rotated space; o [count][stride]. */
    void (*values)(const ScanPage *page, int count, ScanWork *work, int stride, float *o);
    /* Takes a page in for the tile's queries from `first` on, which see all of it: m, l and `coded`. */
    void (*page)(AttentionTile *tile, int first, const ScanPage *page, ScanWork *work);
    /* The same of a page of latents and keys that rotate. */
    void (*latent_page)(AttentionTile *tile, int first, const ScanPage *page, ScanWork *work);
};
