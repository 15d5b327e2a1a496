/* Experts on the host side. Small steps: kernels read the choice on the device. Large steps: the choice comes to the
 * host, rows are sorted by expert, and each expert in use takes a gated product and another one; such steps are not
 * captured. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"

/* ---- few rows ---- */

static ExpertProduct expert_product(CudaBackend *b, const Experts *op, const CudaBank *bank, const int32_t *chunks) {
    return (ExpertProduct){.pairs = op->rows * op->top_k,
        .each = 1,
        .kind = bank->most.kind,
        .experts = op->count,
        .tile_rows = (bank->most.rows + TILE_ROWS - 1) / TILE_ROWS,
        .groups = bank->most.groups,
        .bank = {bank->tiles},
        .index = op->index,
        .chunks = chunks,
        .multiprocessors = b->multiprocessors,
        .shared_bytes = b->shared_bytes};
}

static bool fit(const CudaBackend *b, const CudaBank *bank) {
    return bank->alike && experts_fit(bank->most.groups, b->shared_bytes);
}

/* place: as in rows_combine(). */
static void combine(CudaBackend *b, const Experts *op, const float *y, const int32_t *place) {
    const float *weight = op->weigh_inputs ? NULL : op->weight;
    cuda_ok(b, rows_combine(b->stream, op->rows, op->top_k, op->down[0].rows, y, place, weight, op->out), "experts");
}

/* False: not computed; another kernel has to be used. */
static bool run_pairs(CudaBackend *b, const Experts *op) {
    const int pairs = op->rows * op->top_k;
    const KernelQuery query = {KERNEL_MOE, PHASE_UNIFORM, op->rows, b->arch, cuda_tiles(b, &op->gate[0])->kind};
    if (kernel_next(&query, NULL)->kernel != KERNEL_MOE_GEMV || pairs > EXPERT_PAIRS_MAX) return false;
    const CudaBank *gate = cuda_bank(b, op->gate, op->count), *up = cuda_bank(b, op->up, op->count),
                   *down = cuda_bank(b, op->down, op->count);
    if (!gate || !up || !down) return true;
    if (!fit(b, gate) || !fit(b, up) || !fit(b, down) || gate->most.kind != up->most.kind ||
        gate->most.bytes != up->most.bytes)
        return false;
    const int64_t hidden = op->down[0].rows, inner = gate->most.rows;
    float *y = op->work, *between = y + pairs * hidden;
    int32_t *chunks = NULL;
    if (op->rows > 1) {
        if (!cuda_room(b, &b->choice, experts_chunk_ints(EXPERT_PAIRS_MAX) * sizeof *chunks, &b->fault)) return true;
        chunks = b->choice.memory;
        cuda_ok(b, experts_sort(b->stream, pairs, op->count + op->identities, op->index, chunks), "experts");
    }
    ExpertProduct first = expert_product(b, op, gate, chunks), second = expert_product(b, op, down, chunks);
    first.twice = op->gate == op->up;
    first.bank[1] = first.twice ? NULL : up->tiles;
    first.activation = op->activation;
    first.x = op->weigh_inputs ? y : op->x;
    first.each = op->weigh_inputs ? 1 : op->top_k;
    first.x_width = hidden;
    first.out = between;
    first.out_width = inner;
    second.x = between;
    second.x_width = inner;
    second.out = y;
    second.out_width = hidden;
    if (op->weigh_inputs || op->identities) { /* an identity has this result */
        const float *weight = op->weigh_inputs ? op->weight : NULL;
        cuda_ok(b, rows_weigh(b->stream, pairs, op->top_k, hidden, op->x, NULL, weight, y), "experts");
    }
    cuda_ok(b, experts_product(b->stream, &first), "experts");
    cuda_ok(b, experts_product(b->stream, &second), "experts");
    combine(b, op, y, NULL);
    return true;
}

/* ---- many rows ---- */

static int expert_or_identity(const Experts *op, int number) { return number < op->count ? number : op->count; }

/* Pairs of a row and one of its experts in the order of the experts, behind them those with an identity: the place of
 * each pair, and the row at each place. */
static void sort_pairs(const Experts *op, const int32_t *index, int32_t *place, int32_t *row, int *begin) {
    const int pairs = op->rows * op->top_k;
    int next[EXPERTS_MAX + 2];
    memset(begin, 0, (size_t)(op->count + 2) * sizeof *begin);
    for (int p = 0; p < pairs; p++) begin[expert_or_identity(op, index[p]) + 1]++;
    for (int e = 0; e <= op->count; e++) begin[e + 1] += begin[e];
    memcpy(next, begin, (size_t)(op->count + 1) * sizeof *next);
    for (int p = 0; p < pairs; p++) {
        place[p] = next[expert_or_identity(op, index[p])]++;
        row[place[p]] = p / op->top_k;
    }
}

static int64_t widest(const Experts *op) {
    int64_t inner = 0;
    for (int e = 0; e < op->count; e++) inner = op->gate[e].rows > inner ? op->gate[e].rows : inner;
    return inner;
}

static void run_expert(Backend *backend, const Experts *op, int e, int rows, float *inner, float *y) {
    CudaBackend *b = cuda_of(backend);
    const int64_t width = op->gate[e].rows;
    const Glu glu = {
        .rows = rows, .x = y, .gate = &op->gate[e], .up = &op->up[e], .activation = op->activation, .out = inner};
    const Matmul up = {.rows = rows, .x = y, .count = 1, .weight = {&op->up[e]}, .out = {inner}},
                 down = {.rows = rows, .x = inner, .count = 1, .weight = {&op->down[e]}, .out = {y}};
    const Multiply gate = {.rows = rows,
        .width = width,
        .x = inner,
        .activation = op->activation,
        .y = inner,
        .y_stride = width,
        .out = inner};
    b->sliced = true;
    if (op->gate == op->up) {
        backend->ops->matmul(backend, &up);
        cuda_ok(b, rows_multiply(b->stream, &gate, rows), "experts");
    } else {
        backend->ops->glu(backend, &glu);
    }
    backend->ops->matmul(backend, &down);
    b->sliced = false;
}

static void run(Backend *backend, const Experts *op, int32_t *index, int32_t *place, int32_t *row) {
    CudaBackend *b = cuda_of(backend);
    const int64_t hidden = op->down[0].rows, pairs = (int64_t)op->rows * op->top_k, inner = widest(op);
    const size_t bytes = (size_t)pairs * sizeof *index;
    int begin[EXPERTS_MAX + 3];
    float *y = op->work, *between = y + pairs * hidden;
    backend->ops->download(backend, index, op->index, bytes);
    if (b->fault.code != ERROR_NONE) return;
    sort_pairs(op, index, place, row, begin);
    if (!cuda_room(b, &b->choice, 2 * bytes, &b->fault)) return;
    int32_t *places = b->choice.memory, *rows = places + pairs;
    backend->ops->upload(backend, places, place, bytes);
    backend->ops->upload(backend, rows, row, bytes);
    if (op->weigh_inputs)
        cuda_ok(b, rows_weigh(b->stream, (int)pairs, op->top_k, hidden, op->x, places, op->weight, y), "experts");
    else
        cuda_ok(b, rows_gather(b->stream, (int)pairs, rows, op->x, hidden, y), "experts");
    for (int e = 0; e < op->count; e++) {
        const int count = begin[e + 1] - begin[e];
        if (count > 0) run_expert(backend, op, e, count, between + begin[e] * inner, y + begin[e] * hidden);
    }
    combine(b, op, y, places);
}

void cuda_experts(Backend *backend, const Experts *op) {
    CudaBackend *b = cuda_of(backend);
    const size_t pairs = (size_t)op->rows * (size_t)op->top_k;
    CHECK(op->count <= EXPERTS_MAX + 1);
    if (run_pairs(b, op)) return;
    if (op->rows < b->host_rows) b->host_rows = op->rows;
    CHECK(!b->capturing); /* the step before capturing has recorded that such steps are not captured */
    int32_t *numbers = malloc(3 * pairs * sizeof *numbers);
    if (numbers)
        run(backend, op, numbers, numbers + pairs, numbers + 2 * pairs);
    else if (b->fault.code == ERROR_NONE)
        fail(&b->fault, ERROR_MEMORY, "no memory for a choice of experts");
    free(numbers);
}

/* ---- MoE blocks of decode rows ---- */

/* Properties of an MoE block's weights that determine the kernel for its decode rows. */
typedef struct Banks {
    const CudaBank *gate, *up, *down;
} Banks;
static bool banks_of(CudaBackend *b, const Experts *op, Banks *banks) {
    *banks =
        (Banks){cuda_bank(b, op->gate, op->count), cuda_bank(b, op->up, op->count), cuda_bank(b, op->down, op->count)};
    return banks->gate && banks->up && banks->down;
}
/* Slots have room for the rounds of the widest matrix; rounds of a narrower one may be longer. */
static bool rounds_fit(CudaBackend *b, const Experts *op, const Tiles *most) {
    const int room = moe_round(most->groups);
    for (int e = 0; most->groups > room && e < op->count; e++)
        if (moe_round(cuda_tiles(b, &op->down[e])->groups) > room) return false;
    return true;
}
/* The kernels have one factor for both: that of an RMS norm. */
static bool norms_fit(const MoeBlock *op) {
    const Norm *own = op->router.norm, *norm = op->norm;
    return !own ||
        (norm && own->kind == NORM_RMS && norm->kind == NORM_RMS && own->weight && norm->weight &&
            own->width == norm->width && own->eps == norm->eps);
}
static bool whole_fits(CudaBackend *b, const MoeBlock *op, const Banks *banks) {
    const Tiles *router = cuda_tiles(b, op->router.weight[0]),
                *shared = op->router.count > 1 ? cuda_tiles(b, op->router.weight[1]) : router;
    const CudaBank *gate = banks->gate, *up = banks->up, *down = banks->down;
    return norms_fit(op) && !op->experts.identities && router->kind == shared->kind && router->bytes == shared->bytes &&
        gate->alike && up->alike && down->alike && gate->most.kind == up->most.kind &&
        gate->most.bytes == up->most.bytes && router->groups == gate->most.groups &&
        moe_fits(&gate->most, 1, b->shared_bytes) && moe_fits(&down->most, 0, b->shared_bytes) &&
        rounds_fit(b, &op->experts, &down->most) && op->experts.top_k <= EXPERTS_USED_MAX + 1;
}

/* KERNEL_MOE_GEMM: the operations in turn. */
static Kernel fused_kernel(CudaBackend *b, const MoeBlock *op, const Banks *banks) {
    const KernelQuery query = {KERNEL_MOE, PHASE_DECODE, op->experts.decode_rows, b->arch, banks->gate->most.kind};
    const MoeSum sum = {.top_k = op->experts.top_k, .most = banks->down->most, .shared_bytes = b->shared_bytes};
    const bool fits = !op->experts.weigh_inputs && whole_fits(b, op, banks);
    const KernelRow *row = fits ? kernel_next(&query, NULL) : NULL;
    if (row && row->kernel == KERNEL_FUSED_MOE_ROW && !moe_sum_bytes(&sum)) row = kernel_next(&query, row);
    return row && (row->kernel == KERNEL_FUSED_MOE_ROW || row->kernel == KERNEL_FUSED_MOE) ? row->kernel
                                                                                           : KERNEL_MOE_GEMM;
}

static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

static void run_whole(CudaBackend *b, const MoeBlock *op, const Banks *banks, bool few) {
    const Experts *e = &op->experts;
    const int rows = e->decode_rows, pairs = rows * e->top_k;
    const int64_t hidden = op->router.weight[0]->cols;
    const Tiles *gate = &banks->gate->most, *down = &banks->down->most;
    MoeRouter router = {.rows = rows,
        .width = (int)hidden,
        .x = op->x,
        .norm = row_norm(op->norm),
        .weight = *cuda_tiles(b, op->router.weight[0]),
        .route = cuda_router(&op->route)};
    if (op->router.norm) router.weights = op->router.norm->weight;
    if (op->router.count > 1) router.shared = *cuda_tiles(b, op->router.weight[1]);
    const size_t chunk_bytes = aligned(experts_chunk_ints(pairs) * sizeof(int32_t)),
                 x_bytes = aligned(rows * moe_input_bytes(hidden)),
                 found_bytes = aligned(rows * moe_router_floats(&router) * sizeof(float)),
                 factor_bytes = aligned(rows * sizeof(float)),
                 between_bytes = pairs * moe_input_bytes((int64_t)down->groups * TILE_COLS);
    if (!cuda_room(b, &b->moe_block, chunk_bytes + x_bytes + found_bytes + factor_bytes + between_bytes, &b->fault))
        return;
    int32_t *chunks = b->moe_block.memory;
    uint8_t *x = (uint8_t *)b->moe_block.memory + chunk_bytes;
    router.inputs = x;
    router.found = (float *)(x + x_bytes);
    router.factors = (float *)(x + x_bytes + found_bytes);
    uint8_t *between = x + x_bytes + found_bytes + factor_bytes;
    cuda_ok(b, moe_route(b->stream, &router), "an MoE block");
    float *residual = op->out_norm ? NULL : op->residual; /* NULL: the sum is left in e->out */
    const MoeSum sum = {.rows = rows,
        .top_k = e->top_k,
        .experts = e->count,
        .most = *down,
        .bank = banks->down->tiles,
        .router = router,
        .x = between,
        .out = e->out,
        .residual = residual,
        .scale = op->scale,
        .shared_bytes = b->shared_bytes};
    const int sum_bytes = moe_sum_bytes(&sum);
    if (!few) {
        cuda_ok(b, moe_choose(b->stream, &router), "an MoE block");
        cuda_ok(b, experts_sort(b->stream, pairs, e->count, e->index, chunks), "an MoE block");
    }
    MoeProduct product = {.pairs = pairs,
        .each = e->top_k,
        .experts = e->count,
        .most = *gate,
        .bank = {banks->gate->tiles, banks->up->tiles},
        .chunks = few ? NULL : chunks,
        .router = router,
        .factors = router.factors,
        .x = x,
        .inputs = between,
        .activation = e->activation,
        .multiprocessors = b->multiprocessors,
        .shared_bytes = b->shared_bytes,
        .rows_each = op->route.shared ? banks->gate->rows_but_last : gate->rows,
        .leaves = sum_bytes};
    cuda_ok(b, moe_product(b->stream, &product), "an MoE block");
    if (few) {
        cuda_ok(b, moe_sum(b->stream, &sum), "an MoE block");
    } else {
        product.each = 1;
        product.most = *down;
        product.bank[0] = banks->down->tiles;
        product.bank[1] = NULL;
        product.factors = NULL;
        product.x = between;
        product.out = e->work;
        cuda_ok(b, moe_product(b->stream, &product), "an MoE block");
        cuda_ok(b, moe_combine(b->stream, rows, e->top_k, hidden, e->work, e->weight, e->out, residual, op->scale),
            "an MoE block");
    }
    if (op->residual && op->out_norm) cuda_add(&b->base, rows, hidden, op->residual, e->out, op->scale, op->out_norm);
}

/* Computes rows from `first` on with the operations in turn. */
static void run_in_turn(Backend *backend, const MoeBlock *op, int first) {
    const BackendOps *ops = backend->ops;
    const int64_t hidden = op->router.weight[0]->cols, pairs = (int64_t)first * op->experts.top_k;
    Matmul router = op->router;
    Routing route = op->route;
    Experts experts = op->experts;
    router.rows = route.rows = experts.rows -= first;
    if (first) router.decode_rows = experts.decode_rows = 0;
    const float *x = op->x + first * hidden;
    float *normed = op->normed + first * hidden;
    router.x += first * hidden;
    for (int i = 0; i < router.count; i++) router.out[i] += first * router.weight[i]->rows;
    route.logits += (int64_t)first * route.experts;
    if (route.shared_logits) route.shared_logits += first * (1 + route.shared_pair);
    route.index += pairs;
    route.weight += pairs;
    experts.x += first * hidden;
    experts.index += pairs;
    experts.weight += pairs;
    experts.out += first * hidden;
    if (op->norm) ops->norm(backend, router.rows, x, op->norm, normed);
    ops->matmul(backend, &router);
    ops->route(backend, &route);
    ops->experts(backend, &experts);
    if (op->residual)
        ops->add(backend, router.rows, hidden, op->residual + first * hidden, experts.out, op->scale, op->out_norm);
}

/* Uses no work space of run_whole(). */
static void run_dense(CudaBackend *b, const DenseBeside *op) {
    cuda_glu(&b->base, &op->glu);
    cuda_matmul(&b->base, &op->down);
}

void cuda_moe_block(Backend *backend, const MoeBlock *op) {
    CudaBackend *b = cuda_of(backend);
    const DenseBeside *dense = op->dense;
    Banks banks;
    int first = 0;
    bool beside = false;
    if (op->experts.decode_rows > 0 && !op->route.table) {
        if (!banks_of(b, &op->experts, &banks)) return;
        const Kernel kernel = fused_kernel(b, op, &banks);
        if (kernel != KERNEL_MOE_GEMM) {
            beside = dense && op->experts.rows == 1 && kernel == KERNEL_FUSED_MOE_ROW;
            if (beside) {
                cuda_beside_begin(b);
                run_dense(b, dense);
                cuda_beside_end(b);
            }
            run_whole(b, op, &banks, kernel == KERNEL_FUSED_MOE_ROW);
            first = op->experts.decode_rows;
        }
    }
    if (first < op->experts.rows) run_in_turn(backend, op, first);
    if (!dense) return;
    if (beside)
        cuda_beside_join(b);
    else
        run_dense(b, dense);
    cuda_add_pair(b, &dense->sums);
}
