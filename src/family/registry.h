/* model_type of config.json → its Family: the function that reads such a config, and how GGUF files hold it. A new
 * family is one row here and one file. */
#pragma once

// clang-format off
#define FAMILIES(row)                    \
    row("gemma3", gemma3_wrapper_family) \
    row("gemma3_text", gemma3_family)    \
    row("llama", llama_family)           \
    row("mistral", mistral_family)       \
    row("phi", phi_family)               \
    row("phi3", phi3_family)             \
    row("qwen2", qwen2_family)           \
    row("qwen3", qwen3_family)           \
    row("smollm3", smollm3_family)
// clang-format on
