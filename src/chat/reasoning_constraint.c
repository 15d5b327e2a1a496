#include <stdlib.h>

#include "chat/call_constraint.h"

/* While reasoning goes on, a state is this and how much of the marker that ends it has been read. Where an answer
 * begins that may reason, it is a state of its own: the inner constraint may come back to where it started. */
static const ConstraintState REASONING_BITS = 0xC0000000u, AT_BEGIN = 0xFFFFFFFFu;

typedef struct ReasoningConstraint {
    Constraint base;
    Constraint *inner;
    const Tokenizer *tokenizer;
    Slice close;
    int32_t begins; /* the token that opens reasoning; −1: there is none, or the prompt did */
    Buffer piece;
} ReasoningConstraint;

static ReasoningConstraint *own(Constraint *constraint) { return (ReasoningConstraint *)(void *)constraint; }

static bool reasons(ConstraintState state) { return state != AT_BEGIN && (state & REASONING_BITS) == REASONING_BITS; }

static ConstraintState inner_state(const ReasoningConstraint *c, ConstraintState state) {
    return state == AT_BEGIN ? c->inner->start : state;
}

static bool give_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    ReasoningConstraint *c = own(constraint);
    *any = reasons(state);
    if (*any) return true;
    if (!c->inner->ops->mask(c->inner, inner_state(c, state), mask, any, error)) return false;
    if (state == AT_BEGIN && !*any) mask[c->begins / 64] |= UINT64_C(1) << c->begins % 64;
    return true;
}

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

/* Blanks may come before reasoning, where the inner constraint lets them. */
static bool accept_inner(ReasoningConstraint *c, ConstraintState *state, int32_t token, Error *error) {
    ConstraintState next = inner_state(c, *state);
    if (!c->inner->ops->accept(c->inner, &next, token, error)) return false;
    buffer_clear(&c->piece);
    const bool stays = *state == AT_BEGIN && next == c->inner->start &&
        tokenizer_bytes(c->tokenizer, token, &c->piece, NULL) && is_blank(buffer_view(&c->piece));
    *state = stays ? AT_BEGIN : next;
    return true;
}

static bool accept_token(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    ReasoningConstraint *c = own(constraint);
    if (*state == AT_BEGIN && token == c->begins) {
        *state = REASONING_BITS;
        return true;
    }
    if (!reasons(*state)) return accept_inner(c, state, token, error);
    buffer_clear(&c->piece);
    if (!tokenizer_bytes(c->tokenizer, token, &c->piece, error) && c->piece.failed) return false;
    size_t index = *state & ~REASONING_BITS;
    for (size_t i = 0; i < c->piece.size && index < c->close.size; i++)
        index = advance(c->close, index, c->piece.data[i]);
    *state = index < c->close.size ? REASONING_BITS | (ConstraintState)index : c->inner->start;
    return true;
}

static void free_constraint(Constraint *constraint) {
    ReasoningConstraint *c = own(constraint);
    constraint_release(c->inner);
    buffer_free(&c->piece);
    free(c);
}

Constraint *reasoning_constraint(ChatModel *model, Constraint *inner, bool open, Error *error) {
    static const ConstraintOps ops = {.mask = give_mask, .accept = accept_token, .free = free_constraint};
    int32_t begins = -1;
    if (!inner || !model->reasoning) return inner;
    if (!open && !tokenizer_id(model->tokenizer, slice_of(model->reasoning->open), &begins)) return inner;
    ReasoningConstraint *c = calloc(1, sizeof *c);
    if (!c) {
        fail(error, ERROR_MEMORY, "no memory for a constraint");
        constraint_release(inner);
        return NULL;
    }
    constraint_init(&c->base, &ops, open ? REASONING_BITS : AT_BEGIN, inner->mask_words);
    c->inner = inner;
    c->tokenizer = model->tokenizer;
    c->close = slice_of(model->reasoning->close);
    c->begins = begins;
    return &c->base;
}
