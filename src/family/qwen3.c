/* Qwen3, dense: a Llama with an RMS norm on every head of q and k. Reference: mlx_lm/models/qwen3.py; the
 * sliding window, which it lacks: transformers/models/qwen3. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.head_dim = 128, .eps = 1e-6});
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    const Windows windows = family_windows_switched(ld, spec);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .window = family_window(ld, &windows, i),
                .bias = bias,
                .out_bias = bias,
                .q_norm = "q_norm",
                .k_norm = "k_norm"});
}

const Family qwen3_family = {.load = load, .gguf = &qwen3_gguf};
