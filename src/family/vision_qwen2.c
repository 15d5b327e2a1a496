/* The vision parts of Qwen2-VL and Qwen2.5-VL. Reference: transformers, models/qwen2_vl/modeling_qwen2_vl.py and
 * models/qwen2_5_vl/modeling_qwen2_5_vl.py. */
#include "family/vision_parts.h"

static const float norm_eps = 1e-6F;

/* What both have. hidden: of the tower. */
static VisionSpec *open_vision(Loader *ld, const Spec *spec, Dims *d, const char *out_field) {
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return NULL;
    vision_check_rope(ld, spec);
    d->heads = d->kv_heads = load_int_or(ld, "num_heads", 16);
    vision->tower.layer_count = load_int_or(ld, "depth", 32);
    const int out = load_int_or(ld, out_field, spec->hidden), patch = load_int_or(ld, "patch_size", 14);
    load_require(
        ld, out == spec->hidden, "%s is %d, but the text model's hidden_size %d", out_field, out, spec->hidden);
    load_require(ld, load_int_or(ld, "in_channels", load_int_or(ld, "in_chans", 3)) == 3, "in_channels must be 3");
    load_ignore(ld, "in_chans", "spatial_patch_size", NULL);
    vision->rule =
        vision_area_rule(ld, patch, load_int_or(ld, "spatial_merge_size", 2), VISION_AREA_MIN, VISION_AREA_MAX);
    vision->grid_positions = true;
    vision->placeholder = vision->token = "<|image_pad|>";
    vision->before = vision->after = "";
    vision->video = (VideoSpec){.rule = vision_area_video(ld, vision, false, VIDEO_TOKENS_MIN, VIDEO_TOKENS_MAX),
        .placeholder = "<|video_pad|>",
        .token = "<|video_pad|>",
        .one_grid = true};
    return vision;
}

static void load_attention(
    Loader *ld, VisionSpec *vision, Layer *layer, const Dims *d, const Rope *rope, LoadNorm *norm) {
    Component *attention = vision_component(vision, layer, COMPONENT_ATTENTION, norm(ld, "norm1", d->hidden, norm_eps));
    attention->attention = family_fused_attention(ld, d, "attn.qkv", "attn.proj", rope, true, true);
}

static void load_ends(Loader *ld, VisionSpec *vision, const Dims *d, int out, LoadNorm *norm) {
    const int wide = d->hidden * vision->rule.merge * vision->rule.merge;
    load_scope(ld, "%s", "");
    const int frames = load_int_or(ld, "temporal_patch_size", 2);
    vision->patch =
        load_patch_convolution(ld, "patch_embed.proj", d->hidden, vision->rule.patch, frames, false, &vision->pair);
    if (!vision->pair.rows) vision->video = (VideoSpec){0};
    load_scope(ld, "merger.");
    vision->merger = (Merger){.norm = norm(ld, "ln_q", d->hidden, norm_eps),
        .stage_count = 2,
        .stages = {{.weight = load_linear(ld, "mlp.0", wide, wide, true), .activation = {.kind = ACT_GELU}},
            {.weight = load_linear(ld, "mlp.2", out, wide, true), .activation = {.kind = ACT_NONE}}}};
}

void vision_load_qwen2(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    Dims d = {0};
    VisionSpec *vision = open_vision(ld, spec, &d, "hidden_size");
    if (!vision) return;
    vision->tower.hidden = d.hidden = load_int_or(ld, "embed_dim", 1280);
    d.intermediate_size = d.hidden * load_int_or(ld, "mlp_ratio", 4);
    load_expect_text(ld, "hidden_act", "quick_gelu");
    load_ignore(ld, "tokens_per_second", NULL);
    family_check(ld, &d);
    const Rope *rope = load_grid_rope(ld, d.head_dim, 10000, false);
    load_layers(ld, &vision->tower);
    for (int i = 0; i < vision->tower.layer_count; i++) {
        Layer *layer = &vision->tower.layers[i];
        load_scope(ld, "blocks.%d.", i);
        load_attention(ld, vision, layer, &d, rope, load_layer_norm);
        Component *mlp =
            vision_component(vision, layer, COMPONENT_MLP, load_layer_norm(ld, "norm2", d.hidden, norm_eps));
        mlp->mlp = (MlpComponent){.up = load_linear(ld, "mlp.fc1", d.intermediate_size, d.hidden, true),
            .down = load_linear(ld, "mlp.fc2", d.hidden, d.intermediate_size, true),
            .activation = {.kind = ACT_SILU},
            .slope = 1.702F}; /* quick GELU */
    }
    load_ends(ld, vision, &d, spec->hidden, load_layer_norm);
    load_return(ld, &root);
}

/* Which layers attend within windows: all but those of fullatt_block_indexes. */
static void load_windows(Loader *ld, VisionSpec *vision) {
    const int unit = vision->rule.patch * vision->rule.merge, pixels = load_int_or(ld, "window_size", 112);
    const Json *full = load_list(ld, "fullatt_block_indexes", -1);
    vision->rule.window = pixels / unit;
    load_require(ld, vision->rule.window > 0 && vision->rule.window * vision->rule.merge <= VISION_WINDOW_MAX,
        "window_size is %d, must be %d to %d", pixels, unit, VISION_WINDOW_MAX / vision->rule.merge * unit);
    load_require(ld, vision->tower.layer_count <= VISION_LAYERS_MAX, "depth is %d, at most %d are possible",
        vision->tower.layer_count, VISION_LAYERS_MAX);
    for (int i = 0; i < vision->tower.layer_count && i < VISION_LAYERS_MAX; i++)
        vision->windowed[i] = !family_listed(full, i);
    vision->rule.order = PATCHES_WINDOWED;
    vision->video.rule.frame.window = vision->rule.window;
    vision->video.rule.frame.order = vision->rule.order;
}

void vision_load_qwen2_5(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    Dims d = {0};
    VisionSpec *vision = open_vision(ld, spec, &d, "out_hidden_size");
    if (!vision) return;
    vision->tower.hidden = d.hidden = load_int_or(ld, "hidden_size", 1280);
    d.intermediate_size = load_int_or(ld, "intermediate_size", 3420);
    vision->video.tokens_per_second = load_positive_or(ld, "tokens_per_second", 4);
    load_expect_text(ld, "hidden_act", "silu");
    family_check(ld, &d);
    load_windows(ld, vision);
    const Rope *rope = load_grid_rope(ld, d.head_dim, 10000, false);
    load_layers(ld, &vision->tower);
    for (int i = 0; i < vision->tower.layer_count; i++) {
        Layer *layer = &vision->tower.layers[i];
        load_scope(ld, "blocks.%d.", i);
        load_attention(ld, vision, layer, &d, rope, load_rms);
        Component *glu = vision_component(vision, layer, COMPONENT_GLU, load_rms(ld, "norm2", d.hidden, norm_eps));
        glu->glu = family_glu(ld, "mlp", d.hidden, d.intermediate_size, (Activation){.kind = ACT_SILU}, true);
    }
    load_ends(ld, vision, &d, spec->hidden, load_rms);
    load_return(ld, &root);
}
