/* The tower of Pixtral, with its own projector or that of Mistral 3. Reference: transformers,
 * models/pixtral/modeling_pixtral.py, models/llava/modeling_llava.py and models/mistral3/modeling_mistral3.py. */
#include "family/vision_parts.h"

static const float norm_eps = 1e-5F; /* epsilon of the tower, whatever the config says */

static void load_layer(
    Loader *ld, VisionSpec *vision, Layer *layer, const Dims *d, const Rope *rope, Activation activation) {
    AttentionComponent a = family_attention_op(d, rope);
    a.q = load_linear(ld, "attention.q_proj", d->hidden, d->hidden, false);
    a.k = load_linear(ld, "attention.k_proj", d->hidden, d->hidden, false);
    a.v = load_linear(ld, "attention.v_proj", d->hidden, d->hidden, false);
    a.o = load_linear(ld, "attention.o_proj", d->hidden, d->hidden, false);
    vision_component(vision, layer, COMPONENT_ATTENTION, load_rms(ld, "attention_norm", d->hidden, norm_eps))
        ->attention = a;
    vision_component(vision, layer, COMPONENT_GLU, load_rms(ld, "ffn_norm", d->hidden, norm_eps))->glu =
        family_glu(ld, "feed_forward", d->hidden, d->intermediate_size, activation, false);
}

static void load_tower(Loader *ld, VisionSpec *vision, const Dims *d, Activation activation) {
    const char *home = load_has(ld, "vision_model.ln_pre.weight") ? "vision_model." : "";
    const Rope *rope = load_grid_rope(ld, d->head_dim, 10000, true);
    load_scope(ld, "%s", home);
    vision->patch = load_convolution(ld, "patch_conv", d->hidden, 3, vision->rule.patch, 1, false);
    vision->patch_norm = load_rms(ld, "ln_pre", d->hidden, norm_eps);
    load_layers(ld, &vision->tower);
    for (int i = 0; i < vision->tower.layer_count; i++) {
        load_scope(ld, "%stransformer.layers.%d.", home, i);
        load_layer(ld, vision, &vision->tower.layers[i], d, rope, activation);
    }
}

/* in: of the tower; out: of the text model. */
static Merger load_projector(Loader *ld, int merge, int in, int out, float eps, bool bias) {
    Merger merger = {0};
    MergerStage *stage = merger.stages;
    if (merge) {
        merger.norm = load_rms(ld, "norm", in, eps);
        *stage++ =
            (MergerStage){.weight = load_unfolded(ld, "patch_merger.merging_layer.weight", in, in, merge * merge),
                .activation = {.kind = ACT_NONE}};
    }
    *stage++ = (MergerStage){.weight = load_linear(ld, "linear_1", out, in, bias), .activation = {.kind = ACT_GELU}};
    *stage++ = (MergerStage){.weight = load_linear(ld, "linear_2", out, out, bias), .activation = {.kind = ACT_NONE}};
    merger.stage_count = (int)(stage - merger.stages);
    return merger;
}

/* Pixels that no side exceeds; files have one number, or the same for both sides. */
static int load_longest(Loader *ld, int absent) {
    const Json *size = json_get(load_processor(ld), "size");
    const int64_t height = vision_count(ld, size, "height", absent), width = vision_count(ld, size, "width", height);
    load_require(ld, height == width || vision_count(ld, size, "longest_edge", 0) > 0,
        "image preprocessing: size must be a square, or have longest_edge");
    return (int)vision_count(ld, size, "longest_edge", height);
}

void vision_load_pixtral(Loader *ld, Spec *spec, int merge, bool bias) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    Dims d = {.hidden = load_int_or(ld, "hidden_size", 1024),
        .heads = load_int_or(ld, "num_attention_heads", 16),
        .head_dim = load_int_or(ld, "head_dim", 0),
        .intermediate_size = load_int_or(ld, "intermediate_size", 4096)};
    d.kv_heads = d.heads;
    family_check(ld, &d);
    load_require(ld, d.head_dim * d.heads == d.hidden, "head_dim is %d, but %d heads have %d elements", d.head_dim,
        d.heads, d.hidden);
    load_require(ld, load_int_or(ld, "num_channels", 3) == 3, "num_channels must be 3");
    const bool silu = load_text_is(ld, "hidden_act", "silu"), gelu = load_text_is(ld, "hidden_act", "gelu");
    load_require(ld, silu || gelu || !load_has_field(ld, "hidden_act"), "hidden_act must be silu or gelu, the default");
    vision->tower.hidden = d.hidden;
    vision->tower.layer_count = load_int_or(ld, "num_hidden_layers", 24);
    vision->rule = vision_rule(ld, IMAGE_BICUBIC, COLOURS_CLIP);
    vision_expect_switch(ld, "do_center_crop", false);
    vision->rule.sizing = SIZING_WITHIN;
    vision->rule.patch = load_int_or(ld, "patch_size", 16);
    vision->rule.merge = merge ? merge : 1;
    vision->rule.side = load_longest(ld, load_int_or(ld, "image_size", 1024));
    vision_check_rule(ld, &vision->rule);
    load_tower(ld, vision, &d, (Activation){.kind = silu ? ACT_SILU : ACT_GELU});
    load_return(ld, &root);
    const bool raw = load_has(ld, "model.multi_modal_projector.linear_1.weight");
    load_scope(ld, "%smulti_modal_projector.", raw ? "model." : "");
    const float eps = spec->final_norm ? spec->final_norm->eps : norm_eps; /* rms_norm_eps of the text model */
    vision->merger = load_projector(ld, merge, d.hidden, spec->hidden, eps, bias);
    vision->placeholder = vision->token = "[IMG]";
    vision->before = "";
    vision->row_end = "[IMG_BREAK]";
    vision->after = "[IMG_END]";
    load_return(ld, &root);
}
