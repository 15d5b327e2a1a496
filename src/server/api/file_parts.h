/* Content parts with files, of each API. Text files (UTF-8) become text, with the file's name in front; files of other
 * kinds are refused by name. */
#pragma once
#include "server/api/message_builder.h"

enum { FILE_BYTES_MAX = 20 << 20 };

/* Readers for PartType.read: {"file": {"file_data", "filename"}} (Chat Completions), {"file_data" or "file_url",
 * "filename"} (Responses), {"source", "title", "context"} (documents of Messages). */
NODISCARD bool file_read_chat(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
NODISCARD bool file_read_responses(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
NODISCARD bool file_read_document(MessageBuilder *builder, const Json *block, const char *param, ApiError *error);
