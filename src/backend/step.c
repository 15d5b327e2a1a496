/* Functions of a step that all backends share: visible and quantised keys of a position, RoPE angles of a row, sizes.
 */
#include <math.h>

#include "backend/backend.h"

AttentionRange attention_range(const SequenceChunk *chunk, int window, bool chunked, SpanRule span_rule, int position) {
    AttentionRange seen = {window && position >= window ? position - window + 1 : 0, position + 1};
    if (window && chunked) seen.first = position / window * window;
    for (int i = 0; i < chunk->span_count && span_rule != SPANS_IGNORED; i++) {
        const BidirectionalSpan *span = &chunk->spans[i];
        if (position < span->begin || position >= span->end) continue;
        seen.end = span->end;
        if (span_rule == SPANS_WHOLE) seen.first = span->begin;
    }
    return seen;
}

int64_t mla_width(const Mla *op) {
    const KvLayout *l = &op->attention.kv.layout;
    const int64_t width = op->w_uv[0].rows, widest = width > op->nope_dim ? width : op->nope_dim;
    return op->attention.heads * (int64_t)(l->head_dim + 2 * l->value_dim) + l->value_dim + widest;
}

/* Sets the bits of keys first ≤ j < end, counted from the mask's base. */
static void mask_keys(KeyMask *mask, int64_t first, int64_t end) {
    for (int64_t t = first < 0 ? 0 : first; t < end && t < KV_PAGE_TOKENS; t++)
        mask->bits[t / 64] |= (uint64_t)1 << t % 64;
}

/* The first chosen block that ends behind `base`. */
static int find_chosen(const KeySelection *s, const int32_t *chosen, int base) {
    int low = 0, high = s->top_k;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (chosen[middle] >= 0 && ((int64_t)chosen[middle] + 1) * s->block <= base)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

KeyMask key_mask(const KeySelection *s, int row, int head, int kv_head, int position, int base) {
    KeyMask mask = {0};
    const int64_t end = (int64_t)base + KV_PAGE_TOKENS, size = s->block;
    for (int64_t b = base / size; s->stride && b * size < end; b++)
        if (b > position / size - s->local || (b + 1 + (int64_t)s->head_step * head) % s->stride == 0)
            mask_keys(&mask, b * size - base, (b + 1) * size - base);
    if (s->stride) return mask;
    const int32_t *chosen = s->chosen + ((int64_t)row * s->groups + (s->groups > 1 ? kv_head : 0)) * s->top_k;
    for (int i = find_chosen(s, chosen, base); i < s->top_k && chosen[i] >= 0 && chosen[i] * size < end; i++)
        mask_keys(&mask, chosen[i] * size - base, (chosen[i] + 1) * size - base);
    return mask;
}

size_t kv_canonical_bytes(const KvLayout *l, int tokens) {
    if (l->kv_heads == 0) return l->anchor_bytes + (size_t)tokens * l->row_bytes;
    return (size_t)tokens * (size_t)l->kv_heads *
        ((size_t)(l->head_dim + l->value_dim) * dtype_bytes(l->dtype) + sizeof(float));
}

int kv_cold_end(const KvQuantView *quant, int position) {
    if (!quant || position < quant->after) return quant ? quant->sink : 0;
    const int end = (position - quant->hot) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    return end > quant->sink ? end : quant->sink;
}

int32_t embed_token(const Embed *op, int row) {
    const int32_t token = op->tokens[row];
    return op->placeholder && (token == TOKEN_GIVEN || token >= op->table->rows) ? 0 : token;
}

float query_scale(const QueryScaling *scaling, int position) {
    return 1 + scaling->scale * logf((float)(1 + (position + scaling->offset) / scaling->length));
}

static float dynamic_step(const Rope *rope, int position) {
    const double grown =
        (double)rope->dynamic.factor * (position + 1) / rope->dynamic.positions - ((double)rope->dynamic.factor - 1);
    const double theta = rope->dynamic.theta * pow(grown, (double)rope->dims / (rope->dims - 2));
    return logf((float)theta) / (float)(rope->dims / 2);
}

void rope_angles(const Rope *rope, const Step *step, int row, float *angles) {
    const int pairs = rope->dims / 2;
    const int32_t *position = step->positions + row;
    if (rope->dynamic.positions && *position >= rope->dynamic.positions) {
        const float each = dynamic_step(rope, *position);
        for (int i = 0; i < pairs; i++) angles[i] = (float)*position * expf(-(float)i * each);
        return;
    }
    int i = 0;
    if (rope->mrope_interleaved && step->position_dims > 1) {
        for (; i < pairs; i++) {
            const int axis =
                i < POSITION_DIMS_MAX * rope->mrope_section[i % POSITION_DIMS_MAX] ? i % POSITION_DIMS_MAX : 0;
            angles[i] = (float)position[axis * step->rows] * rope->frequencies[i];
        }
        return;
    }
    for (int axis = 0; axis < step->position_dims; axis++) {
        const int end = i + rope->mrope_section[axis] < pairs ? i + rope->mrope_section[axis] : pairs;
        for (; i < end; i++) angles[i] = (float)position[axis * step->rows] * rope->frequencies[i];
    }
    for (; i < pairs; i++) angles[i] = (float)*position * rope->frequencies[i];
}
