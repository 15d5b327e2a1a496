/* The attention operation from the inside: what its parts share. attention.c walks exact pages and merges; what
 * concerns codes is attention_codes.c. */
#pragma once
#include "backend/cpu/attention/attention.h"
#include "backend/cpu/attention/scan.h"

typedef struct RopeTable RopeTable;

typedef struct Job {
    CpuBackend *cpu;
    const Attention *op;
    const KvLayout *layout;
    const AttentionKernels *kernels;
    const RopeTable *rope;
    int group; /* query heads per kv head */
    int value_stride;
    int first_span, spans;
    bool shared; /* spans are shared out */
    int64_t items;
    bool coded;                                /* some row sees codes */
    uint8_t *records;                          /* of the step's queries, where spans are shared out */
    ScanForm keys[KV_FORMS], values[KV_FORMS]; /* of the forms that are seen */
} Job;

/* Memory of a thread. */
typedef struct Space {
    float *q, *o, *total;       /* [ATTENTION_QUERIES][ATTENTION_HEAD_MAX] */
    float *coded, *coded_total; /* the same, of coded values in their rotated space */
    uint8_t *records;           /* of a tile's queries */
    ScanWork *work;
} Space;

typedef struct Place { /* queries of a kv head of a run: numbers first … first + count − 1 in the order (row, head) */
    const SequenceChunk *chunk;
    int kv_head, first, count;
} Place;

/* What the scans of a tile's pages have in common. */
typedef struct CodedTile {
    ScanPage page;
    const KvQuant *code;
    int pairs[KV_QUANT_BIAS_PAIRS], turns[KV_QUANT_BIAS_PAIRS]; /* of the rope, and where their tables are */
    int end[ATTENTION_QUERIES];                                 /* of what each query sees as codes; never falls */
} CodedTile;

/* Before the threads begin: forms and tables of the runs whose rows see codes. */
void codes_plan(Job *job);
/* Whether a row at this position sees codes: its end of them, or 0. */
int codes_end(const Job *job, const SequenceChunk *chunk, int position);
/* Of a query: for what the half of keys holds; of latents, then for the keys that rotate. */
size_t codes_record_bytes(const KvLayout *layout);
/* Makes the record of a query whose head is prepared. */
void codes_record(const Job *job, const SequenceChunk *chunk, int row, int head, ScanQuery *record);
/* Where the record of a query waits when spans are shared out; query: number in its run, in the order (row, head). */
ScanQuery *codes_shared_record(const Job *job, const SequenceChunk *chunk, int kv_head, int query);
/* For a tile at this place, with records there or about to be. */
void codes_tile(const Job *job, const Place *place, const ScanQuery *records, CodedTile *tile);
/* Takes the page at `base` in for the queries that see it as codes, from `first` on. */
void codes_visit(
    const Job *job, const Place *place, CodedTile *coded, AttentionTile *tile, int first, int base, ScanWork *work);
/* o += what coded values, weighted in their rotated space, stand for. coded is overwritten. */
void codes_add(const Job *job, float *coded, float *o);
