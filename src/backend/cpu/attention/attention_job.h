/* Internals of the attention operation, shared by its files. attention.c walks full-precision pages and merges;
 * attention_codes.c handles quantised pages. */
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
    int tile_queries; /* most queries of a tile, at most ATTENTION_QUERIES */
    int first_span, spans;
    bool shared; /* spans are distributed over threads */
    int64_t items;
    bool quantised;                            /* some row reads quantised pages */
    uint8_t *records;                          /* ScanQuery records of the step's queries, if `shared` */
    ScanForm keys[KV_FORMS], values[KV_FORMS]; /* by format, for the formats that rows read */
} Job;

/* Memory of a thread. */
typedef struct Space {
    float *q, *o, *total;               /* [ATTENTION_QUERIES][ATTENTION_HEAD_MAX] */
    float *quantised, *quantised_total; /* the same for quantised values, in their rotated space */
    uint8_t *records;                   /* ScanQuery records of a tile's queries */
    ScanWork *work;
} Space;

typedef struct Place { /* queries of a kv head of a chunk: numbers first … first + count − 1 in the order (row, head) */
    const SequenceChunk *chunk;
    int kv_head, first, count;
} Place;

/* State shared by the scans of a tile's quantised pages. */
typedef struct QuantTile {
    ScanPage page;
    const KvQuant *code;
    int pairs[KV_QUANT_BIAS_PAIRS], turns[KV_QUANT_BIAS_PAIRS]; /* RoPE pairs; indices of rotation tables */
    int end[ATTENTION_QUERIES]; /* end of the quantised positions of each query; does not decrease */
} QuantTile;

/* cos and sin of a Rope for the rows of the step. */
const RopeTable *attention_angles(CpuBackend *cpu, const Rope *rope);
/* A head as pages have it. */
void attention_narrow(const AttentionKernels *kernels, DType dtype, const float *x, int count, void *out);
/* Stores a key head's elements at its place in a page of 16 positions beside each other. */
void attention_store_key(const AttentionKernels *kernels, const KvLayout *l, uint8_t *page, int slot, const float *k);

/* Prepares formats and tables for chunks whose rows read quantised pages; called before the threads begin. */
void codes_plan(Job *job);
/* End of the quantised positions that a row at this position reads; 0: none. */
int codes_end(const Job *job, const SequenceChunk *chunk, int position);
/* Bytes of a query's record: one ScanQuery for the half of keys; MLA: then one for the rotated keys. */
size_t codes_record_bytes(const KvLayout *layout);
/* Fills the record of a query whose head is prepared. */
void codes_record(const Job *job, const SequenceChunk *chunk, int row, int head, ScanQuery *record);
/* The shared record of a query, if spans are distributed; query: number in its chunk, in the order (row, head). */
ScanQuery *codes_shared_record(const Job *job, const SequenceChunk *chunk, int kv_head, int query);
/* Prepares a tile at this place; the records may be filled in later. */
void codes_tile(const Job *job, const Place *place, const ScanQuery *records, QuantTile *tile);
/* Processes the quantised page at `base` for the queries from `first` on, which read it. */
void codes_visit(
    const Job *job, const Place *place, QuantTile *quantised, AttentionTile *tile, int first, int base, ScanWork *work);
/* o += quantised, weighted sums of quantised values, rotated back. quantised is overwritten. */
void codes_add(const Job *job, float *quantised, float *o);
