/* Shared by the files of tensor_parallel.h. */
#pragma once
#include "backend/tensor_parallel.h"

enum { PARALLEL_REGIONS_MAX = 64, PARALLEL_STEPS = 2 /* steps in flight */ };

/* A range of addresses without memory that was handed out, and the memory of each rank behind it. A cache is divided:
 * offset o of the range is offset o / ranks on each rank. */
typedef struct Region {
    uint8_t *start;
    size_t bytes; /* bytes of the range */
    bool divided;
    uint8_t *part[BACKEND_RANKS_MAX];
} Region;

/* Target of Weight.data of a bound weight; pointers to vectors and biases lead to one, too. */
typedef struct Shared {
    const void *data[BACKEND_RANKS_MAX];
    const float *bias[BACKEND_RANKS_MAX];
    Weight part[BACKEND_RANKS_MAX];
    void *columns[BACKEND_RANKS_MAX]; /* copies of columns that the rank computes with in place; NULL: none */
} Shared;

/* The ranks' matrices of a layer's experts, [count] per rank. */
typedef struct SharedBank {
    struct SharedBank *next;
    const Weight *weights; /* key: the weights that were bound */
    Weight *part[BACKEND_RANKS_MAX];
} SharedBank;

/* The RoPE parameters of each rank, at a constant address, by which backends cache rotations. */
typedef struct SharedRope {
    struct SharedRope *next;
    const Rope *rope; /* key: the caller's */
    Rope part[BACKEND_RANKS_MAX];
} SharedRope;

typedef struct Parallel {
    Backend base;
    BackendOps ops;
    int count;
    Backend *part[BACKEND_RANKS_MAX];
    bool walks[BACKEND_RANKS_MAX]; /* ranks whose operations are called in this step; the others replay it */

    int region_count; /* region 0 is the scratch */
    Region region[PARALLEL_REGIONS_MAX];
    size_t scratch_used;
    uint64_t ticket, tickets[PARALLEL_STEPS][BACKEND_RANKS_MAX];

    void *columns; /* room for a matrix's columns while it is bound */
    size_t columns_bytes;
    /* For ranks without all_reduce: partial terms, [rows_max, widest], and two host buffers (sum, more). */
    float *terms[BACKEND_RANKS_MAX];
    float *sum, *more;
    int64_t widest;
    uint8_t *page; /* a rank's share of a page in canonical order */
    size_t page_bytes;
    SharedBank *banks;
    SharedRope *ropes;
} Parallel;

static inline Parallel *parallel_of(Backend *backend) { return (Parallel *)backend; }
static inline const Shared *shared_of(const Weight *weight) { return weight->data; }

/* tensor_parallel_memory.c: fills the table's memory and pages. */
void parallel_memory(BackendOps *ops);
/* Reserves a range of addresses; the caller fills in the ranks' memory. */
Region *parallel_region_open(Parallel *t, size_t bytes, bool divided, Error *error);
void parallel_region_close(Parallel *t, Region *region);
/* Makes a rank the current one of the calling thread and returns it. */
Backend *parallel_enter(Parallel *t, int part);
/* A rank's address behind an address that was handed out; NULL: NULL. */
void *parallel_at(const Parallel *t, int part, const void *memory);
KvLayer parallel_layer(const Parallel *t, int part, const KvLayer *layer);
/* True if the ranks sum among themselves. */
static inline bool parallel_sums(const Parallel *t) { return t->part[0]->ops->all_reduce != NULL; }

/* tensor_parallel_bind.c */
bool parallel_bind(Backend *backend, Weight *weight, Error *error);
void parallel_unbind(Backend *backend, const Weight *weight);
const Weight *parallel_bank(Parallel *t, int part, const Weight *weights, int count);
const Rope *parallel_rope(Parallel *t, int part, const Rope *rope); /* NULL: NULL */
void parallel_forget(Parallel *t);                                  /* frees all banks and ropes */

/* tensor_parallel_ops.c: fills the table's operations. */
void parallel_operations(BackendOps *ops);
