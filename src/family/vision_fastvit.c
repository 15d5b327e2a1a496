/* FastViTHD, the tower of FastVLM: convolutions in five stages, the last two with attention; all that training added
 * beside a convolution is folded into it. Files tell the sizes by their tensors alone. References: ml-fastvlm,
 * llava/model/multimodal_encoder/mobileclip/mci.py; mlx-vlm, models/fastvlm. */
#include <math.h>
#include <stdio.h>

#include "family/vision_parts.h"

enum { CONV_LAYERS_MAX = 512, HEAD = 32, PIXELS_USUAL = 1024, STEM_STRIDE = 4 };

static const float norm_eps = 1e-5F;

typedef struct Tower {
    Loader *ld;
    ConvSpec *conv;
    int channels; /* channels of the last layer's results so far */
    int stride;   /* pixels of the image to one of its results */
} Tower;

/* The next layer, whose inputs are the results so far. */
static ConvLayer *add_layer(Tower *t, ConvKind kind, int out, int size, int stride, bool gelu) {
    const bool room = t->conv->layer_count < CONV_LAYERS_MAX;
    load_require(t->ld, room, "more than %d layers of convolutions", CONV_LAYERS_MAX);
    ConvLayer *layer = &t->conv->layers[t->conv->layer_count];
    if (room) t->conv->layer_count++;
    *layer = (ConvLayer){.kind = kind, .in = t->channels, .out = out, .size = size, .stride = stride, .gelu = gelu};
    t->channels = out;
    t->stride *= stride;
    return layer;
}

/* Taps by their place, multiplied by the factor of their channel; factors NULL: by 1. */
static const float *load_taps(Loader *ld, const char *name, const ConvLayer *layer, const float *factors) {
    const int places = layer->size * layer->size;
    const float *taps = load_convolution(ld, name, layer->out, 1, layer->size, 1, false).data;
    float *sorted = load_floats(ld, (int64_t)layer->out * places);
    for (int i = 0; taps && sorted && i < layer->out * places; i++)
        sorted[i % places * layer->out + i / places] = taps[i] * (factors ? factors[i / places] : 1);
    return sorted;
}

static const float *load_bias(Loader *ld, const char *name, int count) {
    char full[96];
    snprintf(full, sizeof full, "%s.bias", name);
    return load_vector(ld, full, count, 0);
}

static ConvLayer *add_dense(Tower *t, const char *name, int size, int stride) {
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    const int in = t->channels, out = load_dim(t->ld, full, 0);
    ConvLayer *layer = add_layer(t, CONV_DENSE, out, size, stride, true);
    layer->first = load_convolution(t->ld, name, out, in, size, 1, true);
    return layer;
}

/* The first kernels have as many channels as rows, so their shape does not tell which come first. In publishers' files,
 * whose kernels of single channels begin with that one, it is the channels: they move behind the places. */
static void turn_colours(Loader *ld, ConvLayer *layer) {
    enum { PLACES = 9, COLOURS = 3, EACH = PLACES * COLOURS };
    const float *from = layer->first.data;
    float *to = load_floats(ld, layer->first.rows * EACH);
    for (int64_t i = 0; from && to && i < layer->first.rows * EACH; i++)
        to[i] = from[i / EACH * EACH + i % COLOURS * PLACES + i % EACH / COLOURS];
    layer->first.data = to;
}

static ConvLayer *add_depthwise(Tower *t, const char *name, int stride, bool gelu) {
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    const int in = t->channels, out = load_dim(t->ld, full, 0), size = load_dim(t->ld, full, 2);
    load_require(t->ld, in > 0 && out % in == 0 && size > 0 && size % 2 == 1, "%s: %d channels from %d, with %d taps",
        name, out, in, size);
    ConvLayer *layer = add_layer(t, CONV_DEPTHWISE, out, size, stride, gelu);
    layer->taps = load_taps(t->ld, name, layer, NULL);
    layer->bias = load_bias(t->ld, name, out);
    return layer;
}

/* The statistics of the batch norm become part of the taps. */
static void load_normed(Loader *ld, ConvLayer *layer) {
    const int count = layer->out;
    const float *weight = load_vector(ld, "convffn.conv.bn.weight", count, 0);
    const float *bias = load_vector(ld, "convffn.conv.bn.bias", count, 0);
    const float *mean = load_vector(ld, "convffn.conv.bn.running_mean", count, 0);
    const float *variance = load_vector(ld, "convffn.conv.bn.running_var", count, 0);
    float *factors = load_floats(ld, count), *shifts = load_floats(ld, count);
    if (!weight || !bias || !mean || !variance || !factors || !shifts) return;
    for (int i = 0; i < count; i++) {
        factors[i] = weight[i] / sqrtf(variance[i] + norm_eps);
        shifts[i] = bias[i] - mean[i] * factors[i];
    }
    layer->taps = load_taps(ld, "convffn.conv.conv", layer, factors);
    layer->bias = shifts;
}

static void add_ffn(Tower *t, const char *scale) {
    Loader *ld = t->ld;
    const int count = t->channels, inner = load_dim(ld, "convffn.fc1.weight", 0);
    ConvLayer *layer = add_layer(t, CONV_FFN, count, load_dim(ld, "convffn.conv.conv.weight", 2), 1, false);
    load_normed(ld, layer);
    layer->first = load_convolution(ld, "convffn.fc1", inner, count, 1, 1, true);
    layer->second = load_convolution(ld, "convffn.fc2", count, inner, 1, 1, true);
    layer->scale = load_array(ld, scale, count, 1);
}

static void add_attention(Tower *t) {
    Loader *ld = t->ld;
    const int count = t->channels;
    load_require(ld, count % HEAD == 0, "%d channels are no heads of %d", count, HEAD);
    ConvLayer *layer = add_layer(t, CONV_ATTENTION, count, 1, 1, false);
    layer->head = HEAD;
    layer->eps = norm_eps;
    layer->norm_weight = load_vector(ld, "norm.weight", count, 0);
    layer->norm_bias = load_vector(ld, "norm.bias", count, 0);
    layer->first = load_linear(ld, "token_mixer.qkv", 3 * (int64_t)count, count, false);
    layer->second = load_linear(ld, "token_mixer.proj", count, count, true);
    layer->scale = load_array(ld, "layer_scale_1", count, 1);
}

/* Entry number n of the network: a stage, positions, or fewer pixels. False: there is none. */
static bool add_entry(Tower *t, int n) {
    Loader *ld = t->ld;
    load_scope(ld, "network.%d.", n);
    if (load_has(ld, "reparam_conv.weight")) {
        add_depthwise(t, "reparam_conv", 1, false);
        return true;
    }
    if (load_has(ld, "proj.0.lkb_reparam.weight")) {
        add_depthwise(t, "proj.0.lkb_reparam", 2, true);
        add_dense(t, "proj.1.reparam_conv", 1, 1);
        return true;
    }
    for (int block = 0;; block++) {
        load_scope(ld, "network.%d.%d.", n, block);
        if (load_has(ld, "token_mixer.reparam_conv.weight")) {
            add_depthwise(t, "token_mixer.reparam_conv", 1, false);
            add_ffn(t, "layer_scale");
        } else if (load_has(ld, "token_mixer.qkv.weight")) {
            add_attention(t);
            add_ffn(t, "layer_scale_2");
        } else {
            return block > 0;
        }
    }
}

static void load_network(Tower *t) {
    Loader *ld = t->ld;
    const char *stem = load_has(ld, "patch_embed.blocks.0.reparam_conv.weight") ? "patch_embed.blocks" : "patch_embed";
    load_scope(ld, "%s.", stem);
    ConvLayer *first = add_dense(t, "0.reparam_conv", 3, 2);
    if (load_dim(ld, "1.reparam_conv.weight", 1) == 1) turn_colours(ld, first);
    add_depthwise(t, "1.reparam_conv", 2, true);
    add_dense(t, "2.reparam_conv", 1, 1);
    for (int n = 0; add_entry(t, n);) n++;
    load_scope(ld, "conv_exp.");
    ConvLayer *last = add_depthwise(t, "reparam_conv", 1, true);
    const int reduced = load_dim(ld, "se.reduce.weight", 0);
    last->first = load_convolution(ld, "se.reduce", reduced, t->channels, 1, 1, true);
    last->second = load_convolution(ld, "se.expand", t->channels, reduced, 1, 1, true);
    load_scope(ld, "%s", "");
    load_leave(ld, "head");
    load_skip(ld, "num_batches_tracked");
}

static ImageRule load_rule(Loader *ld, int patch) {
    const Json *processor = load_processor(ld), *crop = json_get(processor, "crop_size");
    ImageRule rule = vision_rule(ld, IMAGE_BICUBIC, COLOURS_PLAIN);
    rule.sizing = SIZING_FIXED;
    rule.square = true;
    rule.patch = patch;
    rule.merge = 1;
    rule.side = (int)vision_count(ld, crop, "height", PIXELS_USUAL);
    load_require(ld, vision_count(ld, crop, "width", rule.side) == rule.side, "image preprocessing: no square");
    load_require(ld, rule.side % patch == 0, "image preprocessing: crop_size must be a multiple of %d", patch);
    vision_check_rule(ld, &rule);
    return rule;
}

/* As Qwen2's, which knows no images. */
static const char chat_template[] =
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + m['role'] + "
    "'\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}{{ '<image>\n' }}{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

void vision_load_fastvit(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_conv_part(ld, CONV_LAYERS_MAX + 1);
    if (!vision) return;
    Tower tower = {.ld = ld, .conv = vision->conv, .channels = 3, .stride = 1};
    load_network(&tower);
    vision->tower.hidden = tower.channels;
    load_return(ld, &root);
    vision->rule = load_rule(ld, tower.stride);
    load_scope(ld, "%s", load_has(ld, "model.mm_projector.0.weight") ? "model." : "");
    vision->merger.stage_count = 2;
    vision->merger.stages[0] =
        (MergerStage){.weight = load_linear(ld, "mm_projector.0", spec->hidden, tower.channels, true),
            .activation = {.kind = ACT_GELU}};
    vision->merger.stages[1] =
        (MergerStage){.weight = load_linear(ld, "mm_projector.2", spec->hidden, spec->hidden, true),
            .activation = {.kind = ACT_NONE}};
    vision->chat_template = chat_template;
    vision->placeholder = vision->token = "<image>";
    vision->spare_token = "<|endoftext|>";
    vision->before = vision->after = "";
    load_return(ld, &root);
}
