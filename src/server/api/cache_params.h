/* The fields of a request that concern the KV cache: its form (kv_cache, or kv_bits with kv_group_size as SwiftLM has
 * them), what may be shared with whom (cache_salt, prompt_cache_key, cache_prompt). */
#pragma once
#include "engine/engine.h"
#include "server/api/api.h"

typedef struct CacheRequest {
    const KvFormat *server_format; /* of requests that say nothing; NULL: no such model */
    DType server_dtype;            /* of exact pages */
    KvFormat format;
    bool format_given;
    int bits, group; /* kv_bits, kv_group_size; 0: not given */
    Slice salt, key;
    bool off; /* the prompt is neither looked for nor kept */
} CacheRequest;

bool cache_read_form(CacheRequest *cache, const Json *value, const char *field, ApiError *error);
bool cache_read_bits(CacheRequest *cache, const Json *value, const char *field, ApiError *error);
bool cache_read_group(CacheRequest *cache, const Json *value, const char *field, ApiError *error);
bool cache_read_salt(CacheRequest *cache, const Json *value, const char *field, ApiError *error);
bool cache_read_key(CacheRequest *cache, const Json *value, const char *field, ApiError *error);
bool cache_read_prompt(CacheRequest *cache, const Json *value, const char *field, ApiError *error);
/* Once all fields are read. */
NODISCARD bool cache_settle(CacheRequest *cache, ApiError *error);

/* Whose computed prompts a request may find: those with the same API key (NULL: none was sent), salt and key. */
uint64_t cache_salt(const CacheRequest *cache, const char *api_key);
