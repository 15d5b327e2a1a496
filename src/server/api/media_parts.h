/* Content parts with images, audio and videos, of each API. */
#pragma once
#include "server/api/message_builder.h"

/* Readers for PartType.read: {"image_url": {"url", "detail"}} (Chat Completions), {"image_url", "detail"} (Responses),
 * {"source": {"type": "base64", "media_type", "data"}} (Messages). */
NODISCARD bool image_read_chat(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
NODISCARD bool image_read_responses(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
NODISCARD bool image_read_block(MessageBuilder *builder, const Json *block, const char *param, ApiError *error);
/* {"input_audio": {"data", "format"}} (Chat Completions and Responses); data may be a data URL; the format is
 * recognised from the bytes. */
NODISCARD bool audio_read_input(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
/* {"audio_url": {"url"}} (vLLM). */
NODISCARD bool audio_read_url(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
/* {"video_url": {"url"}} (vLLM); of a data URL of the type video/jpeg the data may be several images, separated by
 * commas. */
NODISCARD bool video_read_url(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
/* {"video_url"}, the same in the shape of input_image (Responses). */
NODISCARD bool video_read_responses(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
/* An array of base64 texts (Ollama); param: its path. */
NODISCARD bool image_read_list(MessageBuilder *builder, const Json *list, const char *param, ApiError *error);
