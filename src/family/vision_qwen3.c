/* The vision part of Qwen3-VL and Qwen3.5. Reference: transformers, models/qwen3_vl/modeling_qwen3_vl.py and
 * models/qwen2_vl/image_processing_pil_qwen2_vl.py. */
#include "family/vision_parts.h"

#include <math.h>

static const float norm_eps = 1e-6F;

static void load_layer(Loader *ld, VisionSpec *vision, int i, const Dims *d, const Rope *rope) {
    Layer *layer = &vision->tower.layers[i];
    load_scope(ld, "blocks.%d.", i);
    Component *attention =
        vision_component(vision, layer, COMPONENT_ATTENTION, load_layer_norm(ld, "norm1", d->hidden, norm_eps));
    attention->attention = family_fused_attention(ld, d, "attn.qkv", "attn.proj", rope, true, true);
    Component *mlp = vision_component(vision, layer, COMPONENT_MLP, load_layer_norm(ld, "norm2", d->hidden, norm_eps));
    mlp->mlp = (MlpComponent){.up = load_linear(ld, "mlp.linear_fc1", d->intermediate_size, d->hidden, true),
        .down = load_linear(ld, "mlp.linear_fc2", d->hidden, d->intermediate_size, true),
        .activation = {.kind = ACT_GELU_TANH}};
}

/* joined: the norm is over a group's rows one behind the other, instead of each row. */
static Merger load_merger(Loader *ld, const VisionSpec *vision, int out, bool joined) {
    const int hidden = vision->tower.hidden, wide = hidden * vision->rule.merge * vision->rule.merge;
    const Norm *norm = load_layer_norm(ld, "norm", joined ? wide : hidden, norm_eps);
    return (Merger){.norm = joined ? NULL : norm,
        .stage_count = 2,
        .stages = {{.norm = joined ? norm : NULL,
                       .weight = load_linear(ld, "linear_fc1", wide, wide, true),
                       .activation = {.kind = ACT_GELU}},
            {.weight = load_linear(ld, "linear_fc2", out, wide, true), .activation = {.kind = ACT_NONE}}}};
}

static void load_deepstack(Loader *ld, VisionSpec *vision, int text_layers, int out) {
    const Json *layers = load_list(ld, "deepstack_visual_indexes", -1);
    if (!layers) return;
    load_require(ld, layers->size <= DEEPSTACK_MAX && layers->size <= (uint32_t)text_layers,
        "deepstack_visual_indexes has %u elements, at most %d are possible", layers->size, DEEPSTACK_MAX);
    for (JSON_EACH(item, layers)) {
        const int i = vision->deepstack_count;
        const bool ok = i < DEEPSTACK_MAX && item->type == JSON_INTEGER && item->integer >= 0 &&
            item->integer < vision->tower.layer_count && (i == 0 || item->integer > vision->deepstack[i - 1].layer);
        load_require(ld, ok, "deepstack_visual_indexes[%d] must be the number of a layer behind the one before", i);
        if (!ok) return;
        load_scope(ld, "deepstack_merger_list.%d.", i);
        vision->deepstack[i] = (Deepstack){(int)item->integer, load_merger(ld, vision, out, true)};
        vision->deepstack_count++;
    }
}

void vision_load_qwen3(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    Spec *tower = &vision->tower;
    vision_check_rope(ld, spec);
    Dims d = {.hidden = load_int(ld, "hidden_size"),
        .heads = load_int(ld, "num_heads"),
        .intermediate_size = load_int(ld, "intermediate_size")};
    d.kv_heads = d.heads;
    family_check(ld, &d);
    tower->hidden = d.hidden;
    tower->layer_count = load_int(ld, "depth");
    const int out = load_int_or(ld, "out_hidden_size", spec->hidden), patch = load_int_or(ld, "patch_size", 16);
    const int places = load_int_or(ld, "num_position_embeddings", 2304), side = (int)lround(sqrt(places));
    load_require(
        ld, out == spec->hidden, "out_hidden_size is %d, but the text model's hidden_size %d", out, spec->hidden);
    load_require(ld, side * side == places, "num_position_embeddings is %d, not a square", places);
    load_require(ld, load_int_or(ld, "in_channels", 3) == 3, "in_channels must be 3");
    load_expect_text(ld, "hidden_act", "gelu_pytorch_tanh");
    vision->rule =
        vision_area_rule(ld, patch, load_int_or(ld, "spatial_merge_size", 2), VISION_AREA_MIN, VISION_AREA_MAX);
    vision->patch = load_patch_convolution(
        ld, "patch_embed.proj", d.hidden, patch, load_int_or(ld, "temporal_patch_size", 2), true, &vision->pair);
    vision->positions = (PositionTable){POSITIONS_CORNERS, side, load_array(ld, "pos_embed.weight", places, d.hidden)};
    const Rope *rope = load_grid_rope(ld, d.head_dim, 10000, false);
    load_layers(ld, tower);
    for (int i = 0; i < tower->layer_count; i++) load_layer(ld, vision, i, &d, rope);
    load_scope(ld, "merger.");
    vision->merger = load_merger(ld, vision, out, false);
    load_deepstack(ld, vision, spec->layer_count, out);
    vision->grid_positions = true;
    vision->placeholder = vision->token = "<|image_pad|>";
    vision->before = vision->after = "";
    if (vision->pair.rows)
        vision->video = (VideoSpec){.rule = vision_area_video(ld, vision, true, VIDEO_TOKENS_MIN, VIDEO_TOKENS_MAX),
            .placeholder = "<|vision_start|><|video_pad|><|vision_end|>",
            .before = "<%s seconds><|vision_start|>",
            .token = "<|video_pad|>",
            .after = "<|vision_end|>",
            .time = VIDEO_TENTHS};
    load_return(ld, &root);
}
