#include <stdlib.h>

#include "chat/call_constraint.h"

/* While reasoning goes on, a state is this and how much of the marker that ends it has been read. */
static const ConstraintState REASONING_BITS = 0xC0000000u;

typedef struct ReasoningConstraint {
    Constraint base;
    Constraint *inner;
    const Tokenizer *tokenizer;
    Slice close;
    int32_t begins; /* the token that opens reasoning; −1: there is none, or the prompt did */
    Buffer piece;
} ReasoningConstraint;

static ReasoningConstraint *own(Constraint *constraint) { return (ReasoningConstraint *)(void *)constraint; }

static bool reasons(ConstraintState state) { return (state & REASONING_BITS) == REASONING_BITS; }

static bool may_begin(const ReasoningConstraint *c, ConstraintState state) {
    return c->begins >= 0 && state == c->inner->start;
}

static bool give_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    ReasoningConstraint *c = own(constraint);
    *any = reasons(state);
    if (*any) return true;
    if (!c->inner->ops->mask(c->inner, state, mask, any, error)) return false;
    if (may_begin(c, state) && !*any) mask[c->begins / 64] |= UINT64_C(1) << c->begins % 64;
    return true;
}

/* Bytes of the marker that the text ends with. */
static size_t advance(Slice close, size_t index, char byte) {
    for (size_t size = index + 1; size > 0; size--)
        if (close.data[size - 1] == byte && !memcmp(close.data, close.data + index + 1 - size, size - 1)) return size;
    return 0;
}

static bool accept_token(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    ReasoningConstraint *c = own(constraint);
    if (may_begin(c, *state) && token == c->begins) {
        *state = REASONING_BITS;
        return true;
    }
    if (!reasons(*state)) return c->inner->ops->accept(c->inner, state, token, error);
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
    constraint_init(&c->base, &ops, open ? REASONING_BITS : inner->start, inner->mask_words);
    c->inner = inner;
    c->tokenizer = model->tokenizer;
    c->close = slice_of(model->reasoning->close);
    c->begins = begins;
    return &c->base;
}
