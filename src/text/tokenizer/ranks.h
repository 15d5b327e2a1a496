/* Vocabularies of ranked byte strings, as tiktoken has them, in place of a tokenizer.json: Mistral's tekken.json, and
 * the tiktoken files of Kimi (tiktoken.model) and of the first Qwen (qwen.tiktoken), whose patterns their Python code
 * has. They are written as the JSON of a tokenizer.json: a pair merges where the joined bytes have a rank, and a word
 * that has one is not merged. Sources: mistral-common (tokenizers/tekken.py), tokenization_kimi.py,
 * tokenization_qwen.py. */
#pragma once
#include "base/buffer.h"
#include "base/error.h"

/* Whether the directory has such a file; then `out` gets the JSON. False with *found: it is wrong, as the error says.
 */
NODISCARD bool ranks_read(const char *directory, Buffer *out, bool *found, Error *error);
