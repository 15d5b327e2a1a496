/* SigLIP with the projector of Gemma 3. Reference: transformers, models/siglip/modeling_siglip.py and
 * models/gemma3/modeling_gemma3.py. */
#include "family/vision_parts.h"

#include <math.h>

void vision_siglip(Loader *ld, VisionSpec *vision, const Dims *d, float eps, int patch, int side) {
    const char *home = load_has(ld, "vision_model.post_layernorm.weight") ? "vision_model." : "";
    load_scope(ld, "%s", home);
    vision->patch = load_convolution(ld, "embeddings.patch_embedding", d->hidden, 3, patch, 1, true);
    vision->positions = (PositionTable){
        POSITIONS_GRID, side, load_array(ld, "embeddings.position_embedding.weight", (int64_t)side * side, d->hidden)};
    vision->merger.norm = load_layer_norm(ld, "post_layernorm", d->hidden, eps);
    load_layers(ld, &vision->tower);
    for (int i = 0; i < vision->tower.layer_count; i++) {
        Layer *layer = &vision->tower.layers[i];
        load_scope(ld, "%sencoder.layers.%d.", home, i);
        Component *attention =
            vision_component(vision, layer, COMPONENT_ATTENTION, load_layer_norm(ld, "layer_norm1", d->hidden, eps));
        attention->attention = family_attention(ld, d, "out_proj", NULL, true, true);
        Component *mlp =
            vision_component(vision, layer, COMPONENT_MLP, load_layer_norm(ld, "layer_norm2", d->hidden, eps));
        mlp->mlp = (MlpComponent){.up = load_linear(ld, "mlp.fc1", d->intermediate_size, d->hidden, true),
            .down = load_linear(ld, "mlp.fc2", d->hidden, d->intermediate_size, true),
            .activation = {.kind = ACT_GELU_TANH}};
    }
}

void vision_load_gemma3(Loader *ld, Spec *spec, int tokens) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    Dims d = {.hidden = load_int_or(ld, "hidden_size", 1152),
        .heads = load_int_or(ld, "num_attention_heads", 16),
        .intermediate_size = load_int_or(ld, "intermediate_size", 4304)};
    d.kv_heads = d.heads;
    family_check(ld, &d);
    vision->tower.hidden = d.hidden;
    vision->tower.layer_count = load_int_or(ld, "num_hidden_layers", 27);
    const float eps = load_positive_or(ld, "layer_norm_eps", 1e-6);
    const int patch = load_int_or(ld, "patch_size", 14), pixels = load_int_or(ld, "image_size", 896);
    const int side = pixels / patch, grid = (int)lround(sqrt(tokens));
    load_require(ld, load_int_or(ld, "num_channels", 3) == 3, "num_channels must be 3");
    load_require(ld, grid * grid == tokens && grid > 0 && side % grid == 0 && side > 0,
        "mm_tokens_per_image is %d, which is no square that divides %d × %d patches", tokens, side, side);
    load_expect_text(ld, "hidden_act", "gelu_pytorch_tanh");
    load_expect_bool(ld, "vision_use_head", false);
    vision->rule = vision_rule(ld, IMAGE_BILINEAR);
    vision->rule.sizing = SIZING_FIXED;
    vision->rule.order = PATCHES_SPREAD;
    vision->rule.patch = patch;
    vision->rule.side = side * patch;
    vision->rule.merge = grid ? side / grid : 1;
    vision_check_rule(ld, &vision->rule);
    vision_siglip(ld, vision, &d, eps, patch, side);
    load_return(ld, &root);

    const bool raw = load_has(ld, "model.multi_modal_projector.mm_input_projection_weight");
    load_scope(ld, "%smulti_modal_projector.", raw ? "model." : "");
    vision->merger.average = 1;
    vision->merger.stage_count = 1;
    vision->merger.stages[0] = (MergerStage){
        .norm = load_rms_plus_one(ld, "mm_soft_emb_norm", d.hidden, 1e-6F), /* Gemma's default, whatever the tower's */
        .weight = load_transposed(ld, "mm_input_projection_weight", spec->hidden, d.hidden),
        .activation = {.kind = ACT_NONE}};
    vision->bidirectional = true;
    vision->placeholder = "<start_of_image>";
    vision->before = "\n\n<start_of_image>";
    vision->token = "<image_soft_token>";
    vision->after = "<end_of_image>\n\n";
    load_return(ld, &root);
}
