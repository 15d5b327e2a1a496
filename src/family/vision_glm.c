/* The vision parts of GLM-4V and GLM-OCR. References: transformers, models/glm4v/modeling_glm4v.py,
 * models/glm_ocr/modeling_glm_ocr.py and models/glm46v/image_processing_pil_glm46v.py. */
#include "family/vision_parts.h"

enum {
    AREA_MIN = 112 * 112, /* limits of an image's frames, where files say nothing */
    AREA_MAX = 28 * 28 * 15000,
};

typedef struct Tower {
    Dims d;
    int glu_size;
    bool qkv_bias, bias, head_norms; /* bias: of the other products */
    const Rope *rope;
} Tower;

/* frames: how often the processor counts the pixels of an image, as those of a video with so many frames. */
static ImageRule load_rule(Loader *ld, int patch, int merge, int frames) {
    ImageRule rule = vision_area_rule(ld, patch, merge, AREA_MIN, AREA_MAX);
    vision_expect_count(ld, "temporal_patch_size", frames);
    rule.pixels_min = (rule.pixels_min + frames - 1) / frames;
    rule.pixels_max /= frames;
    rule.enlarge = true;
    vision_check_rule(ld, &rule);
    return rule;
}

static void load_block(Loader *ld, VisionSpec *vision, int i, const Tower *t) {
    const Dims *d = &t->d;
    Layer *layer = &vision->tower.layers[i];
    load_scope(ld, "blocks.%d.", i);
    AttentionComponent a = family_fused_attention(ld, d, "attn.qkv", "attn.proj", t->rope, t->qkv_bias, t->bias);
    if (t->head_norms) {
        a.op.q_norm = load_rms(ld, "attn.q_norm", d->head_dim, d->eps);
        a.op.k_norm = load_rms(ld, "attn.k_norm", d->head_dim, d->eps);
    }
    vision_component(vision, layer, COMPONENT_ATTENTION, load_rms(ld, "norm1", d->hidden, d->eps))->attention = a;
    vision_component(vision, layer, COMPONENT_GLU, load_rms(ld, "norm2", d->hidden, d->eps))->glu =
        family_glu(ld, "mlp", d->hidden, t->glu_size, (Activation){.kind = ACT_SILU}, t->bias);
}

/* out: elements of a token; inner: of the merger's gated network. */
static Merger load_merger(Loader *ld, const Tower *t, int merge, int out, int inner) {
    const Activation none = {.kind = ACT_NONE};
    load_scope(ld, "%s", "");
    Merger merger = {.norm = load_rms(ld, "post_layernorm", t->d.hidden, t->d.eps), .stage_count = 4};
    merger.stages[0] = (MergerStage){
        .weight = load_convolution(ld, "downsample", out, t->d.hidden, merge, 1, true), .activation = none};
    load_scope(ld, "merger.");
    merger.stages[1] = (MergerStage){.weight = load_linear(ld, "proj", out, out, false),
        .output_norm = load_layer_norm(ld, "post_projection_norm", out, 1e-5F),
        .activation = {.kind = ACT_GELU}};
    merger.stages[2] = (MergerStage){.weight = load_linear(ld, "up_proj", inner, out, false),
        .gate = load_linear(ld, "gate_proj", inner, out, false),
        .activation = {.kind = ACT_SILU}};
    merger.stages[3] = (MergerStage){.weight = load_linear(ld, "down_proj", out, inner, false), .activation = none};
    return merger;
}

/* GLM-4V alone: a norm of the embedded patches, and learned positions. */
static void load_positions(Loader *ld, VisionSpec *vision, const Tower *t, int side) {
    vision->embedding_norm = load_rms(ld, "post_conv_layernorm", t->d.hidden, t->d.eps);
    vision->positions = (PositionTable){POSITIONS_CUBIC, side,
        load_array(ld, "embeddings.position_embedding.weight", (int64_t)side * side, t->d.hidden)};
}

/* The limits of the processor, which count all frames. */
static void load_video(Loader *ld, VisionSpec *vision) {
    const Json *class = json_get(load_processor(ld), "processor_class");
    const bool later = class && class->type == JSON_STRING && slice_is(json_slice(class), "Glm46VProcessor");
    vision->video = (VideoSpec){.rule = vision_area_video(ld, vision, true, 16, 60000),
        .placeholder = "<|video|>",
        .before = "<|begin_of_image|>",
        .token = "<|image|>",
        .after = later ? "<|end_of_image|>%s seconds" : "<|end_of_image|>%s",
        .time = later ? VIDEO_BEGIN_TENTHS : VIDEO_SECONDS};
}

void vision_load_glm(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    vision_check_rope(ld, spec);
    const bool learned = load_has(ld, "embeddings.position_embedding.weight");
    Tower t = {.d = {.hidden = load_int(ld, "hidden_size"),
                   .heads = load_int(ld, "num_heads"),
                   .intermediate_size = load_int(ld, "intermediate_size"),
                   .eps = load_positive_or(ld, "rms_norm_eps", 1e-5)},
        .qkv_bias = load_bool_or(ld, "attention_bias", !learned),
        .head_norms = load_has(ld, "blocks.0.attn.q_norm.weight")};
    t.d.kv_heads = t.d.heads;
    t.bias = t.qkv_bias && !learned;
    const int out = load_int_or(ld, "out_hidden_size", spec->hidden), channels = load_int_or(ld, "in_channels", 3);
    const int patch = load_int_or(ld, "patch_size", 14), merge = load_int_or(ld, "spatial_merge_size", 2);
    const int side = load_int_or(ld, "image_size", 336) / patch, frames = load_int_or(ld, "temporal_patch_size", 2);
    family_check(ld, &t.d);
    load_require(
        ld, out == spec->hidden, "out_hidden_size is %d, but the text model's hidden_size %d", out, spec->hidden);
    load_require(ld, channels == 3, "in_channels must be 3");
    load_expect_text(ld, "hidden_act", "silu");
    t.glu_size = learned ? out : t.d.intermediate_size;
    t.rope = load_grid_rope(ld, t.d.head_dim, 10000, false);
    vision->tower.hidden = t.d.hidden;
    vision->tower.layer_count = load_int(ld, "depth");
    vision->rule = load_rule(ld, patch, merge, frames);
    vision->patch = load_patch_convolution(ld, "patch_embed.proj", t.d.hidden, patch, frames, true, &vision->pair);
    if (learned) load_positions(ld, vision, &t, side);
    load_layers(ld, &vision->tower);
    for (int i = 0; i < vision->tower.layer_count; i++) load_block(ld, vision, i, &t);
    vision->merger = load_merger(ld, &t, merge, out, learned ? t.d.intermediate_size : out * channels);
    vision->grid_positions = true;
    vision->placeholder = vision->token = "<|image|>";
    vision->before = vision->after = "";
    if (vision->pair.rows) load_video(ld, vision);
    load_return(ld, &root);
}
