/* Row kernels: norms, activations, sums. Compiled once per instruction set. Tails use the same arithmetic as full
 * vectors. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/vec16.h"

static void norm_row(const float *x, const Norm *norm, float *out) {
    const int64_t width = norm->width, whole = width & ~(int64_t)15;
    const int rest = (int)(width - whole);
    Vec mean = vec_set(0);
    if (norm->kind == NORM_LAYER) {
        Vec sum = vec_set(0);
        for (int64_t i = 0; i < whole; i += 16) sum = vec_add(sum, vec_load(x + i));
        if (rest) sum = vec_add(sum, vec_load_some(x + whole, rest));
        mean = vec_set(vec_sum(sum) / (float)width);
    }
    Vec squares = vec_set(0);
    for (int64_t i = 0; i < whole; i += 16) {
        const Vec d = vec_sub(vec_load(x + i), mean);
        squares = vec_fma(d, d, squares);
    }
    if (rest) {
        const Vec d = vec_select(mask_range(0, rest), vec_sub(vec_load_some(x + whole, rest), mean), vec_set(0));
        squares = vec_fma(d, d, squares);
    }
    const Vec scale = vec_set(1.0f / sqrtf(vec_sum(squares) / (float)width + norm->eps));
    for (int64_t i = 0; i < width; i += 16) {
        const int count = i < whole ? 16 : rest;
        Vec y = vec_mul(vec_sub(count == 16 ? vec_load(x + i) : vec_load_some(x + i, count), mean), scale);
        if (norm->weight)
            y = vec_mul(y, count == 16 ? vec_load(norm->weight + i) : vec_load_some(norm->weight + i, count));
        if (norm->bias) y = vec_add(y, count == 16 ? vec_load(norm->bias + i) : vec_load_some(norm->bias + i, count));
        if (count == 16)
            vec_store(out + i, y);
        else
            vec_store_some(out + i, y, count);
    }
}

VEC_INLINE Vec vec_activation(Vec x, Activation activation) {
    switch (activation.kind) {
    case ACT_SILU: return vec_swish(x, x);
    case ACT_GELU_TANH: { /* ½x(1 + tanh u) = x·σ(2u) */
        const Vec cube = vec_mul(vec_mul(x, x), x);
        return vec_swish(x, vec_mul(vec_set(1.59576912f), vec_fma(vec_set(0.044715f), cube, x)));
    }
    case ACT_GELU: { /* ½x·erfc(−x/√2), from the side where erfc is small */
        const Vec u = vec_mul(x, vec_set(0.70710678f)), flipped = vec_sub(vec_set(0), u);
        const Mask negative = mask_less(x, vec_set(0));
        const Vec tail = vec_mul(vec_set(0.5f), vec_erfc(vec_select(negative, flipped, u)));
        return vec_mul(x, vec_select(negative, tail, vec_sub(vec_set(1), tail)));
    }
    case ACT_RELU2: {
        const Vec positive = vec_max(x, vec_set(0));
        return vec_mul(positive, positive);
    }
    case ACT_XIELU: { /* e^x − 1 near 0 by its series, which f32 would otherwise round away */
        const Vec none = vec_set(0), small = vec_sub(none, vec_max(vec_sub(none, x), vec_set(1e-6f)));
        const Vec series = vec_mul(small, vec_fma(small, vec_fma(small, vec_set(1.0f / 6), vec_set(0.5f)), vec_set(1)));
        const Vec far = vec_sub(vec_exp(small), vec_set(1));
        const Vec grown = vec_select(mask_less(small, vec_set(-0.02f)), far, series);
        const Vec negative = vec_mul(vec_set(activation.b), vec_sub(grown, x));
        const Vec positive = vec_mul(vec_mul(vec_set(activation.a), x), x);
        return vec_fma(vec_set(activation.c), x, vec_select(mask_less(none, x), positive, negative));
    }
    case ACT_CLAMP: {
        const Vec none = vec_set(0), low = vec_max(x, vec_set(activation.a));
        return vec_sub(none, vec_max(vec_sub(none, low), vec_set(-activation.b)));
    }
    case ACT_RELU: return vec_max(x, vec_set(0));
    case ACT_NONE:
    case ACT_SILU_CLAMPED:
    case ACT_SILU_LIMITED: return x;
    }
    return x;
}

/* x, at most `most`. */
VEC_INLINE Vec vec_at_most(Vec x, float most) {
    const Vec none = vec_set(0);
    return vec_sub(none, vec_max(vec_sub(none, x), vec_set(-most)));
}

VEC_INLINE Vec vec_gated(Vec gate, Vec up, Activation activation) {
    if (activation.kind == ACT_SILU_LIMITED) {
        const Vec limited = vec_at_most(gate, activation.a);
        const Vec inside = vec_at_most(vec_max(up, vec_set(-activation.b)), activation.b);
        return vec_mul(vec_swish(limited, limited), inside);
    }
    if (activation.kind != ACT_SILU_CLAMPED) return vec_mul(vec_activation(gate, activation), up);
    const Vec most = vec_set(activation.b), none = vec_set(0), one = vec_set(1);
    const Vec g = vec_sub(none, vec_max(vec_sub(none, gate), vec_sub(none, most)));
    const Vec u = vec_sub(none, vec_max(vec_sub(none, vec_max(up, vec_set(-activation.b))), vec_sub(none, most)));
    return vec_mul(vec_swish(g, vec_mul(vec_set(activation.a), g)), vec_add(u, one));
}

static void glu_row(int64_t count, const float *gate, const float *up, Activation activation, float *out) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) vec_store(out + i, vec_gated(vec_load(gate + i), vec_load(up + i), activation));
    const int rest = (int)(count - i);
    if (rest)
        vec_store_some(
            out + i, vec_gated(vec_load_some(gate + i, rest), vec_load_some(up + i, rest), activation), rest);
}

static void activate_row(int64_t count, const float *x, Activation activation, float *out) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) vec_store(out + i, vec_activation(vec_load(x + i), activation));
    const int rest = (int)(count - i);
    if (rest) vec_store_some(out + i, vec_activation(vec_load_some(x + i, rest), activation), rest);
}

static void logits_row(int64_t count, float *x, float scale, float cap) {
    const Vec factor = vec_set(cap > 0 ? scale / cap : scale), top = vec_set(cap);
    for (int64_t i = 0; i < count; i += 16) {
        const int n = count - i < 16 ? (int)(count - i) : 16;
        Vec v = vec_mul(n == 16 ? vec_load(x + i) : vec_load_some(x + i, n), factor);
        if (cap > 0) v = vec_mul(top, vec_tanh(v));
        if (n == 16)
            vec_store(x + i, v);
        else
            vec_store_some(x + i, v, n);
    }
}
