/* Qwen2-VL and Qwen2.5-VL: Qwen2 with positions in three dimensions and a vision tower. Files have the text model's
 * fields in text_config or beside vision_config. Reference: transformers, models/qwen2_vl and models/qwen2_5_vl. */
#include "family/gguf/models.h"
#include "family/vision.h"

static void load_text(Loader *ld, Spec *spec) {
    load_ignore(ld, "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
        "vision_token_id", "vision_config", NULL);
    load_text_part(ld);
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 1e6, .mrope = true});
    load_expect_text(ld, "hidden_act", "silu");
    const Windows windows = family_windows_switched(ld, spec);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(
            ld, spec, i, &(Block){.dims = &d, .rope = rope, .window = family_window(ld, &windows, i), .bias = true});
}

static void load_2(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_text(ld, spec);
    load_return(ld, &root);
    vision_load_qwen2(ld, spec);
}

static void load_2_5(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_text(ld, spec);
    load_return(ld, &root);
    vision_load_qwen2_5(ld, spec);
}

const Family qwen2_vl_family = {.load = load_2, .gguf = &qwen2_vl_gguf};
const Family qwen2_5_vl_family = {.load = load_2_5};
