/* Recurrent layers: parameters as kernels take them. */
#include "backend/recurrent.h"

#include "backend/cuda/cuda.h"
#include "backend/cuda/recurrent/recurrent.h"

static StatePages state_pages(CudaBackend *b, const RecurrentPart *place) {
    const KvLayer *kv = &place->kv;
    CHECK(kv->page_stride % sizeof(float) == 0 && kv->layer_offset % sizeof(float) == 0);
    return (StatePages){.pages = (float *)(void *)(kv->base + kv->layer_offset),
        .stride = (int64_t)(kv->page_stride / sizeof(float)),
        .anchor = (int64_t)(kv->layout.anchor_bytes / sizeof(float)),
        .row = (int64_t)(kv->layout.row_bytes / sizeof(float)),
        .anchor_at = place->anchor_at,
        .row_at = place->row_at,
        .tables = cuda_step_states(b, kv->group),
        .table_stride = b->block.table_stride};
}

static ConvArgs conv_args(CudaBackend *b, const Conv *op) {
    return (ConvArgs){
        .step = cuda_step_rows(b), .pages = state_pages(b, &op->place), .op = *op, .chunks = b->step.chunk_count};
}
static RecurrenceArgs recurrence_args(CudaBackend *b, const Recurrence *op) {
    return (RecurrenceArgs){.step = cuda_step_rows(b),
        .pages = state_pages(b, &op->place),
        .op = *op,
        .q_norm = row_norm(op->q_norm),
        .k_norm = row_norm(op->k_norm),
        .rope = cuda_rope_params(op->rope),
        .chunks = b->step.chunk_count,
        .multiprocessors = b->multiprocessors,
        .shared_bytes = b->shared_bytes};
}

void cuda_conv(Backend *backend, const Conv *op) {
    CudaBackend *b = cuda_of(backend);
    const ConvArgs args = conv_args(b, op);
    cuda_ok(b, recurrent_conv(b->stream, &args), "conv");
}

void cuda_recurrence(Backend *backend, const Recurrence *op) {
    CudaBackend *b = cuda_of(backend);
    const RecurrenceArgs args = recurrence_args(b, op);
    cuda_ok(b, recurrent_recurrence(b->stream, &args), "recurrence");
}

bool cuda_recurrent_block(Backend *backend, const RecurrentBlock *op) {
    CudaBackend *b = cuda_of(backend);
    const RecurrentBlockArgs args = {conv_args(b, op->conv), recurrence_args(b, op->recurrence), *op->norm};
    if (!b->sm90a || !recurrent_block_fits(&args)) return false;
    cuda_ok(b, recurrent_block(b->stream, &args), "a recurrent block");
    return true;
}

void cuda_mamba(Backend *backend, const Mamba *op) {
    CudaBackend *b = cuda_of(backend);
    const MambaArgs args = {
        .step = cuda_step_rows(b), .pages = state_pages(b, &op->place), .op = *op, .chunks = b->step.chunk_count};
    cuda_ok(b, recurrent_mamba(b->stream, &args), "mamba");
}

void cuda_rg_lru(Backend *backend, const RgLru *op) {
    CudaBackend *b = cuda_of(backend);
    const RgLruArgs args = {
        .step = cuda_step_rows(b), .pages = state_pages(b, &op->place), .op = *op, .chunks = b->step.chunk_count};
    cuda_ok(b, recurrent_rg_lru(b->stream, &args), "an RG-LRU");
}

void cuda_gated_norm(Backend *backend, const GatedNorm *op) {
    CudaBackend *b = cuda_of(backend);
    cuda_ok(b, recurrent_gated_norm(b->stream, op), "gated norm");
}
