/* Qwen3-VL, dense: Qwen3 with positions in three dimensions, whose first layers take rows of the vision tower
 * (DeepStack). Reference: transformers, models/qwen3_vl. */
#include "family/gguf/models.h"
#include "family/vision.h"

static void load(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_text_part(ld);
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const Rope *rope =
        load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 5e6, .mrope = true, .mrope_interleaved = true});
    load_expect_text(ld, "hidden_act", "silu");
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d, .rope = rope, .bias = bias, .out_bias = bias, .q_norm = "q_norm", .k_norm = "k_norm"});
    load_return(ld, &root);
    vision_load_qwen3(ld, spec);
}

const Family qwen3_vl_family = {.load = load, .gguf = &qwen3_vl_gguf};
