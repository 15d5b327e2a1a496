/* The tower of SigLIP, with the projectors of Gemma 3, PaliGemma, Idefics 3 and LFM2-VL. References: transformers,
 * models/siglip/modeling_siglip.py, models/siglip2/modeling_siglip2.py, models/gemma3/modeling_gemma3.py,
 * models/paligemma/modeling_paligemma.py, models/idefics3 (modeling, image_processing_pil, processing) and
 * models/lfm2_vl (modeling, image_processing). */
#include "family/vision_parts.h"
#include "media/image_views.h"
#include "model/positions.h"

#include <math.h>
#include <stdio.h>

typedef struct Siglip {
    Dims d;
    int layers, patch, pixels; /* pixels: of an image's side; LFM2-VL: of the table of positions */
    float eps;
} Siglip;

/* Fields of vision_config; usual: their defaults. A tower of SigLIP 2 has places in a table instead of pixels. */
static Siglip load_fields(Loader *ld, const Siglip *usual, bool places) {
    Siglip s = {.d = {.hidden = load_int_or(ld, "hidden_size", usual->d.hidden),
                    .heads = load_int_or(ld, "num_attention_heads", usual->d.heads),
                    .intermediate_size = load_int_or(ld, "intermediate_size", usual->d.intermediate_size)},
        .layers = load_int_or(ld, "num_hidden_layers", usual->layers),
        .patch = load_int_or(ld, "patch_size", usual->patch),
        .eps = load_positive_or(ld, "layer_norm_eps", 1e-6)};
    s.d.kv_heads = s.d.heads;
    s.pixels = s.patch *
        (places ? (int)lround(sqrt(load_int_or(ld, "num_patches", 256)))
                : load_int_or(ld, "image_size", usual->pixels) / s.patch);
    family_check(ld, &s.d);
    load_require(ld, load_int_or(ld, "num_channels", 3) == 3, "num_channels must be 3");
    load_require(ld, s.pixels > 0, "images are smaller than a patch");
    load_expect_text(ld, "hidden_act", "gelu_pytorch_tanh");
    load_expect_bool(ld, "vision_use_head", false);
    return s;
}

/* Tensor names may have "vision_model." in front. */
static void load_tower(Loader *ld, VisionSpec *vision, const Siglip *s, PositionKind positions) {
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

/* Images of the tower's size, whatever their shape. */
static ImageRule load_fixed_rule(Loader *ld, const Siglip *s, int merge, ImageFilter filter) {
    ImageRule rule = vision_rule(ld, filter);
    rule.sizing = SIZING_FIXED;
    rule.patch = s->patch;
    rule.side = s->pixels / s->patch * s->patch;
    rule.merge = merge;
    vision_check_rule(ld, &rule);
    return rule;
}

static void enter_projector(Loader *ld, const char *module, const char *tensor) {
    char name[96];
    snprintf(name, sizeof name, "model.%s.%s", module, tensor);
    load_scope(ld, "%s", "");
    load_scope(ld, "%s%s.", load_has(ld, name) ? "model." : "", module);
}

/* ---- Gemma 3 and PaliGemma ---- */

static const Siglip so400m = {
    .d = {.hidden = 1152, .heads = 16, .intermediate_size = 4304}, .layers = 27, .patch = 14, .pixels = 896};

void vision_load_gemma3(Loader *ld, Spec *spec, int tokens) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    const Siglip s = load_fields(ld, &so400m, false);
    const int side = s.pixels / s.patch, grid = (int)lround(sqrt(tokens)), hidden = s.d.hidden;
    load_require(ld, grid * grid == tokens && grid > 0 && side % grid == 0,
        "mm_tokens_per_image is %d, which is no square that divides %d × %d patches", tokens, side, side);
    vision->rule = load_fixed_rule(ld, &s, grid ? side / grid : 1, IMAGE_BILINEAR);
    vision->rule.order = PATCHES_SPREAD;
    load_tower(ld, vision, &s, POSITIONS_GRID);
    load_return(ld, &root);
    enter_projector(ld, "multi_modal_projector", "mm_input_projection_weight");
    vision->merger.average = 1;
    vision->merger.stage_count = 1;
    vision->merger.stages[0] = (MergerStage){
        .norm = load_rms_plus_one(ld, "mm_soft_emb_norm", hidden, 1e-6F), /* Gemma's default, whatever the tower's */
        .weight = load_transposed(ld, "mm_input_projection_weight", spec->hidden, hidden),
        .activation = {.kind = ACT_NONE}};
    vision->bidirectional = true;
    vision->placeholder = "<start_of_image>";
    vision->before = "\n\n<start_of_image>";
    vision->token = "<image_soft_token>";
    vision->after = "<end_of_image>\n\n";
    load_return(ld, &root);
}

/* As the model was trained, and as its processor writes prompts; its files have no template. */
static const char paligemma_template[] =
    "{%- for m in messages -%}{%- if m['content'] is not string -%}{%- for c in m['content'] -%}"
    "{%- if c['type'] == 'image' -%}<image>{%- endif -%}{%- endfor -%}{%- endif -%}{%- endfor -%}"
    "{{ bos_token }}"
    "{%- for m in messages -%}{%- if m['content'] is string -%}{{ m['content'] }}{%- else -%}"
    "{%- for c in m['content'] -%}{%- if c['type'] == 'text' -%}{{ c['text'] }}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}{%- endfor -%}{{ '\n' }}";

void vision_load_paligemma(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    Siglip usual = so400m;
    usual.pixels = 224;
    const Siglip s = load_fields(ld, &usual, false);
    load_expect_int(ld, "projection_dim", spec->hidden);
    load_ignore(ld, "num_image_tokens", "num_positions", "projector_hidden_act", NULL);
    vision->rule = load_fixed_rule(ld, &s, 1, IMAGE_BICUBIC);
    load_tower(ld, vision, &s, POSITIONS_GRID);
    load_return(ld, &root);
    enter_projector(ld, "multi_modal_projector", "linear.weight");
    vision->merger.stage_count = 1;
    vision->merger.stages[0] = (MergerStage){
        .weight = load_linear(ld, "linear", spec->hidden, s.d.hidden, true), .activation = {.kind = ACT_NONE}};
    vision->bidirectional = vision->whole_prompt = true;
    vision->chat_template = paligemma_template;
    vision->placeholder = vision->token = "<image>";
    vision->before = vision->after = "";
    load_return(ld, &root);
}

/* ---- Idefics 3 ---- */

static ImageRule load_tiled_rule(Loader *ld, const Siglip *s, int merge) {
    const Json *processor = load_processor(ld), *split = json_get(processor, "do_image_splitting");
    ImageRule rule = load_fixed_rule(ld, s, merge, IMAGE_LANCZOS);
    const int side = rule.side;
    rule.longest = (int)vision_count(ld, json_get(processor, "size"), "longest_edge", 4 * 364);
    rule.tiles = !split || split->type != JSON_BOOL || split->boolean;
    const int64_t tile = vision_count(ld, json_get(processor, "max_image_size"), "longest_edge", side);
    load_require(ld, tile == side, "image preprocessing: max_image_size must be %d, as the tower's images", side);
    const int most = side ? (rule.longest - 1) / side + 1 : 1;
    load_require(ld, rule.longest <= VISION_SIDE_MAX && most * most < IMAGE_VIEWS_MAX,
        "image preprocessing: images of %d pixels in tiles of %d; at most %d tiles are possible", rule.longest, side,
        IMAGE_VIEWS_MAX - 1);
    return rule;
}

/* SmolVLM 2 is trained with videos, which its settings of image preprocessing tell. */
static void load_video(Loader *ld, VisionSpec *vision) {
    const Json *sampling = json_get(load_processor(ld), "video_sampling"), *fps = json_get(sampling, "fps");
    if (!sampling) return;
    VideoRule rule = {.frame = vision->rule, .fps = 1, .frames_min = 1, .together = 1};
    if (fps && json_is_number(fps) && json_number(fps) > 0) rule.fps = json_number(fps);
    rule.frames_max = (int)vision_count(ld, sampling, "max_frames", 64);
    rule.frame.tiles = false;
    rule.frame.longest = (int)vision_count(ld, json_get(sampling, "video_size"), "longest_edge", vision->rule.side);
    load_require(ld, rule.frame.longest <= VISION_SIDE_MAX, "video preprocessing: longest_edge is %d, at most %d",
        rule.frame.longest, VISION_SIDE_MAX);
    vision->video = (VideoSpec){.rule = rule,
        .placeholder = "<video>",
        .opening = "You are provided the following series of %s frames from a %s [H:MM:SS] video.\n",
        .before = "\nFrame from %s:<fake_token_around_image><global-img>",
        .token = "<image>",
        .after = "<fake_token_around_image>",
        .closing = "\n\n",
        .time = VIDEO_CLOCK};
}

void vision_load_idefics3(Loader *ld, Spec *spec, int merge) {
    static const Siglip usual = {
        .d = {.hidden = 1152, .heads = 16, .intermediate_size = 3072}, .layers = 12, .patch = 32, .pixels = 224};
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    const Siglip s = load_fields(ld, &usual, false);
    const int side = s.pixels / s.patch;
    load_require(ld, side % merge == 0, "scale_factor %d does not divide %d patches", merge, side);
    vision->rule = load_tiled_rule(ld, &s, merge);
    load_tower(ld, vision, &s, POSITIONS_GRID);
    load_return(ld, &root);
    enter_projector(ld, "connector", "modality_projection.proj.weight");
    vision->merger.stage_count = 1;
    vision->merger.stages[0] = (MergerStage){
        .weight = load_linear(ld, "modality_projection.proj", spec->hidden, (int64_t)s.d.hidden * merge * merge, false),
        .activation = {.kind = ACT_NONE}};
    vision->placeholder = vision->token = "<image>";
    vision->tile = "<fake_token_around_image><row_%d_col_%d>";
    vision->tile_row_end = vision->tiles_end = "\n";
    vision->before = "<fake_token_around_image><global-img>";
    vision->after = "<fake_token_around_image>";
    load_video(ld, vision);
    load_return(ld, &root);
}

/* ---- LFM2-VL ---- */

/* MLX's files switch tiles and the thumbnail off, which mlx-vlm ignores, as the model was trained with both. */
static void check_splitting(Loader *ld, const Json *processor, bool raw) {
    static const char *const fields[] = {"do_image_splitting", "use_thumbnail"};
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const Json *value = json_get(processor, fields[i]);
        load_require(ld, !raw || !value || value->type != JSON_BOOL || value->boolean,
            "image preprocessing: %s must be true", fields[i]);
    }
}

static ImageRule load_lfm2_rule(Loader *ld, const Siglip *s, int merge, bool raw) {
    const Json *processor = load_processor(ld), *tolerance = json_get(processor, "max_pixels_tolerance");
    const int64_t area = (int64_t)s->patch * merge * s->patch * merge;
    ImageRule rule = vision_rule(ld, IMAGE_BILINEAR);
    rule.sizing = SIZING_AREA;
    rule.patch = s->patch;
    rule.merge = merge;
    rule.least_group = true;
    rule.pixels_min = area * vision_count(ld, processor, "min_image_tokens", 64);
    rule.pixels_max = area * vision_count(ld, processor, "max_image_tokens", 256);
    rule.tiles = true;
    rule.side = (int)vision_count(ld, processor, "tile_size", 512);
    rule.tiles_min = (int)vision_count(ld, processor, "min_tiles", 2);
    rule.tiles_max = (int)vision_count(ld, processor, "max_tiles", TILES_LISTED_MAX);
    rule.tolerance = tolerance && json_is_number(tolerance) ? json_number(tolerance) : 2;
    load_require(ld, rule.side <= VISION_SIDE_MAX && rule.side % (s->patch * merge) == 0,
        "image preprocessing: tile_size must be a multiple of %d up to %d", s->patch * merge, VISION_SIDE_MAX);
    load_require(ld, rule.tiles_min >= 2 && rule.tiles_min <= rule.tiles_max && rule.tiles_max <= TILES_LISTED_MAX,
        "image preprocessing: min_tiles %d and max_tiles %d must be 2 to %d", rule.tiles_min, rule.tiles_max,
        TILES_LISTED_MAX);
    load_require(ld, rule.tolerance > 0 && rule.tolerance < 1e6, "image preprocessing: max_pixels_tolerance");
    vision_check_rule(ld, &rule);
    check_splitting(ld, processor, raw);
    return rule;
}

void vision_load_lfm2(Loader *ld, Spec *spec, const Lfm2Projector *projector) {
    static const Siglip usual = {
        .d = {.hidden = 768, .heads = 12, .intermediate_size = 3072}, .layers = 12, .patch = 16, .pixels = 256};
    const LoadPlace root = load_place(ld);
    const bool raw = load_has(ld, "model.multi_modal_projector.linear_1.weight");
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    const Siglip s = load_fields(ld, &usual, true);
    const int merge = projector->merge, joined = s.d.hidden * merge * merge, inner = projector->inner;
    load_require(
        ld, s.pixels / s.patch <= POSITION_SIDE_MAX, "num_patches: at most %d² are possible", POSITION_SIDE_MAX);
    vision->rule = load_lfm2_rule(ld, &s, merge, raw);
    load_tower(ld, vision, &s, POSITIONS_STRETCHED);
    load_return(ld, &root);
    enter_projector(ld, "multi_modal_projector", "linear_1.weight");
    vision->merger.stage_count = 2;
    vision->merger.stages[0] =
        (MergerStage){.norm = projector->norm ? load_layer_norm(ld, "layer_norm", joined, 1e-5F) : NULL,
            .weight = load_linear(ld, "linear_1", inner, joined, projector->bias),
            .activation = {.kind = ACT_GELU}};
    vision->merger.stages[1] = (MergerStage){
        .weight = load_linear(ld, "linear_2", spec->hidden, inner, projector->bias), .activation = {.kind = ACT_NONE}};
    vision->placeholder = vision->token = "<image>";
    vision->opening = "<|image_start|>";
    vision->tile = "<|img_row_%d_col_%d|>";
    vision->tile_row_end = "";
    vision->tiles_end = "<|img_thumbnail|>";
    vision->before = "";
    vision->after = "<|image_end|>";
    load_return(ld, &root);
}
