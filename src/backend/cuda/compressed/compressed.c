/* Attention to compressed keys, and hyper-connections: parameters as kernels take them. */
#include "backend/cuda/compressed/compressed.h"

#include "backend/cuda/cuda.h"

static CachedRows cached_rows(CudaBackend *b, const KvLayer *kv) {
    CHECK(kv->page_stride % sizeof(float) == 0 && kv->layer_offset % sizeof(float) == 0);
    return (CachedRows){.pages = (float *)(void *)(kv->base + kv->layer_offset),
        .stride = (int64_t)(kv->page_stride / sizeof(float)),
        .width = (int64_t)(kv->layout.row_bytes / sizeof(float)),
        .tables = cuda_step_tables(b, kv->group),
        .table_stride = b->block.table_stride};
}

void cuda_compress(Backend *backend, const Compression *op) {
    CudaBackend *b = cuda_of(backend);
    const CompressArgs args = {.step = cuda_step_rows(b),
        .state = cached_rows(b, &op->state),
        .keys = cached_rows(b, &op->keys),
        .op = *op,
        .norm = row_norm(op->norm),
        .frequencies = op->rope->frequencies,
        .dims = op->rope->dims};
    cuda_ok(b, compressed_compress(b->stream, &args), "compressed keys");
}

void cuda_compressed_select(Backend *backend, const CompressedSelect *op) {
    CudaBackend *b = cuda_of(backend);
    const EndRotation rotation = {.step = cuda_step_rows(b),
        .heads = op->heads,
        .width = op->width,
        .dims = op->rope->dims,
        .frequencies = op->rope->frequencies,
        .x = op->q};
    cuda_ok(b, compressed_rotate(b->stream, &rotation), "a choice of keys");
    IndexChoice choice = {.attend = {.step = cuda_step_rows(b),
                              .heads = op->heads,
                              .kv_heads = 1,
                              .head_dim = op->width,
                              .dtype = DTYPE_F32,
                              .q = op->q,
                              .pages = op->keys.base + op->keys.layer_offset,
                              .page_stride = (int64_t)op->keys.page_stride,
                              .tables = cuda_step_tables(b, op->keys.group),
                              .table_stride = b->block.table_stride},
        .weights = op->weights,
        .block = 1,
        .rate = op->rate,
        .top_k = op->top_k,
        .tail = op->tail,
        .chosen = op->chosen};
    cuda_choose_keys(b, &choice);
}

void cuda_compressed_attention(Backend *backend, const CompressedAttention *op) {
    CudaBackend *b = cuda_of(backend);
    CompressedArgs args = {.step = cuda_step_rows(b),
        .latest = cached_rows(b, &op->latest),
        .op = *op,
        .q_norm = row_norm(op->q_norm),
        .k_norm = row_norm(op->k_norm),
        .frequencies = op->rope->frequencies,
        .dims = op->rope->dims};
    if (op->rate) args.keys = cached_rows(b, &op->keys);
    cuda_ok(b, compressed_attend(b->stream, &args), "attention to compressed keys");
}

void cuda_join_groups(Backend *backend, const GroupJoin *op) {
    CudaBackend *b = cuda_of(backend);
    cuda_ok(b, compressed_join(b->stream, op), "groups");
}

void cuda_hyper_connect(Backend *backend, const HyperConnection *op) {
    CudaBackend *b = cuda_of(backend);
    CHECK(op->streams <= STREAMS_MAX);
    cuda_ok(b, compressed_hyper(b->stream, op), "hyper-connections");
}
