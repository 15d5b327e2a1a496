/* The fields of a request that say what its answer may be: response_format, and what clients of llama.cpp (grammar,
 * json_schema) and vLLM (structured_outputs, guided_*) send. */
#pragma once
#include "chat/constraint.h"
#include "server/api/api.h"

typedef struct ConstraintRequest {
    const char *field; /* that asks for it; NULL: none does */
    GrammarKind kind;
    GrammarSpace space;
    Slice source;
} ConstraintRequest;

/* arena: for what is made of the values. A second field that asks for something is refused. */
bool constraint_read_format(
    ConstraintRequest *request, Arena *arena, const Json *value, const char *field, ApiError *error);
bool constraint_read_outputs(
    ConstraintRequest *request, Arena *arena, const Json *value, const char *field, ApiError *error);
/* A JSON schema, a regular expression, a list of texts, or rules (GBNF or Lark, whichever they are). */
bool constraint_read_schema(
    ConstraintRequest *request, Arena *arena, const Json *value, const char *field, ApiError *error);
bool constraint_read_regex(
    ConstraintRequest *request, Arena *arena, const Json *value, const char *field, ApiError *error);
bool constraint_read_choice(
    ConstraintRequest *request, Arena *arena, const Json *value, const char *field, ApiError *error);
bool constraint_read_grammar(
    ConstraintRequest *request, Arena *arena, const Json *value, const char *field, ApiError *error);

/* The constraint of a request, NULL when it asks for none. What cannot be kept is a 400 that names the field. */
NODISCARD bool constraint_make(
    const ConstraintRequest *request, ChatModel *model, Constraint **constraint, ApiError *error);
