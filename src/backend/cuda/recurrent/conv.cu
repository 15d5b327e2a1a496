/* Causal short convolution, and the gated norm behind recurrences. */
#include "backend/cuda/recurrent/recurrent.cuh"

constexpr int CONV_BLOCK = 256, NORM_BLOCK = 128;

/* The input of a channel at a position up to the chunk's last; at: the channel's place in pages. */
__device__ static float conv_input(
    const ConvArgs &a, const ConvPart &p, const Chunk &c, int channel, int64_t at, int position) {
    if (position >= c.position) {
        const int64_t place = (int64_t)(c.row + position - c.position) * p.channels + channel;
        const float x = load(p.x + place);
        return a.op.in_gate ? x * load(a.op.in_gate + place) : x;
    }
    if (c.position == 0) return 0;
    const int begin = (c.position - 1) / PAGE * PAGE;
    if (position >= begin) return load(tail_row(a.pages, c.before, position - begin) + at);
    int64_t channels = 0;
    for (int i = 0; i < a.op.part_count; i++) channels += a.op.part[i].channels;
    return load(anchor_of(a.pages, c.before) + (position - begin + a.op.taps - 1) * channels + at);
}

/* A channel of `each` rows: x is the block of channels, y the rows, z the part. A row that follows another of its chunk
 * has all inputs but its own from that one. */
__global__ void conv_kernel(const __grid_constant__ ConvArgs a, int each) {
    let_next_begin();
    wait_for_previous();
    const ConvPart &p = a.op.part[blockIdx.z];
    const int channel = (int)(blockIdx.x * blockDim.x + threadIdx.x), taps = a.op.taps;
    if (channel >= p.channels) return;
    int64_t at = channel, channels = 0;
    for (int i = 0; i < a.op.part_count; i++) {
        at += i < (int)blockIdx.z ? a.op.part[i].channels : 0;
        channels += a.op.part[i].channels;
    }
    const float bias = p.bias ? __ldg(p.bias + channel) : 0;
    float weight[CONV_TAPS_MAX], in[CONV_TAPS_MAX];
#pragma unroll
    for (int i = 0; i < CONV_TAPS_MAX; i++) {
        const int tap = i - (CONV_TAPS_MAX - taps);
        weight[i] = tap >= 0 ? __ldg(p.weight + (int64_t)channel * taps + tap) : 0;
    }
    const int first = (int)blockIdx.y * each, end = min(first + each, a.op.rows);
    Chunk c = chunk_of_row(a.step, a.pages, first);
    for (int row = first; row < end; row++) {
        const bool follows = row > first && row < c.row + c.rows;
        if (!follows && row > first) c = chunk_of_row(a.step, a.pages, row);
        const int position = c.position + row - c.row;
        /* All but the last input, and then that: loads of a row are on their way together. Inputs end at the last
         * element; there may be fewer taps. */
        const float own = conv_input(a, p, c, channel, at, position);
#pragma unroll
        for (int i = 0; i < CONV_TAPS_MAX - 1; i++) {
            const int before = CONV_TAPS_MAX - 1 - i;
            float old = 0;
            if (before < taps) old = follows ? in[i + 1] : conv_input(a, p, c, channel, at, position - before);
            in[i] = old;
        }
        in[CONV_TAPS_MAX - 1] = own;
        const int32_t page = page_of(c, position);
        const bool stored = page >= 0 && taps > 1;
        float sum = bias;
#pragma unroll
        for (int i = 0; i < CONV_TAPS_MAX; i++) {
            const int tap = i - (CONV_TAPS_MAX - taps);
            if (tap >= 0) sum = fmaf(weight[i], in[i], sum);
            if (tap >= 0 && tap < taps - 1 && stored && position % PAGE == 0)
                anchor_of(a.pages, page)[tap * channels + at] = in[i];
        }
        if (stored) tail_row(a.pages, page, position % PAGE)[at] = own;
        if (a.op.silu) sum = sum / (1.0f + expf(-sum));
        const int64_t place = (int64_t)row * p.channels + channel;
        p.out[place] = a.op.out_gate ? sum * load(a.op.out_gate + place) : sum;
    }
}

constexpr int DECODE_CONV_BLOCK = 128; /* threads, of four channels each */

__device__ static void multiply_by(float4 &v, const float *gate) {
    const float4 g = __ldcg((const float4 *)gate);
    v = make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
}

/* Chunks of single rows, as in decoding: a thread has four channels, a block some of a row. Sums have the
 * order of the kernel above. What a row needs is loaded in two rounds: the numbers of its page, then all inputs. */
template <int TAPS>
__global__ void __launch_bounds__(DECODE_CONV_BLOCK) conv_decode_kernel(const __grid_constant__ ConvArgs a) {
    const ConvPart &p = a.op.part[blockIdx.z];
    const int channel = ((int)blockIdx.x * DECODE_CONV_BLOCK + (int)threadIdx.x) * 4, row = (int)blockIdx.y;
    let_next_begin();
    const int32_t *table = a.pages.tables + (int64_t)__ldcg(a.step.chunks + row) * a.pages.table_stride;
    const int position = __ldcg(a.step.places + row);
    const int32_t before = __ldcg(table), last = __ldcg(table + 1);
    const bool on = channel < p.channels;
    int at = channel, channels = 0;
#pragma unroll
    for (int i = 0; i < CONV_PARTS_MAX; i++) {
        if (i >= a.op.part_count) break;
        at += i < (int)blockIdx.z ? (int)a.op.part[i].channels : 0;
        channels += (int)a.op.part[i].channels;
    }
    /* Steps before this one have written these. */
    float4 in[TAPS], weight[TAPS];
    const int begin = (position - 1) / PAGE * PAGE;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) {
        const int from = position - (TAPS - 1 - i);
        in[i] = make_float4(0, 0, 0, 0);
        if (!on || position == 0) continue;
        const float *old = from >= begin ? tail_row(a.pages, before, from - begin)
                                         : anchor_of(a.pages, before) + (int64_t)(from - begin + TAPS - 1) * channels;
        in[i] = __ldcg((const float4 *)(old + at));
    }
#pragma unroll
    for (int i = 0; i < TAPS; i++)
        weight[i] = on ? __ldg((const float4 *)(p.weight + (int64_t)channel * TAPS) + i) : make_float4(0, 0, 0, 0);
    wait_for_previous();
    if (!on) return;
    const int64_t place = (int64_t)row * p.channels + channel;
    in[TAPS - 1] = __ldcg((const float4 *)(p.x + place));
    if (a.op.in_gate) multiply_by(in[TAPS - 1], a.op.in_gate + place);
    const float4 bias = p.bias ? __ldg((const float4 *)(p.bias + channel)) : make_float4(0, 0, 0, 0);
    float sums[4] = {bias.x, bias.y, bias.z, bias.w};
    const float *weights = (const float *)weight; /* [channel][tap] */
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        const float inputs[4] = {in[i].x, in[i].y, in[i].z, in[i].w};
#pragma unroll
        for (int k = 0; k < 4; k++) sums[k] = fmaf(weights[k * TAPS + i], inputs[k], sums[k]);
    }
    if (last >= 0) {
        *(float4 *)(tail_row(a.pages, last, position % PAGE) + at) = in[TAPS - 1];
        if (position % PAGE == 0)
#pragma unroll
            for (int i = 0; i < TAPS - 1; i++)
                *(float4 *)(anchor_of(a.pages, last) + (int64_t)i * channels + at) = in[i];
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (a.op.silu) sums[k] = sums[k] / (1.0f + expf(-sums[k]));
    float4 out = make_float4(sums[0], sums[1], sums[2], sums[3]);
    if (a.op.out_gate) multiply_by(out, a.op.out_gate + place);
    *(float4 *)(p.out + place) = out;
}

static bool is_aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }

/* Whether conv_decode_kernel takes the operation. */
static bool conv_decode_fits(const ConvArgs &a) {
    const StatePages &pages = a.pages;
    bool fits = a.chunks == a.op.rows && (a.op.taps == 3 || a.op.taps == 4) && is_aligned(a.op.in_gate) &&
        is_aligned(a.op.out_gate) && pages.stride % 4 == 0 && pages.row % 4 == 0 && pages.anchor % 4 == 0 &&
        pages.row_at % 4 == 0 && pages.anchor_at % 4 == 0 && is_aligned(pages.pages);
    for (int i = 0; i < a.op.part_count; i++) {
        const ConvPart &p = a.op.part[i];
        fits = fits && p.channels % 4 == 0 && is_aligned(p.x) && is_aligned(p.out) && is_aligned(p.weight) &&
            (!p.bias || is_aligned(p.bias));
    }
    return fits;
}

extern "C" cudaError_t recurrent_conv(cudaStream_t stream, const ConvArgs *args) {
    constexpr int EACH = 16; /* rows of a thread, where chunks are as long */
    const int rows = args->op.rows, each = rows / args->chunks >= EACH ? EACH : 1;
    int64_t most = 0;
    for (int i = 0; i < args->op.part_count; i++)
        most = args->op.part[i].channels > most ? args->op.part[i].channels : most;
    if (conv_decode_fits(*args)) {
        const dim3 decode_grid((unsigned)((most / 4 + DECODE_CONV_BLOCK - 1) / DECODE_CONV_BLOCK), (unsigned)rows,
            (unsigned)args->op.part_count);
        return launch(stream, args->op.taps == 3 ? conv_decode_kernel<3> : conv_decode_kernel<4>, decode_grid,
            DECODE_CONV_BLOCK, 0, *args);
    }
    const dim3 grid((unsigned)((most + CONV_BLOCK - 1) / CONV_BLOCK), (unsigned)((rows + each - 1) / each),
        (unsigned)args->op.part_count);
    return launch(stream, conv_kernel, grid, CONV_BLOCK, 0, *args, each);
}

__device__ static float gate_at(const GatedNorm &op, int64_t at) {
    const float x = op.gate_scale * load(op.gate + at);
    return op.gate_kind == GATE_SILU ? x * sigmoid(x) : sigmoid(x);
}

/* A group of a row. */
__global__ void gated_norm_kernel(const __grid_constant__ GatedNorm op) {
    __shared__ float sums[NORM_BLOCK / 32];
    let_next_begin();
    wait_for_previous();
    const int64_t group = op.group ? op.group : op.width, first = blockIdx.x * group;
    const int64_t row = (int64_t)blockIdx.y * op.width + first;
    float square = 0, scale = 1;
    for (int64_t i = threadIdx.x; op.group && i < group; i += NORM_BLOCK) {
        float v = load(op.x + row + i);
        if (op.gate && op.gate_first) v *= gate_at(op, row + i);
        square = fmaf(v, v, square);
    }
    square = warp_sum(square);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = square;
    __syncthreads();
    square = sums[0];
    for (int i = 1; i < NORM_BLOCK / 32; i++) square += sums[i];
    if (op.group) scale = 1.0f / sqrtf(square / (float)group + op.eps);
    for (int64_t i = threadIdx.x; i < group; i += NORM_BLOCK) {
        float v = load(op.x + row + i);
        if (op.gate && op.gate_first) v *= gate_at(op, row + i);
        v *= scale;
        if (op.group && op.weight) v *= __ldg(op.weight + first + i);
        if (op.gate && !op.gate_first) v *= gate_at(op, row + i);
        op.out[row + i] = v;
    }
}

/* Groups of NORM_BLOCK elements, a warp for each; sums have the order of the kernel above. */
__global__ void __launch_bounds__(CONV_BLOCK)
    gated_norm_usual_kernel(const __grid_constant__ GatedNorm op, int groups) {
    constexpr int EACH = NORM_BLOCK / 32;
    let_next_begin();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t number = (int64_t)blockIdx.x * (CONV_BLOCK / 32) + warp;
    if (number >= (int64_t)groups * op.rows) return;
    const int64_t first = number % groups * NORM_BLOCK, at = number * NORM_BLOCK + lane;
    float v[EACH], gate[EACH], square = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = load(op.x + at + 32 * i);
        gate[i] = op.gate ? gate_at(op, at + 32 * i) : 1;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (op.gate && op.gate_first) v[i] *= gate[i];
        const float sum = warp_sum(fmaf(v[i], v[i], 0.0f));
        square = i ? square + sum : sum;
    }
    const float scale = 1.0f / sqrtf(square / (float)NORM_BLOCK + op.eps);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] *= scale;
        if (op.weight) v[i] *= __ldg(op.weight + first + lane + 32 * i);
        if (op.gate && !op.gate_first) v[i] *= gate[i];
        op.out[at + 32 * i] = v[i];
    }
}

extern "C" cudaError_t recurrent_gated_norm(cudaStream_t stream, const GatedNorm *op) {
    const int64_t group = op->group ? op->group : op->width;
    if (op->group == NORM_BLOCK) {
        const int groups = (int)(op->width / group), warps = CONV_BLOCK / 32;
        const dim3 grid((unsigned)(((int64_t)groups * op->rows + warps - 1) / warps));
        return launch(stream, gated_norm_usual_kernel, grid, CONV_BLOCK, 0, *op, groups);
    }
    const dim3 grid((unsigned)(op->width / group), (unsigned)op->rows);
    return launch(stream, gated_norm_kernel, grid, NORM_BLOCK, 0, *op);
}
