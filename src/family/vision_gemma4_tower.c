/* How images become patches of Gemma 4, and its tower, whose products may have bounds, and whose groups of
 * patches are averaged. References: transformers, models/gemma4/modeling_gemma4.py, image_processing_pil_gemma4.py. */
#include "family/vision_gemma4.h"

#include <math.h>
#include <stdio.h>

ImageRule gemma4_rule(Loader *ld, int patch, int merge, int places, float mean, float std) {
    const Json *processor = load_processor(ld), *normalise = json_get(processor, "do_normalize");
    ImageRule rule = vision_rule(ld, IMAGE_BICUBIC, COLOURS_PLAIN);
    const int64_t tokens = vision_count(ld, processor, "max_soft_tokens", GEMMA4_TOKENS_USUAL),
                  unit = (int64_t)patch * merge;
    bool possible = false, plain = true;
    for (int64_t each = GEMMA4_TOKENS_LEAST; each <= GEMMA4_TOKENS_MOST; each *= 2)
        possible = possible || tokens == each;
    load_require(ld, possible, "image preprocessing: max_soft_tokens must be 70, 140, 280, 560 or 1120");
    for (int c = 0; c < 3; c++) {
        plain = plain && rule.mean[c] == 0 && rule.std[c] == 1;
        rule.mean[c] = mean;
        rule.std[c] = std;
    }
    load_require(ld, plain || !normalise || normalise->type != JSON_BOOL || !normalise->boolean,
        "image preprocessing: do_normalize must be false");
    rule.sizing = SIZING_BUDGET;
    rule.order = merge > 1 ? PATCHES_SPREAD : PATCHES_GROUPED;
    rule.patch = patch;
    rule.merge = merge;
    rule.pixels_max = tokens * unit * unit;
    rule.pixels_low = GEMMA4_TOKENS_LEAST * unit * unit;
    rule.side = patch * (places < tokens * merge ? places : (int)tokens * merge);
    vision_check_rule(ld, &rule);
    return rule;
}

typedef struct Tower {
    Dims d;
    const Rope *rope;
    int order[ATTENTION_HEAD_MAX]; /* order of a head's elements, as load_grid_rope() turns them */
    bool clipped;
} Tower;

/* The first half of a head turns by the column, the other by the row, with pairs within a half. */
static bool order_heads(Loader *ld, Tower *t) {
    static const int quarters[] = {2, 0, 3, 1};
    const int each = t->d.head_dim / 4;
    const bool ok = each > 0 && t->d.head_dim % 4 == 0 && t->d.head_dim <= ATTENTION_HEAD_MAX;
    load_require(ld, ok, "heads of %d elements, must be a multiple of 4 up to %d", t->d.head_dim, ATTENTION_HEAD_MAX);
    for (int i = 0; ok && i < t->d.head_dim; i++) t->order[i] = quarters[i / each] * each + i % each;
    return ok;
}

/* MODULE.linear, or MODULE itself where no bounds are around it. */
static const char *inner(Loader *ld, const char *module, char name[64]) {
    snprintf(name, 64, "%s.linear.weight", module);
    const bool within = load_has(ld, name);
    snprintf(name, 64, "%s%s", module, within ? ".linear" : "");
    return name;
}

static void load_attention(Loader *ld, VisionSpec *vision, Layer *layer, const Tower *t) {
    static const char *const modules[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"};
    const Dims *d = &t->d;
    const int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
    char name[64];
    AttentionComponent a = family_attention_op(d, t->rope);
    a.q = load_reordered(ld, inner(ld, modules[0], name), q, d->hidden, false, t->order, d->head_dim);
    a.k = load_reordered(ld, inner(ld, modules[1], name), kv, d->hidden, false, t->order, d->head_dim);
    a.v = load_linear(ld, inner(ld, modules[2], name), kv, d->hidden, false);
    a.o = load_linear(ld, inner(ld, modules[3], name), d->hidden, q, false);
    a.op.scale = 1;
    a.op.q_norm = load_rms_reordered(ld, "self_attn.q_norm", d->head_dim, d->eps, t->order);
    a.op.k_norm = load_rms_reordered(ld, "self_attn.k_norm", d->head_dim, d->eps, t->order);
    a.v_norm = load_rms(ld, NULL, d->head_dim, d->eps);
    if (t->clipped) a.clips = load_clips(ld, modules, COUNT_OF(modules));
    Component *component =
        vision_component(vision, layer, COMPONENT_ATTENTION, load_rms(ld, "input_layernorm", d->hidden, d->eps));
    component->attention = a;
    component->output_norm = load_rms(ld, "post_attention_layernorm", d->hidden, d->eps);
}

static void load_ffn(Loader *ld, VisionSpec *vision, Layer *layer, const Tower *t) {
    static const char *const modules[] = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
    const Dims *d = &t->d;
    char name[64];
    Component *component =
        vision_component(vision, layer, COMPONENT_GLU, load_rms(ld, "pre_feedforward_layernorm", d->hidden, d->eps));
    component->output_norm = load_rms(ld, "post_feedforward_layernorm", d->hidden, d->eps);
    component->glu =
        (GluComponent){.gate = load_linear(ld, inner(ld, modules[0], name), d->intermediate_size, d->hidden, false),
            .up = load_linear(ld, inner(ld, modules[1], name), d->intermediate_size, d->hidden, false),
            .down = load_linear(ld, inner(ld, modules[2], name), d->hidden, d->intermediate_size, false),
            .clips = t->clipped ? load_clips(ld, modules, COUNT_OF(modules)) : NULL,
            .activation = {.kind = ACT_GELU_TANH}};
}

static Weight load_row(Loader *ld, const char *name, int width) {
    return (Weight){.rows = 1, .cols = width, .dtype = DTYPE_F32, .data = load_vector(ld, name, width, 0)};
}

void gemma4_load_tower(Loader *ld, VisionSpec *vision) {
    Tower t = {
        .d = family_sizes(ld, NULL,
            &(Sizes){
                .hidden = 768, .heads = 12, .kv_heads = 12, .head_dim = 64, .intermediate_size = 3072, .eps = 1e-6})};
    const int patch = load_int_or(ld, "patch_size", 16), merge = load_int_or(ld, "pooling_kernel_size", 3);
    const int places = load_int_or(ld, "position_embedding_size", 10240);
    t.clipped = load_bool_or(ld, "use_clipped_linears", false);
    load_expect_text(ld, "hidden_activation", "gelu_pytorch_tanh");
    load_expect_bool(ld, "attention_bias", false);
    load_ignore(ld, "default_output_length", "global_head_dim", "max_position_embeddings", NULL);
    if (!order_heads(ld, &t)) return;
    t.rope = load_grid_rope(ld, t.d.head_dim, 100, false);
    vision->tower.hidden = t.d.hidden;
    vision->tower.layer_count = load_int_or(ld, "num_hidden_layers", 16);
    vision_expect_count(ld, "patch_size", patch);
    vision_expect_count(ld, "pooling_kernel_size", merge);
    vision->rule = gemma4_rule(ld, patch, merge, places, 0.5F, 0.5F);
    const int side = vision->rule.side / patch;
    vision->patch = load_linear(ld, "patch_embedder.input_proj", t.d.hidden, (int64_t)patch * patch * 3, false);
    vision->positions = (PositionTable){POSITIONS_AXES, side,
        load_axes(ld, "patch_embedder.position_embedding_table", places, t.d.hidden, side, false)};
    vision->merger.average = sqrtf((float)t.d.hidden);
    if (load_bool_or(ld, "standardize", false)) {
        vision->merger.shift = load_row(ld, "std_bias", t.d.hidden);
        vision->merger.factors = load_row(ld, "std_scale", t.d.hidden);
    }
    load_layers(ld, &vision->tower);
    for (int i = 0; i < vision->tower.layer_count; i++) {
        load_scope(ld, "encoder.layers.%d.", i);
        load_attention(ld, vision, &vision->tower.layers[i], &t);
        load_ffn(ld, vision, &vision->tower.layers[i], &t);
    }
}
