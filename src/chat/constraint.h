/* A grammar as the constraint of answers. Compiled on the thread that asks, so the engine never waits for it; then the
 * engine's alone: requests on the same model may share it, and so may a constraint of another kind that asks it about a
 * part of the answer. Threads: any to compile. */
#pragma once
#include "chat/chat_model.h"
#include "text/grammar/grammar.h"

/* Errors are those of grammar_compile; the reference is the caller's: constraint_release. */
NODISCARD Constraint *constraint_compile(
    ChatModel *model, GrammarKind kind, Slice source, GrammarSpace space, Error *error);
/* Takes the grammar over; it was compiled for chat_model_vocabulary(model). NULL: no memory, and the grammar is freed.
 */
NODISCARD Constraint *constraint_of(ChatModel *model, Grammar *grammar, Error *error);
/* ConstraintOps.forced of a grammar's state. */
NODISCARD bool constraint_jump_ahead(Grammar *grammar, GrammarState state, const Tokenizer *tokenizer, int32_t last,
    int32_t *tokens, int max, int *count, Error *error);
