/* Products with weights: which form, and inputs as f16 for those that do not prepare them themselves. */
#include "backend/cuda/product.cuh"

enum {
    ROWS_PREPARED_BY_FEW = 2, /* more, and every block's doing the same costs more than a kernel that does it once */
};

/* Behind one another: f16 inputs, then a factor per row. Few rows: [row][column]; many: as input_chunk() says. */
template <bool MANY>
__global__ void __launch_bounds__(BLOCK)
    prepare_kernel(const float *x, int rows, int cols, int groups, int tile, RowNorm norm, __half *inputs, float *factors) {
    __shared__ Reductions shared;
    let_next_begin();
    const int row = blockIdx.x;
    const auto store = [=](int, int at, uint2 v) {
        if (!MANY) {
            *(uint2 *)(inputs + (int64_t)row * groups * 64 + at) = v;
            return;
        }
        const int t = at % 64 / 16, s = at % 16 / 4;
        __half *to = inputs + input_chunk(groups, row, at / 64, 2 * s, tile) * 8 + 2 * t;
        *(uint32_t *)to = v.x;
        *(uint32_t *)(to + tile * 8) = v.y;
    };
    inputs_prepare(
        x + (int64_t)row * cols, 1, cols, Columns(groups), norm, shared, [] { wait_for_previous(); }, store,
        [&](int, float factor) {
            if (threadIdx.x == 0) factors[row] = factor;
        });
}

static int groups_of(int64_t cols) { return (int)((cols + TILE_COLS - 1) / TILE_COLS); }

extern "C" size_t product_input_bytes(int rows, int64_t cols) {
    const size_t whole = ((size_t)rows + INPUT_TILE - 1) / INPUT_TILE * INPUT_TILE;
    return whole * ((size_t)groups_of(cols) * TILE_COLS * sizeof(__half) + sizeof(float));
}

static int tile_rows(const Tiles &w) { return (w.rows + TILE_ROWS - 1) / TILE_ROWS; }

/* Weights first … end − 1, which are packed alike. */
static cudaError_t run_part(
    cudaStream_t stream, const Product *p, int first, int end, ProductWork work, bool many, bool *prepared) {
    const bool glu = p->mode == PRODUCT_GLU;
    work.count = end - first;
    work.units = 0;
    for (int i = first; i < end; i++) {
        work.weight[i - first] = p->weight[i];
        work.out[i - first] = p->out[glu ? 0 : i];
        work.units += glu && i > first ? 0 : tile_rows(p->weight[i]);
    }
    const int kind = p->weight[first].kind;
    const bool own = !many && p->rows <= ROWS_PREPARED_BY_FEW;
    if (!own && !*prepared) {
        const auto kernel = many ? prepare_kernel<true> : prepare_kernel<false>;
        const cudaError_t error = launch(stream, kernel, dim3(p->rows), BLOCK, 0, p->x, p->rows, p->cols, work.groups,
            work.tile, work.norm, (__half *)p->inputs, (float *)work.input_factors);
        if (error) return error;
        *prepared = true;
    }
    work.x = own ? p->x : nullptr;
    bool fits = false;
    if (many) {
        if (!p->wide) return product_many(stream, kind, work);
        const cudaError_t error = product_wide(stream, kind, work, *p, &fits);
        return error || fits ? error : cudaErrorInvalidConfiguration; /* every kind fits where there is wide.cu */
    }
    if (launch_early) { /* as of compute capability 9.0 */
        const cudaError_t error = product_stream(stream, kind, work, p->multiprocessors, p->shared_bytes, &fits);
        if (error || fits) return error;
    }
    return product_few(stream, kind, work, p->multiprocessors, p->shared_bytes, &fits);
}

extern "C" int product_is_few(const Product *p) {
    enum { BESIDES = 18 << 10 }; /* what a block keeps in shared memory besides inputs: less than this */
    return p->rows <= FEW_ROWS_MAX && (int64_t)p->rows * few_stride(groups_of(p->cols)) + BESIDES <= p->shared_bytes;
}

extern "C" cudaError_t product_run(cudaStream_t stream, Product *p) {
    ProductWork work = {};
    work.rows = p->rows;
    work.cols = p->cols;
    work.groups = groups_of(p->cols);
    work.mode = p->mode;
    work.activation = p->activation;
    work.scale = p->scale;
    work.soon = p->soon;
    work.soon_count = p->soon_count;
    if (p->norm) work.norm = *p->norm;
    work.inputs = (const __half *)p->inputs;
    const size_t whole = ((size_t)p->rows + INPUT_TILE - 1) / INPUT_TILE * INPUT_TILE;
    work.input_factors = (const float *)((const uint8_t *)p->inputs + whole * work.groups * TILE_COLS * sizeof(__half));
    const bool many = !product_is_few(p);
    bool prepared = false;
    work.tile = !p->wide || p->rows > 64 ? INPUT_TILE : p->rows > 32 ? 64 : 32;
    if (many || p->rows > ROWS_PREPARED_BY_FEW) p->hands = p->handed = 0;
    if (many) p->copy = nullptr;
    if (many) p->part.theirs = nullptr;
    work.part = p->part;
    work.copy = p->copy;
    if (p->handed) work.handed = (const __half *)p->inputs;
    if (p->hands) work.hands = (__half *)p->inputs;
    for (int first = 0, end; first < p->count; first = end) {
        const Tiles &w = p->weight[first];
        for (end = first + 1; end < p->count && p->weight[end].kind == w.kind && p->weight[end].bytes == w.bytes;
             end++) {}
        const cudaError_t error = run_part(stream, p, first, end, work, many, &prepared);
        if (error) return error;
    }
    return cudaSuccess;
}
