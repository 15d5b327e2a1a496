/* Recurrences of steps whose chunks are single rows, as in decoding: reading states takes nearly all of the time. A
 * unit is COLUMNS columns of a value head of a row. A block takes one unit after another: the state of the next one is
 * on its way into registers while this one is finished and the rest of the next one is prepared. Small loads are queued
 * behind those of states, so they are always ordered before. What is left of a unit is a row of short steps that wait
 * for each other: four blocks share a multiprocessor, so that others work meanwhile. Sums have the order of
 * recurrence.cu. */
#include "backend/cuda/recurrent/recurrence_keys.cuh"
#include "backend/cuda/runtime/cluster.cuh"

enum {
    KEYS = 16, /* elements of the key in a part of the products, as in a warp of recurrence.cu */
    PARTS = HEAD_WARPS,
    KEY_MAX = PARTS * KEYS,
    VALUE_MAX = 128,
    COLUMNS = 64,        /* columns of a value in a unit */
    FOURS = COLUMNS / 4, /* threads of a part: each has four neighbouring columns */
    DECODE_BLOCK = PARTS * FOURS,
    DECODE_BLOCKS = 4, /* on a multiprocessor */
    HALF = PAGE / 2,   /* rows of the tail that a thread loads */
    PLACES = 64,       /* units whose places are known at a time */
};
static_assert(DECODE_BLOCK == 2 * COLUMNS && DECODE_BLOCK == KEY_MAX,
    "a thread has a column of the products with k or with q, and an element of both");

/* A row, a value head of it, the first of the columns. */
struct Unit {
    int row, head, first, position;
    int32_t before, last;                                   /* pages of the position before, and of the row */
    __device__ int tail() const { return position % PAGE; } /* rows of the page before the row */
    /* The row is the first of a page, and not of the text: its anchor is made from the page before. */
    __device__ bool begins_page() const { return position > 0 && tail() == 0; }
    /* Updates that it reads. */
    __device__ int updates() const { return begins_page() ? PAGE : tail(); }
};

/* What is prepared of a unit. */
struct UnitMemory {
    alignas(16) float x[2][KEY_MAX];          /* k and q */
    alignas(16) float updates[PAGE][COLUMNS]; /* those of the rows before */
    float factor[2][PAGE];                    /* factors of the updates in the products with k and q */
    float weight[PAGE], all;                  /* a new anchor: factors of the updates and of the state before */
    float state, dt, beta, log_decay;         /* the row's own; state: factor of the state's products */
};
struct DecodeMemory {
    UnitMemory unit[2];
    alignas(16) float parts[PARTS][2][COLUMNS]; /* partial products with k and q */
    float update[COLUMNS];                      /* the row's own */
    Unit places[PLACES];
};

/* Units of a value head. */
__host__ __device__ static int pieces_of(const Recurrence &op) { return (op.value_dim + COLUMNS - 1) / COLUMNS; }
__device__ static Unit unit_at(const RecurrenceArgs &a, int number) {
    const int pieces = pieces_of(a.op), each = a.op.value_heads * pieces, row = number / each, piece = number % each;
    const int32_t *table = a.pages.tables + (int64_t)__ldcg(a.step.chunks + row) * a.pages.table_stride;
    return Unit{
        row, piece / pieces, piece % pieces * COLUMNS, __ldcg(a.step.places + row), __ldcg(table), __ldcg(table + 1)};
}

/* Elements of a thread in the state of a unit: rows part · KEYS … of its four columns. */
struct Own {
    const RecurrenceArgs &a;
    const int part, four;
    __device__ bool has(const Unit &unit, int i) const {
        return part * KEYS + i < a.op.key_dim && unit.first + 4 * four < a.op.value_dim;
    }
    __device__ float4 *at(const Unit &unit, int32_t page, int i) const {
        float *state = anchor_of(a.pages, page) + (int64_t)unit.head * a.op.key_dim * a.op.value_dim + unit.first;
        return (float4 *)(state + (int64_t)(part * KEYS + i) * a.op.value_dim) + four;
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
    float k, q, v;                               /* this thread's elements of k, q and the value */
    float with_q, with_k, old, b, a, rate, bias; /* the first warp's: see factors() */
};

struct Decoder {
    const RecurrenceArgs &a;
    DecodeMemory &m;
    const int lane, which, column; /* which: 0, the products with k; 1, those with q */
    const Own own;
    float4 s[KEYS]; /* state of the unit */
    float u[HALF];  /* updates of its tail, of this column */

    __device__ Decoder(const RecurrenceArgs &args, DecodeMemory &memory)
        : a(args), m(memory), lane(threadIdx.x % 32), which(threadIdx.x / COLUMNS),
          column(threadIdx.x % COLUMNS), own{args, (int)threadIdx.x / FOURS, (int)threadIdx.x % FOURS} {}

    __device__ bool has(const Unit &unit) const { return unit.first + column < a.op.value_dim; }

    /* What steps before this one have written: kernels of this step that still run do not matter. */
    __device__ void order_state(const Unit &unit) {
        const int count = has(unit) ? unit.updates() : 0, column_of_head = unit.first + column;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const int j = 2 * i + which;
            u[i] =
                j < count ? load(row_update(a.op, tail_row(a.pages, unit.before, j), unit.head) + column_of_head) : 0;
        }
        const float4 *from = own.at(unit, max(unit.before, 0), 0);
        const int stride = a.op.value_dim / 4;
        if (unit.position > 0 && a.op.key_dim == KEY_MAX && a.op.value_dim == VALUE_MAX) {
#pragma unroll
            for (int i = 0; i < KEYS; i++) s[i] = __ldcg(from + i * (VALUE_MAX / 4));
        } else {
#pragma unroll
            for (int i = 0; i < KEYS; i++)
                s[i] = unit.position > 0 && own.has(unit, i) ? __ldcg(from + i * stride) : make_float4(0, 0, 0, 0);
        }
    }
    /* What kernels of this step have written. */
    __device__ void order_row(const Unit &unit, Ordered &o) const {
        const Recurrence &op = a.op;
        const int key_head = key_head_of(op, unit.head), tail = unit.tail();
        const int64_t head = (int64_t)unit.row * op.value_heads + unit.head;
        const int64_t key = ((int64_t)unit.row * op.key_heads + key_head) * op.key_dim;
        const bool delta = op.kind == RECURRENCE_DELTA, used = (int)threadIdx.x < op.key_dim;
        o.k = used && delta ? load(op.k + key + threadIdx.x) : 0;
        o.q = used ? load(op.q + key + threadIdx.x) : 0;
        o.v = has(unit) ? load(op.v + head * op.value_dim + unit.first + column) : 0;
        if (threadIdx.x >= 32) return;
        const float *products = products_of(op, unit.row, key_head);
        o.with_q = lane <= tail ? load(products + lane) : 0;
        o.with_k = lane <= tail && delta ? load(products + PAGE + lane) : 0;
        o.old = lane < unit.updates() ? load(row_decays(op, tail_row(a.pages, unit.before, lane), unit.head)) : 0;
        o.b = op.b ? load(op.b + head) : 0;
        o.a = op.a ? load(op.a + head) : 0;
        o.rate = __ldg(op.rate + unit.head);
        o.bias = dt_bias_of(op, unit.head);
    }

    /* The sum of the lanes' numbers behind this lane's one, in order; all: the sum of all of them. Numbers from `count`
     * on are 0. */
    __device__ float sum_behind(float v, int count, float &all) const {
        /* The last lane has none behind it, and adds all. */
        const int after = lane == PAGE - 1 ? -1 : lane;
        float sum = 0;
#pragma unroll
        for (int first = 0; first < PAGE; first += 8) {
            if (first >= count) break;
#pragma unroll
            for (int n = first; n < first + 8; n++) {
                const float next = __shfl_sync(~0u, v, n);
                sum = n > after ? sum + next : sum;
            }
        }
        all = __shfl_sync(~0u, sum, PAGE - 1);
        return lane == PAGE - 1 ? 0 : sum;
    }
    /* Time step and decays, by a warp: the factor of a lane's update. */
    __device__ float decays(const Unit &unit, const Ordered &o, UnitMemory &to) const {
        const Recurrence &op = a.op;
        const int tail = unit.tail();
        const float dt = time_step_of(op, o.a, o.bias), log_own = __fmul_rn(o.rate, dt), beta = op.b ? sigmoid(o.b) : 1;
        float all;
        if (unit.begins_page()) {
            to.weight[lane] = expf(sum_behind(o.old, PAGE, all));
            if (lane == 0) to.all = expf(all);
        }
        const float decay = expf(sum_behind(lane == tail ? log_own : lane < tail ? o.old : 0, tail + 1, all));
        if (lane == 0) {
            to.state = expf(all);
            to.dt = dt;
            to.beta = beta;
            to.log_decay = log_own;
        }
        return decay;
    }
    __device__ void factors(const Unit &unit, const Ordered &o, UnitMemory &to) const {
        const float decay = decays(unit, o, to);
        to.factor[0][lane] = __fmul_rn(decay, o.with_k);
        to.factor[1][lane] = __fmul_rn(decay, o.with_q);
    }
    __device__ void prepare(const Unit &unit, const Ordered &o, UnitMemory &to) const {
        if (threadIdx.x < 32) factors(unit, o, to);
        to.x[0][threadIdx.x] = o.k;
        to.x[1][threadIdx.x] = o.q;
        const int count = unit.updates();
#pragma unroll
        for (int i = 0; i < HALF; i++)
            if (2 * i + which < count) to.updates[2 * i + which][column] = u[i];
    }

    /* Makes the state before the first row of a page from the page before, and stores it. room: for the keys of half of
     * the page's rows. */
    __device__ void make_anchor(const Unit &unit, const UnitMemory &from, float *room) {
        const Recurrence &op = a.op;
        const int key_head = key_head_of(op, unit.head);
        float(*keys)[KEY_MAX] = (float(*)[KEY_MAX])room;
#pragma unroll
        for (int i = 0; i < KEYS && unit.position > 0; i++) decay_by(s[i], from.all);
        for (int first = 0; first < PAGE && unit.position > 0; first += HALF) {
            __syncthreads();
#pragma unroll 4
            for (int i = 0; i < HALF; i++) {
                float *row = tail_row(a.pages, unit.before, first + i);
                keys[i][threadIdx.x] =
                    (int)threadIdx.x < op.key_dim ? load(row_key(op, row, key_head) + threadIdx.x) : 0;
            }
            __syncthreads();
#pragma unroll 1
            for (int j = 0; j < HALF; j++) {
                float4 update = ((const float4 *)from.updates[first + j])[own.four];
                decay_by(update, from.weight[first + j]);
#pragma unroll
                for (int i = 0; i < KEYS; i += 4) {
                    const float4 k = *(const float4 *)(keys[j] + own.part * KEYS + i);
                    add_product(s[i], k.x, update);
                    add_product(s[i + 1], k.y, update);
                    add_product(s[i + 2], k.z, update);
                    add_product(s[i + 3], k.w, update);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if (own.has(unit, i)) *own.at(unit, unit.last, i) = s[i];
    }

    /* This thread's part of the state's products with k and q. */
    __device__ void multiply(const UnitMemory &from) {
        float4 sum[2] = {};
#pragma unroll
        for (int first = 0; first < KEYS; first += 4) {
            const float4 k = *(const float4 *)(from.x[0] + own.part * KEYS + first),
                         q = *(const float4 *)(from.x[1] + own.part * KEYS + first);
            const float ks[4] = {k.x, k.y, k.z, k.w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                add_product(sum[0], ks[i], s[first + i]);
                add_product(sum[1], qs[i], s[first + i]);
            }
        }
        ((float4 *)m.parts[own.part][0])[own.four] = sum[0];
        ((float4 *)m.parts[own.part][1])[own.four] = sum[1];
    }

    /* The result of this thread's column, in the threads of the products with q. */
    __device__ float finish(const Unit &unit, const UnitMemory &from, float v) {
        const Recurrence &op = a.op;
        const int tail = unit.tail();
        __syncthreads();
        float y = m.parts[0][which][column];
#pragma unroll
        for (int part = 1; part < PARTS; part++) y += m.parts[part][which][column];
        y = unit.position > 0 ? __fmul_rn(from.state, y) : 0;
#pragma unroll 4
        for (int j = 0; j < tail; j++) y = fmaf(from.factor[which][j], from.updates[j][column], y);
        if (!which) {
            const float update = op.kind == RECURRENCE_DELTA ? __fmul_rn(from.beta, v - y) : __fmul_rn(from.dt, v);
            m.update[column] = update;
            float *row = tail_row(a.pages, unit.last, tail);
            if (has(unit)) row_update(op, row, unit.head)[unit.first + column] = update;
            if (unit.first + column == 0) *row_decays(op, row, unit.head) = from.log_decay;
        }
        __syncthreads();
        if (!which) return 0;
        y = fmaf(from.factor[1][tail], m.update[column], y);
        return op.skip ? fmaf(__ldg(op.skip + unit.head), v, y) : y;
    }
    /* Its place in a row's results. */
    __device__ int64_t place(const Unit &unit) const {
        return ((int64_t)unit.row * a.op.value_heads + unit.head) * a.op.value_dim + unit.first + column;
    }

    /* Units [first, end) of those whose places are known. */
    __device__ void run(int count, const Ordered &first) {
        Ordered now = first;
        prepare(m.places[0], now, m.unit[0]);
        __syncthreads();
        Unit unit = m.places[0];
        for (int i = 0; i < count; i++) {
            const Unit next = m.places[min(i + 1, count - 1)];
            UnitMemory &from = m.unit[i % 2], &to = m.unit[(i + 1) % 2];
            const float v = now.v;
            order_row(next, now);
            if (unit.tail() == 0) make_anchor(unit, from, to.updates[0]);
            multiply(from);
            if (i + 1 < count) order_state(next);
            const float y = finish(unit, from, v);
            if (which && has(unit)) a.op.out[place(unit)] = y;
            prepare(next, now, to);
            unit = next;
            __syncthreads();
        }
    }
};

__global__ void __launch_bounds__(DECODE_BLOCK, DECODE_BLOCKS)
    recurrence_decode_kernel(const __grid_constant__ RecurrenceArgs a) {
    extern __shared__ float4 memory[];
    DecodeMemory &m = *(DecodeMemory *)memory;
    let_next_begin();
    const int units = a.op.rows * a.op.value_heads * pieces_of(a.op), step = gridDim.x;
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
    const int units = a.op.rows * a.op.value_heads * pieces_of(a.op), most = DECODE_BLOCKS * a.multiprocessors;
    cudaError_t error = cudaFuncSetAttribute(
        recurrence_decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(DecodeMemory));
    if (!error) error = allow_beside(recurrence_decode_kernel);
    const dim3 grid((unsigned)(units < most ? units : most));
    return error ? error : launch(stream, recurrence_decode_kernel, grid, DECODE_BLOCK, sizeof(DecodeMemory), a);
}

/* ---- a convolution, the recurrence and the gated norm of few rows as one kernel ----
 *
 * A block has one unit. It computes q and k of its key head by itself, as the other units of the head do; the first of
 * them stores what is kept of both. The two units of a value head are a cluster: the norm is that of the head. Sums
 * have the order of the three kernels. */

enum { ROW_TAPS = 4, DECAYS = 3 /* the warp of the decays */, ROW_BLOCKS = 2 /* on a multiprocessor */ };

/* A channel of the convolution: its earlier inputs and weights, under way before the row's input exists. */
struct RowChannel {
    const ConvPart &part;
    int channel;
    int64_t at, channels; /* its place in a row of the tail, and the channels of that */
    float in[ROW_TAPS];
    float4 weight;
    float bias;

    __device__ RowChannel(const ConvArgs &c, int number, int channel, const Unit &unit)
        : part(c.op.part[number]), channel(channel), at(channel), channels(0) {
#pragma unroll
        for (int i = 0; i < CONV_PARTS_MAX; i++) {
            at += i < number ? c.op.part[i].channels : 0;
            channels += c.op.part[i].channels;
        }
        const int begin = (unit.position - 1) / PAGE * PAGE;
#pragma unroll
        for (int i = 0; i < ROW_TAPS - 1; i++) {
            const int from = unit.position - (ROW_TAPS - 1 - i);
            in[i] = 0;
            if (unit.position == 0) continue;
            const float *old = from >= begin
                ? tail_row(c.pages, unit.before, from - begin)
                : anchor_of(c.pages, unit.before) + (from - begin + ROW_TAPS - 1) * channels;
            in[i] = load(old + at);
        }
        weight = __ldg((const float4 *)part.weight + channel);
        bias = part.bias ? __ldg(part.bias + channel) : 0;
    }
    __device__ void order(int row) { in[ROW_TAPS - 1] = load(part.x + row * part.channels + channel); }
    __device__ float result(bool silu) const {
        float sum = fmaf(weight.x, in[0], bias);
        sum = fmaf(weight.y, in[1], sum);
        sum = fmaf(weight.z, in[2], sum);
        sum = fmaf(weight.w, in[3], sum);
        return silu ? sum / (1.0f + expf(-sum)) : sum;
    }
    __device__ void keep(const ConvArgs &c, const Unit &unit) const {
        if (unit.last < 0) return;
        tail_row(c.pages, unit.last, unit.tail())[at] = in[ROW_TAPS - 1];
        if (unit.tail()) return;
#pragma unroll
        for (int i = 0; i < ROW_TAPS - 1; i++) anchor_of(c.pages, unit.last)[i * channels + at] = in[i];
    }
};

__global__ void __launch_bounds__(DECODE_BLOCK, ROW_BLOCKS)
    recurrent_block_kernel(const __grid_constant__ RecurrentBlockArgs p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ float4 memory[];
    __shared__ float decay[PAGE], sums[VALUE_MAX / 32];
    DecodeMemory &m = *(DecodeMemory *)memory;
    UnitMemory &own = m.unit[0];
    let_next_begin();
    cluster_arrive();
    const RecurrenceArgs &a = p.recurrence;
    const Recurrence &op = a.op;
    const Unit unit = unit_at(a, blockIdx.x);
    Decoder d(a, m);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tail = unit.tail(),
              key_head = key_head_of(op, unit.head);
    d.order_state(unit);
    float keys[2][ROUNDS][KEY_EACH];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < ROUNDS; n++) {
            const int j = warp + half * (PRODUCT_WARPS / 2) + n * PRODUCT_WARPS;
            const float *key = j < tail ? row_key(op, tail_row(a.pages, unit.before, j), key_head) : nullptr;
#pragma unroll
            for (int i = 0; i < KEY_EACH; i++) keys[half][n][i] = key ? load(key + lane + 32 * i) : 0;
        }
    const int in_key = key_head * KEY_MAX + (int)threadIdx.x,
              in_value = unit.head * op.value_dim + unit.first + d.column;
    RowChannel q(p.conv, 0, in_key, unit), k(p.conv, 1, in_key, unit), v(p.conv, 2, in_value, unit);
    Ordered o = {};
    if (warp == DECAYS) {
        o.old = lane < unit.updates() ? load(row_decays(op, tail_row(a.pages, unit.before, lane), unit.head)) : 0;
        o.rate = __ldg(op.rate + unit.head);
        o.bias = dt_bias_of(op, unit.head);
    }
    const float norm_weight = p.norm.weight ? __ldg(p.norm.weight + in_value) : 1;
    wait_for_previous();
    q.order(unit.row);
    k.order(unit.row);
    v.order(unit.row);
    const int64_t head = (int64_t)unit.row * op.value_heads + unit.head;
    o.b = op.b ? load(op.b + head) : 0;
    o.a = op.a ? load(op.a + head) : 0;
    const float gate = p.norm.gate ? load(p.norm.gate + d.place(unit)) : 0;
    own.x[0][threadIdx.x] = k.result(p.conv.op.silu);
    own.x[1][threadIdx.x] = q.result(p.conv.op.silu);
    const float value = v.result(p.conv.op.silu);
    const int count = unit.updates();
#pragma unroll
    for (int i = 0; i < HALF; i++)
        if (2 * i + d.which < count) own.updates[2 * i + d.which][d.column] = d.u[i];
    const int ratio = op.value_heads / op.key_heads;
    const bool first = unit.first == 0 && (op.tiled ? unit.head < op.key_heads : unit.head % ratio == 0);
    if (first) {
        q.keep(p.conv, unit);
        k.keep(p.conv, unit);
    }
    if (!d.which) v.keep(p.conv, unit);
    __syncthreads();
    if (warp == DECAYS) decay[lane] = d.decays(unit, o, own);
    if (warp < 2) {
        float *x = own.x[warp], square = 0;
#pragma unroll
        for (int i = 0; i < KEY_EACH; i++) square = fmaf(x[lane + 32 * i], x[lane + 32 * i], square);
        const bool kept = warp == 0 && first && unit.last >= 0;
        head_finish(a, unit.row, warp == 0, square, x, nullptr,
            kept ? row_key(op, tail_row(a.pages, unit.last, tail), key_head) : nullptr);
    }
    __syncthreads();
    float with_q[KEY_EACH], with_k[KEY_EACH];
#pragma unroll
    for (int i = 0; i < KEY_EACH; i++) with_k[i] = own.x[0][lane + 32 * i], with_q[i] = own.x[1][lane + 32 * i];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int number = warp + half * (PRODUCT_WARPS / 2);
#pragma unroll
        for (int n = 0; n < ROUNDS; n++)
#pragma unroll
            for (int i = 0; i < KEY_EACH; i++)
                if (number + n * PRODUCT_WARPS == tail) keys[half][n][i] = with_k[i];
        const KeyProduct product = key_products(keys[half], with_q, with_k, number);
        if (product.on && product.key <= tail)
            own.factor[!product.of_k][product.key] = __fmul_rn(decay[product.key], product.sum);
    }
    if (tail == 0) d.make_anchor(unit, own, m.unit[1].updates[0]);
    d.multiply(own);
    float y = d.finish(unit, own, value);
    const float x = p.norm.gate_scale * gate;
    const float by = !p.norm.gate ? 1 : p.norm.gate_kind == GATE_SILU ? x * sigmoid(x) : sigmoid(x);
    if (p.norm.gate_first) y *= by;
    const float sum = warp_sum(fmaf(y, y, 0.0f));
    const int number = unit.first / 32 + warp - 2;
    cluster_wait();
    if (lane == 0 && d.which) {
        sums[number] = sum;
        cluster_store(cluster_address(sums + number, (int)cluster_rank() ^ 1), sum);
    }
    cluster_arrive();
    cluster_wait();
    float square = sums[0];
#pragma unroll
    for (int i = 1; i < VALUE_MAX / 32; i++) square += sums[i];
    y *= 1.0f / sqrtf(square / (float)VALUE_MAX + p.norm.eps);
    if (p.norm.weight) y *= norm_weight;
    if (!p.norm.gate_first) y *= by;
    if (d.which && d.has(unit)) p.norm.out[d.place(unit)] = y;
#endif
}

extern "C" int recurrent_block_fits(const RecurrentBlockArgs *p) {
    const RecurrenceArgs &a = p->recurrence;
    const Conv &conv = p->conv.op;
    const Recurrence &op = a.op;
    bool fits = a.chunks == op.rows && recurrence_decode_fits(a) && op.key_dim == KEY_MAX &&
        op.value_dim == VALUE_MAX && p->norm.group == VALUE_MAX &&
        op.rows * op.value_heads * pieces_of(op) <= ROW_BLOCKS * a.multiprocessors && conv.taps == ROW_TAPS &&
        conv.part_count == 3 && !conv.in_gate && !conv.out_gate;
    for (int i = 0; i < conv.part_count; i++) fits = fits && ((uintptr_t)conv.part[i].weight & 15) == 0;
    return fits;
}
extern "C" cudaError_t recurrent_block(cudaStream_t stream, const RecurrentBlockArgs *p) {
    const Recurrence &op = p->recurrence.op;
    const int bytes = (int)sizeof(DecodeMemory), pieces = pieces_of(op);
    cudaError_t error =
        cudaFuncSetAttribute(recurrent_block_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (!error) error = allow_beside(recurrent_block_kernel);
    const dim3 grid((unsigned)(op.rows * op.value_heads * pieces));
    return error ? error
                 : launch_clusters(stream, recurrent_block_kernel, grid, DECODE_BLOCK, (size_t)bytes, pieces, *p);
}
