/* Options of the KV cache: its forms, its memory, what it keeps for later requests and on disk. */
#pragma once
#include "cli/options.h"
#include "engine/engine.h"

/* What cache_options() derives from; all else goes into the EngineOptions themselves. */
typedef struct CacheArguments {
    const char *form, *layers;
    bool turbo;
} CacheArguments;
#define CACHE_DISK_DEFAULT (INT64_C(20) << 30)
/* clang-format off */
/* c: CacheArguments, o: EngineOptions whose kv_format has the default lengths. */
#define CACHE_OPTIONS(c, o)                                                                                               \
    {"--kv-cache", NULL, OPTION_TEXT, &(c).form, 0, 0, "FORM",                                                         \
        "f16, bf16, q8, turbo3 to turbo6, turbo, KEYS/VALUES, or auto: turbo where f16 does not fit (f16)"},           \
    {"--turbo-kv", NULL, OPTION_FLAG, &(c).turbo, 0, 0, NULL, "the same as --kv-cache turbo"},                         \
    {"--turbo-after", NULL, OPTION_INT, &(o).kv_format.after, 0, 1 << 24, "N", "tokens before which nothing is quantised (2048)"}, \
    {"--turbo-hot", NULL, OPTION_INT, &(o).kv_format.hot, 1, 1 << 24, "N", "newest tokens in full precision (256)"},        \
    {"--turbo-sink", NULL, OPTION_INT, &(o).kv_format.sink, 0, 1 << 24, "N", "first tokens in full precision (128)"},       \
    {"--turbo-layers", NULL, OPTION_TEXT, &(c).layers, 0, 0, "WHICH",                                                  \
        "layers whose keys get more bits: auto (where measured), off, or a list as 0,3,7-9 (auto with turbo)"},        \
    {"--kv-memory", "--kv-bytes", OPTION_BYTES, &(o).kv_bytes, 0, 1e15, "SIZE",                                          \
        "memory for the KV cache, as in 4G, or auto (what the slots need)"},                                           \
    {"--no-prefix-cache", NULL, OPTION_FLAG, &(o).prefix_off, 0, 0, NULL, "compute every prompt from its start"},       \
    {"--cache-dir", NULL, OPTION_TEXT, &(o).cache_directory, 0, 0, "DIR", "keep prompts' KV pages there, also for later runs"}, \
    {"--cache-disk", NULL, OPTION_BYTES, &(o).cache_disk_bytes, 0, 1e15, "SIZE", "most bytes there, for each model (20G)"}
/* clang-format on */

/* Completes the cache's part of *options, which the rows above have set. Rounded lengths are logged. */
NODISCARD bool cache_options(const CacheArguments *arguments, EngineOptions *options, Error *error);
