/* Options of the KV cache: its forms, its memory, what it keeps for later requests and on disk. */
#pragma once
#include "cli/options.h"
#include "engine/engine.h"

typedef struct CacheArguments {
    const char *form, *layers, *directory;
    int64_t after, hot, sink; /* tokens */
    int64_t memory, disk;     /* bytes; memory 0: auto */
    bool turbo, no_prefix;
} CacheArguments;
#define CACHE_DISK_DEFAULT (INT64_C(20) << 30)
#define CACHE_ARGUMENTS_DEFAULT                                                                                        \
    { .after = KV_AFTER, .hot = KV_HOT, .sink = KV_SINK }
/* clang-format off */
#define CACHE_OPTIONS(c)                                                                                               \
    {"--kv-cache", NULL, OPTION_TEXT, &(c).form, 0, 0, "FORM",                                                         \
        "f16, bf16, q8, turbo3 to turbo6, turbo, KEYS/VALUES, or auto: turbo where f16 does not fit (f16)"},           \
    {"--turbo-kv", NULL, OPTION_FLAG, &(c).turbo, 0, 0, NULL, "the same as --kv-cache turbo"},                         \
    {"--turbo-after", NULL, OPTION_INTEGER, &(c).after, 0, 1 << 24, "N", "tokens before which nothing is coded (2048)"}, \
    {"--turbo-hot", NULL, OPTION_INTEGER, &(c).hot, 1, 1 << 24, "N", "newest tokens that are not coded (256)"},        \
    {"--turbo-sink", NULL, OPTION_INTEGER, &(c).sink, 0, 1 << 24, "N", "first tokens that are not coded (128)"},       \
    {"--turbo-layers", NULL, OPTION_TEXT, &(c).layers, 0, 0, "WHICH",                                                  \
        "layers whose keys get more bits: auto (where measured), off, or a list as 0,3,7-9 (auto with turbo)"},        \
    {"--kv-memory", "--kv-bytes", OPTION_BYTES, &(c).memory, 0, 1e15, "SIZE",                                          \
        "memory for the KV cache, as in 4G, or auto (what the slots need)"},                                           \
    {"--no-prefix-cache", NULL, OPTION_FLAG, &(c).no_prefix, 0, 0, NULL, "compute every prompt from its start"},       \
    {"--cache-dir", NULL, OPTION_TEXT, &(c).directory, 0, 0, "DIR", "keep prompts' KV pages there, also for later runs"}, \
    {"--cache-disk", NULL, OPTION_BYTES, &(c).disk, 0, 1e15, "SIZE", "what they may take there, for each model (20G)"}
/* clang-format on */

/* Fills the cache's part of the options; what goes on to be used must outlive them. Rounded lengths are logged. */
NODISCARD bool cache_options(const CacheArguments *arguments, EngineOptions *out, Error *error);
