/* Qwen2, Qwen2.5: a Llama with biases on q, k and v. Reference: mlx_lm/models/qwen2.py; the sliding
 * window, which it lacks: transformers/models/qwen2. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const Rope *rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = d.head_dim, .theta = 1000000, .interleaved = load_bool_or(ld, "rope_traditional", false)});
    load_expect_text(ld, "hidden_act", "silu");
    const Windows windows = family_windows_switched(ld, spec);
    load_expect_bool(ld, "use_mrope", false);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(
            ld, spec, i, &(Block){.dims = &d, .rope = rope, .window = family_window(ld, &windows, i), .bias = true});
}

const Family qwen2_family = {.load = load, .gguf = &qwen2_gguf};
