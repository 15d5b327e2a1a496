/* SigLIP 2 with the projector of LFM2-VL. Reference: transformers, models/lfm2_vl (modeling, image_processing). */
#include "family/vision_siglip.h"
#include "media/image_views.h"

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
    ImageRule rule = vision_rule(ld, IMAGE_BILINEAR, COLOURS_HALF);
    vision_expect_count(ld, "encoder_patch_size", s->patch);
    vision_expect_count(ld, "downsample_factor", merge);
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
    const Siglip s = siglip_fields(ld, &usual, true);
    const int merge = projector->merge, joined = s.d.hidden * merge * merge, inner = projector->inner;
    load_require(
        ld, s.pixels / s.patch <= POSITION_SIDE_MAX, "num_patches: at most %d² are possible", POSITION_SIDE_MAX);
    vision->rule = load_lfm2_rule(ld, &s, merge, raw);
    siglip_tower(ld, vision, &s, POSITIONS_STRETCHED);
    load_return(ld, &root);
    siglip_enter_projector(ld, "multi_modal_projector", "linear_1.weight");
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
