/* SigLIP with the connector of Idefics 3 and SmolVLM. Reference: transformers, models/idefics3/modeling_idefics3.py and
 * image_processing_pil_idefics3.py, processing_idefics3.py. */
#include "family/vision_parts.h"
#include "media/image_views.h"

static ImageRule load_rule(Loader *ld, int patch, int side, int merge) {
    const Json *processor = load_processor(ld), *split = json_get(processor, "do_image_splitting");
    const Json *tile = json_get(processor, "max_image_size");
    ImageRule rule = vision_rule(ld, IMAGE_LANCZOS);
    rule.sizing = SIZING_FIXED;
    rule.patch = patch;
    rule.merge = merge;
    rule.side = patch * side;
    rule.longest = (int)vision_count(ld, json_get(processor, "size"), "longest_edge", 4 * 364);
    rule.tiles = !split || split->type != JSON_BOOL || split->boolean;
    vision_check_rule(ld, &rule);
    load_require(ld, vision_count(ld, tile, "longest_edge", rule.side) == rule.side,
        "image preprocessing: max_image_size must be %d, as the tower's images", rule.side);
    const int most = rule.side ? (rule.longest - 1) / rule.side + 1 : 1;
    load_require(ld, rule.longest <= VISION_SIDE_MAX && most * most < IMAGE_VIEWS_MAX,
        "image preprocessing: images of %d pixels in tiles of %d; at most %d tiles are possible", rule.longest,
        rule.side, IMAGE_VIEWS_MAX - 1);
    return rule;
}

void vision_load_idefics3(Loader *ld, Spec *spec, int merge) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    Dims d = {.hidden = load_int_or(ld, "hidden_size", 1152),
        .heads = load_int_or(ld, "num_attention_heads", 16),
        .intermediate_size = load_int_or(ld, "intermediate_size", 3072)};
    d.kv_heads = d.heads;
    family_check(ld, &d);
    vision->tower.hidden = d.hidden;
    vision->tower.layer_count = load_int_or(ld, "num_hidden_layers", 12);
    const float eps = load_positive_or(ld, "layer_norm_eps", 1e-6);
    const int patch = load_int_or(ld, "patch_size", 32), side = load_int_or(ld, "image_size", 224) / patch;
    load_require(ld, load_int_or(ld, "num_channels", 3) == 3, "num_channels must be 3");
    load_require(ld, side > 0 && side % merge == 0, "scale_factor %d does not divide %d patches", merge, side);
    load_expect_text(ld, "hidden_act", "gelu_pytorch_tanh");
    vision->rule = load_rule(ld, patch, side, merge);
    vision_siglip(ld, vision, &d, eps, patch, side);
    load_return(ld, &root);
    load_scope(ld, "%sconnector.modality_projection.",
        load_has(ld, "model.connector.modality_projection.proj.weight") ? "model." : "");
    vision->merger.stage_count = 1;
    vision->merger.stages[0] =
        (MergerStage){.weight = load_linear(ld, "proj", spec->hidden, (int64_t)d.hidden * merge * merge, false),
            .activation = {.kind = ACT_NONE}};
    vision->placeholder = vision->token = "<image>";
    vision->tile = "<fake_token_around_image><row_%d_col_%d>";
    vision->tile_row_end = vision->tiles_end = "\n";
    vision->before = "<fake_token_around_image><global-img>";
    vision->after = "<fake_token_around_image>";
    load_return(ld, &root);
}
