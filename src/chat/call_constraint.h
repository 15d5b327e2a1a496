/* Constraints for tool calls and for reasoning. Threads: any creates one; then the engine's. */
#pragma once
#include "chat/constraint.h"
#include "text/calls/call_grammar.h"

/* demanded: the answer consists of calls only. Otherwise it is any text, in which every call is valid from its
 * beginning: after the format's marker if a call follows, and at the beginning of the answer in formats that need no
 * marker. Errors are those of grammar_compile. */
NODISCARD Constraint *call_constraint(ChatModel *model, const CallRules *rules, bool demanded, Error *error);

/* Whether reasoning is distinguishable from the answer during generation. open: the prompt ends within reasoning. */
bool reasoning_is_counted(const ChatModel *model, bool open);
/* A constraint that lets the answer reason first and then applies `inner` (NULL: any text), whose reference it takes
 * over. open: the prompt ends within reasoning; else the answer may begin with it. budget: largest number of reasoning
 * tokens, after which the end marker is forced; −1: no limit. Returns `inner` if reasoning is not distinguishable. */
NODISCARD Constraint *reasoning_constraint(
    ChatModel *model, Constraint *inner, bool open, int64_t budget, Error *error);
