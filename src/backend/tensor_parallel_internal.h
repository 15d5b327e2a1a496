/* What the files of tensor_parallel.h share. */
#pragma once
#include "backend/tensor_parallel.h"

enum { PARALLEL_REGIONS_MAX = 64, PARALLEL_STEPS = 2 /* under way at once */ };

/* Memory that was handed out as a range of addresses without memory, and where each part has it. A cache is divided:
 * what lies at offset o of the range lies at o / parts of each. */
typedef struct Region {
    uint8_t *start;
    size_t bytes; /* of the range */
    bool divided;
    uint8_t *part[BACKEND_RANKS_MAX];
} Region;

/* What the data of a bound weight points to; of a vector or a bias the pointer leads to the parts' alike. */
typedef struct Shared {
    const void *data[BACKEND_RANKS_MAX];
    const float *bias[BACKEND_RANKS_MAX];
    Weight part[BACKEND_RANKS_MAX];
    void *columns[BACKEND_RANKS_MAX]; /* copies that parts compute with where they lie; NULL: none */
} Shared;

/* The parts' matrices of a layer's experts, each behind the other. */
typedef struct SharedBank {
    struct SharedBank *next;
    const Weight *weights; /* whose it is */
    Weight *part[BACKEND_RANKS_MAX];
} SharedBank;

/* A rope of each part: at one place, as backends keep what they have computed for one. */
typedef struct SharedRope {
    struct SharedRope *next;
    const Rope *rope; /* whose it is */
    Rope part[BACKEND_RANKS_MAX];
} SharedRope;

typedef struct Parallel {
    Backend base;
    BackendOps ops;
    int count;
    Backend *part[BACKEND_RANKS_MAX];
    bool walks[BACKEND_RANKS_MAX]; /* whose operations are to be called in this step */

    int region_count; /* the first is the scratch */
    Region region[PARALLEL_REGIONS_MAX];
    size_t scratch_used;
    uint64_t ticket, tickets[PARALLEL_STEPS][BACKEND_RANKS_MAX];

    void *columns; /* room for a matrix's columns while it is bound */
    size_t columns_bytes;
    /* Of parts that cannot sum: their terms, [rows_max, widest], and the host's room for one and another. */
    float *terms[BACKEND_RANKS_MAX];
    float *sum, *more;
    int64_t widest;
    uint8_t *page; /* a part's of a page in canonical order */
    size_t page_bytes;
    SharedBank *banks;
    SharedRope *ropes;
} Parallel;

static inline Parallel *parallel_of(Backend *backend) { return (Parallel *)backend; }
static inline const Shared *shared_of(const Weight *weight) { return weight->data; }

/* tensor_parallel_memory.c: fills the table's memory and pages. */
void parallel_memory(BackendOps *ops);
/* A range of addresses; the parts' memory is the caller's to fill in. */
Region *parallel_region_open(Parallel *t, size_t bytes, bool divided, Error *error);
void parallel_region_close(Parallel *t, Region *region);
/* The part, for which the calling thread works next. */
Backend *parallel_enter(Parallel *t, int part);
/* Where a part has what an address of ours stands for; NULL: NULL. */
void *parallel_at(const Parallel *t, int part, const void *memory);
KvLayer parallel_layer(const Parallel *t, int part, const KvLayer *layer);
/* Whether the parts sum among themselves. */
static inline bool parallel_sums(const Parallel *t) { return t->part[0]->ops->all_reduce != NULL; }

/* tensor_parallel_bind.c */
bool parallel_bind(Backend *backend, Weight *weight, Error *error);
void parallel_unbind(Backend *backend, const Weight *weight);
const Weight *parallel_bank(Parallel *t, int part, const Weight *weights, int count);
const Rope *parallel_rope(Parallel *t, int part, const Rope *rope); /* NULL: NULL */
void parallel_forget(Parallel *t);                                  /* all of these */

/* tensor_parallel_ops.c: fills the table's operations. */
void parallel_operations(BackendOps *ops);
