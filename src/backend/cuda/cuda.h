/* backend/cuda/: the backend on NVIDIA GPUs, a library of its own (apus-cuda.so, ../plugin.h). Host code in C, kernels
 * in .cu files behind kernels.h. Nothing here is linked into the program.
 *
 * A bound matrix's Weight.data is the address of its CudaWeight; vectors (one f32 row) and everything else are device
 * memory. Operations enqueue kernels on one stream. Decode steps that come again are captured as a graph and replayed
 * (step.c). */
#pragma once
#include <cuda_runtime_api.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cuda/runtime/sampling.h"
#include "backend/cuda/kernels.h"

enum {
    CUDA_STEPS = 2,       /* under way at once */
    CUDA_GROUPS_MAX = 16, /* of layers that keep pages alike */
    CUDA_GRAPHS_MAX = 24,
    CUDA_PARTIALS_BYTES = 256 << 20, /* of attention; a longer one goes in pieces */
};

/* Memory that grows on demand, never within a captured step. */
typedef struct CudaRoom {
    void *memory;
    size_t bytes;
} CudaRoom;

typedef struct CudaWeight {
    struct CudaWeight *next;
    Tiles tiles;
    void *memory;  /* tiles, factors and bias */
    float *vector; /* of one f32 row: the row as it is */
} CudaWeight;

/* The matrices of a layer's experts where kernels find them. */
typedef struct CudaBank {
    struct CudaBank *next;
    const Weight *weights; /* whose it is */
    Tiles *tiles;          /* [count] on the device */
    Tiles most;            /* the first, with the most rows and groups of any */
    bool alike;            /* packed alike, so that one kernel takes them all */
} CudaBank;

/* The step's numbers as kernels read them: on the host, pinned, twice; on the device once, at the same offsets. */
typedef struct CudaStepBlock {
    int32_t *host[CUDA_STEPS], *device;
    int32_t *turn; /* on the device: which of the two comes next */
    size_t ints;
    /* Of this step: where page tables begin, how long they are. */
    size_t tables;
    int rows, table_stride, chunk_count;
    bool filled[CUDA_GROUPS_MAX];
} CudaStepBlock;

/* What is made of a step's logits. */
typedef enum CudaSampling {
    DRAWING_NONE,
    DRAWING_SUMS,
    DRAWING_LARGEST, /* tokens, each the one with the largest logit */
    DRAWING_ANY,     /* tokens */
} CudaSampling;

/* Coded pages: what is kept for them, and what this step sees of them (kv_quant.c). */
enum { CUDA_ROTATIONS_MAX = 8, CUDA_CODED_LAYERS_MAX = 1024 };
typedef struct CudaCodes {
    int layers, heads; /* that were coded so far: largest KvLayer.index and one, most kv heads */
    uint16_t layer_heads[CUDA_CODED_LAYERS_MAX];
    bool ready; /* books and edges are there */
    CodeBooks books;
    CodeEdges edges;
    Rotation rotations[CUDA_ROTATIONS_MAX], *on_device;
    int rotation_count;
    CudaRoom jobs, queries;
    /* Of the step: whether rows see codes, and whether others do not; of those others, whether there are short runs and
     * long ones; the most slices that a row that sees codes sees exactly, the most pages that it sees as codes. */
    bool seen, mixed, short_runs, coded_short, coded_long;
    int long_runs, exact, pages;
    size_t records; /* where they lie in the block */
    int record_ints;
    uint64_t forms; /* which layers have kernels of their own */
} CudaCodes;

/* What a repeated walk has in common with the one that was kept. */
typedef struct CudaKey {
    int rows, decode_rows, uniform_matmul, outputs;
    int pages;        /* of the longest run, rounded up to a power of two */
    int sampling_now; /* CudaSampling */
    int coded, exact; /* whether rows see codes, and all do; slices that such a row sees exactly */
    uint64_t forms;
    uint64_t cache;
} CudaKey;

typedef struct CudaGraph {
    CudaKey key;
    cudaGraphExec_t exec; /* NULL: seen once, not captured yet */
    uint64_t used;
    int groups;
    const float *logits; /* that it brings, so many; NULL: none */
    int64_t logits_count;
    bool copied; /* by the product that makes them */
} CudaGraph;

/* As one of two that divide layers (tensor_parallel.c). */
typedef struct CudaPart {
    struct CudaBackend *other; /* NULL: it is alone */
    RankExchange exchange;     /* what stays of it */
    int64_t width;             /* of a row that there is room for */
    int sums;                  /* of the step so far */
    bool summed;               /* the partial product before has done the next sum itself, but for a norm */
} CudaPart;

typedef struct CudaReserve CudaReserve;

typedef struct CudaBackend {
    Backend base;
    int device, multiprocessors, shared_bytes;
    KernelArch arch;
    bool wide; /* arch is ARCH_SM90A */
    cudaStream_t stream;
    Error fault; /* the first; sticky */

    float *scratch;
    size_t scratch_count, scratch_used;
    CudaRoom inputs, partials, spare, staging, choice, arrivals, moe_block;
    bool sliced;   /* products are of an expert's rows (kernels.h, Product) */
    float *logits; /* pinned */
    size_t logits_count;
    /* What was read last, after a step of so many rows and outputs. A step that is captured brings it along; then it is
     * there. */
    struct {
        const float *from;
        int64_t count;
        int rows, outputs;
        bool there;
    } read;
    CudaWeight *weights;
    CudaBank *banks;
    CudaReserve *reserves;
    bool can_reserve;
    int idle_pieces; /* of their memory: not used by anybody */
    int64_t cols_max;
    struct CudaLoader *loader; /* only while weights are bound */

    Step step;
    CudaStepBlock block;
    CudaCodes codes;
    CudaSampling sampling_now;    /* of the step */
    SampledTokens sampled;        /* of the last step, and of the last two for the host, pinned: [rows_max] */
    int pages;                    /* of the longest run of the step; of repeatable ones a power of two */
    bool short_runs, single_rows; /* whether the step has them, or only them (kernels.h) */
    int long_runs;                /* how many it has */
    uint64_t ticket;
    cudaEvent_t done[CUDA_STEPS];
    CudaGraph graphs[CUDA_GRAPHS_MAX], *capturing;
    int graph_count;
    int host_rows;     /* steps of so many rows or more need on the host what the device has computed: no graphs */
    bool graphs_stale; /* some of the memory that they know is gone */
    uint64_t clock;
    CudaPart part;
} CudaBackend;

static inline RopeParams cuda_rope_params(const Rope *rope) {
    if (!rope) return (RopeParams){0};
    RopeParams t = {.dims = rope->dims,
        .interleaved = rope->interleaved,
        .frequencies = rope->frequencies,
        .scale = rope->scale,
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

/* device.c */
/* Keeps the first error for wait(). True if there was none. */
bool cuda_ok(CudaBackend *b, cudaError_t code, const char *what);
/* The same for calls whose caller wants the error. */
bool cuda_expect(cudaError_t code, const char *what, Error *error);
void cuda_enter(CudaBackend *b); /* the device is the calling thread's */
bool cuda_room(CudaBackend *b, CudaRoom *room, size_t bytes, Error *error);
void *cuda_take(CudaBackend *b, size_t bytes, Error *error);
/* Host memory to the device before all that is enqueued from now on; `from` is the caller's again. Not cudaMemcpy,
 * which uses a stream that this backend's does not wait for, and returns before the bytes are there. */
cudaError_t cuda_send(CudaBackend *b, void *to, const void *from, size_t bytes);

/* limits.c */
double cuda_read_speed(int device); /* bytes a second; 0: it could not be measured */

/* kv_memory.c */
/* Whether caches' memory can come as it is used. */
bool cuda_reserves_open(int device);
void cuda_reserves_close(CudaBackend *b);
void *cuda_reserve(CudaBackend *b, size_t bytes, Error *error);
bool cuda_unreserve(CudaBackend *b, void *memory); /* false: it is no reserve */
bool cuda_commit(Backend *backend, void *memory, size_t bytes);
void cuda_decommit(Backend *backend, void *memory, size_t bytes);

/* bind.c */
bool cuda_bind(Backend *backend, Weight *weight, Error *error);
void cuda_unbind(Backend *backend, const Weight *weight);
const Tiles *cuda_tiles(CudaBackend *b, const Weight *weight);
void cuda_loader_close(CudaBackend *b);
size_t cuda_loader_bytes(void);                   /* on the device, while weights are bound */
uint64_t cuda_weight_bytes(const Weight *weight); /* on the device, once it is bound */
/* Of a layer's experts; NULL: the step has failed. */
const CudaBank *cuda_bank(CudaBackend *b, const Weight *weights, int count);
void cuda_banks_forget(CudaBackend *b);

/* step.c */
bool cuda_steps_open(CudaBackend *b, Error *error);
void cuda_steps_close(CudaBackend *b);
bool cuda_begin(Backend *backend, const Step *step);
uint64_t cuda_submit(Backend *backend);
bool cuda_wait(Backend *backend, uint64_t ticket, Error *error);
StepRows cuda_step_rows(const CudaBackend *b);
/* The same for those who know no codes: rows that see some are alone and see nothing. */
StepRows cuda_step_exact_rows(const CudaBackend *b);
/* For those who do: up to where rows see codes, from where on. */
const int32_t *cuda_step_code_ends(const CudaBackend *b);
const int32_t *cuda_step_code_sinks(const CudaBackend *b);
const int32_t *cuda_step_tokens(const CudaBackend *b);
const int32_t *cuda_step_outputs(const CudaBackend *b);
const float *cuda_step_scales(const CudaBackend *b);
SampleRows cuda_step_sample_params(const CudaBackend *b);
/* Page tables of a group: [runs][b->block.table_stride] */
const int32_t *cuda_step_tables(CudaBackend *b, int group);

/* tensor_parallel.c */
void cuda_parts_enter(Backend *backend);
bool cuda_parts_join(Backend *const *parts, int count, Error *error);
void cuda_parts_close(CudaBackend *b);
bool cuda_parts_room(CudaBackend *b, int64_t width, Error *error);
bool cuda_parts_lost(CudaBackend *b); /* the other did not answer */
/* Where a partial product goes, which sums by itself if it can. */
void cuda_parts_product(const CudaBackend *b, const MatmulAdd *op, Product *product);
void cuda_all_reduce(Backend *backend, const RankSum *op);

/* kv_quant.c */
size_t cuda_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values);
void cuda_kv_calibrate(Backend *backend, int count, const KvCalibration *surveys);
void cuda_kv_quantise(Backend *backend, int count, const KvQuantise *pages);
void cuda_codes_close(CudaBackend *b);
/* Which rotation is that of so many dims, a new one if need be; 0 after a failure, which wait() tells. */
int cuda_rotation(CudaBackend *b, int d);

/* kv_quant_step.c */
/* Finds out what the step sees as codes; integers that its records take in the block. `again`: it may be repeated. */
size_t cuda_codes_look(CudaBackend *b, const Step *step, bool again);
void cuda_codes_fill(const CudaBackend *b, int32_t *records);
/* Of a run: how many of its rows, the first, see none. */
int cuda_exact_rows(const SequenceChunk *chunk);
/* Whether all that see this layer's codes see those that have kernels of their own. */
bool cuda_only_four(const Step *step, int layer);

/* kvq_attention.c */
/* Whether rows of the step see codes in this layer, and what these rows get. a: as attend() has it. */
bool cuda_sees_codes(const CudaBackend *b, const KvLayer *layer);
void cuda_attend_codes(CudaBackend *b, const Attention *op, const Attend *a);
/* Whether all rows that see this layer's codes have one kernel, if they are generated. */
bool cuda_codes_generated(CudaBackend *b, const KvLayer *layer, const Attend *a);

/* moe.c */
void cuda_experts(Backend *backend, const Experts *op);
void cuda_moe_block(Backend *backend, const MoeBlock *op);

/* ops.c */
/* The kernel of the dispatch table that takes the layer, for rows of sequences with so many rows in the step. */
Kernel cuda_attention_kernel(const CudaBackend *b, const Attend *a, KernelPhase phase, int run_rows, PageKind pages);
void cuda_embed(Backend *backend, const Embed *op);
void cuda_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out);
void cuda_matmul(Backend *backend, const Matmul *op);
void cuda_glu(Backend *backend, const Glu *op);
void cuda_matmul_add(Backend *backend, const MatmulAdd *op);
void cuda_ffn_block(Backend *backend, const FfnBlock *op);
void cuda_attention(Backend *backend, const Attention *op);
void cuda_latent(Backend *backend, const Mla *op);
Router cuda_router(const Routing *op);
void cuda_route(Backend *backend, const Routing *op);
void cuda_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out);
void cuda_gather(Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out);
void cuda_logits(Backend *backend, int64_t count, float *x, float scale, float cap);
void cuda_sum_logits(Backend *backend, const LogitSums *op);
void cuda_sample(Backend *backend, const LogitSampling *op);
const int32_t *cuda_sampled(Backend *backend, uint64_t ticket);
void cuda_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm);
