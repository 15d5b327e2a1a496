/* Recurrences of steps whose chunks are single rows, as in decoding: reading states takes nearly all of the time. A
 * unit is a value head of a row. A block takes one unit after another: the state of the next one is on its way into
 * registers while this one is finished and the rest of the next one is prepared. Small loads are queued behind those of
 * states, so they are always ordered before. Two blocks share a multiprocessor. Sums have the order of recurrence.cu.
 */
#include "backend/cuda/recurrent/recurrence.cuh"

enum {
    KEYS = 16, /* elements of the key in a warp */
    KEY_MAX = HEAD_WARPS * KEYS,
    VALUE_MAX = 128, /* a lane has four neighbouring columns */
    DECODE_BLOCK = 32 * HEAD_WARPS,
    DECODE_BLOCKS = 2, /* on a multiprocessor */
    HALF = PAGE / 2,   /* rows of the tail that a thread loads */
    PLACES = 64,       /* units whose places are known at a time */
};
static_assert(DECODE_BLOCK == 2 * VALUE_MAX && KEY_MAX == VALUE_MAX, "a thread has a column, and an element of k or q");

/* A row and a value head of it. */
struct Unit {
    int row, head, position;
    int32_t before, last;                                   /* pages of the position before, and of the row */
    __device__ int tail() const { return position % PAGE; } /* rows of the page before the row */
    /* The row is the first of a page, and not of the text: its anchor is made from the page before. */
    __device__ bool begins_page() const { return position > 0 && tail() == 0; }
    /* Updates that it reads. */
    __device__ int updates() const { return begins_page() ? PAGE : tail(); }
};

/* What is prepared of a unit. */
struct UnitMemory {
    alignas(16) float x[2][KEY_MAX];            /* k and q */
    alignas(16) float updates[PAGE][VALUE_MAX]; /* those of the rows before */
    float factor[2][PAGE];                      /* factors of the updates in the products with k and q */
    float weight[PAGE], all;                    /* a new anchor: factors of the updates and of the state before */
    float state, dt, beta, log_decay;           /* the row's own; state: factor of the state's products */
};
struct DecodeMemory {
    UnitMemory unit[2];
    alignas(16) float parts[HEAD_WARPS][2][VALUE_MAX]; /* sums of the warps */
    float update[VALUE_MAX];                           /* the row's own */
    Unit places[PLACES];
};

__device__ static Unit unit_at(const RecurrenceArgs &a, int number) {
    const int row = number / a.op.value_heads;
    const int32_t *table = a.pages.tables + (int64_t)__ldcg(a.step.chunks + row) * a.pages.table_stride;
    return Unit{row, number % a.op.value_heads, __ldcg(a.step.places + row), __ldcg(table), __ldcg(table + 1)};
}

/* Elements of a lane in the state of a head: rows warp · KEYS … of its four columns. */
struct Lane {
    const RecurrenceArgs &a;
    const int warp, lane;
    __device__ bool has(int i) const { return warp * KEYS + i < a.op.key_dim && 4 * lane < a.op.value_dim; }
    __device__ float4 *at(int32_t page, int head, int i) const {
        float *state = anchor_of(a.pages, page) + (int64_t)head * a.op.key_dim * a.op.value_dim;
        return (float4 *)(state + (int64_t)(warp * KEYS + i) * a.op.value_dim) + lane;
    }
};

__device__ static void decay_by(float4 &v, float factor) {
    v = make_float4(__fmul_rn(v.x, factor), __fmul_rn(v.y, factor), __fmul_rn(v.z, factor), __fmul_rn(v.w, factor));
}
__device__ static void add_product(float4 &sum, float factor, const float4 &v) {
    sum.x = fmaf(factor, v.x, sum.x);
    sum.y = fmaf(factor, v.y, sum.y);
    sum.z = fmaf(factor, v.z, sum.z);
    sum.w = fmaf(factor, v.w, sum.w);
}

/* Loads of a row, under way. */
struct Ordered {
    float x, v;                      /* this thread's element of k or q, and of the value */
    float with_q, with_k, old, b, a; /* the first warp's: see factors() */
};

struct Decoder {
    const RecurrenceArgs &a;
    DecodeMemory &m;
    const int warp, lane, which, column; /* which: 0, the products with k; 1, those with q */
    const bool in;                       /* the column exists */
    const Lane own;
    float4 s[KEYS]; /* state of the unit */
    float u[HALF];  /* updates of its tail, of this column */

    __device__ Decoder(const RecurrenceArgs &args, DecodeMemory &memory)
        : a(args), m(memory), warp(threadIdx.x / 32), lane(threadIdx.x % 32), which(threadIdx.x / VALUE_MAX),
          column(threadIdx.x % VALUE_MAX),
          in((int)(threadIdx.x % VALUE_MAX) < args.op.value_dim), own{args, (int)threadIdx.x / 32,
                                                                      (int)threadIdx.x % 32} {}

    /* What steps before this one have written: kernels of this step that still run do not matter. */
    __device__ void order_state(const Unit &unit) {
        const int count = unit.updates();
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const int j = 2 * i + which;
            u[i] = j < count && in ? load(row_update(a.op, tail_row(a.pages, unit.before, j), unit.head) + column) : 0;
        }
        const float4 *from = own.at(max(unit.before, 0), unit.head, 0);
        const int stride = a.op.value_dim / 4;
        if (unit.position > 0 && a.op.key_dim == KEY_MAX && a.op.value_dim == VALUE_MAX) {
#pragma unroll
            for (int i = 0; i < KEYS; i++) s[i] = __ldcg(from + i * (VALUE_MAX / 4));
        } else {
#pragma unroll
            for (int i = 0; i < KEYS; i++)
                s[i] = unit.position > 0 && own.has(i) ? __ldcg(from + i * stride) : make_float4(0, 0, 0, 0);
        }
    }
    /* What kernels of this step have written. */
    __device__ void order_row(const Unit &unit, Ordered &o) const {
        const Recurrence &op = a.op;
        const int key_head = key_head_of(op, unit.head), tail = unit.tail();
        const int64_t head = (int64_t)unit.row * op.value_heads + unit.head;
        const int64_t key = ((int64_t)unit.row * op.key_heads + key_head) * op.key_dim;
        const bool delta = op.kind == RECURRENCE_DELTA, used = column < op.key_dim && (which || delta);
        o.x = used ? load((which ? op.q : op.k) + key + column) : 0;
        o.v = in ? load(op.v + head * op.value_dim + column) : 0;
        if (warp > 0) return;
        const float *products = products_of(op, unit.row, key_head);
        o.with_q = lane <= tail ? load(products + lane) : 0;
        o.with_k = lane <= tail && delta ? load(products + PAGE + lane) : 0;
        o.old = lane < unit.updates() ? load(row_decays(op, tail_row(a.pages, unit.before, lane), unit.head)) : 0;
        o.b = op.b ? load(op.b + head) : 0;
        o.a = op.a ? load(op.a + head) : 0;
    }

    /* Time step and factors, by the first warp. */
    __device__ void factors(const Unit &unit, const Ordered &o, UnitMemory &to) const {
        const Recurrence &op = a.op;
        const int tail = unit.tail();
        const float dt = time_step_of(op, o.a, unit.head), log_own = __fmul_rn(__ldg(op.rate + unit.head), dt);
        if (unit.begins_page()) {
            float behind = 0, all = 0;
#pragma unroll
            for (int n = 0; n < PAGE; n++) {
                const float v = __shfl_sync(~0u, o.old, n);
                all += v;
                behind = n > lane ? behind + v : behind;
            }
            to.weight[lane] = expf(behind);
            if (lane == 0) to.all = expf(all);
        }
        const float log_decay = lane == tail ? log_own : o.old;
        float behind = 0, all = 0;
#pragma unroll
        for (int n = 0; n < PAGE; n++) {
            const float v = __shfl_sync(~0u, log_decay, n);
            all = n <= tail ? all + v : all;
            behind = n <= tail && n > lane ? behind + v : behind;
        }
        const float decay = expf(behind);
        to.factor[0][lane] = __fmul_rn(decay, o.with_k);
        to.factor[1][lane] = __fmul_rn(decay, o.with_q);
        if (lane > 0) return;
        to.state = expf(all);
        to.dt = dt;
        to.beta = op.b ? sigmoid(o.b) : 1;
        to.log_decay = log_own;
    }
    __device__ void prepare(const Unit &unit, const Ordered &o, UnitMemory &to) const {
        if (warp == 0) factors(unit, o, to);
        to.x[which][column] = o.x;
        const int count = unit.updates();
#pragma unroll
        for (int i = 0; i < HALF; i++)
            if (2 * i + which < count) to.updates[2 * i + which][column] = u[i];
    }

    /* Makes the state before the first row of a page from the page before, and stores it. keys: room for those of the
     * page. */
    __device__ void make_anchor(const Unit &unit, const UnitMemory &from, float (*keys)[VALUE_MAX]) {
        const Recurrence &op = a.op;
        const int key_head = key_head_of(op, unit.head);
        if (unit.position > 0) {
#pragma unroll 4
            for (int i = 0; i < HALF; i++) {
                float *row = tail_row(a.pages, unit.before, 2 * i + which);
                keys[2 * i + which][column] = column < op.key_dim ? load(row_key(op, row, key_head) + column) : 0;
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < KEYS; i++) decay_by(s[i], from.all);
#pragma unroll 1
            for (int j = 0; j < PAGE; j++) {
                float4 update = ((const float4 *)from.updates[j])[lane];
                decay_by(update, from.weight[j]);
#pragma unroll
                for (int i = 0; i < KEYS; i += 4) {
                    const float4 k = *(const float4 *)(keys[j] + warp * KEYS + i);
                    add_product(s[i], k.x, update);
                    add_product(s[i + 1], k.y, update);
                    add_product(s[i + 2], k.z, update);
                    add_product(s[i + 3], k.w, update);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if (own.has(i)) *own.at(unit.last, unit.head, i) = s[i];
    }

    /* This warp's part of the state's products with k and q. */
    __device__ void multiply(const UnitMemory &from) {
        float4 sum[2] = {};
#pragma unroll
        for (int first = 0; first < KEYS; first += 4) {
            const float4 k = *(const float4 *)(from.x[0] + warp * KEYS + first),
                         q = *(const float4 *)(from.x[1] + warp * KEYS + first);
            const float ks[4] = {k.x, k.y, k.z, k.w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                add_product(sum[0], ks[i], s[first + i]);
                add_product(sum[1], qs[i], s[first + i]);
            }
        }
        ((float4 *)m.parts[warp][0])[lane] = sum[0];
        ((float4 *)m.parts[warp][1])[lane] = sum[1];
    }

    __device__ void finish(const Unit &unit, const UnitMemory &from, float v) {
        const Recurrence &op = a.op;
        const int tail = unit.tail();
        __syncthreads();
        float y = m.parts[0][which][column];
#pragma unroll
        for (int w = 1; w < HEAD_WARPS; w++) y += m.parts[w][which][column];
        y = unit.position > 0 ? __fmul_rn(from.state, y) : 0;
#pragma unroll 4
        for (int j = 0; j < tail; j++) y = fmaf(from.factor[which][j], from.updates[j][column], y);
        if (!which) {
            const float update = op.kind == RECURRENCE_DELTA ? __fmul_rn(from.beta, v - y) : __fmul_rn(from.dt, v);
            m.update[column] = update;
            float *row = tail_row(a.pages, unit.last, tail);
            if (in) row_update(op, row, unit.head)[column] = update;
            if (column == 0) *row_decays(op, row, unit.head) = from.log_decay;
        }
        __syncthreads();
        if (!which) return;
        y = fmaf(from.factor[1][tail], m.update[column], y);
        if (op.skip) y = fmaf(__ldg(op.skip + unit.head), v, y);
        if (in) op.out[((int64_t)unit.row * op.value_heads + unit.head) * op.value_dim + column] = y;
    }

    /* Units [first, end) of those whose places are known. */
    __device__ void run(int count, const Ordered &first) {
        Ordered now = first;
        prepare(m.places[0], now, m.unit[0]);
        __syncthreads();
        for (int i = 0; i < count; i++) {
            const Unit &unit = m.places[i], &next = m.places[min(i + 1, count - 1)];
            UnitMemory &from = m.unit[i % 2], &to = m.unit[(i + 1) % 2];
            const float v = now.v;
            order_row(next, now);
            if (unit.tail() == 0) make_anchor(unit, from, to.updates);
            multiply(from);
            if (i + 1 < count) order_state(next);
            finish(unit, from, v);
            prepare(next, now, to);
            __syncthreads();
        }
    }
};

__global__ void __launch_bounds__(DECODE_BLOCK, DECODE_BLOCKS)
    recurrence_decode_kernel(const __grid_constant__ RecurrenceArgs a) {
    extern __shared__ float4 memory[];
    DecodeMemory &m = *(DecodeMemory *)memory;
    let_next_begin();
    const int units = a.op.rows * a.op.value_heads, step = gridDim.x;
    Decoder decoder(a, m);
    for (int number = blockIdx.x; number < units; number += PLACES * step) {
        const int count = min(PLACES, (units - 1 - number) / step + 1);
        if ((int)threadIdx.x < count) m.places[threadIdx.x] = unit_at(a, number + (int)threadIdx.x * step);
        __syncthreads();
        Ordered first = {};
        decoder.order_state(m.places[0]);
        if (number == (int)blockIdx.x) wait_for_previous();
        decoder.order_row(m.places[0], first);
        decoder.run(count, first);
    }
}

/* States are read and written in pieces of 16 bytes. */
bool recurrence_decode_fits(const RecurrenceArgs &a) {
    const Recurrence &op = a.op;
    return !op.channel_decay && op.key_dim <= KEY_MAX && op.value_dim <= VALUE_MAX && recurrence_aligned(a);
}

cudaError_t recurrence_decode(cudaStream_t stream, const RecurrenceArgs &a) {
    const int units = a.op.rows * a.op.value_heads, most = DECODE_BLOCKS * a.multiprocessors;
    cudaError_t error = cudaFuncSetAttribute(
        recurrence_decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(DecodeMemory));
    if (!error) error = allow_beside(recurrence_decode_kernel);
    const dim3 grid((unsigned)(units < most ? units : most));
    return error ? error : launch(stream, recurrence_decode_kernel, grid, DECODE_BLOCK, sizeof(DecodeMemory), a);
}
