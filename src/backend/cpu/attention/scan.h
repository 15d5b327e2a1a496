/* Scans of quantised pages (kv_quant.h): products of integers, for all queries of a kv head that visit a page together.
 *
 * A query is rotated and rounded to int8 with one step for the whole head. Indices of 16 tokens (keys) or 16 dims
 * (values) are looked up in registers, a byte each, and four of them are multiplied by four elements of the query or
 * four weights in each lane. Weights are p · scale of the token, rounded to bytes with one step per page and group of
 * dims; the rounding error of a token is carried to the token 16 further, so that many small weights beside a large one
 * do not vanish. Every integer sum is exact, and floats are added in one order whatever the number of queries: a
 * query's result depends on itself and the page alone.
 *
 * No page is skipped. A bound on its weight from its mean and its largest norm lies 35 nats above its weight
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
    SCAN_CHUNK = 4,    /* blocks looked up at a time for many queries */
};

/* The record of a query for scans: this struct, then float rotated[d], then int8_t codes[d]. */
typedef struct ScanQuery {
    _Alignas(64) float step;             /* rotated ≈ step · codes */
    float sums[SCAN_GROUPS_MAX];         /* sum of codes per group */
    float turns[KV_QUANT_BIAS_PAIRS][2]; /* [n]: ⟨q, b⟩ and q × b of bias pair n, times Rope.scale */
} ScanQuery;
static inline size_t scan_query_bytes(int d) { return sizeof(ScanQuery) + ((size_t)d * 5 + 63) / 64 * 64; }
static inline float *scan_rotated(const ScanQuery *query) {
    return (float *)(void *)((uint8_t *)query + sizeof *query);
}
static inline int8_t *scan_codes(const ScanQuery *query, int d) { return (int8_t *)(scan_rotated(query) + d); }

/* MLA: the record for the rotated keys, which follows that of a latent of `width`. */
static inline ScanQuery *scan_rotating(const ScanQuery *query, int width) {
    return (ScanQuery *)(void *)((uint8_t *)query + scan_query_bytes(width));
}

/* One half of a layer's quantised pages. */
typedef struct ScanForm {
    KvForm form;
    KvQuantLayout layout;
    uint8_t table[SCAN_TABLE]; /* level of each index, in the kernel's layout */
} ScanForm;

/* Cache lines prefetched at a time while half a page is computed: values of the page during its keys, keys of the next
 * page during its values. A burst of prefetches would stall on memory together with the loads behind them, and leave
 * memory idle during float work. */
typedef struct ScanFetch {
    int product, query; /* lines per piece of a product, lines per pass over a query's floats */
} ScanFetch;

/* A page of a kv head: its two halves (KvHalf). */
typedef struct ScanPage {
    const ScanForm *keys, *values;
    const uint8_t *k, *v;
    const uint8_t *next_k;      /* keys of the next page, or of this one if it is the last */
    ScanFetch fetch_k, fetch_v; /* prefetch rates for next_k and v; 0: none */
    int pairs;                  /* number of RoPE pairs whose bias was subtracted */
    const float *cosines[KV_QUANT_BIAS_PAIRS], *sines[KV_QUANT_BIAS_PAIRS]; /* [KV_PAGE_TOKENS] rotations of offsets */
    float start_cosine[KV_QUANT_BIAS_PAIRS], start_sine[KV_QUANT_BIAS_PAIRS]; /* rotation of the page's first token */
    const ScanQuery *queries;                                                 /* records of the tile */
    size_t stride;                                                            /* bytes from record to record */
} ScanPage;

/* Weights of queries for the tokens of a page. */
typedef struct ScanWeights {
    float step[ATTENTION_QUERIES][SCAN_GROUPS_MAX];
    float half[ATTENTION_QUERIES][SCAN_GROUPS_MAX]; /* half the sum of the bytes: a level is its table value + 1/2 */
    _Alignas(64) uint8_t bytes[ATTENTION_QUERIES * SCAN_GROUPS_MAX * KV_PAGE_TOKENS]; /* [query][group][token] */
} ScanWeights;

/* State of a prefetch that accompanies a computation. */
typedef struct ScanAhead {
    const uint8_t *at;
    int left;
    ScanFetch fetch;
} ScanAhead;

/* Work space of a thread. Sources of vector loads are aligned to cache lines. */
typedef struct ScanWork {
    _Alignas(64) uint8_t unpacked[ATTENTION_HEAD_MAX * KV_PAGE_TOKENS]; /* some blocks; MLA: the whole page */
    _Alignas(64) uint8_t rotated[KV_QUANT_GROUP * KV_PAGE_TOKENS];      /* latents of a group in the layout of values */
    _Alignas(64) int32_t sums[SCAN_TILE_MAX * KV_PAGE_TOKENS];
    _Alignas(64) float scales[SCAN_GROUPS_MAX * KV_PAGE_TOKENS];
    _Alignas(64) float p[ATTENTION_QUERIES * KV_PAGE_TOKENS];
    _Alignas(64) float mean[ATTENTION_HEAD_MAX];
    float most[ATTENTION_QUERIES];     /* largest score */
    float factor[ATTENTION_QUERIES];   /* factor of the sums of values before this page */
    float constant[ATTENTION_QUERIES]; /* contribution of the page's mean to all its scores */
    float weight[ATTENTION_QUERIES];   /* sum of the weights of a page's tokens */
    _Alignas(64) ScanWeights weights;
    ScanAhead ahead;
} ScanWork;

struct ScanKernels {
    void (*table)(KvForm form, bool values, uint8_t table[SCAN_TABLE]);
    /* Sets the prefetch rates for this number of queries. */
    void (*plan)(ScanPage *page, int queries);
    /* Computes a query's step, codes and sums for keys of this format from its rotated floats. */
    void (*quantise)(ScanQuery *query, KvForm form, int d, int group);
    /* Scores of queries first ≤ i < first + count of the page: work->p[i − first][token]. */
    void (*scores)(const ScanPage *page, int first, int count, ScanWork *work);
    /* The largest query code (values: the largest weight byte) for this format. */
    int (*most)(KvForm form, bool values);
    /* o[i] ← o[i] · work->factor[i] + work->p[i] · values, in the rotated space; o [count][stride]. */
    void (*values)(const ScanPage *page, int count, ScanWork *work, int stride, float *o);
    /* Processes a page for the tile's queries from `first` on, which see all of it; updates m, l and `quantised`. */
    void (*page)(AttentionTile *tile, int first, const ScanPage *page, ScanWork *work);
    /* The same for a page of MLA latents and rotated keys. */
    void (*latent_page)(AttentionTile *tile, int first, const ScanPage *page, ScanWork *work);
};
