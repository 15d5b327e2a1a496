/* Recurrences of chunks of several rows, with one decay per head. A block walks some columns of a head's state over a
 * chunk, page by page. The products with the state and the next anchor are most of the work and belong to eight warps;
 * eight more solve for the updates, load the next page, compute its factors and finish rows meanwhile. Everything
 * is indexed by the row's place in its page; what is computed for places without a row of the chunk is not used. Sums
 * have the order of recurrence.cu. */
#include "backend/cuda/recurrent/recurrence.cuh"

enum {
    COLS = 32, /* columns of the state in a block */
    KEYS = 16, /* elements of the key of a warp that multiplies */
    KEY_MAX = HEAD_WARPS * KEYS,
    STRIDE = KEY_MAX + 4, /* rows of k and q in memory: neighbours lie in other banks */
    QUADS = COLS / 4,     /* fours of columns: a lane that multiplies has one, and every fourth row */
    LANE_ROWS = 32 / QUADS,
    OWN = KEYS / LANE_ROWS,       /* elements of the key that a lane has of the next anchor */
    SOLVERS = 2,                  /* warps that solve for updates */
    SOLVER_COLS = COLS / SOLVERS, /* columns of one; its lanes have every INTERLEAVE-th row of a column */
    INTERLEAVE = 32 / SOLVER_COLS,
    SOLVED = PAGE / INTERLEAVE,
    FINISHERS = 2,             /* warps that finish rows */
    FACTORS = 2,               /* warps that compute the factors of a page, of half of its rows each */
    LOADERS = 2,               /* warps that load k and q */
    LOADED = 16,               /* rows that a loader has under way */
    FIRST_SOLVER = HEAD_WARPS, /* numbers of warps */
    FIRST_FINISHER = FIRST_SOLVER + SOLVERS,
    FIRST_FACTORS = FIRST_FINISHER + FINISHERS,
    FIRST_LOADER = FIRST_FACTORS + FACTORS,
    PREFILL_BLOCK = 32 * (FIRST_LOADER + LOADERS),
};
static_assert(PAGE % (LOADED * LOADERS) == 0, "rows that are loaded at a time are all of k or all of q");
static_assert(PAGE == 32 && PAGE == FINISHERS * 4 * LANE_ROWS, "a lane for each row; a finisher's lane has four rows");

/* What is known of a page before the state is: two of them, as the next page's are made ahead. */
struct PageFactors {
    alignas(16) float x[2][PAGE][STRIDE]; /* k, q */
    /* [k, q][j][row]: factors of update j in the row's products; of k at solved_at(row) */
    alignas(16) float update[2][PAGE][PAGE + 4];
    float state[PAGE], dt[PAGE], beta[PAGE]; /* one for each row; state: factor of the products with the state */
    float weight[PAGE], all;                 /* next anchor: factors of the updates and of the state */
};
/* The place of a row of a page where a solver's rows lie together. */
__device__ static int solved_at(int row) { return row % INTERLEAVE * SOLVED + row / INTERLEAVE; }
struct PrefillMemory {
    PageFactors page[2];
    alignas(16) float state[KEY_MAX][COLS];
    alignas(16) float parts[HEAD_WARPS][PAGE][COLS]; /* sums of the warps */
    alignas(16) float products[2][PAGE][COLS];       /* those of k, q and the state */
    alignas(16) float updates[PAGE][COLS], weighted[PAGE][COLS];
};

/* A page that a chunk walks over. The first one may have no row of the chunk: the chunk begins behind it. */
struct PageStep {
    int tail, first, rows; /* rows of the page before the chunk; first row in the chunk, number of rows */
    int32_t page;          /* where it is stored; −1: nowhere */
    __device__ PageStep(const Chunk &c, int number) {
        const int begin = (c.position > 0 ? (c.position - 1) / PAGE : 0) * PAGE + number * PAGE;
        tail = max(0, c.position - begin);
        first = max(0, begin - c.position);
        rows = min(PAGE - tail, c.rows - first);
        page = page_of(c, begin);
    }
    __device__ bool has(int place) const { return place >= tail && place < tail + rows; }
};
__device__ static int page_steps(const Chunk &c) {
    return (c.position + c.rows - 1) / PAGE - (c.position > 0 ? (c.position - 1) / PAGE : 0) + 1;
}

__device__ static float4 add_product(const float4 &sum, float factor, const float4 &v) {
    return make_float4(
        fmaf(factor, v.x, sum.x), fmaf(factor, v.y, sum.y), fmaf(factor, v.z, sum.z), fmaf(factor, v.w, sum.w));
}
__device__ static float4 times(float factor, const float4 &v) {
    return make_float4(__fmul_rn(factor, v.x), __fmul_rn(factor, v.y), __fmul_rn(factor, v.z), __fmul_rn(factor, v.w));
}
__device__ static float4 &four(float *row, int quad) { return ((float4 *)row)[quad]; }

/* Points of a page where warps meet. The hardware's barrier 0 is that of __syncthreads(). */
enum { MEET_MULTIPLIERS = 2, MEET_PRODUCTS, MEET_UPDATES };
template <int BARRIER, int WARPS_THERE> __device__ static void meet() {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(32 * WARPS_THERE) : "memory");
}
__device__ static void meet_multipliers() { meet<MEET_MULTIPLIERS, HEAD_WARPS>(); }
__device__ static void meet_products() { meet<MEET_PRODUCTS, HEAD_WARPS + SOLVERS>(); }
__device__ static void meet_updates() { meet<MEET_UPDATES, HEAD_WARPS + SOLVERS + FINISHERS>(); }

struct Walk {
    const RecurrenceArgs &a;
    const Chunk c;
    PrefillMemory &m;
    const int head, key_head, lane, warp, first_column, steps;
    const bool delta;

    __device__ Walk(const RecurrenceArgs &args, const Chunk &chunk, PrefillMemory &memory)
        : a(args), c(chunk), m(memory), head((int)blockIdx.y), key_head(key_head_of(args.op, (int)blockIdx.y)),
          lane(threadIdx.x % 32), warp(threadIdx.x / 32), first_column((int)blockIdx.x * COLS),
          steps(page_steps(chunk)), delta(args.op.kind == RECURRENCE_DELTA) {}

    __device__ int64_t row_of(const PageStep &step, int place) const { return c.row + step.first + place - step.tail; }
    __device__ bool has_state(int number) const { return number > 0 || c.position > 0; }

    /* ---- the products with the state and the next anchor ---- */

    /* This lane's part of an anchor: four columns of OWN elements of the key. */
    __device__ float4 *anchor_at(int32_t page, int i) const {
        const int key = warp * KEYS + lane / QUADS * OWN + i, column = first_column + lane % QUADS * 4;
        if (key >= a.op.key_dim || column >= a.op.value_dim) return nullptr;
        return (float4 *)(anchor_of(a.pages, page) + ((int64_t)head * a.op.key_dim + key) * a.op.value_dim + column);
    }
    __device__ float4 &own_state(int i) const {
        return four(m.state[warp * KEYS + lane / QUADS * OWN + i], lane % QUADS);
    }

    /* which: k or q. */
    __device__ void multiply(const PageStep &step, const PageFactors &f, int which, const float4 (&s)[KEYS]) {
        const int end = (step.tail + step.rows + LANE_ROWS - 1) / LANE_ROWS;
#pragma unroll 2
        for (int i = step.tail / LANE_ROWS; i < end; i++) {
            const int place = i * LANE_ROWS + lane / QUADS;
            const float4 *x = (const float4 *)(f.x[which][place] + warp * KEYS);
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int k = 0; k < KEYS; k += 4) {
                const float4 v = x[k / 4];
                sum = add_product(sum, v.x, s[k]);
                sum = add_product(sum, v.y, s[k + 1]);
                sum = add_product(sum, v.z, s[k + 2]);
                sum = add_product(sum, v.w, s[k + 3]);
            }
            four(m.parts[warp][place], lane % QUADS) = sum;
        }
        meet_multipliers();
        const int place = (int)threadIdx.x / QUADS, quad = lane % QUADS;
        float4 sum = four(m.parts[0][place], quad);
#pragma unroll
        for (int w = 1; w < HEAD_WARPS; w++) {
            const float4 v = four(m.parts[w][place], quad);
            sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
        }
        four(m.products[which][place], quad) = sum;
    }

    __device__ void make_anchor(const PageFactors &f, int32_t page) {
        float4 next[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) next[i] = times(f.all, own_state(i));
#pragma unroll 4
        for (int j = 0; j < PAGE; j++) {
            const float4 key = *(const float4 *)(f.x[0][j] + warp * KEYS + lane / QUADS * OWN),
                         update = four(m.weighted[j], lane % QUADS);
            const float keys[OWN] = {key.x, key.y, key.z, key.w};
#pragma unroll
            for (int i = 0; i < OWN; i++) next[i] = add_product(next[i], keys[i], update);
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            own_state(i) = next[i];
            float4 *to = page >= 0 ? anchor_at(page, i) : nullptr;
            if (to) *to = next[i];
        }
    }

    __device__ void multiply_all() {
        const int32_t page = PageStep(c, 0).page;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const float4 *from = c.position > 0 ? anchor_at(c.before, i) : nullptr;
            own_state(i) = from ? __ldcg(from) : make_float4(0, 0, 0, 0);
            float4 *to = c.position == 0 && page >= 0 ? anchor_at(page, i) : nullptr;
            if (to) *to = make_float4(0, 0, 0, 0);
        }
        for (int number = 0; number < steps; number++) {
            __syncthreads();
            const PageStep step(c, number);
            const PageFactors &f = m.page[number % 2];
            float4 s[KEYS];
            if (has_state(number)) {
#pragma unroll
                for (int i = 0; i < KEYS; i++) s[i] = four(m.state[warp * KEYS + i], lane % QUADS);
                if (delta) multiply(step, f, 0, s);
            }
            meet_products();
            if (has_state(number)) multiply(step, f, 1, s);
            meet_updates();
            if (number + 1 < steps) make_anchor(f, PageStep(c, number + 1).page);
        }
    }

    /* ---- updates: u comes from the lane that has its row ---- */

    __device__ void solve_all() {
        const Recurrence &op = a.op;
        const int place = (warp - FIRST_SOLVER) * SOLVER_COLS + lane % SOLVER_COLS, mine = lane / SOLVER_COLS,
                  column = first_column + place;
        const bool in = column < op.value_dim;
        const PageStep begin(c, 0);
        for (int j = mine; j < begin.tail; j += INTERLEAVE)
            m.updates[j][place] = in ? load(row_update(op, tail_row(a.pages, c.before, j), head) + column) : 0;
        for (int number = 0; number < steps; number++) {
            const PageStep step(c, number);
            const PageFactors &f = m.page[number % 2];
            float v[SOLVED], d[SOLVED];
#pragma unroll
            for (int i = 0; i < SOLVED; i++) {
                const int j = i * INTERLEAVE + mine;
                v[i] = in && step.has(j)
                    ? load(op.v + (row_of(step, j) * op.value_heads + head) * op.value_dim + column)
                    : 0;
            }
            __syncthreads();
            meet_products();
#pragma unroll
            for (int i = 0; i < SOLVED; i++) {
                const int j = i * INTERLEAVE + mine;
                d[i] = delta && has_state(number) ? __fmul_rn(f.state[j], m.products[0][j][place]) : 0;
                if (j < step.tail) v[i] = m.updates[j][place];
            }
#pragma unroll
            for (int j = 0; j < PAGE; j++) {
                const int at = j / INTERLEAVE, owner = j % INTERLEAVE;
                float u = v[at];
                if (j >= step.tail) u = delta ? __fmul_rn(f.beta[j], u - d[at]) : __fmul_rn(f.dt[j], u);
                if (mine == owner) v[at] = u; /* stored afterwards: stores hold loads back */
                if (!delta || j + 1 == PAGE) continue;
                u = __shfl_sync(~0u, u, owner * SOLVER_COLS + lane % SOLVER_COLS);
                const float *factors = f.update[0][j] + mine * SOLVED;
#pragma unroll
                for (int i = at; i < SOLVED; i++)
                    if (i > at || mine > owner) d[i] = fmaf(factors[i], u, d[i]);
            }
#pragma unroll
            for (int i = 0; i < SOLVED; i++) {
                const int j = i * INTERLEAVE + mine;
                m.updates[j][place] = v[i];
                m.weighted[j][place] = __fmul_rn(f.weight[j], v[i]);
            }
            meet_updates();
        }
    }

    /* ---- results: a lane has four rows and four columns ---- */

    __device__ void finish_all() {
        const Recurrence &op = a.op;
        const int quad = lane % QUADS, first = ((warp - FIRST_FINISHER) * LANE_ROWS + lane / QUADS) * 4,
                  column = first_column + quad * 4;
        const bool in = column < op.value_dim;
        const float skip = op.skip ? __ldg(op.skip + head) : 0;
        for (int number = 0; number < steps; number++) {
            const PageStep step(c, number);
            const PageFactors &f = m.page[number % 2];
            float4 v[4], y[4];
            const auto at = [&](int r) {
                return (row_of(step, first + r) * op.value_heads + head) * op.value_dim + column;
            };
#pragma unroll
            for (int r = 0; r < 4; r++) {
                v[r] = make_float4(0, 0, 0, 0);
                if (!op.skip || !in || !step.has(first + r)) continue;
                const float *from = op.v + at(r);
                v[r] = make_float4(load(from), load(from + 1), load(from + 2), load(from + 3));
            }
            __syncthreads();
            meet_updates();
#pragma unroll
            for (int r = 0; r < 4; r++)
                y[r] = has_state(number) ? times(f.state[first + r], four(m.products[1][first + r], quad))
                                         : make_float4(0, 0, 0, 0);
#pragma unroll 2
            for (int j = 0; j <= first; j++) {
                const float4 factor = *(const float4 *)(f.update[1][j] + first), u = four(m.updates[j], quad);
                const float factors[4] = {factor.x, factor.y, factor.z, factor.w};
#pragma unroll
                for (int r = 0; r < 4; r++) y[r] = add_product(y[r], factors[r], u);
            }
#pragma unroll
            for (int j = 1; j < 4; j++) {
                const float4 u = four(m.updates[first + j], quad);
#pragma unroll
                for (int r = j; r < 4; r++) y[r] = add_product(y[r], f.update[1][first + j][first + r], u);
            }
#pragma unroll
            for (int r = 0; r < 4; r++) {
                if (!in || !step.has(first + r)) continue;
                if (op.skip) y[r] = add_product(y[r], skip, v[r]);
                float *out = op.out + at(r);
                out[0] = y[r].x, out[1] = y[r].y, out[2] = y[r].z, out[3] = y[r].w;
                if (step.page < 0) continue;
                const float4 u = four(m.updates[first + r], quad);
                float *to = row_update(op, tail_row(a.pages, step.page, first + r), head) + column;
                to[0] = u.x, to[1] = u.y, to[2] = u.z, to[3] = u.w;
            }
        }
    }

    /* ---- factors of a page: a lane has an update ---- */

    __device__ void make_factors(int number) {
        constexpr int BATCH = 8, SHARE = PAGE / FACTORS;
        const Recurrence &op = a.op;
        const PageStep step(c, number);
        PageFactors &f = m.page[number % 2];
        const int begin = (warp - FIRST_FACTORS) * SHARE;
        const bool last = begin + SHARE == PAGE; /* this warp has the last rows */
        const int64_t row = row_of(step, lane);
        float log_decay = 0, dt = 1, beta = 1;
        if (lane < step.tail) log_decay = load(row_decays(op, tail_row(a.pages, c.before, lane), head));
        if (step.has(lane)) {
            dt = time_step(op, row, head, op.value_heads);
            log_decay = __fmul_rn(__ldg(op.rate + head), dt);
            if (op.b) beta = sigmoid(load(op.b + row * op.value_heads + head));
            if (last && blockIdx.x == 0 && step.page >= 0)
                *row_decays(op, tail_row(a.pages, step.page, lane), head) = log_decay;
        }
        float behind = 0, all = 0, until = 0;
        const auto extend = [&](int t) {
            const float own = __shfl_sync(~0u, log_decay, t);
            all += own;
            if (t == lane) until = all;
            if (t > lane) behind += own;
        };
#pragma unroll 4
        for (int t = 0; t < begin; t++) extend(t);
#pragma unroll 1
        for (int first = begin; first < begin + SHARE; first += BATCH) {
            float with_q[BATCH], with_k[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int t = first + i;
                const bool there = step.has(t) && lane <= t;
                const float *products = products_of(op, row_of(step, step.has(t) ? t : step.tail), key_head);
                with_q[i] = there ? load(products + lane) : 0;
                with_k[i] = there && delta ? load(products + PAGE + lane) : 0;
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                extend(first + i);
                const float decay = expf(behind);
                f.update[1][lane][first + i] = __fmul_rn(decay, with_q[i]);
                if (delta) f.update[0][lane][solved_at(first + i)] = __fmul_rn(decay, with_k[i]);
            }
        }
        if (lane >= begin && lane < begin + SHARE) f.state[lane] = expf(until);
        if (!last) return;
        f.dt[lane] = dt;
        f.beta[lane] = beta;
        f.weight[lane] = expf(behind);
        if (lane == 0) f.all = expf(all);
    }

    /* ---- k and q of a page: a lane has four elements ---- */

    __device__ void load_rows(int number) {
        const Recurrence &op = a.op;
        const PageStep step(c, number);
        PageFactors &f = m.page[number % 2];
        const int64_t stride = (int64_t)op.key_heads * op.key_dim;
        const int64_t begin = row_of(step, 0) * stride + key_head * op.key_dim + 4 * lane;
        const bool in = 4 * lane < op.key_dim, with_k = delta || steps > 1;
#pragma unroll 1
        for (int first = warp - FIRST_LOADER; first < 2 * PAGE; first += LOADED * LOADERS) {
            const int which = first / PAGE;
            const float *rows = (which ? op.q : op.k) + begin;
            float4 v[LOADED];
#pragma unroll
            for (int i = 0; i < LOADED; i++) {
                const int place = first % PAGE + i * LOADERS;
                v[i] = in && (which || with_k) && step.has(place) ? __ldcg((const float4 *)(rows + place * stride))
                                                                  : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < LOADED; i++) four(f.x[which][first % PAGE + i * LOADERS], lane) = v[i];
        }
        /* Keys of the rows before the chunk, which the next anchor needs. */
        for (int place = warp - FIRST_LOADER; place < step.tail && steps > 1 && in; place += LOADERS) {
            const float *key = row_key(op, tail_row(a.pages, c.before, place), key_head) + 4 * lane;
            four(f.x[0][place], lane) = make_float4(load(key), load(key + 1), load(key + 2), load(key + 3));
        }
    }

    /* make(number): a page's share, a page ahead of the walk. */
    template <class Make> __device__ void make_all(const Make &make) {
        make(0);
        for (int number = 0; number < steps; number++) {
            __syncthreads();
            if (number + 1 < steps) make(number + 1);
        }
    }
};

__global__ void __launch_bounds__(PREFILL_BLOCK, 1)
    recurrence_prefill_kernel(const __grid_constant__ RecurrenceArgs a) {
    extern __shared__ float4 memory[];
    let_next_begin();
    wait_for_previous();
    Walk walk(a, chunk_of(a.step, a.pages, (int)blockIdx.z), *(PrefillMemory *)memory);
    const int warp = threadIdx.x / 32;
    if (warp < HEAD_WARPS)
        walk.multiply_all();
    else if (warp < FIRST_FINISHER)
        walk.solve_all();
    else if (warp < FIRST_FACTORS)
        walk.finish_all();
    else if (warp < FIRST_LOADER)
        walk.make_all([&](int number) { walk.make_factors(number); });
    else
        walk.make_all([&](int number) { walk.load_rows(number); });
}

bool recurrence_prefill_fits(const RecurrenceArgs &a) {
    const Recurrence &op = a.op;
    return !op.channel_decay && op.key_dim <= KEY_MAX && op.key_dim % 4 == 0 && recurrence_aligned(a) &&
        (((uintptr_t)op.q | (uintptr_t)op.k) & 15) == 0 && sizeof(PrefillMemory) + 1024 <= (size_t)a.shared_bytes;
}

cudaError_t recurrence_prefill(cudaStream_t stream, const RecurrenceArgs &a) {
    const cudaError_t error = cudaFuncSetAttribute(
        recurrence_prefill_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(PrefillMemory));
    const dim3 grid((unsigned)((a.op.value_dim + COLS - 1) / COLS), (unsigned)a.op.value_heads, (unsigned)a.chunks);
    return error ? error : launch(stream, recurrence_prefill_kernel, grid, PREFILL_BLOCK, sizeof(PrefillMemory), a);
}
