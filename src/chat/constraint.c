#include "chat/constraint.h"

#include <stdlib.h>
#include <string.h>

typedef struct GrammarConstraint {
    Constraint base;
    Grammar *grammar;
    const Tokenizer *tokenizer;
} GrammarConstraint;

/* The implementation's struct, of which `constraint` is the first member. */
static GrammarConstraint *own(Constraint *constraint) { return (GrammarConstraint *)(void *)constraint; }
static Grammar *grammar_of(Constraint *constraint) { return own(constraint)->grammar; }

static bool give_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    *any = false;
    return grammar_mask(grammar_of(constraint), state, mask, error);
}

static bool accept_token(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    return grammar_accept(grammar_of(constraint), state, token, error);
}

bool constraint_jump_ahead(Grammar *grammar, GrammarState state, const Tokenizer *tokenizer, int32_t last,
    int32_t *tokens, int max, int *count, Error *error) {
    Tokens found = {0};
    const bool ok = grammar_jump_ahead_tokens(grammar, state, tokenizer, last, &found, error);
    *count = found.count < (size_t)max ? (int)found.count : max;
    if (*count > 0) memcpy(tokens, found.ids, (size_t)*count * sizeof *tokens);
    tokens_free(&found);
    return ok;
}

static bool give_forced(
    Constraint *constraint, ConstraintState state, int32_t last, int32_t *tokens, int max, int *count, Error *error) {
    const GrammarConstraint *c = own(constraint);
    return constraint_jump_ahead(c->grammar, state, c->tokenizer, last, tokens, max, count, error);
}

static void free_constraint(Constraint *constraint) {
    grammar_free(grammar_of(constraint));
    free(constraint);
}

Constraint *constraint_of(ChatModel *model, Grammar *grammar, Error *error) {
    static const ConstraintOps ops = {
        .mask = give_mask, .jump_ahead = give_forced, .accept = accept_token, .free = free_constraint};
    const Vocabulary *vocabulary = chat_model_vocabulary(model, error);
    GrammarConstraint *c = vocabulary ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        if (vocabulary) fail(error, ERROR_MEMORY, "no memory for a constraint");
        grammar_free(grammar);
        return NULL;
    }
    constraint_init(&c->base, &ops, grammar_start(grammar), vocabulary_mask_words(vocabulary));
    c->grammar = grammar;
    c->tokenizer = model->tokenizer;
    return &c->base;
}

Constraint *constraint_compile(ChatModel *model, GrammarKind kind, Slice source, GrammarSpace space, Error *error) {
    const Vocabulary *vocabulary = chat_model_vocabulary(model, error);
    Grammar *grammar = vocabulary ? grammar_compile(kind, source, space, vocabulary, error) : NULL;
    return grammar ? constraint_of(model, grammar, error) : NULL;
}
