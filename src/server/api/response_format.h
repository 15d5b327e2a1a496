/* The format that an answer must have: response_format, its forms in other APIs, and the fields of llama.cpp (grammar,
 * json_schema) and vLLM (structured_outputs, guided_*). Each reader takes a field's value; a second field that demands
 * a format is refused. arena: owns what is made of the value. */
#pragma once
#include "chat/request.h"
#include "server/api/api.h"

#define FORMAT_READER(name)                                                                                            \
    NODISCARD bool name(ResponseFormat *format, Arena *arena, const Json *value, const char *field, ApiError *error)

FORMAT_READER(format_read_response);   /* response_format of Chat Completions */
FORMAT_READER(format_read_text);       /* text.format of Responses */
FORMAT_READER(format_read_output);     /* output_config.format of Messages */
FORMAT_READER(format_read_ollama);     /* format of Ollama */
FORMAT_READER(format_read_structured); /* structured_outputs */
FORMAT_READER(format_read_schema);     /* a JSON schema, or a string that holds one */
FORMAT_READER(format_read_regex);
FORMAT_READER(format_read_choice);  /* one of several strings */
FORMAT_READER(format_read_grammar); /* GBNF or Lark */

/* The constraint of a request, owned by the caller; NULL when no format is demanded. A format that cannot be enforced
 * is a 400 that names the field. */
NODISCARD bool format_constraint(
    const ResponseFormat *format, ChatModel *model, Constraint **constraint, ApiError *error);
