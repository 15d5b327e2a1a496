/* Internals of the reference backend, shared by its files. */
#pragma once
#include "backend/cpu/pool.h"
#include "backend/compressed.h"
#include "backend/recurrent.h"

typedef struct RefBackend {
    Backend base;
    Pool *pool;
    bool own_pool;
    float *scratch;
    size_t scratch_count, scratch_used;
    float *page; /* [KV_PAGE_TOKENS · ATTENTION_HEAD_MAX] to quantise a head of a page in */
    Step step;
    bool starved; /* an operation of the step found no memory to work in */
} RefBackend;

static inline RefBackend *ref_backend(Backend *backend) { return (RefBackend *)backend; }

/* ref_rows.c */
/* Work memory, owned by the caller (free). NULL: no memory; wait() of the step then fails. */
float *ref_take(RefBackend *r, int64_t count);
float ref_dot(const float *a, const float *b, int64_t count);
void ref_norm_row(const float *x, const Norm *norm, int64_t width, float *out);

/* ref_pages.c */
/* A page: for each kv head K [token][head_dim], then V [token][value_dim], then the queries' energies [token], in f32.
 */
size_t ref_head_floats(const KvLayout *layout);
float *ref_head(const KvLayer *kv, int32_t page, int head);
float *ref_energies(const KvLayer *kv, int32_t page, int head);
size_t ref_kv_layer_bytes(Backend *backend, const KvLayout *layout);
bool ref_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out);
bool ref_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from);
size_t ref_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values);
void ref_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations);
void ref_kv_quantise(Backend *backend, int count, const KvQuantise *pages);
/* Dequantises a head of a page to the layout of a full-precision page: K, then V. position: of the page's first token.
 */
void ref_decode_head(
    const KvLayer *kv, const KvQuant *code, int head, int position, int32_t k_page, int32_t v_page, float *out);

/* ref_attention.c */
void ref_attention(Backend *backend, const Attention *a);
/* A head as the cache holds it: f32 memory, values of the type. */
void ref_store_head(float *out, const float *head, int count, DType dtype);
void ref_rotate(const Rope *rope, const float *angles, float *head);

/* ref_index.c */
void ref_index_select(Backend *backend, const IndexSelect *op);

/* ref_recurrent.c */
void ref_conv(Backend *backend, const Conv *op);
void ref_recurrence(Backend *backend, const Recurrence *op);
void ref_mamba(Backend *backend, const Mamba *op);
void ref_rg_lru(Backend *backend, const RgLru *op);
void ref_gated_norm(Backend *backend, const GatedNorm *op);

/* ref_compressed.c */
void ref_compress(Backend *backend, const Compression *op);
void ref_compressed_select(Backend *backend, const CompressedSelect *op);
void ref_compressed_attention(Backend *backend, const CompressedAttention *op);
void ref_join_groups(Backend *backend, const GroupJoin *op);
void ref_hyper_connect(Backend *backend, const HyperConnection *op);
