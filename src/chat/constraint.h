/* Grammars as constraints of answers. A grammar is compiled on the calling thread and then used by the engine's thread
 * only; several requests and other constraints may share it. Threads: any compiles. */
#pragma once
#include "chat/chat_model.h"
#include "text/grammar/grammar.h"

/* The caller owns the reference (constraint_release). Errors are those of grammar_compile. */
NODISCARD Constraint *constraint_compile(
    ChatModel *model, GrammarKind kind, Slice source, GrammarSpace space, Error *error);
/* Takes ownership of a grammar that was compiled for chat_model_vocabulary(model). NULL: no memory; the grammar is
 * freed.
 */
NODISCARD Constraint *constraint_of(ChatModel *model, Grammar *grammar, Error *error);
/* ConstraintOps.jump_ahead for a grammar's state. */
NODISCARD bool constraint_jump_ahead(Grammar *grammar, GrammarState state, const Tokenizer *tokenizer, int32_t last,
    int32_t *tokens, int max, int *count, Error *error);
