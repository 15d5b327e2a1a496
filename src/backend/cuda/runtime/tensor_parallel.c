/* One of the two GPUs of a tensor-parallel backend: memory that the other GPU writes, and the sums. */
#include <string.h>

#include "backend/cuda/cuda.h"

enum { PARTS = 2, RANK_SLOTS = 4 };

void cuda_ranks_enter(Backend *backend) { cuda_enter(cuda_of(backend)); }

static bool reach(CudaBackend *b, CudaBackend *other, Error *error) {
    int can = 0;
    cuda_enter(b);
    if (!cuda_expect(cudaDeviceCanAccessPeer(&can, b->device, other->device), "CUDA", error)) return false;
    if (!can)
        return fail(error, ERROR_UNSUPPORTED, "GPU %d cannot reach the memory of GPU %d", b->device, other->device);
    const cudaError_t code = cudaDeviceEnablePeerAccess(other->device, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
    return code == cudaErrorPeerAccessAlreadyEnabled || cuda_expect(code, "the other GPU's memory", error);
}

static bool rank_open(CudaBackend *b, CudaBackend *other, int index, Error *error) {
    CudaRank *part = &b->rank;
    *part = (CudaRank){.other = other, .exchange = {.place = {.index = index}}};
    if (!reach(b, other, error)) return false;
    void *lost = NULL;
    if (!(part->exchange.place.lost = cuda_take(b, sizeof(int), error)) ||
        !cuda_expect(cudaMemsetAsync(part->exchange.place.lost, 0, sizeof(int), b->stream), "CUDA", error) ||
        !cuda_expect(cudaHostAlloc(&lost, sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable), "CUDA", error))
        return false;
    part->exchange.place.lost_host = lost;
    *part->exchange.place.lost_host = 0;
    return true;
}

bool cuda_ranks_join(Backend *const *parts, int count, Error *error) {
    CHECK(count == PARTS);
    for (int p = 0; p < PARTS; p++)
        if (!rank_open(cuda_of(parts[p]), cuda_of(parts[1 - p]), p, error)) return false;
    return true;
}

void cuda_ranks_close(CudaBackend *b) {
    cudaFree(b->rank.exchange.place.lost);
    cudaFree(b->rank.exchange.place.mine);
    cudaFree(b->rank.exchange.terms);
    cudaFreeHost(b->rank.exchange.place.lost_host);
}

/* The other GPU reads the address from b->rank, so it may still change. */
bool cuda_ranks_room(CudaBackend *b, int64_t width, Error *error) {
    CudaRank *part = &b->rank;
    RankExchange *e = &part->exchange;
    if (!part->other || width <= part->width) return true;
    const size_t bytes = RANK_SLOTS * (size_t)ranks_slot_bytes(b->base.rows_max, width, e);
    cudaFree(e->place.mine);
    cudaFree(e->terms);
    part->width = 0;
    e->terms = NULL;
    e->place.mine = cuda_take(b, bytes, error);
    if (!e->place.mine || !cuda_expect(cudaMemset(e->place.mine, 0, bytes), "CUDA", error)) return false;
    e->terms = cuda_take(b, (size_t)b->base.rows_max * (size_t)width * sizeof(float), error);
    if (!e->terms || !cuda_expect(cudaDeviceSynchronize(), "CUDA", error)) return false;
    part->width = width;
    return true;
}

bool cuda_ranks_lost(CudaBackend *b) {
    const volatile int *lost = b->rank.exchange.place.lost_host;
    return lost && *lost;
}

/* The place of the step's next sum, of rows of `width` floats. */
static RankPlace next_place(const CudaBackend *b, int64_t width) {
    CHECK(width <= b->rank.width && b->rank.sums < RANK_SUMS_MAX);
    RankPlace place = b->rank.exchange.place;
    place.theirs = b->rank.other->rank.exchange.place.mine;
    place.ticket = b->block.device + 1;
    place.number = b->rank.sums;
    return place;
}

void cuda_ranks_product(const CudaBackend *b, const MatmulAdd *op, Product *product) {
    product->rank = next_place(b, op->weight->rows);
    const bool mixed = op->decode_rows > 0 && op->decode_rows < op->rows;
    product->decode_rows = op->decode_rows > 0;
    if (!op->norm && !mixed && product_is_gemv(product)) return;
    product->mode = PRODUCT_STORE;
    product->out[0] = b->rank.exchange.terms;
}

bool cuda_ranks_summed(CudaBackend *b, const Product *product) {
    const bool summed = product->rank.theirs != NULL;
    b->rank.sums += summed;
    return summed;
}

void cuda_all_reduce(Backend *backend, const RankSum *op) {
    CudaBackend *b = cuda_of(backend);
    RankExchange e = b->rank.exchange;
    e.place = next_place(b, op->width);
    b->rank.sums++;
    e.terms = op->terms;
    e.residual = op->norm ? NULL : op->residual;
    e.scale = op->scale;
    e.count = op->rows * op->width;
    cuda_ok(b, ranks_sum(b->stream, op->rows, &e), "a sum over GPUs");
    if (!op->norm) return;
    const RowNorm norm = {op->norm->kind, op->norm->width, op->norm->eps, op->norm->weight, op->norm->bias};
    cuda_ok(b, rows_add(b->stream, op->rows, op->width, op->residual, e.terms, op->scale, &norm), "add");
}
