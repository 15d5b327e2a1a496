/* model_type of config.json → the function that reads such a config. A new family is one row here and one file. */
#pragma once

// clang-format off
#define FAMILIES(row)                    \
    row("gemma3", gemma3_wrapper_load)   \
    row("gemma3_text", gemma3_load)      \
    row("llama", llama_load)             \
    row("mistral", llama_load)           \
    row("phi", phi_load)                 \
    row("phi3", phi3_load)               \
    row("qwen2", qwen2_load)             \
    row("qwen3", qwen3_load)             \
    row("smollm3", smollm3_load)
// clang-format on
