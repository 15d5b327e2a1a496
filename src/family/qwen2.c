/* Qwen2, Qwen2.5: a Llama with biases on q, k and v; FastVLM, which has a tower of convolutions before it. References:
 * mlx_lm/models/qwen2.py; the sliding window, which it lacks: transformers/models/qwen2; mlx-vlm, models/fastvlm. */
#include "family/gguf/models.h"
#include "family/vision.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const Rope *rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = d.head_dim, .theta = 10000, .interleaved = load_bool_or(ld, "rope_traditional", false)});
    load_expect_text(ld, "hidden_act", "silu");
    const Windows windows = family_windows_switched(ld, spec);
    load_expect_bool(ld, "use_mrope", false);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(
            ld, spec, i, &(Block){.dims = &d, .rope = rope, .window = family_window(ld, &windows, i), .bias = true});
}

static void load_images(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_ignore(ld, "freeze_mm_mlp_adapter", "ignore_index", "image_grid_pinpoints", "image_token_index",
        "mm_hidden_size", "mm_projector_lr", "mm_use_im_patch_token", "mm_vision_select_feature",
        "mm_vision_select_layer", "mm_vision_tower", "tokenizer_model_max_length", "tokenizer_padding_side",
        "tune_mm_mlp_adapter", "unfreeze_mm_vision_tower", "use_mm_proj", "vision_config", NULL);
    load_expect_text(ld, "image_aspect_ratio", "pad");
    load_expect_text(ld, "mm_patch_merge_type", "flat");
    load_expect_text(ld, "mm_projector_type", "mlp2x_gelu");
    load_expect_bool(ld, "mm_use_im_start_end", false);
    load_text_part(ld);
    load(ld, spec);
    load_return(ld, &root);
    vision_load_fastvit(ld, spec);
}

const Family qwen2_family = {.load = load, .gguf = &qwen2_gguf};
const Family fastvlm_family = {.load = load_images};
