#include <stdlib.h>

#include "chat/call_constraint.h"

/* While reasoning goes on, a state is this, how many tokens it has had (where they are counted) and how much of the
 * marker that ends it has been read. Where an answer begins that may reason, it is a state of its own: the inner
 * constraint may come back to where it started. Behind reasoning, without an inner constraint, there is only FREE. */
static const ConstraintState REASONING_BITS = 0xC0000000u, AT_BEGIN = 0xFFFFFFFFu, FREE = 0;
enum { INDEX_BITS = 6, MARKER_BYTES_MAX = (1 << INDEX_BITS) - 1, BUDGET_MAX = (1 << (30 - INDEX_BITS)) - 2 };

typedef struct ReasoningConstraint {
    Constraint base;
    Constraint *inner; /* NULL: none */
    const Tokenizer *tokenizer;
    Slice close;
    int32_t begins; /* the token that opens reasoning; −1: there is none, or the prompt did */
    int budget;     /* tokens of reasoning, after which nothing but the marker may follow; −1: any number */
    int32_t ends[MARKER_BYTES_MAX]; /* with a budget: the token that goes on with the marker, by how much is read */
    const Tokens *closers;          /* tokens that may hold the end of the marker and text behind it; the model's */
    int32_t eos[EOS_MAX];
    int eos_count;
    bool inner_known, inner_empty; /* whether the second is known; the inner constraint allows an empty answer */
    Buffer piece;
} ReasoningConstraint;

static ReasoningConstraint *own(Constraint *constraint) { return (ReasoningConstraint *)(void *)constraint; }

static bool reasons(ConstraintState state) { return state != AT_BEGIN && (state & REASONING_BITS) == REASONING_BITS; }

static size_t index_of(ConstraintState state) { return state & MARKER_BYTES_MAX; }
static int count_of(ConstraintState state) { return (int)((state & ~REASONING_BITS) >> INDEX_BITS); }

static ConstraintState reasoning_state(int count, size_t index) {
    return REASONING_BITS | (ConstraintState)count << INDEX_BITS | (ConstraintState)index;
}

static ConstraintState inner_start(const ReasoningConstraint *c) { return c->inner ? c->inner->start : FREE; }

static ConstraintState inner_state(const ReasoningConstraint *c, ConstraintState state) {
    return state == AT_BEGIN ? inner_start(c) : state;
}

static void allow(uint64_t *mask, int32_t token) { mask[token / 64] |= UINT64_C(1) << token % 64; }

static void forbid(uint64_t *mask, int32_t token) { mask[token / 64] &= ~(UINT64_C(1) << token % 64); }

/* Bytes of the marker that the text ends with. */
static size_t advance(Slice close, size_t index, char byte) {
    for (size_t size = index + 1; size > 0; size--)
        if (close.data[size - 1] == byte && !memcmp(close.data, close.data + index + 1 - size, size - 1)) return size;
    return 0;
}

static bool is_blank(Slice text) {
    for (size_t i = 0; i < text.size; i++)
        if (!strchr(" \n\t\r", text.data[i]) || !text.data[i]) return false;
    return true;
}

/* Reads a text behind `*index` bytes of the marker, up to the marker's end. Returns the text behind that. */
static Slice read_marker(Slice close, size_t *index, Slice text) {
    size_t i = 0;
    while (i < text.size && *index < close.size) *index = advance(close, *index, text.data[i++]);
    return (Slice){text.data + i, text.size - i};
}

/* Whether the inner constraint allows an answer without a token. Uses the mask. */
static bool find_inner_empty(ReasoningConstraint *c, uint64_t *mask, Error *error) {
    bool any;
    if (c->inner_known) return true;
    if (!c->inner->ops->mask(c->inner, c->inner->start, mask, &any, error)) return false;
    c->inner_empty = any;
    for (int i = 0; i < c->eos_count && !any; i++)
        c->inner_empty = c->inner_empty || mask[c->eos[i] / 64] >> c->eos[i] % 64 & 1;
    c->inner_known = true;
    return true;
}

/* Reasoning is any text, without the end of the answer, which the inner constraint must permit, and without tokens that
 * contain text behind the end marker, where the inner constraint begins. */
static bool mask_reasoning(ReasoningConstraint *c, size_t index, uint64_t *mask, bool *any, Error *error) {
    *any = true;
    if (!c->inner) return true;
    if (!find_inner_empty(c, mask, error)) return false;
    memset(mask, 0xFF, c->base.mask_words * sizeof *mask);
    for (int i = 0; i < c->eos_count && !c->inner_empty; i++) {
        forbid(mask, c->eos[i]);
        *any = false;
    }
    for (size_t i = 0; i < c->closers->count; i++) {
        size_t read = index;
        buffer_clear(&c->piece);
        if (!tokenizer_bytes(c->tokenizer, c->closers->ids[i], &c->piece, error)) return false;
        const Slice rest = read_marker(c->close, &read, buffer_view(&c->piece));
        if (read < c->close.size || is_blank(rest)) continue;
        forbid(mask, c->closers->ids[i]);
        *any = false;
    }
    return true;
}

static bool give_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    ReasoningConstraint *c = own(constraint);
    *any = true;
    if (reasons(state)) {
        if (c->budget < 0 || count_of(state) < c->budget) return mask_reasoning(c, index_of(state), mask, any, error);
        *any = false;
        memset(mask, 0, c->base.mask_words * sizeof *mask);
        allow(mask, c->ends[index_of(state)]);
        return true;
    }
    if (!c->inner) return true;
    if (!c->inner->ops->mask(c->inner, inner_state(c, state), mask, any, error)) return false;
    if (state == AT_BEGIN && !*any) allow(mask, c->begins);
    return true;
}

static bool give_forced(
    Constraint *constraint, ConstraintState state, int32_t last, int32_t *tokens, int max, int *count, Error *error) {
    Constraint *inner = own(constraint)->inner;
    *count = 0;
    if (reasons(state) || state == AT_BEGIN || !inner || !inner->ops->jump_ahead) return true;
    return inner->ops->jump_ahead(inner, state, last, tokens, max, count, error);
}

/* Blanks may come before reasoning, where the inner constraint lets them. */
static bool accept_inner(ReasoningConstraint *c, ConstraintState *state, int32_t token, Error *error) {
    ConstraintState next = inner_state(c, *state);
    if (c->inner && !c->inner->ops->accept(c->inner, &next, token, error)) return false;
    if (*state != AT_BEGIN) {
        *state = next;
        return true;
    }
    buffer_clear(&c->piece);
    const bool stays = next == inner_start(c) && tokenizer_bytes(c->tokenizer, token, &c->piece, NULL) &&
        is_blank(buffer_view(&c->piece));
    *state = stays ? AT_BEGIN : next;
    return true;
}

static bool accept_token(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    ReasoningConstraint *c = own(constraint);
    if (*state == AT_BEGIN && token == c->begins) {
        *state = reasoning_state(0, 0);
        return true;
    }
    if (!reasons(*state)) return accept_inner(c, state, token, error);
    buffer_clear(&c->piece);
    if (!tokenizer_bytes(c->tokenizer, token, &c->piece, error) && c->piece.failed) return false;
    size_t index = index_of(*state);
    read_marker(c->close, &index, buffer_view(&c->piece)); /* blanks at most follow where there is an inner one */
    const int count = count_of(*state) + (c->budget >= 0 && count_of(*state) < c->budget);
    *state = index < c->close.size ? reasoning_state(count, index) : inner_start(c);
    return true;
}

static void free_constraint(Constraint *constraint) {
    ReasoningConstraint *c = own(constraint);
    constraint_release(c->inner);
    buffer_free(&c->piece);
    free(c);
}

/* The token that goes on with the marker from each of its bytes. One that is the whole marker does so from anywhere. */
static bool find_ends(ReasoningConstraint *c, int vocab, Error *error) {
    Tokens tokens = {0};
    bool ok = true, whole = false;
    for (size_t i = 0; ok && i < c->close.size; i++) {
        const Slice rest = {c->close.data + i, c->close.size - i};
        if (whole) {
            c->ends[i] = c->ends[0];
            continue;
        }
        tokens.count = 0;
        ok = tokenizer_encode(c->tokenizer, rest, CONTROL_RECOGNISED, false, &tokens, error) &&
            ((tokens.count > 0 && tokens.ids[0] < vocab) ||
                fail(error, ERROR_UNSUPPORTED, "the vocabulary cannot spell '%s'", c->close.data));
        if (ok) c->ends[i] = tokens.ids[0];
        whole = ok && i == 0 && tokens.count == 1;
    }
    tokens_free(&tokens);
    return ok;
}

static Constraint *without(Constraint *inner) {
    constraint_release(inner);
    return NULL;
}

bool reasoning_is_counted(const ChatModel *model, bool open) {
    int32_t begins;
    return model->reasoning && (open || tokenizer_id(model->tokenizer, slice_of(model->reasoning->open), &begins));
}

Constraint *reasoning_constraint(ChatModel *model, Constraint *inner, bool open, int64_t budget, Error *error) {
    static const ConstraintOps ops = {
        .mask = give_mask, .jump_ahead = give_forced, .accept = accept_token, .free = free_constraint};
    int32_t begins = -1;
    if (!reasoning_is_counted(model, open)) return inner;
    if (!open) CHECK(tokenizer_id(model->tokenizer, slice_of(model->reasoning->open), &begins));
    ReasoningConstraint *c = calloc(1, sizeof *c);
    if (!c) {
        fail(error, ERROR_MEMORY, "no memory for a constraint");
        return without(inner);
    }
    const size_t words = ((size_t)chat_model_vocab(model) + 63) / 64;
    constraint_init(&c->base, &ops, open ? reasoning_state(0, 0) : AT_BEGIN, inner ? inner->mask_words : words);
    c->inner = inner;
    c->tokenizer = model->tokenizer;
    c->close = slice_of(model->reasoning->close);
    c->begins = begins;
    c->budget = budget < 0 ? -1 : budget > BUDGET_MAX ? BUDGET_MAX : (int)budget;
    CHECK(c->close.size <= MARKER_BYTES_MAX);
    c->eos_count = model_eos(engine_model(model->engine), c->eos);
    c->closers = inner ? chat_model_reasoning_closers(model, error) : NULL;
    if ((!inner || c->closers) && (c->budget < 0 || find_ends(c, chat_model_vocab(model), error))) return &c->base;
    constraint_release(&c->base);
    return NULL;
}
