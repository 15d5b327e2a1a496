/* Builds the parts of a Tokenizer from the JSON of tokenizer.json. node: the member's value, or NULL. Strings are
 * copied to arena. Thread: any; a part has one owner until it is shared. */
#pragma once
#include "base/json.h"
#include "text/tokenizer/internal.h"

NODISCARD bool normalizer_build(Normalizer *normalizer, Arena *arena, const Json *node, Error *error);
/* by_bytes: words reach the model as bytes (tokenizer_read found it so). */
NODISCARD bool pretokenizer_build(PreTokenizer *pre, Arena *arena, const Json *node, bool by_bytes, Error *error);
NODISCARD bool decoder_build(Decoder *decoder, Arena *arena, const Json *node, Error *error);
NODISCARD bool post_processor_build(Tokenizer *t, const Json *node, Error *error);
/* Once normalizer and model are there. config: tokenizer_config.json, or NULL. */
NODISCARD bool added_build(Tokenizer *t, const Json *added, const Json *config, Error *error);
/* Marks the added tokens that occur in the source of a chat template as control tokens. */
void added_mark_control(Tokenizer *t, Slice template_source);
