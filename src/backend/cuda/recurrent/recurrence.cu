/* Recurrences with a matrix state (Recurrence of backend/recurrent.h): heads of q and k are prepared, then the products
 * of each row with the keys of its page are taken, then a block walks some columns of a value head's state over a
 * chunk, page by page. The walk of this file is for any shape; recurrence_decode.cu and recurrence_prefill.cu have
 * faster ones for the usual shapes. */
#include "backend/cuda/recurrent/recurrence_keys.cuh"

constexpr int EACH = RECURRENT_DIM_MAX / 32; /* elements of a head in a lane, at most */
constexpr int COLS = 32;                     /* columns of a state in a block */
constexpr int HEAD_BLOCK = 32 * HEAD_WARPS;

/* ---- heads of q and k ---- */

/* q or k of a key head of a row, by a warp. x: memory for the head, which the result is left in as well. */
__device__ static void prepare_head(
    const RecurrenceArgs &a, const Chunk &c, int row, int key_head, int is_k, float *x) {
    const Recurrence &op = a.op;
    float *head = (is_k ? op.k : op.q) + ((int64_t)row * op.key_heads + key_head) * op.key_dim;
    float square = 0;
    for (int i = threadIdx.x % 32; i < op.key_dim; i += 32) {
        x[i] = load(head + i);
        square = fmaf(x[i], x[i], square);
    }
    const int position = c.position + row - c.row;
    const int32_t page = page_of(c, position);
    float *stored = is_k && page >= 0 ? row_key(op, tail_row(a.pages, page, position % PAGE), key_head) : nullptr;
    head_finish(a, row, is_k, square, x, head, stored);
}

/* A warp for q and one for k of a key head of a row. */
__global__ void __launch_bounds__(64) prepare_kernel(const __grid_constant__ RecurrenceArgs a) {
    __shared__ float heads[2][RECURRENT_DIM_MAX];
    let_next_begin();
    wait_for_previous();
    const Recurrence &op = a.op;
    const int key_head = (int)blockIdx.x, row = (int)blockIdx.y, is_k = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Chunk c = chunk_of_row(a.step, a.pages, row);
    prepare_head(a, c, row, key_head, is_k, heads[is_k]);
    if (!op.channel_decay || !is_k) return; /* as many value heads as key heads */
    const int position = c.position + row - c.row;
    const int32_t page = page_of(c, position);
    for (int i = lane; i < op.key_dim; i += 32) {
        const int64_t index = (int64_t)key_head * op.key_dim + i, count = (int64_t)op.value_heads * op.key_dim;
        const float dt = op.dt_slope && op.a
            ? sigmoid(__ldg(op.dt_slope + key_head) * (load(op.a + row * count + index) + dt_bias_of(op, index)))
            : time_step(op, row, index, count);
        const float log_decay = __ldg(op.rate + key_head) * dt;
        channel_decays(op, row, key_head)[i] = log_decay;
        if (page >= 0) row_decays(op, tail_row(a.pages, page, position % PAGE), key_head)[i] = log_decay;
    }
}

/* The key, or the log decays, of row j of a page that begins at position `begin`. */
__device__ static const float *key_at(const RecurrenceArgs &a, const Chunk &c, int begin, int j, int key_head) {
    const int offset = begin + j - c.position;
    if (offset < 0) return row_key(a.op, tail_row(a.pages, c.before, j), key_head);
    return a.op.k + ((int64_t)(c.row + offset) * a.op.key_heads + key_head) * a.op.key_dim;
}
__device__ static const float *decays_at(const RecurrenceArgs &a, const Chunk &c, int begin, int j, int head) {
    const int offset = begin + j - c.position;
    if (offset < 0) return row_decays(a.op, tail_row(a.pages, c.before, j), head);
    return channel_decays(a.op, c.row + offset, head);
}

/* ---- products of a row with the keys of its page ---- */

/* `each` rows of a key head. */
template <int E>
__global__ void __launch_bounds__(32 * PRODUCT_WARPS)
    products_kernel(const __grid_constant__ RecurrenceArgs a, int each) {
    let_next_begin();
    wait_for_previous();
    const Recurrence &op = a.op;
    const int key_head = (int)blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = (int)blockIdx.y * each, end = min(first + each, op.rows);
    const bool delta = op.kind == RECURRENCE_DELTA;
    Chunk c = chunk_of_row(a.step, a.pages, first);
    float keys[ROUNDS][E];
    for (int row = first; row < end; row++) {
        const bool follows = row > first && row < c.row + c.rows;
        if (!follows && row > first) c = chunk_of_row(a.step, a.pages, row);
        const int position = c.position + row - c.row, t = position % PAGE;
        const int64_t at = ((int64_t)row * op.key_heads + key_head) * op.key_dim;
        float q[E], k[E];
#pragma unroll
        for (int i = 0; i < E; i++) {
            const bool in = lane + 32 * i < op.key_dim;
            q[i] = in ? load(op.q + at + lane + 32 * i) : 0;
            k[i] = in && delta ? load(op.k + at + lane + 32 * i) : 0;
        }
        if (!follows || t == 0) { /* the keys that these rows of the page need */
            const int last = t + min(end, c.row + c.rows) - 1 - row;
#pragma unroll
            for (int n = 0; n < ROUNDS; n++) {
                const int j = warp + n * PRODUCT_WARPS;
                const float *key = j <= last ? key_at(a, c, position - t, j, key_head) : nullptr;
#pragma unroll
                for (int i = 0; i < E; i++)
                    keys[n][i] = key && lane + 32 * i < op.key_dim ? load(key + lane + 32 * i) : 0;
            }
        }
        store_products(op, keys, q, k, t, products_of(op, row, key_head));
    }
}

/* Chunks of single rows, as in decoding: a block prepares q and k of a key head of a row and takes the products, with
 * keys that were on their way before. */
__global__ void __launch_bounds__(32 * PRODUCT_WARPS) prepare_decode_kernel(const __grid_constant__ RecurrenceArgs a) {
    constexpr int E = KEY_EACH;
    __shared__ float heads[2][32 * E];
    let_next_begin();
    const Recurrence &op = a.op;
    const int key_head = (int)blockIdx.x, row = (int)blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Chunk c = chunk_of_row(a.step, a.pages, row);
    const int t = c.position % PAGE;
    float keys[ROUNDS][E], q[E], k[E];
#pragma unroll
    for (int n = 0; n < ROUNDS; n++) {
        const int j = warp + n * PRODUCT_WARPS;
        const float *key = j < t ? row_key(op, tail_row(a.pages, c.before, j), key_head) : nullptr;
#pragma unroll
        for (int i = 0; i < E; i++) keys[n][i] = key && lane + 32 * i < op.key_dim ? load(key + lane + 32 * i) : 0;
    }
    wait_for_previous();
    if (warp < 2) prepare_head(a, c, row, key_head, warp, heads[warp]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < E; i++) {
        const bool in = lane + 32 * i < op.key_dim;
        q[i] = in ? heads[0][lane + 32 * i] : 0;
        k[i] = in ? heads[1][lane + 32 * i] : 0;
    }
#pragma unroll
    for (int n = 0; n < ROUNDS; n++)
#pragma unroll
        for (int i = 0; i < E; i++)
            if (warp + n * PRODUCT_WARPS == t) keys[n][i] = k[i];
    store_products(op, keys, q, k, t, products_of(op, row, key_head));
}

/* With a decay per channel: Σ_i k_j[i]·x[i]·e^(log decays behind j up to the row). */
__global__ void __launch_bounds__(32 * PRODUCT_WARPS)
    channel_products_kernel(const __grid_constant__ RecurrenceArgs a, int each) {
    let_next_begin();
    wait_for_previous();
    const Recurrence &op = a.op;
    const int key_head = (int)blockIdx.x, row = (int)blockIdx.y * each, lane = threadIdx.x % 32;
    const Chunk c = chunk_of_row(a.step, a.pages, row);
    const int position = c.position + row - c.row, t = position % PAGE;
    const int64_t at = ((int64_t)row * op.key_heads + key_head) * op.key_dim;
    float q[EACH], k[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const bool in = lane + 32 * i < op.key_dim;
        q[i] = in ? load(op.q + at + lane + 32 * i) : 0;
        k[i] = in ? load(op.k + at + lane + 32 * i) : 0;
    }
    float *out = products_of(op, row, key_head);
    for (int j = threadIdx.x / 32; j <= t; j += PRODUCT_WARPS) {
        const float *key = key_at(a, c, position - t, j, key_head);
        float with_q = 0, with_k = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (lane + 32 * i >= op.key_dim) continue;
            float sum = 0;
            for (int n = t; n > j; n--) sum += load(decays_at(a, c, position - t, n, key_head) + lane + 32 * i);
            const float v = __fmul_rn(load(key + lane + 32 * i), expf(sum));
            with_q = fmaf(v, q[i], with_q);
            with_k = fmaf(v, k[i], with_k);
        }
        with_q = warp_sum(with_q);
        with_k = warp_sum(with_k);
        if (lane == 0) out[j] = with_q;
        if (lane == 0) out[PAGE + j] = with_k;
    }
}

/* ---- a value head ---- */

/* Memory of a block. KD: key_dim, rounded up; ROWS: most rows of a chunk in a page. */
template <int KD, int ROWS> struct HeadMemory {
    static constexpr int PARTS = 2 * ROWS < HEAD_WARPS ? 2 * ROWS : HEAD_WARPS;
    alignas(16) float x[2 * ROWS][KD];        /* columns: k, then q; or keys of a page */
    float y[2 * ROWS][COLS];                  /* their products with the state */
    float parts[HEAD_WARPS][PARTS][COLS];     /* sums of the warps */
    float u[PAGE][COLS];                      /* updates of the tail */
    float of_k[ROWS][PAGE], of_q[ROWS][PAGE]; /* [row][j] factors of the updates */
    float log_decay[PAGE], dt[PAGE], beta[PAGE];
    float state[PAGE];  /* factors of the state's products with a row */
    float weight[PAGE]; /* factors of the updates in the next anchor */
};

template <int EACH_K, int ROWS> struct Head {
    static constexpr int KD = HEAD_WARPS * EACH_K;
    static constexpr int OWN = (ROWS + HEAD_WARPS - 1) / HEAD_WARPS; /* rows of a warp: every eighth */
    using Memory = HeadMemory<KD, ROWS>;
    const RecurrenceArgs &a;
    const Chunk c;
    Memory &m;
    const int head, key_head, lane, warp, column;
    const bool in;   /* the column exists */
    float s[EACH_K]; /* the state: rows warp · EACH_K … of this column */
    bool any;        /* it is not zero */
    int tail;

    __device__ Head(const RecurrenceArgs &args, const Chunk &chunk, Memory &memory)
        : a(args), c(chunk), m(memory), head((int)blockIdx.y), key_head(key_head_of(args.op, (int)blockIdx.y)),
          lane(threadIdx.x % 32), warp(threadIdx.x / 32), column((int)blockIdx.x * COLS + (int)threadIdx.x % 32),
          in((int)blockIdx.x * COLS + (int)threadIdx.x % 32 < args.op.value_dim), any(false), tail(0) {
#pragma unroll
        for (int i = 0; i < EACH_K; i++) s[i] = 0;
    }

    __device__ float *element(float *anchor, int i) const {
        return anchor + ((int64_t)head * a.op.key_dim + warp * EACH_K + i) * a.op.value_dim + column;
    }

    __device__ void load_tail() {
        const Recurrence &op = a.op;
        if (c.position == 0) return;
        any = true;
        tail = (c.position - 1) % PAGE + 1;
#pragma unroll
        for (int i = 0; i < EACH_K; i++)
            if (warp * EACH_K + i < op.key_dim && in) s[i] = load(element(anchor_of(a.pages, c.before), i));
        float u[PAGE / HEAD_WARPS];
#pragma unroll
        for (int i = 0; i < PAGE / HEAD_WARPS; i++) {
            const int j = warp + HEAD_WARPS * i;
            u[i] = j < tail && in ? load(row_update(op, tail_row(a.pages, c.before, j), head) + column) : 0;
        }
        if ((int)threadIdx.x < tail && !op.channel_decay)
            m.log_decay[threadIdx.x] = load(row_decays(op, tail_row(a.pages, c.before, threadIdx.x), head));
#pragma unroll
        for (int i = 0; i < PAGE / HEAD_WARPS; i++)
            if (warp + HEAD_WARPS * i < tail) m.u[warp + HEAD_WARPS * i][lane] = u[i];
        __syncthreads();
    }

    /* The state behind the full page that begins at position `begin`. With a decay per channel the rows come from the
     * last to the first, so that the sums of log decays behind them have no cancellation. */
    __device__ void make_anchor(int begin) {
        constexpr int COUNT = 2 * ROWS < PAGE ? 2 * ROWS : PAGE;
        const Recurrence &op = a.op;
        float all = 1, sums[EACH_K];
        if (threadIdx.x < PAGE) {
            float sum = 0;
#pragma unroll
            for (int i = 1; i < PAGE; i++)
                if (i > (int)threadIdx.x && !op.channel_decay) sum += m.log_decay[i];
            m.weight[threadIdx.x] = expf(sum);
        }
        if (!op.channel_decay) {
            float sum = 0;
            for (int i = 0; i < PAGE; i++) sum += m.log_decay[i];
            all = expf(sum);
        }
#pragma unroll
        for (int i = 0; i < EACH_K; i++) {
            const int k = warp * EACH_K + i;
            sums[i] = 0;
            for (int j = 0; op.channel_decay && k < op.key_dim && j < PAGE; j++)
                sums[i] += load(decays_at(a, c, begin, j, head) + k);
            s[i] = __fmul_rn(s[i], op.channel_decay ? expf(sums[i]) : all);
            sums[i] = 0;
        }
        for (int first = 0; first < PAGE; first += COUNT) {
            __syncthreads();
#pragma unroll 8
            for (int i = threadIdx.x; i < COUNT * KD; i += HEAD_BLOCK) {
                const int n = first + i / KD, k = i % KD, j = op.channel_decay ? PAGE - 1 - n : n;
                m.x[i / KD][k] = k < op.key_dim ? load(key_at(a, c, begin, j, key_head) + k) : 0;
            }
            __syncthreads();
#pragma unroll 2
            for (int n = 0; n < COUNT; n++) {
                const int j = op.channel_decay ? PAGE - 1 - (first + n) : first + n;
                const float u = __fmul_rn(m.weight[j], m.u[j][lane]);
#pragma unroll
                for (int i = 0; i < EACH_K; i++) {
                    float key = m.x[n][warp * EACH_K + i];
                    if (op.channel_decay && warp * EACH_K + i < op.key_dim) {
                        key = __fmul_rn(key, expf(sums[i]));
                        sums[i] += load(decays_at(a, c, begin, j, head) + warp * EACH_K + i);
                    }
                    s[i] = fmaf(key, u, s[i]);
                }
            }
        }
        any = true;
        __syncthreads();
    }

    __device__ void store_anchor(int32_t page) const {
#pragma unroll
        for (int i = 0; i < EACH_K; i++)
            if (warp * EACH_K + i < a.op.key_dim && in) *element(anchor_of(a.pages, page), i) = s[i];
    }

    /* Time steps, columns and factors of rows [first, first + rows) of the chunk, which follow the tail. */
    __device__ void load_rows(int first, int rows, int begin) {
        const Recurrence &op = a.op;
        const bool delta = op.kind == RECURRENCE_DELTA;
        if ((int)threadIdx.x < rows) {
            const int64_t row = c.row + first + threadIdx.x;
            const int at = tail + (int)threadIdx.x;
            const float dt = op.channel_decay ? 1 : time_step(op, row, head, op.value_heads);
            m.dt[at] = dt;
            if (!op.channel_decay) m.log_decay[at] = __fmul_rn(__ldg(op.rate + head), dt);
            m.beta[at] = op.b ? sigmoid(load(op.b + row * op.value_heads + head)) : 1;
        }
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int t = warp + HEAD_WARPS * n;
            if (t >= rows) break;
            const int64_t at = ((int64_t)(c.row + first + t) * op.key_heads + key_head) * op.key_dim;
            float q[KD / 32], k[KD / 32];
#pragma unroll
            for (int i = 0; i < KD / 32; i++) {
                const bool there = lane + 32 * i < op.key_dim;
                q[i] = there ? load(op.q + at + lane + 32 * i) : 0;
                k[i] = there && delta ? load(op.k + at + lane + 32 * i) : 0;
            }
#pragma unroll
            for (int i = 0; i < KD / 32; i++) {
                m.x[ROWS + t][lane + 32 * i] = q[i];
                if (delta) m.x[t][lane + 32 * i] = k[i];
            }
        }
        __syncthreads();
        for (int k = threadIdx.x; op.channel_decay && k < op.key_dim; k += HEAD_BLOCK) {
            float sum = 0;
            for (int j = 0; j < tail + rows; j++) {
                sum += load(decays_at(a, c, begin, j, head) + k);
                if (j < tail) continue;
                const float decay = expf(sum);
                m.x[j - tail][k] = __fmul_rn(m.x[j - tail][k], decay);
                m.x[ROWS + j - tail][k] = __fmul_rn(m.x[ROWS + j - tail][k], decay);
            }
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int t = warp + HEAD_WARPS * i, j = lane, last = tail + t;
            if (t >= rows) break;
            const float *products = products_of(op, c.row + first + t, key_head);
            const float with_q = j <= last ? load(products + j) : 0;
            const float with_k = delta && j <= last ? load(products + PAGE + j) : 0;
            float sum = 0;
#pragma unroll 4
            for (int n = 1; n <= last && !op.channel_decay; n++)
                if (n > j) sum += m.log_decay[n];
            const float decay = op.channel_decay ? 1 : expf(sum);
            m.of_q[t][j] = __fmul_rn(decay, with_q);
            if (delta) m.of_k[t][j] = __fmul_rn(decay, with_k);
        }
        if ((int)threadIdx.x < rows) {
            float sum = 0;
#pragma unroll 4
            for (int n = 0; n <= tail + (int)threadIdx.x && !op.channel_decay; n++) sum += m.log_decay[n];
            m.state[threadIdx.x] = expf(sum);
        }
        __syncthreads();
    }

    /* Products of the state with the columns: m.y. */
    __device__ void state_products(int rows) {
        const bool delta = a.op.kind == RECURRENCE_DELTA;
        const int cols = delta ? 2 * rows : rows;
        for (int first = 0; first < cols; first += Memory::PARTS) {
#pragma unroll
            for (int i = 0; i < Memory::PARTS; i++) {
                if (first + i >= cols) break;
                const int col = first + i, slot = !delta || col >= rows ? ROWS + col - (delta ? rows : 0) : col;
                float sum = 0;
#pragma unroll
                for (int k = 0; k < EACH_K; k++) sum = fmaf(m.x[slot][warp * EACH_K + k], s[k], sum);
                m.parts[warp][i][lane] = sum;
            }
            __syncthreads();
            const int col = first + warp, slot = !delta || col >= rows ? ROWS + col - (delta ? rows : 0) : col;
            if (warp < Memory::PARTS && col < cols) {
                float sum = m.parts[0][warp][lane];
#pragma unroll
                for (int w = 1; w < HEAD_WARPS; w++) sum += m.parts[w][warp][lane];
                m.y[slot][lane] = sum;
            }
            __syncthreads();
        }
    }

    __device__ float value_at(int64_t row) const {
        return in ? load(a.op.v + (row * a.op.value_heads + head) * a.op.value_dim + column) : 0;
    }

    /* Values of this warp's rows. */
    __device__ void load_values(int first, int rows, float *v) const {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int t = warp + HEAD_WARPS * i;
            v[i] = t < rows ? value_at(c.row + first + t) : 0;
        }
    }

    /* Updates of the rows; each joins the later rows in turn. */
    __device__ void solve(int rows, const float *v) {
        float d[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int t = warp + HEAD_WARPS * i;
            d[i] = 0;
            if (t >= rows) continue;
            d[i] = any ? __fmul_rn(m.state[t], m.y[t][lane]) : 0;
#pragma unroll 8
            for (int j = 0; j < tail; j++) d[i] = fmaf(m.of_k[t][j], m.u[j][lane], d[i]);
        }
#pragma unroll
        for (int i = 0; i < OWN; i++)
            for (int w = 0; w < HEAD_WARPS; w++) {
                const int j = HEAD_WARPS * i + w;
                if (j >= rows) break;
                if (warp == w) m.u[tail + j][lane] = __fmul_rn(m.beta[tail + j], v[i] - d[i]);
                __syncthreads();
#pragma unroll
                for (int n = i; n < OWN; n++) {
                    const int t = warp + HEAD_WARPS * n;
                    if (t > j && t < rows) d[n] = fmaf(m.of_k[t][tail + j], m.u[tail + j][lane], d[n]);
                }
            }
    }

    __device__ void finish(int first, int rows, int32_t page, const float *v) {
        const Recurrence &op = a.op;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int t = warp + HEAD_WARPS * i;
            if (t >= rows) break;
            const int64_t row = c.row + first + t;
            float y = any ? __fmul_rn(m.state[t], m.y[ROWS + t][lane]) : 0;
#pragma unroll 8
            for (int j = 0; j <= tail + t; j++) y = fmaf(m.of_q[t][j], m.u[j][lane], y);
            if (op.skip) y = fmaf(__ldg(op.skip + head), v[i], y);
            if (in) op.out[(row * op.value_heads + head) * op.value_dim + column] = y;
            if (page < 0) continue;
            float *to = tail_row(a.pages, page, tail + t);
            if (in) row_update(op, to, head)[column] = m.u[tail + t][lane];
            if (lane == 0 && blockIdx.x == 0 && !op.channel_decay) *row_decays(op, to, head) = m.log_decay[tail + t];
        }
    }

    __device__ void walk() {
        load_tail();
        for (int first = 0, rows; first < c.rows; first += rows, tail += rows) {
            const int position = c.position + first;
            const int32_t page = page_of(c, position);
            if (position % PAGE == 0) {
                if (tail == PAGE) make_anchor(position - PAGE);
                if (page >= 0) store_anchor(page);
                tail = 0;
            }
            rows = min(PAGE - tail, c.rows - first);
            float v[OWN];
            load_values(first, rows, v);
            load_rows(first, rows, position - position % PAGE);
            if (any) state_products(rows);
            if (a.op.kind == RECURRENCE_DELTA) {
                solve(rows, v);
            } else {
#pragma unroll
                for (int i = 0; i < OWN; i++) {
                    const int t = warp + HEAD_WARPS * i;
                    if (t < rows) m.u[tail + t][lane] = __fmul_rn(m.dt[tail + t], v[i]);
                }
            }
            __syncthreads();
            finish(first, rows, page, v);
            __syncthreads();
        }
    }
};

template <int EACH_K, int ROWS>
__global__ void __launch_bounds__(HEAD_BLOCK,
    ROWS > 1          ? 1
        : EACH_K > 16 ? 2
                      : 4) head_kernel(const __grid_constant__ RecurrenceArgs a) {
    extern __shared__ float4 memory[];
    let_next_begin();
    wait_for_previous();
    const Chunk c =
        ROWS == 1 ? chunk_of_row(a.step, a.pages, (int)blockIdx.z) : chunk_of(a.step, a.pages, (int)blockIdx.z);
    Head<EACH_K, ROWS> head(a, c, *(typename Head<EACH_K, ROWS>::Memory *)memory);
    head.walk();
}

template <int EACH_K, int ROWS> static cudaError_t run_heads(cudaStream_t stream, const RecurrenceArgs &args) {
    const size_t bytes = sizeof(typename Head<EACH_K, ROWS>::Memory);
    const cudaError_t error =
        cudaFuncSetAttribute(head_kernel<EACH_K, ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    const dim3 grid(
        (unsigned)((args.op.value_dim + COLS - 1) / COLS), (unsigned)args.op.value_heads, (unsigned)args.chunks);
    return error ? error : launch(stream, head_kernel<EACH_K, ROWS>, grid, HEAD_BLOCK, bytes, args);
}

extern "C" cudaError_t recurrent_recurrence(cudaStream_t stream, const RecurrenceArgs *args) {
    constexpr int ROWS_EACH = 8; /* rows of a block, where chunks are as long */
    const Recurrence &op = args->op;
    const bool single = args->chunks == op.rows; /* every chunk is one row */
    const bool decode = single && recurrence_decode_fits(*args);
    const int each = !op.channel_decay && op.rows / args->chunks >= ROWS_EACH ? ROWS_EACH : 1;
    const unsigned heads = (unsigned)op.key_heads, rows = (unsigned)op.rows;
    if (decode) {
        /* The kernel that follows loads states while this one runs beside it. */
        cudaError_t error = allow_beside(prepare_decode_kernel);
        if (!error) error = launch(stream, prepare_decode_kernel, dim3(heads, rows), 32 * PRODUCT_WARPS, 0, *args);
        return error ? error : recurrence_decode(stream, *args);
    }
    const auto products = op.channel_decay ? channel_products_kernel
        : op.key_dim <= 32 * KEY_EACH      ? products_kernel<KEY_EACH>
                                           : products_kernel<EACH>;
    cudaError_t error = launch(stream, prepare_kernel, dim3(heads, rows), 64, 0, *args);
    if (!error)
        error = launch(stream, products, dim3(heads, (rows + each - 1) / each), 32 * PRODUCT_WARPS, 0, *args, each);
    if (error) return error;
    if (!single && recurrence_prefill_fits(*args)) return recurrence_prefill(stream, *args);
    if (op.key_dim <= 128) return single ? run_heads<16, 1>(stream, *args) : run_heads<16, PAGE>(stream, *args);
    return single ? run_heads<32, 1>(stream, *args) : run_heads<32, PAGE>(stream, *args);
}
