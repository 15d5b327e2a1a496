/* backend/cuda/attention/: attention of decode rows and prefill rows over full-precision pages (flash_*; attention.cu
 * for any shape) and over quantised ones (kvq_*). dispatch.h has the table. This header: functions that host code
 * calls, as runtime/runtime.h says.
 *
 * A chunk is the rows of one sequence in the step (SequenceChunk); a short chunk has less than ATTENTION_LONG_CHUNK
 * rows. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "backend/cuda/kv/kv.h"
#include "backend/cuda/runtime/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Attention (backend.h), and the part of the step that a call computes. */
typedef struct Attend {
    StepRows step;
    int first_row, rows; /* rows of the step that the call computes */
    int decode_rows;     /* rows of the step, the first ones, that flash_decode takes */
    int heads, kv_heads, head_dim, value_dim, dtype;
    float scale, softcap;
    int window, chunked, span_rule; /* span_rule: SpanRule */
    RowNorm q_norm, k_norm;         /* width 0: none */
    int norm_full, norm_last;
    float *whole; /* norm_full: [rows][4] mean and factor of the norms of q and k, from attention_norms(); NULL: the
                     kernel computes the factors of its single row, both norms being RMS */
    RopeParams rope;
    KeySelection keys;   /* flash_group, attention.cu */
    const float *sinks;  /* [heads] logit of the sink; NULL: none */
    const float *slopes; /* [heads] ALiBi: attention.cu and kvq_generic; NULL: none */
    float slopes_bf16;
    float *q;
    const float *k, *v;    /* NULL: in the pages already */
    const float *q_latent; /* MLA; NULL: scores are q·k alone */
    int q_stride;          /* floats from a head of q to the next; 0: head_dim */
    RowNorm v_norm;        /* MLA: norm of v, which preparing applies */
    int unmerged;          /* 1: flash_group_decode() leaves the spans of its row to heads_product() */
    float *out;
    uint8_t *pages;        /* with the layer's offset */
    int64_t page_stride;   /* bytes */
    const int32_t *tables; /* [chunks][table_stride] page tables */
    int table_stride;
    int spans, slices;  /* spans of ATTENTION_SPAN and slices of ATTENTION_SLICE tokens that the longest row sees */
    int short_chunks;   /* 1: the step may have short chunks */
    int long_chunks;    /* number of long chunks in the step */
    int chunks;         /* chunks of the step, at most */
    int single_rows;    /* 1: every chunk is one row that sees no later one */
    int in_chunks;      /* 1: not prepared, though chunks have several rows: flash_decode_takes_chunks() */
    int shared_bytes;   /* shared memory that a block may use */
    int sm90a;          /* 1: the device is ARCH_SM90A */
    float *partials;    /* work space, as the *_floats() and *_bytes() of a kernel say */
    int prepared;       /* 1: attention_prepare() has run; 0: the kernel prepares the rows, which are decode rows; every
                           chunk is one of them, unless in_chunks */
    unsigned *arrivals; /* decode rows: FLASH_DECODE_ARRIVALS counters; zero before and after the call */
} Attend;

enum { ATTENTION_SPAN = 256, ATTENTION_SLICE = 64, ATTENTION_LONG_CHUNK = 4 };
/* norm_full: fills Attend.whole; before all other kernels of the layer. */
cudaError_t attention_norms(cudaStream_t stream, const Attend *attend);
/* Steps of one row for each sequence: whether one kernel prepares, appends and attends, and that kernel. */
int flash_decode_rows_fit(const Attend *attend);
cudaError_t flash_decode_rows(cudaStream_t stream, const Attend *attend);
int flash_decode_cluster_fits(const Attend *attend);
cudaError_t flash_decode_cluster(cudaStream_t stream, const Attend *attend);
/* Applies norms and RoPE to q and k, and appends k and v to the pages. */
cudaError_t attention_prepare(cudaStream_t stream, const Attend *attend);
/* Prepared rows first_row … first_row + rows − 1. Tiles: short chunks by flash_decode_split, long ones by
 * flash_prefill_mma. Generic: any type and width. *_floats(): floats of `partials` per row and head. */
int attention_tiles_fit(const Attend *attend);
int attention_tile_floats(const Attend *attend);
cudaError_t attention_tiles(cudaStream_t stream, const Attend *attend);
int attention_generic_floats(const Attend *attend);
cudaError_t attention_generic(cudaStream_t stream, const Attend *attend);

/* flash_decode: decode rows first_row … first_row + rows − 1, at most FLASH_DECODE_ROWS_MAX. Whether it takes the
 * layer; floats of `partials` for a row. */
enum { FLASH_DECODE_ROWS_MAX = 64, FLASH_DECODE_ARRIVALS = 1 << 16 };
/* Pages of one row up to which flash_decode has so few blocks that all are resident before their queries are computed.
 */
enum { ATTENTION_FEW_PAGES = 16 };
int flash_decode_fits(const Attend *attend);
/* Whether it prepares the rows of a step whose chunks have up to FLASH_DECODE_CHUNK_ROWS decode rows. */
enum { FLASH_DECODE_CHUNK_ROWS = 8 };
int flash_decode_takes_chunks(const Attend *attend);
size_t flash_decode_floats(const Attend *attend);
cudaError_t flash_decode(cudaStream_t stream, const Attend *attend);

/* flash_group: rows first_row … first_row + rows − 1. Whether it takes the layer; whether flash_group_decode() prepares
 * single rows of it; floats of `partials` for a row of flash_group_decode(), which cuts rows into spans;
 * flash_group_prefill() does not, so a row has other bits there. */
enum { FLASH_GROUP_SPANS = 32 };
int flash_group_fits(const Attend *attend);
int flash_group_prepares(const Attend *attend);
int flash_group_spans(const Attend *attend); /* spans of a row, at most */
size_t flash_group_floats(const Attend *attend);
cudaError_t flash_group_decode(cudaStream_t stream, const Attend *attend);
cudaError_t flash_group_prefill(cudaStream_t stream, const Attend *attend);

/* flash_prefill_wgmma: all rows behind the decode rows. Whether it takes the layer; bytes of `partials`. */
enum { FLASH_PREFILL_GROUP_MAX = 16 }; /* query heads of a kv head */
int flash_prefill_wgmma_fits(const Attend *attend);
size_t flash_prefill_wgmma_bytes(const Attend *attend);
cudaError_t flash_prefill_wgmma(cudaStream_t stream, const Attend *attend);

/* ---- quantised pages ---- */

/* Rows that see quantised pages, beside Attend. */
typedef struct AttendQuant {
    const int32_t *ends, *sinks; /* [rows] of the step: tokens sink … end − 1 are seen quantised; end 0: none */
    const int32_t *records; /* [chunks][record_ints] of the layer: forms of k and v, pairs of each head, page tables */
    int record_ints, heads, table_stride;
    int four;             /* 1: every form is KV_Q4 */
    int k_group, v_group; /* dims that share a scale */
    const uint8_t *k_base[KVQ_FORMS], *v_base[KVQ_FORMS];
    int64_t k_stride[KVQ_FORMS], v_stride[KVQ_FORMS];
    const float *bias; /* [kv_heads · head_dim] key biases that were taken out; NULL: none */
    RopeParams rope;   /* RoPE of the bias */
    Rotation k_rotation, v_rotation;
    KvqCodebooks books;
    int full_slices;  /* full-precision slices that a row sees, at most */
    int pages;        /* quantised pages that a row of a short chunk sees, at most */
    uint8_t *queries; /* [rows][heads] of kvq_query_bytes(): rotated and quantised queries */
    float *folded;    /* [rows][heads][value_dim + 2] partial results of long chunks */
} AttendQuant;
/* Whether kvq_decode and kvq_prefill, which multiply integers, take the layer; otherwise kvq_generic does. */
int kvq_is_fast(const Attend *attend);
size_t kvq_query_bytes(const Attend *attend);
/* Floats of Attend.partials for a row and head. */
size_t kvq_partial_floats(const Attend *attend, const AttendQuant *quant);
/* In this order: queries once; long chunks as a whole; rows first_row … first_row + rows − 1. */
cudaError_t kvq_queries(cudaStream_t stream, const Attend *attend, const AttendQuant *quant);
cudaError_t kvq_chunks(cudaStream_t stream, const Attend *attend, const AttendQuant *quant);
cudaError_t kvq_rows(cudaStream_t stream, const Attend *attend, const AttendQuant *quant);

/* flash_decode_kvq4: as flash_decode, for decode rows whose pages are all KV_Q4; other rows stay as they are. */
int flash_decode_kvq4_fits(const Attend *attend, const AttendQuant *quant);
size_t flash_decode_kvq4_floats(const Attend *attend, const AttendQuant *quant);
cudaError_t flash_decode_kvq4(cudaStream_t stream, const Attend *attend, const AttendQuant *quant);

/* ---- products of heads (mla_heads.cu) ---- */

/* out[row, head] = matrix of the head · x[row, head]. */
typedef struct HeadsProduct {
    int rows, heads, kind;
    int tile_rows;              /* tile rows of a matrix; all are alike */
    const Tiles *bank;          /* [heads] device memory */
    const float *x;             /* [rows, heads] rows that begin x_width floats apart */
    float *out;                 /* [rows, heads, out_width] */
    int64_t x_width, out_width; /* floats */
    const Attend *merge; /* host memory; x is the result of its row 0, whose spans are unmerged; NULL: x is there */
    int spans;           /* merge: flash_group_spans() */
} HeadsProduct;
int heads_merge(const HeadsProduct *product); /* whether it takes `merge` */
cudaError_t heads_product(cudaStream_t stream, const HeadsProduct *product);

/* ---- sparse indexers (index_select.cu) ---- */

/* The scores and the choice of IndexSelect (backend.h) for rows first_row … first_row + rows − 1, which
 * attention_prepare() has rotated and appended. attend: its step, heads, pages and tables. */
typedef struct IndexChoice {
    Attend attend;
    const float *weights; /* [rows of the step][heads]; NULL: each head chooses */
    int block, local, top_k;
    bool tail; /* CompressedSelect.tail */
    int rate;  /* positions of a key, which rows see from the last of them on; more than 1: keys alone, blocks of 1 */
    int32_t *chosen;
    int tokens; /* keys that the longest row sees, at most; a multiple of KV_PAGE_TOKENS */
} IndexChoice;
size_t index_choice_floats(const IndexChoice *choice); /* floats of Attend.partials for a row */
cudaError_t index_choose(cudaStream_t stream, const IndexChoice *choice);

#ifdef __cplusplus
}
#endif
