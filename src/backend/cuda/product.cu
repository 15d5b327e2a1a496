/* Products with weights: which form, and inputs as f16 for those that do not prepare them themselves. */
#include "backend/cuda/integer.cuh"

enum {
    INTEGER_FEW_ROWS = 4, /* more generated rows, and integer_many.cu is faster */
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
    return whole * ((size_t)groups_of(cols) * TILE_COLS * sizeof(__half) + sizeof(float)) +
        (size_t)integer_many_bytes(groups_of(cols));
}

static int tile_rows(const Tiles &w) { return (w.rows + TILE_ROWS - 1) / TILE_ROWS; }

/* What `inputs` has been filled with. */
enum Prepared { PREPARED_NOTHING, PREPARED_HALVES, PREPARED_NORMED };

static bool is_integer(const Product *p, const Tiles &w) { return p->generated && p->wide && integer_fits(w); }

/* Of generated rows; work: as run_part() makes it. */
static cudaError_t run_integer(cudaStream_t stream, const Product *p, int kind, ProductWork work, Prepared *prepared) {
    work.x = p->x;
    if (work.norm.width && !integer_norm(work.norm)) {
        if (*prepared != PREPARED_NORMED) {
            const cudaError_t error = rows_norm(stream, p->rows, p->x, p->norm, (float *)p->inputs);
            if (error) return error;
            *prepared = PREPARED_NORMED;
        }
        work.x = (const float *)p->inputs;
        work.norm = RowNorm{};
    }
    bool fits = false;
    if (p->rows > INTEGER_FEW_ROWS || !integer_few_fits(work, p->shared_bytes)) {
        const cudaError_t error = product_integer_many(stream, kind, work, *p, &fits);
        if (error || fits) return error;
    }
    ProductWork piece = work;
    piece.rows = work.rows < FEW_ROWS_MAX ? work.rows : FEW_ROWS_MAX;
    while (piece.rows > 1 && !integer_few_fits(piece, p->shared_bytes)) piece.rows = (piece.rows + 1) / 2;
    for (int row = 0, rows = piece.rows; row < work.rows; row += rows) {
        piece.rows = work.rows - row < rows ? work.rows - row : rows;
        piece.x = work.x + (int64_t)row * work.cols;
        for (int i = 0; i < work.count; i++) piece.out[i] = work.out[i] + (int64_t)row * work.weight[i].rows;
        const cudaError_t error = product_integer_few(stream, kind, piece, p->multiprocessors, p->shared_bytes, &fits);
        if (error) return error;
    }
    return fits ? cudaSuccess : cudaErrorInvalidConfiguration;
}

/* Weights first … end − 1, which are packed alike. */
static cudaError_t run_part(
    cudaStream_t stream, const Product *p, int first, int end, ProductWork work, bool many, Prepared *prepared) {
    const bool glu = p->mode == PRODUCT_GLU;
    work.count = end - first;
    work.units = 0;
    for (int i = first; i < end; i++) {
        work.weight[i - first] = p->weight[i];
        work.out[i - first] = p->out[glu ? 0 : i];
        work.units += glu && i > first ? 0 : tile_rows(p->weight[i]);
    }
    const int kind = p->weight[first].kind;
    if (is_integer(p, p->weight[first])) return run_integer(stream, p, kind, work, prepared);
    const bool own = !many && p->rows <= ROWS_PREPARED_BY_FEW;
    if (!own && *prepared != PREPARED_HALVES) {
        const auto kernel = many ? prepare_kernel<true> : prepare_kernel<false>;
        const cudaError_t error = launch(stream, kernel, dim3(p->rows), BLOCK, 0, p->x, p->rows, p->cols, work.groups,
            work.tile, work.norm, (__half *)p->inputs, (float *)work.input_factors);
        if (error) return error;
        *prepared = PREPARED_HALVES;
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

static bool halves_are_few(const Product *p) {
    enum { BESIDES = 18 << 10 }; /* what a block keeps in shared memory besides inputs: less than this */
    return p->rows <= FEW_ROWS_MAX && (int64_t)p->rows * few_stride(groups_of(p->cols)) + BESIDES <= p->shared_bytes;
}

static ProductWork work_of(const Product *p) {
    ProductWork work = {};
    work.rows = p->rows;
    work.cols = p->cols;
    work.groups = groups_of(p->cols);
    work.mode = p->mode;
    return work;
}
extern "C" int product_is_few(const Product *p) {
    if (!is_integer(p, p->weight[0])) return halves_are_few(p);
    ProductWork work = work_of(p);
    work.weight[0] = p->weight[0];
    return (p->rows <= INTEGER_FEW_ROWS || !integer_many_fits(*p)) && integer_few_fits(work, p->shared_bytes);
}

extern "C" cudaError_t product_run(cudaStream_t stream, Product *p) {
    ProductWork work = work_of(p);
    work.activation = p->activation;
    work.scale = p->scale;
    work.soon = p->soon;
    work.soon_count = p->soon_count;
    if (p->norm) work.norm = *p->norm;
    work.inputs = (const __half *)p->inputs;
    const size_t whole = ((size_t)p->rows + INPUT_TILE - 1) / INPUT_TILE * INPUT_TILE;
    work.input_factors = (const float *)((const uint8_t *)p->inputs + whole * work.groups * TILE_COLS * sizeof(__half));
    const bool integer = is_integer(p, p->weight[0]), few = product_is_few(p), many = !halves_are_few(p);
    Prepared prepared = PREPARED_NOTHING;
    work.tile = !p->wide || p->rows > 64 ? INPUT_TILE : p->rows > 32 ? 64 : 32;
    /* Who leaves a result to the next product, and who can begin with that: so many rows go the same way there. */
    if (integer ? p->rows <= INTEGER_FEW_ROWS || !integer_many_fits(*p) : many || p->rows > ROWS_PREPARED_BY_FEW)
        p->hands = p->handed = 0;
    if (integer && p->hands) p->hands = integer_many_hands(*p);
    if (!few) p->copy = nullptr;
    if (!few) p->part.theirs = nullptr;
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
