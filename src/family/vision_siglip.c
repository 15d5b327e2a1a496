/* Reference: transformers, models/siglip/modeling_siglip.py, models/siglip2/modeling_siglip2.py. */
#include "family/vision_siglip.h"

#include <math.h>
#include <stdio.h>

Siglip siglip_fields(Loader *ld, const Siglip *usual, bool places) {
    Siglip s = {.d = {.hidden = load_int_or(ld, "hidden_size", usual->d.hidden),
                    .heads = load_int_or(ld, "num_attention_heads", usual->d.heads),
                    .intermediate_size = load_int_or(ld, "intermediate_size", usual->d.intermediate_size)},
        .layers = load_int_or(ld, "num_hidden_layers", usual->layers),
        .patch = load_int_or(ld, "patch_size", usual->patch),
        .eps = load_positive_or(ld, "layer_norm_eps", 1e-6)};
    s.d.kv_heads = s.d.heads;
    s.pixels = places ? s.patch * (int)lround(sqrt(load_int_or(ld, "num_patches", 256)))
                      : load_int_or(ld, "image_size", usual->pixels);
    family_check(ld, &s.d);
    load_require(ld, load_int_or(ld, "num_channels", 3) == 3, "num_channels must be 3");
    load_require(ld, s.pixels >= s.patch, "images are smaller than a patch");
    load_expect_text(ld, "hidden_act", "gelu_pytorch_tanh");
    load_expect_bool(ld, "vision_use_head", false);
    return s;
}

void siglip_tower(Loader *ld, VisionSpec *vision, const Siglip *s, PositionKind positions) {
    const Dims *d = &s->d;
    const char *home = load_has(ld, "vision_model.post_layernorm.weight") ? "vision_model." : "";
    const int side = s->pixels / s->patch;
    vision->tower.hidden = d->hidden;
    vision->tower.layer_count = s->layers;
    load_scope(ld, "%s", home);
    vision->patch = positions == POSITIONS_STRETCHED
        ? load_linear(ld, "embeddings.patch_embedding", d->hidden, (int64_t)s->patch * s->patch * 3, true)
        : load_convolution(ld, "embeddings.patch_embedding", d->hidden, 3, s->patch, 1, true);
    vision->positions = (PositionTable){
        positions, side, load_array(ld, "embeddings.position_embedding.weight", (int64_t)side * side, d->hidden)};
    vision->merger.norm = load_layer_norm(ld, "post_layernorm", d->hidden, s->eps);
    load_layers(ld, &vision->tower);
    for (int i = 0; i < vision->tower.layer_count; i++) {
        Layer *layer = &vision->tower.layers[i];
        load_scope(ld, "%sencoder.layers.%d.", home, i);
        Component *attention =
            vision_component(vision, layer, COMPONENT_ATTENTION, load_layer_norm(ld, "layer_norm1", d->hidden, s->eps));
        attention->attention = family_attention(ld, d, "out_proj", NULL, true, true);
        Component *mlp =
            vision_component(vision, layer, COMPONENT_MLP, load_layer_norm(ld, "layer_norm2", d->hidden, s->eps));
        mlp->mlp = (MlpComponent){.up = load_linear(ld, "mlp.fc1", d->intermediate_size, d->hidden, true),
            .down = load_linear(ld, "mlp.fc2", d->hidden, d->intermediate_size, true),
            .activation = {.kind = ACT_GELU_TANH}};
    }
}

ImageRule siglip_fixed_rule(Loader *ld, const Siglip *s, int merge, ImageFilter filter) {
    ImageRule rule = vision_rule(ld, filter, COLOURS_HALF);
    const Json *size = json_get(load_processor(ld), "size");
    vision_expect_switch(ld, "do_center_crop", false);
    load_require(ld,
        vision_count(ld, size, "height", s->pixels) == s->pixels &&
            vision_count(ld, size, "width", s->pixels) == s->pixels,
        "image preprocessing: size must be %d × %d, as the tower's images", s->pixels, s->pixels);
    rule.sizing = SIZING_FIXED;
    rule.patch = s->patch;
    rule.side = s->pixels;
    rule.merge = merge;
    vision_check_rule(ld, &rule);
    return rule;
}

void siglip_enter_projector(Loader *ld, const char *module, const char *tensor) {
    char name[96];
    snprintf(name, sizeof name, "model.%s.%s", module, tensor);
    load_scope(ld, "%s", "");
    load_scope(ld, "%s%s.", load_has(ld, name) ? "model." : "", module);
}
