/* backend/cuda/: the backend on NVIDIA GPUs, a library of its own (apus-cuda.so, ../plugin.h). Host code is C; kernels
 * are in .cu files. Each folder has a header of its name, the contract between its kernels and the host code: gemm/
 * products with weights, attention/, moe/ experts and their router, kv/ pages and their quantisation, runtime/ the
 * rest. dispatch.h has the table of kernels. Nothing here is linked into the program.
 *
 * Weight.data of a bound matrix is the address of its CudaWeight; vectors (one f32 row) and everything else are device
 * memory. Operations enqueue kernels on one stream. A decode step whose shape repeats is captured as a CUDA graph and
 * replayed (runtime/step.c). Thread: one at a time, as backend.h says. */
#pragma once
#include <cuda_runtime_api.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/kv/kv.h"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/runtime/runtime.h"
#include "backend/cuda/runtime/sampling.h"

enum {
    CUDA_STEPS = 2,       /* steps in flight */
    CUDA_GROUPS_MAX = 16, /* groups of layers with a page table of their own */
    CUDA_GRAPHS_MAX = 24, /* graphs kept */
    CUDA_GIVEN_MAX = 64,  /* rows with given states of a step that may be captured */
    CUDA_PARTIALS_BYTES =
        256 << 20, /* partial results of attention; rows that need more are computed in several calls */
};

/* Owned device memory that grows on demand, never within a captured step. */
typedef struct CudaRoom {
    void *memory;
    size_t bytes;
} CudaRoom;

/* A bound weight. */
typedef struct CudaWeight {
    struct CudaWeight *next;
    Tiles tiles;
    void *memory;  /* owned: tiles, factors and bias */
    float *vector; /* a weight of one f32 row, as it is; NULL: a matrix */
} CudaWeight;

/* One of the matrices gate, up and down of all experts of a layer. */
typedef struct CudaBank {
    struct CudaBank *next;
    const Weight *weights; /* the key: borrowed */
    Tiles *tiles;          /* [count] owned device memory */
    Tiles most;            /* the first matrix, with the most rows and groups of any */
    int rows_but_last;     /* most rows of any matrix but the last, which a shared expert may have */
    bool alike;            /* all are packed alike, as kernels over a whole bank need */
} CudaBank;

/* The numbers of a step: one array of integers, twice in pinned host memory and once on the device, at the same
 * offsets. */
typedef struct CudaStepBlock {
    int32_t *host[CUDA_STEPS];
    int32_t *device;
    int32_t *turn;                /* device memory: index of the host array that comes next */
    size_t ints;                  /* integers that there is room for */
    size_t tables;                /* offset of the page tables in this step */
    int rows;                     /* rows of this step */
    int table_stride;             /* integers of a page table */
    int chunk_count;              /* sequences of this step */
    bool filled[CUDA_GROUPS_MAX]; /* the page tables of the group are in this step's array */
    bool states[CUDA_GROUPS_MAX]; /* the group has recurrent states: its tables are those of cuda_step_states() */
} CudaStepBlock;

/* The results that a step computes from its logits. */
typedef enum CudaSampling {
    SAMPLING_NONE,
    SAMPLING_SUMS,    /* maxima and sums of exponentials of blocks */
    SAMPLING_LARGEST, /* tokens; every row takes its largest logit */
    SAMPLING_ANY,     /* tokens */
} CudaSampling;

/* Quantised pages: tables on the device, and the rows of the current step that read such pages (kv/kv_quant.c). */
enum { CUDA_ROTATIONS_MAX = 8, CUDA_QUANT_LAYERS_MAX = 1024 };
typedef struct CudaQuant {
    int layers;                                  /* largest KvLayer.index that was quantised so far, plus one */
    int heads;                                   /* most kv heads of a quantised layer */
    uint16_t layer_heads[CUDA_QUANT_LAYERS_MAX]; /* [KvLayer.index] kv heads */
    bool ready;                                  /* books and edges are filled */
    KvqCodebooks books;
    KvqEdges edges;
    Rotation rotations[CUDA_ROTATIONS_MAX];
    Rotation *on_device; /* copy of `rotations`, owned device memory */
    int rotation_count;
    CudaRoom jobs, queries;
    /* The current step: */
    bool seen;         /* some rows read quantised pages */
    bool mixed;        /* some rows read full-precision pages only */
    bool short_chunks; /* rows of full precision alone are in short chunks */
    int long_chunks;   /* long chunks with rows of full precision alone */
    bool quant_short;  /* rows that read quantised pages are in short chunks */
    bool quant_long;   /* rows that read quantised pages are in long chunks */
    int full_slices;   /* most full-precision slices of a row that reads quantised pages */
    int pages;         /* most quantised pages of a row */
    size_t records;    /* offset of the records in the step's numbers */
    int record_ints;   /* integers of a record */
    uint64_t forms;    /* hash of a flag per layer: all of its pages are KV_Q4 */
} CudaQuant;

/* Steps with equal keys launch the same kernels on the same memory, so they share a graph. */
typedef struct CudaKey {
    int rows, decode_rows, uniform_matmul, outputs, hidden_rows;
    int chunk_count;   /* sequences with rows in the step */
    int layout;        /* bits: the kinds of chunks (layout_of() in step.c) */
    int pages;         /* pages of the longest sequence, rounded up to a power of two */
    int sampling_now;  /* CudaSampling */
    int quantised;     /* rows that read quantised pages: 0 none, 1 some, 2 all */
    int full_slices;   /* CudaQuant.full_slices */
    uint64_t forms;    /* CudaQuant.forms */
    uint64_t adapters; /* hash of the chunks' rows and adapters; 0: no row has an adapter */
    uint64_t cache;    /* Step.cache */
} CudaKey;

typedef struct CudaGraph {
    CudaKey key;
    cudaGraphExec_t exec; /* NULL: the key was seen once, and is captured when it is seen again */
    uint64_t used;        /* CudaBackend.clock of the last use */
    int groups;           /* groups of page tables that it reads */
    const float *logits;  /* what read_logits() read behind a step with this key, which the graph copies to the host;
                             NULL: nothing */
    int64_t logits_count;
    bool copied; /* the product that computes the logits copies them */
} CudaGraph;

/* Tensor parallelism: this GPU as one of two (runtime/tensor_parallel.c). */
typedef struct CudaRank {
    struct CudaBackend *other; /* borrowed; NULL: one GPU */
    RankExchange exchange;     /* its constant fields */
    int64_t width;             /* floats of a row that the exchange has room for */
    int sums;                  /* sums of the current step so far */
} CudaRank;

typedef struct CudaReserve CudaReserve;

typedef struct CudaBackend {
    Backend base;
    BackendOps ops; /* the table of base */
    int device;
    int multiprocessors;
    int shared_bytes; /* shared memory that a block may use */
    KernelArch arch;
    bool sm90a; /* arch is ARCH_SM90A */
    cudaStream_t stream;
    /* A second stream, on which operations run beside those of the first one (cuda_beside_begin()). */
    struct {
        cudaStream_t stream;
        cudaEvent_t begins, ends;
        bool now; /* operations that are called go to the second stream */
    } beside;
    Error fault; /* the first one; sticky */

    float *scratch;                     /* owned */
    size_t scratch_count, scratch_used; /* floats */
    CudaRoom inputs, partials, spare, staging, choice, arrivals, moe_block;
    bool sliced;         /* the products in progress are those of one expert (Product.sliced) */
    float *logits;       /* owned, pinned */
    size_t logits_count; /* floats */
    /* The last read_logits(). A captured step copies the same logits to the host. */
    struct {
        const float *from;
        int64_t count;
        bool there; /* the current step has copied them */
    } read;
    /* Hidden states that the current step's rows are given (StepSequence.states), where captured steps find them. */
    struct {
        CudaRoom room;
        int64_t width; /* floats of a row; 0: not known yet */
        bool all;      /* the current step's rows are given them */
        bool there;    /* they have been copied for it */
    } given;
    CudaWeight *weights;
    CudaBank *banks;
    CudaReserve *reserves;
    bool can_reserve;          /* the device has virtual memory management */
    int idle_pieces;           /* pieces of reserved memory without a page in use */
    int64_t cols_max;          /* widest matrix that was bound */
    struct CudaLoader *loader; /* while weights are bound; NULL afterwards */

    Step step;   /* the current one; its chunks are borrowed until wait() */
    CudaKey key; /* The current step has this key if it may be captured; otherwise rows is 0. */
    CudaStepBlock block;
    CudaQuant quant;
    CudaSampling sampling_now;
    SampledTokens sampled; /* [rows_max] tokens of the last step, and of the last two in pinned host memory */
    int pages;         /* pages of the longest sequence; rounded up to a power of two where the step may be repeated */
    bool short_chunks; /* the step has short chunks (attention/attention.h) */
    bool single_rows;  /* every chunk of the step is one row */
    int chunk_rows;    /* most rows of a chunk; INT_MAX: some row sees later ones */
    int long_chunks;   /* long chunks of the step */
    uint64_t ticket;   /* ticket of the step begun last */
    cudaEvent_t done[CUDA_STEPS];
    CudaGraph graphs[CUDA_GRAPHS_MAX];
    CudaGraph *capturing; /* NULL: no step is being captured */
    int graph_count;
    int host_rows;     /* least rows of a step that reads results on the host midway, and so cannot be a graph */
    bool graphs_stale; /* memory that graphs refer to has been freed */
    uint64_t clock;
    CudaRank rank;
} CudaBackend;

static inline RopeParams cuda_rope_params(const Rope *rope) {
    if (!rope) return (RopeParams){0};
    RopeParams t = {.dims = rope->dims,
        .interleaved = rope->interleaved,
        .frequencies = rope->frequencies,
        .scale = rope->scale,
        .mrope_interleaved = rope->mrope_interleaved,
        .dynamic_positions = rope->dynamic.positions,
        .dynamic_theta = rope->dynamic.theta,
        .dynamic_factor = rope->dynamic.factor};
    memcpy(t.mrope_section, rope->mrope_section, sizeof t.mrope_section);
    return t;
}

static inline RowNorm row_norm(const Norm *norm) {
    if (!norm) return (RowNorm){0};
    return (RowNorm){norm->kind, norm->width, norm->eps, norm->weight, norm->bias};
}

static inline CudaBackend *cuda_of(Backend *backend) { return (CudaBackend *)backend; }

/* ---- runtime/device.c ---- */

/* True: CUDA reports success. Otherwise the first error is kept in b->fault, for wait(). */
bool cuda_ok(CudaBackend *b, cudaError_t code, const char *what);
/* The same with the error returned to the caller. */
bool cuda_expect(cudaError_t code, const char *what, Error *error);
/* Makes the device current for the calling thread. */
void cuda_enter(CudaBackend *b);
/* Grows `room` to at least `bytes`, zeroed; its contents are lost then, and graphs become stale. Not while capturing.
 */
bool cuda_room(CudaBackend *b, CudaRoom *room, size_t bytes, Error *error);
/* Device memory owned by the caller (cudaFree); NULL with the error, which says how much is free. */
void *cuda_take(CudaBackend *b, size_t bytes, Error *error);
/* Copies pageable host memory to the device in stream order; `from` may be reused at once. cudaMemcpy will not do: it
 * uses a stream that b->stream does not wait for, and returns before the bytes have arrived. */
cudaError_t cuda_send(CudaBackend *b, void *to, const void *from, size_t bytes);

/* ---- runtime/limits.c ---- */

/* Measured read bandwidth in bytes a second; 0: it could not be measured. */
double cuda_read_speed(int device);

/* ---- kv/kv_memory.c ---- */

/* Whether the device can reserve addresses for a cache and back them with memory as pages are used. */
bool cuda_reserves_open(int device);
void cuda_reserves_close(CudaBackend *b);
void *cuda_reserve(CudaBackend *b, size_t bytes, Error *error);
bool cuda_unreserve(CudaBackend *b, void *memory); /* false: not a reservation */
bool cuda_commit(Backend *backend, void *memory, size_t bytes);
void cuda_decommit(Backend *backend, void *memory, size_t bytes);

/* ---- runtime/bind.c ---- */

bool cuda_bind(Backend *backend, Weight *weight, Error *error);
void cuda_unbind(Backend *backend, const Weight *weight);
/* The tiles of a bound weight, borrowed until unbind. */
const Tiles *cuda_tiles(CudaBackend *b, const Weight *weight);
void cuda_loader_close(CudaBackend *b);
size_t cuda_loader_bytes(void);                   /* device memory in use while weights are bound */
uint64_t cuda_weight_bytes(const Weight *weight); /* device memory of the weight once it is bound */
/* One matrix of all experts of a layer, borrowed; NULL: the step has failed. */
const CudaBank *cuda_bank(CudaBackend *b, const Weight *weights, int count);
void cuda_banks_forget(CudaBackend *b);

/* ---- runtime/step.c ---- */

bool cuda_steps_open(CudaBackend *b, Error *error);
void cuda_steps_close(CudaBackend *b);
bool cuda_begin(Backend *backend, const Step *step);
uint64_t cuda_submit(Backend *backend);
/* Copies rows that a step is given to where they are wanted. */
void cuda_bring_given(CudaBackend *b, int count, const EmbeddingRange *given, int64_t width, float *out);
/* read_logits() has read these behind the current step. */
void cuda_step_note_read(CudaBackend *b, const float *logits, int64_t count);
bool cuda_wait(Backend *backend, uint64_t ticket, Error *error);
/* The numbers of the current step on the device: */
StepRows cuda_step_rows(const CudaBackend *b);
/* The same for kernels of full-precision pages: a row that sees quantised pages is a chunk of its own that sees
 * nothing.
 */
StepRows cuda_step_full_precision(const CudaBackend *b);
const int32_t *cuda_step_quant_ends(const CudaBackend *b);  /* [rows] end of the quantised tokens; 0: none */
const int32_t *cuda_step_quant_sinks(const CudaBackend *b); /* [rows] their first token */
const int32_t *cuda_step_tokens(const CudaBackend *b);
const int32_t *cuda_step_outputs(const CudaBackend *b);
const int32_t *cuda_step_hidden_rows(const CudaBackend *b);
const float *cuda_step_scales(const CudaBackend *b);
SampleRows cuda_step_sample_params(const CudaBackend *b);
/* [chunks][b->block.table_stride] page tables of a group. */
const int32_t *cuda_step_tables(CudaBackend *b, int group);
/* The same of a group of recurrent states: the page of the position before the chunk and that of its last row; −1:
 * none. */
const int32_t *cuda_step_states(CudaBackend *b, int group);

/* ---- recurrent/recurrent.c ---- */

void cuda_conv(Backend *backend, const Conv *op);
void cuda_recurrence(Backend *backend, const Recurrence *op);
void cuda_mamba(Backend *backend, const Mamba *op);
void cuda_rg_lru(Backend *backend, const RgLru *op);
void cuda_gated_norm(Backend *backend, const GatedNorm *op);
bool cuda_recurrent_block(Backend *backend, const RecurrentBlock *op);

/* ---- compressed/compressed.c ---- */

void cuda_compress(Backend *backend, const Compression *op);
void cuda_compressed_select(Backend *backend, const CompressedSelect *op);
void cuda_compressed_attention(Backend *backend, const CompressedAttention *op);
void cuda_join_groups(Backend *backend, const GroupJoin *op);
void cuda_hyper_connect(Backend *backend, const HyperConnection *op);

/* ---- runtime/tensor_parallel.c ---- */

void cuda_ranks_enter(Backend *backend);
bool cuda_ranks_join(Backend *const *parts, int count, Error *error);
void cuda_ranks_close(CudaBackend *b);
bool cuda_ranks_room(CudaBackend *b, int64_t width, Error *error);
/* Whether the other GPU has not answered in time. */
bool cuda_ranks_lost(CudaBackend *b);
/* Sets the destination of a partial product, and has it exchange and add the terms itself where it can. */
void cuda_ranks_product(const CudaBackend *b, const MatmulAdd *op, Product *product);
/* After the product: whether it has added the terms. */
bool cuda_ranks_summed(CudaBackend *b, const Product *product);
void cuda_all_reduce(Backend *backend, const RankSum *op);

/* ---- kv/kv_quant.c ---- */

size_t cuda_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values);
void cuda_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations);
void cuda_kv_quantise(Backend *backend, int count, const KvQuantise *pages);
void cuda_quant_close(CudaBackend *b);
/* Index of the rotation of d dims, which is made if need be; 0 after a failure, which wait() reports. */
int cuda_rotation(CudaBackend *b, int d);

/* ---- kv/kv_quant_step.c ---- */

/* Fills the part of b->quant that is about the current step; returns the integers that its records take among the
 * step's numbers. again: the step may be repeated. */
size_t cuda_quant_look(CudaBackend *b, const Step *step, bool again);
void cuda_quant_fill(const CudaBackend *b, int32_t *records);
/* Number of rows of a sequence, its first ones, that see no quantised page. */
int cuda_full_precision_rows(const SequenceChunk *chunk);
/* Whether all quantised pages of the layer that the step sees are KV_Q4. */
bool cuda_only_four(const Step *step, int layer);

/* ---- attention/kvq_attention.c ---- */

/* Whether rows of the step see quantised pages of the layer. */
bool cuda_sees_quant(const CudaBackend *b, const KvLayer *layer);
/* Attention of these rows. a: as attend() has filled it. */
void cuda_attend_quant(CudaBackend *b, const Attention *op, const Attend *a);
/* Whether flash_decode_kvq4 takes all decode rows that see quantised pages of the layer. */
bool cuda_kvq4_takes_decode_rows(CudaBackend *b, const KvLayer *layer, const Attend *a);

/* ---- moe/moe.c ---- */

void cuda_experts(Backend *backend, const Experts *op);
void cuda_moe_block(Backend *backend, const MoeBlock *op);

/* ---- runtime/ops.c ---- */

/* The kernel of the dispatch table for a layer, for sequences with chunk_rows rows in the step. */
Kernel cuda_attention_kernel(const CudaBackend *b, const Attend *a, KernelPhase phase, int chunk_rows, PageKind pages);
void cuda_embed(Backend *backend, const Embed *op);
void cuda_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out);
void cuda_matmul(Backend *backend, const Matmul *op);
void cuda_glu(Backend *backend, const Glu *op);
void cuda_matmul_add(Backend *backend, const MatmulAdd *op);
void cuda_ffn_block(Backend *backend, const FfnBlock *op);
void cuda_attention(Backend *backend, const Attention *op);
void cuda_attention_block(Backend *backend, const AttentionBlock *op);
void cuda_mla(Backend *backend, const Mla *op);
void cuda_index_select(Backend *backend, const IndexSelect *op);
/* The choice of all rows of the step, in as many calls as there is room for scores; fills in tokens, rows and room. */
void cuda_choose_keys(CudaBackend *b, IndexChoice *choice);
Router cuda_router(const Routing *op);
void cuda_route(Backend *backend, const Routing *op);
void cuda_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out);
void cuda_multiply(Backend *backend, const Multiply *op);
void cuda_mix_streams(Backend *backend, const StreamMix *op);
void cuda_match_rms(Backend *backend, const MatchRms *op);
void cuda_sparsify(Backend *backend, const Sparsify *op);
void cuda_gate_heads(Backend *backend, const HeadGate *op);
void cuda_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x);
void cuda_gather(Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out);
void cuda_logits(Backend *backend, int64_t count, float *x, float scale, float cap);
void cuda_sum_logits(Backend *backend, const LogitSums *op);
void cuda_sample(Backend *backend, const LogitSampling *op);
const int32_t *cuda_sampled(Backend *backend, uint64_t ticket);
void cuda_add_pair(CudaBackend *b, const AddPair *op);
/* Operations between begin() and end() run beside those that follow until join(): single decode rows, which use no
 * common work space, and products that leave half of a multiprocessor. */
void cuda_beside_begin(CudaBackend *b);
void cuda_beside_end(CudaBackend *b);
void cuda_beside_join(CudaBackend *b);
void cuda_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm);
