/* Recurrences of steps whose chunks are single rows, as in decoding: reading states takes nearly all of the time. A
 * unit is a value head of a row. A block takes one unit after another, with whole states on their way into slots of
 * shared memory; two groups of warps take turns with the units. Sums have the order of recurrence.cu. */
#include "backend/cuda/recurrent/recurrence.cuh"
#include "backend/cuda/runtime/bulk.cuh"

enum {
    KEYS = 16, /* elements of the key in a warp */
    KEY_MAX = HEAD_WARPS * KEYS,
    VALUE_MAX = 128,
    COLS = VALUE_MAX / 32, /* columns of a lane: every 32nd */
    GROUPS = 2,
    GROUP = 32 * HEAD_WARPS, /* threads of a group: one for the products of each column with k, one with q */
    ORDERS = GROUP - 32, /* the thread of a group that orders copies: not one of the first warp, which has most to do */
    DECODE_BLOCK = GROUPS * GROUP,
    STATES_MAX = 8, /* slots */
    SLOT_ALIGN = 128,
};
static_assert(GROUP == 2 * VALUE_MAX && KEY_MAX == VALUE_MAX, "a thread has a column, and an element of k or q");

struct GroupMemory {
    float x[2][KEY_MAX];                   /* k and q */
    float parts[HEAD_WARPS][2][VALUE_MAX]; /* sums of the warps */
    float factor[2][PAGE];                 /* factors of the updates in the products with k and q */
    float weight[PAGE], all;               /* a new anchor: factors of the updates and of the state before */
    float update[VALUE_MAX];               /* the row's own */
    float state, dt, beta, log_decay;      /* the row's own; state: factor of the state's products */
};
struct DecodeMemory {
    uint64_t full[STATES_MAX];
    GroupMemory group[GROUPS];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* A row and a value head of it. */
struct Unit {
    int row, head, position;
    int32_t before, last; /* pages of the position before, and of the row */
    __device__ Unit(const RecurrenceArgs &a, int unit) : row(unit / a.op.value_heads), head(unit % a.op.value_heads) {
        const int32_t *table = a.pages.tables + (int64_t)__ldcg(a.step.chunks + row) * a.pages.table_stride;
        position = __ldcg(a.step.places + row);
        before = __ldcg(table);
        last = __ldcg(table + 1);
    }
};

__device__ static float *state_of(const RecurrenceArgs &a, int32_t page, int head) {
    return anchor_of(a.pages, page) + (int64_t)head * a.op.key_dim * a.op.value_dim;
}

/* The state that a unit reads. NULL: there is no such unit, or its text begins there. */
__device__ static const float *state_before(const RecurrenceArgs &a, int unit) {
    if (unit >= a.op.rows * a.op.value_heads) return nullptr;
    const Unit own(a, unit);
    return own.position > 0 ? state_of(a, own.before, own.head) : nullptr;
}

/* Orders the copy of a state into a slot. NULL: nothing is to arrive. By one thread. Steps before this one have written
 * the state, so kernels of this step that still run do not matter. */
__device__ static void bring_state(const RecurrenceArgs &a, const float *state, uint32_t slot, uint32_t full) {
    if (state) {
        const uint32_t bytes = (uint32_t)(a.op.key_dim * a.op.value_dim * (int)sizeof(float));
        barrier_expect(full, bytes);
        copy_bulk(slot, state, bytes, full, policy_first());
    } else {
        barrier_arrive(full);
    }
}

/* A unit's slot and the state that comes into it afterwards. */
struct Slot {
    float *memory;
    uint32_t full, phase;
    int next; /* the unit of that state */
};

struct Decoder {
    const RecurrenceArgs &a;
    GroupMemory &m;
    const int group, thread, warp, lane, which, column; /* which: 0, the products with k; 1, those with q */
    const bool in;                                      /* the column exists */

    __device__ Decoder(const RecurrenceArgs &args, DecodeMemory &memory)
        : a(args), m(memory.group[threadIdx.x / GROUP]), group(threadIdx.x / GROUP), thread(threadIdx.x % GROUP),
          warp(thread / 32), lane(threadIdx.x % 32), which(thread / VALUE_MAX), column(thread % VALUE_MAX),
          in(thread % VALUE_MAX < args.op.value_dim) {}

    __device__ void sync() const { asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"((int)GROUP) : "memory"); }

    /* Time step and factors, by the first warp. tail: rows of the page before the row. All loads come first. */
    __device__ void factors(const Unit &unit, int tail) {
        const Recurrence &op = a.op;
        const bool anchor = unit.position > 0 && tail == 0, delta = op.kind == RECURRENCE_DELTA;
        const int64_t head = (int64_t)unit.row * op.value_heads + unit.head;
        const float *products = products_of(op, unit.row, key_head_of(op, unit.head));
        const float with_q = lane <= tail ? load(products + lane) : 0,
                    with_k = lane <= tail && delta ? load(products + PAGE + lane) : 0,
                    old = anchor || lane < tail ? load(row_decays(op, tail_row(a.pages, unit.before, lane), unit.head))
                                                : 0,
                    b = op.b ? load(op.b + head) : 0, rate = __ldg(op.rate + unit.head);
        const float dt = time_step(op, unit.row, unit.head, op.value_heads), own = __fmul_rn(rate, dt);
        if (anchor) {
            float behind = 0, all = 0;
#pragma unroll
            for (int n = 0; n < PAGE; n++) {
                const float v = __shfl_sync(~0u, old, n);
                all += v;
                behind = n > lane ? behind + v : behind;
            }
            m.weight[lane] = expf(behind);
            if (lane == 0) m.all = expf(all);
        }
        const float log_decay = lane == tail ? own : old;
        float behind = 0, all = 0;
#pragma unroll
        for (int n = 0; n < PAGE; n++) {
            const float v = __shfl_sync(~0u, log_decay, n);
            all = n <= tail ? all + v : all;
            behind = n <= tail && n > lane ? behind + v : behind;
        }
        const float decay = expf(behind);
        m.factor[0][lane] = __fmul_rn(decay, with_k);
        m.factor[1][lane] = __fmul_rn(decay, with_q);
        if (lane > 0) return;
        m.state = expf(all);
        m.dt = dt;
        m.beta = op.b ? sigmoid(b) : 1;
        m.log_decay = own;
    }

    /* This warp's part of the state's products with k and q; s(i, c): an element. */
    template <class S> __device__ void multiply(const S &s) {
        float sum[2][COLS] = {};
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const float k = m.x[0][warp * KEYS + i], q = m.x[1][warp * KEYS + i];
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                const float v = s(i, c);
                sum[0][c] = fmaf(k, v, sum[0][c]);
                sum[1][c] = fmaf(q, v, sum[1][c]);
            }
        }
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            m.parts[warp][0][lane + 32 * c] = sum[0][c];
            m.parts[warp][1][lane + 32 * c] = sum[1][c];
        }
    }

    __device__ bool there(int i, int c) const {
        return warp * KEYS + i < a.op.key_dim && lane + 32 * c < a.op.value_dim;
    }
    __device__ int at(int i, int c) const { return (warp * KEYS + i) * a.op.value_dim + lane + 32 * c; }

    /* The row is the first of a page: makes the state before it from the page before, stores it, and leaves it in the
     * slot. Some columns after the others, as registers are few. */
    __device__ void make_anchor(const Unit &unit, float *slot) {
        constexpr int SOME = COLS / 2;
        const Recurrence &op = a.op;
        const int key_head = key_head_of(op, unit.head);
        float *to = state_of(a, unit.last, unit.head);
#pragma unroll 1
        for (int first = 0; first < COLS; first += SOME) {
            float s[KEYS][SOME];
#pragma unroll
            for (int i = 0; i < KEYS; i++)
#pragma unroll
                for (int c = 0; c < SOME; c++)
                    s[i][c] = unit.position > 0 && there(i, first + c) ? __fmul_rn(slot[at(i, first + c)], m.all) : 0;
#pragma unroll 2
            for (int j = 0; j < PAGE && unit.position > 0; j++) {
                float *row = tail_row(a.pages, unit.before, j);
                const float *keys = row_key(op, row, key_head), *updates = row_update(op, row, unit.head);
                const float own = lane < KEYS && warp * KEYS + lane < op.key_dim ? load(keys + warp * KEYS + lane) : 0;
                float u[SOME];
#pragma unroll
                for (int c = 0; c < SOME; c++) {
                    const int column = lane + 32 * (first + c);
                    u[c] = column < op.value_dim ? __fmul_rn(m.weight[j], load(updates + column)) : 0;
                }
#pragma unroll
                for (int i = 0; i < KEYS; i++) {
                    const float key = __shfl_sync(~0u, own, i);
#pragma unroll
                    for (int c = 0; c < SOME; c++) s[i][c] = fmaf(key, u[c], s[i][c]);
                }
            }
#pragma unroll
            for (int i = 0; i < KEYS; i++)
#pragma unroll
                for (int c = 0; c < SOME; c++)
                    if (there(i, first + c)) slot[at(i, first + c)] = to[at(i, first + c)] = s[i][c];
        }
        /* Copies come into the slot again. */
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }

    /* This warp's part of the products with the state in a slot. */
    __device__ void multiply_slot(const float *slot) {
        if (a.op.key_dim == KEY_MAX && a.op.value_dim == VALUE_MAX) {
            const float *from = slot + warp * KEYS * VALUE_MAX + lane;
            multiply([=](int i, int c) { return from[i * VALUE_MAX + 32 * c]; });
        } else {
            multiply([&](int i, int c) { return there(i, c) ? slot[at(i, c)] : 0.0f; });
        }
    }

    /* k, q and factors of a row in shared memory. */
    __device__ void prepare(const Unit &unit, int tail) {
        const Recurrence &op = a.op;
        const int64_t key = ((int64_t)unit.row * op.key_heads + key_head_of(op, unit.head)) * op.key_dim;
        const bool used = column < op.key_dim && (which || op.kind == RECURRENCE_DELTA);
        m.x[which][column] = used ? load((which ? op.q : op.k) + key + column) : 0;
        if (warp == 0) factors(unit, tail);
        sync();
    }

    /* u: updates of the tail of this column. */
    template <bool TAIL>
    __device__ void finish(
        const Unit &unit, int tail, float v, const float *u, const Slot &slot, const float *next_state) {
        const Recurrence &op = a.op;
        const bool delta = op.kind == RECURRENCE_DELTA;
        sync();
        if (thread == ORDERS) bring_state(a, next_state, shared_address(slot.memory), slot.full);
        float y = m.parts[0][which][column];
#pragma unroll
        for (int w = 1; w < HEAD_WARPS; w++) y += m.parts[w][which][column];
        y = unit.position > 0 ? __fmul_rn(m.state, y) : 0;
        if constexpr (TAIL) {
#pragma unroll
            for (int j = 0; j < PAGE - 1; j++)
                if (j < tail) y = fmaf(m.factor[which][j], u[j], y);
        }
        const float own = m.factor[1][tail];
        if (!which) {
            const float update = delta ? __fmul_rn(m.beta, v - y) : __fmul_rn(m.dt, v);
            m.update[column] = update;
            float *row = tail_row(a.pages, unit.last, tail);
            if (in) row_update(op, row, unit.head)[column] = update;
            if (column == 0) *row_decays(op, row, unit.head) = m.log_decay;
        }
        sync();
        if (!which) return;
        y = fmaf(own, m.update[column], y);
        if (op.skip) y = fmaf(__ldg(op.skip + unit.head), v, y);
        if (in) op.out[((int64_t)unit.row * op.value_heads + unit.head) * op.value_dim + column] = y;
    }

    __device__ void run(const Unit &unit, const Slot &slot) {
        const Recurrence &op = a.op;
        const int tail = unit.position % PAGE;
        const float *value = op.v + ((int64_t)unit.row * op.value_heads + unit.head) * op.value_dim + column;
        const float *next_state = thread == ORDERS ? state_before(a, slot.next) : nullptr;
        if (tail == 0) {
            const float v = in ? load(value) : 0;
            prepare(unit, tail);
            barrier_wait(slot.full, slot.phase);
            make_anchor(unit, slot.memory);
            multiply_slot(slot.memory);
            finish<false>(unit, tail, v, nullptr, slot, next_state);
            return;
        }
        float u[PAGE - 1]; /* on their way while the state arrives */
#pragma unroll
        for (int j = 0; j < PAGE - 1; j++)
            u[j] = j < tail && in ? load(row_update(op, tail_row(a.pages, unit.before, j), unit.head) + column) : 0;
        const float v = in ? load(value) : 0;
        prepare(unit, tail);
        barrier_wait(slot.full, slot.phase);
        multiply_slot(slot.memory);
        finish<true>(unit, tail, v, u, slot, next_state);
    }
};
#endif

__global__ void __launch_bounds__(DECODE_BLOCK, 1)
    recurrence_decode_kernel(const __grid_constant__ RecurrenceArgs a, int slots, int stride) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t memory[]; /* slots, then DecodeMemory */
    DecodeMemory &m = *(DecodeMemory *)(memory + slots * stride);
    let_next_begin();
    const int units = a.op.rows * a.op.value_heads;
    if (threadIdx.x == 0) {
        for (int i = 0; i < slots; i++) barrier_make(shared_address(m.full + i), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < slots; i++)
            bring_state(a, state_before(a, (int)(blockIdx.x + i * gridDim.x)), shared_address(memory + i * stride),
                shared_address(m.full + i));
    }
    __syncthreads();
    wait_for_previous();
    Decoder decoder(a, m);
    /* Slots of the units before the group's first one are passed over. */
    Turn turn;
    for (int i = 0; i < decoder.group; i++) turn.next(slots);
    int number = blockIdx.x + decoder.group * gridDim.x;
    Unit unit(a, min(number, units - 1));
    while (number < units) {
        const int next = number + GROUPS * (int)gridDim.x;
        const Unit ahead(a, min(next, units - 1));
        const Slot slot = {(float *)(memory + turn.at * stride), shared_address(m.full + turn.at), turn.phase,
            number + slots * (int)gridDim.x};
        decoder.run(unit, slot);
        for (int i = 0; i < GROUPS; i++) turn.next(slots);
        number = next;
        unit = ahead;
    }
#endif
}

static int slot_bytes(const Recurrence &op) {
    const int bytes = op.key_dim * op.value_dim * (int)sizeof(float);
    return (bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}
static int slots_of(const RecurrenceArgs &a) {
    const int slots = (a.shared_bytes - (int)sizeof(DecodeMemory)) / slot_bytes(a.op);
    return slots < STATES_MAX ? slots : STATES_MAX;
}

/* Bulk copies have addresses and sizes of 16 bytes. */
bool recurrence_decode_fits(const RecurrenceArgs &a) {
    const Recurrence &op = a.op;
    return a.bulk && !op.channel_decay && op.key_dim <= KEY_MAX && op.value_dim <= VALUE_MAX &&
        op.key_dim * op.value_dim % 4 == 0 && a.pages.stride % 4 == 0 &&
        ((uintptr_t)(a.pages.pages + a.pages.anchor_at) & 15) == 0 && slots_of(a) >= GROUPS;
}

cudaError_t recurrence_decode(cudaStream_t stream, const RecurrenceArgs &a) {
    const int slots = slots_of(a), stride = slot_bytes(a.op), units = a.op.rows * a.op.value_heads;
    const size_t bytes = (size_t)(slots * stride) + sizeof(DecodeMemory);
    cudaError_t error =
        cudaFuncSetAttribute(recurrence_decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, a.shared_bytes);
    if (!error) error = allow_beside(recurrence_decode_kernel);
    const int blocks = units < a.multiprocessors ? units : a.multiprocessors;
    return error ? error
                 : launch(stream, recurrence_decode_kernel, dim3(blocks), DECODE_BLOCK, bytes, a, slots, stride);
}
