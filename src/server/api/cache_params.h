/* The fields of a request about the KV cache: its format (kv_cache; kv_bits and kv_group_size of SwiftLM) and the
 * sharing of prefixes (cache_salt, prompt_cache_key). */
#pragma once
#include "chat/request.h"
#include "server/api/api.h"

NODISCARD bool cache_read_form(CacheOptions *cache, const Json *value, const char *field, ApiError *error);
NODISCARD bool cache_read_bits(CacheOptions *cache, const Json *value, const char *field, ApiError *error);
NODISCARD bool cache_read_group(CacheOptions *cache, const Json *value, const char *field, ApiError *error);
NODISCARD bool cache_read_salt(CacheOptions *cache, const Json *value, const char *field, ApiError *error);
NODISCARD bool cache_read_key(CacheOptions *cache, const Json *value, const char *field, ApiError *error);
/* Once all fields are read. */
NODISCARD bool cache_settle(CacheOptions *cache, ApiError *error);

/* The salt of the prefix cache: requests with the same API key (NULL: none was sent), salt and key share prefixes. */
uint64_t cache_salt(const CacheOptions *cache, const char *api_key);
