/* SigLIP with the connector of Idefics 3. Reference: transformers, models/idefics3 (modeling, image_processing_pil,
 * processing). */
#include "family/vision_siglip.h"
#include "media/image_views.h"

static ImageRule load_tiled_rule(Loader *ld, const Siglip *s, int merge) {
    const Json *processor = load_processor(ld), *split = json_get(processor, "do_image_splitting");
    ImageRule rule = siglip_fixed_rule(ld, s, merge, IMAGE_LANCZOS);
    const int side = rule.side;
    const Json *size = json_get(processor, "size");
    load_require(ld, vision_count(ld, size, "height", 0) == 0 && vision_count(ld, size, "width", 0) == 0,
        "image preprocessing: size must have longest_edge alone");
    rule.longest = (int)vision_count(ld, size, "longest_edge", 4 * 364);
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
    const Siglip s = siglip_fields(ld, &usual, false);
    const int side = s.pixels / s.patch;
    load_require(ld, side % merge == 0, "scale_factor %d does not divide %d patches", merge, side);
    vision->rule = load_tiled_rule(ld, &s, merge);
    siglip_tower(ld, vision, &s, POSITIONS_GRID);
    load_return(ld, &root);
    siglip_enter_projector(ld, "connector", "modality_projection.proj.weight");
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
