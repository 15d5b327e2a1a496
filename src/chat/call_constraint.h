/* Calls of tools as constraints of answers. Threads: any to make; then the engine's. */
#pragma once
#include "chat/constraint.h"
#include "text/calls/call_grammar.h"

/* demanded: the answer is calls, and nothing else. Otherwise it is any text, but from where a call begins, its name and
 * arguments are valid: behind the format's marker, when what follows looks like a call, and at the beginning of the
 * answer where a call may stand there without one. Errors are those of grammar_compile. */
NODISCARD Constraint *call_constraint(ChatModel *model, const CallRules *rules, bool demanded, Error *error);

/* Whether a model's reasoning can be told from its answer while it is written. open: the prompt has begun it. */
bool reasoning_is_counted(const ChatModel *model, bool open);
/* What holds behind reasoning: the inner constraint (NULL: anything), whose reference is taken over. open: the prompt
 * has begun the reasoning; else the answer may begin with it. budget: after so many tokens of it, what ends it follows;
 * −1: any number. An answer whose reasoning cannot be told gets the inner one. */
NODISCARD Constraint *reasoning_constraint(
    ChatModel *model, Constraint *inner, bool open, int64_t budget, Error *error);
