/* Attention as a textbook has it, in double: of each row all keys are asked whether they are visible, by the words of
 * backend.h and not by its functions. */
#pragma once
#include "attend.h"

static inline bool naive_sees(const Sequence *seq, int window, int i, int j) {
    for (int n = 0; n < seq->span_count && seq->span_rule != SPANS_IGNORED; n++) {
        const BidirectionalSpan *span = &seq->spans[n];
        if (span->begin <= i && i < span->end && span->begin <= j && j < span->end)
            return window == 0 || j > i - window || seq->span_rule == SPANS_WHOLE;
    }
    return j <= i && (window == 0 || (seq->chunked ? j / window == i / window : j > i - window));
}

/* The angle of a pair of a row. The product is rounded to f32, as backend.h says. */
static inline double naive_angle(const Bench *b, const Sequence *seq, int t, int pair) {
    const Rope *rope = &b->rope;
    int axis = 0;
    for (int end = 0, n = 0; b->position_dims > 1 && n < POSITION_DIMS_MAX; n++) {
        if (pair >= end && pair < end + rope->mrope_section[n]) axis = n;
        end += rope->mrope_section[n];
    }
    if (b->position_dims > 1 && rope->mrope_interleaved)
        axis = pair % 3 == 1 && pair / 3 < rope->mrope_section[1] ? 1
            : pair % 3 == 2 && pair / 3 < rope->mrope_section[2]  ? 2
                                                                  : 0;
    const int place = seq->places ? seq->places[axis * seq->tokens + t] : t;
    if (rope->dynamic.positions == 0 || place < rope->dynamic.positions)
        return (double)((float)place * rope->frequencies[pair]);
    const double factor = (double)rope->dynamic.factor, dims = rope->dims;
    const double grown = factor * (place + 1) / rope->dynamic.positions - (factor - 1);
    return place * pow((double)rope->dynamic.theta * pow(grown, dims / (dims - 2)), -2 * pair / dims);
}

static inline void naive_head(
    const Bench *b, const Sequence *seq, int t, const float *from, const Norm *norm, double *head) {
    const int width = b->shape->head_dim, half = b->rope.dims / 2;
    double square = 0;
    for (int i = 0; i < width; i++) square += (double)from[i] * from[i];
    for (int i = 0; i < width; i++)
        head[i] = norm ? from[i] / sqrt(square / width + (double)norm->eps) * norm->weight[i] : from[i];
    for (int i = 0; b->shape->rope && i < half; i++) {
        const bool interleaved = b->rope.interleaved;
        double *first = &head[interleaved ? 2 * i : i], *second = &head[interleaved ? 2 * i + 1 : i + half];
        const double angle = naive_angle(b, seq, t, i), scale = (double)b->rope.scale;
        const double x = *first * scale, y = *second * scale;
        *first = x * cos(angle) - y * sin(angle);
        *second = x * sin(angle) + y * cos(angle);
    }
}

/* As the cache holds it. */
static inline double naive_stored(double x, DType dtype) {
    const float f = (float)x;
    if (dtype == DTYPE_F32) return x;
    return (double)(dtype == DTYPE_F16 ? f16_to_f32(f32_to_f16(f)) : bf16_to_f32(f32_to_bf16(f)));
}

static inline void naive_attend(const Bench *b, int t, int head, const double *keys, double *scores, float *out) {
    const Shape *s = b->shape;
    const Sequence *seq = &b->sequence[0];
    const int kv_head = head / (s->heads / s->kv_heads);
    double q[ATTENTION_HEAD_MAX], sum = 0, most = s->sinks ? (double)b->sinks[head] : -INFINITY;
    naive_head(b, seq, t, seq->q + ((int64_t)t * s->heads + head) * s->head_dim, s->norm ? &b->q_norm : NULL, q);
    for (int j = 0; j < seq->tokens; j++) {
        const double *k = keys + ((int64_t)j * s->kv_heads + kv_head) * s->head_dim;
        double score = 0;
        for (int i = 0; i < s->head_dim; i++) score += q[i] * k[i];
        score /= sqrt(s->head_dim);
        if (s->softcap > 0) score = (double)s->softcap * tanh(score / (double)s->softcap);
        scores[j] = naive_sees(seq, s->window, t, j) ? score : -INFINITY;
        most = fmax(most, scores[j]);
    }
    for (int j = 0; j < seq->tokens; j++) sum += scores[j] = exp(scores[j] - most);
    if (s->sinks) sum += exp((double)b->sinks[head] - most);
    for (int i = 0; i < s->value_dim; i++) {
        double value = 0;
        for (int j = 0; j < seq->tokens; j++)
            value += scores[j] *
                naive_stored((double)seq->v[((int64_t)j * s->kv_heads + kv_head) * s->value_dim + i], s->dtype);
        out[i] = (float)(value / sum);
    }
}

/* Sequence 0. Shapes with a norm over the whole projection are not for this. */
static inline void naive_compute(const Bench *b, float *out) {
    const Shape *s = b->shape;
    const Sequence *seq = &b->sequence[0];
    double *keys = malloc((size_t)(seq->tokens * k_width(s)) * sizeof *keys);
    double *scores = malloc((size_t)seq->tokens * sizeof *scores);
    if (!keys || !scores || s->norm == NORM_FULL) abort();
    for (int t = 0; t < seq->tokens; t++)
        for (int h = 0; h < s->kv_heads; h++) {
            double *head = keys + ((int64_t)t * s->kv_heads + h) * s->head_dim;
            naive_head(b, seq, t, seq->k + (head - keys), s->norm ? &b->k_norm : NULL, head);
            for (int i = 0; i < s->head_dim; i++) head[i] = naive_stored(head[i], s->dtype);
        }
    for (int t = 0; t < seq->tokens; t++)
        for (int h = 0; h < s->heads; h++)
            naive_attend(b, t, h, keys, scores, out + ((int64_t)t * s->heads + h) * s->value_dim);
    free(keys);
    free(scores);
}

/* Sequence 0 on every backend there is: near the naive model, and the same bits however the steps are cut, beside whom,
 * with however many threads. */
static inline void check_naive(Bench *b, double limit) {
    static const char *const names[] = {"ref", "avx2", "avx512", "amx", "neon"};
    static const struct {
        int threads, chunk;
        bool strangers;
    } cuts[] = {{1, 1, false}, {2, 7, true}, {2, 1, true}, {3, 64, false}, {4, 129, true}, {1, 100, true}};
    const Shape *s = b->shape;
    const int64_t count = (int64_t)s->tokens * out_width(s);
    float *expected = random_floats(count, 0), *first = random_floats(count, 0), *other = random_floats(count, 0);
    naive_compute(b, expected);
    for (size_t n = 0; n < COUNT_OF(names); n++) {
        Backend *single = open_backend(names[n], 1, false, ROWS_MAX);
        if (!single) continue; /* not on this machine */
        compute(single, b, 512, false, first);
        const double far = distance(first, expected, count);
        TEST_MSG(far <= limit, "%s: %s: %g from the naive model", names[n], s->name, far);
        backend_close(single);
        for (size_t i = 0; i < COUNT_OF(cuts); i++) {
            Backend *backend = open_backend(names[n], cuts[i].threads, false, ROWS_MAX);
            memset(other, 0, (size_t)count * sizeof *other);
            compute(backend, b, cuts[i].chunk, cuts[i].strangers, other);
            TEST_MSG(same_bits(first, other, count), "%s: %s: %d threads, steps of %d%s: %g away", names[n], s->name,
                cuts[i].threads, cuts[i].chunk, cuts[i].strangers ? " beside strangers" : "",
                distance(other, first, count));
            backend_close(backend);
        }
    }
    free(expected);
    free(first);
    free(other);
}
