/* What vision parts share: image preprocessing, layers of towers. */
#include "family/vision_parts.h"

#include <math.h>

#include "base/math.h"

static const Json *setting(const Json *processor, const char *field) {
    const Json *value = json_get(processor, field);
    return value && value->type != JSON_NULL ? value : NULL;
}

int64_t vision_count(Loader *ld, const Json *object, const char *field, int64_t absent) {
    const Json *value = setting(object, field);
    if (!value) return absent;
    const bool ok = value->type == JSON_INTEGER && value->integer > 0 && value->integer <= INT32_MAX;
    load_require(ld, ok, "image preprocessing: %s must be an integer from 1 on", field);
    return ok ? value->integer : absent;
}

static void read_three(Loader *ld, const Json *processor, const char *field, const float absent[3], float out[3]) {
    const Json *value = setting(processor, field), *item = value ? json_first(value) : NULL;
    for (int i = 0; i < 3; i++) out[i] = absent[i];
    if (!value) return;
    bool ok = value->type == JSON_ARRAY && value->size == 3;
    for (int i = 0; ok && i < 3; i++, item = json_next(item)) {
        ok = json_is_number(item) && fabs(json_number(item)) < 1e3;
        if (ok) out[i] = (float)json_number(item);
    }
    load_require(ld, ok, "image preprocessing: %s must be three numbers", field);
}

void vision_expect_switch(Loader *ld, const char *field, bool value) {
    const Json *given = setting(load_processor(ld), field);
    load_require(ld, !given || (given->type == JSON_BOOL && given->boolean == value),
        "image preprocessing: %s must be %s", field, value ? "true" : "false");
}

void vision_expect_count(Loader *ld, const char *field, int count) {
    const int64_t given = vision_count(ld, load_processor(ld), field, count);
    load_require(
        ld, given == count, "image preprocessing: %s is %lld, but the model's %d", field, (long long)given, count);
}

/* Bytes become numbers from 0 to 1, less a mean, divided by a deviation. */
static void read_colours(Loader *ld, VisionColours usual, ImageRule *rule) {
    static const float means[][3] = {{0, 0, 0}, {0.5F, 0.5F, 0.5F}, {0.48145466F, 0.4578275F, 0.40821073F}};
    static const float deviations[][3] = {{1, 1, 1}, {0.5F, 0.5F, 0.5F}, {0.26862954F, 0.26130258F, 0.27577711F}};
    const Json *processor = load_processor(ld), *normalise = setting(processor, "do_normalize");
    const Json *factor = setting(processor, "rescale_factor");
    vision_expect_switch(ld, "do_rescale", true);
    load_require(ld, !factor || (json_is_number(factor) && fabs(json_number(factor) * 255 - 1) < 1e-4),
        "image preprocessing: rescale_factor must be 1/255");
    read_three(ld, processor, "image_mean", means[usual], rule->mean);
    read_three(ld, processor, "image_std", deviations[usual], rule->std);
    for (int c = 0; c < 3; c++)
        load_require(ld, rule->std[c] > 0, "image preprocessing: image_std[%d] is %g", c, (double)rule->std[c]);
    load_require(
        ld, !normalise || normalise->type == JSON_BOOL, "image preprocessing: do_normalize must be true or false");
    for (int c = 0; c < 3 && normalise && !normalise->boolean; c++) {
        rule->mean[c] = 0;
        rule->std[c] = 1;
    }
}

ImageRule vision_rule(Loader *ld, ImageFilter filter, VisionColours colours) {
    const Json *processor = load_processor(ld);
    ImageRule rule = {.filter = (ImageFilter)vision_count(ld, processor, "resample", filter)};
    vision_expect_switch(ld, "do_resize", true);
    load_require(ld, rule.filter >= IMAGE_LANCZOS && rule.filter <= IMAGE_BICUBIC,
        "image preprocessing: resample %d is not supported; 1, 2 and 3 are", (int)rule.filter);
    read_colours(ld, colours, &rule);
    return rule;
}

void vision_check_rule(Loader *ld, const ImageRule *rule) {
    const int64_t unit = (int64_t)rule->patch * rule->merge;
    load_require(ld, rule->patch <= VISION_PATCH_MAX && unit <= IMAGE_SIDE_MAX,
        "image preprocessing: patches of %d pixels, %d on a side of a group, are not supported", rule->patch,
        rule->merge);
    const int places = rule->patch ? rule->side / rule->patch : 0;
    if (rule->sizing == SIZING_FIXED)
        load_require(ld, places > 0 && places % rule->merge == 0 && rule->side <= VISION_SIDE_MAX,
            "image preprocessing: images of %d pixels, must have a multiple of %d patches of %d, and at most %d pixels",
            rule->side, rule->merge, rule->patch, VISION_SIDE_MAX);
    else if (rule->sizing == SIZING_WITHIN)
        load_require(ld, rule->side > 0 && rule->side <= VISION_SIDE_MAX,
            "image preprocessing: a longest side of %d pixels, must be 1 to %d", rule->side, VISION_SIDE_MAX);
    else
        load_require(ld,
            rule->pixels_min <= rule->pixels_max && rule->pixels_max >= unit * unit &&
                rule->pixels_max <= IMAGE_PIXELS_MAX,
            "image preprocessing: images of %lld to %lld pixels; at most %d are possible", (long long)rule->pixels_min,
            (long long)rule->pixels_max, IMAGE_PIXELS_MAX);
}

void vision_check_rope(Loader *ld, const Spec *spec) {
    bool ok = false;
    for (int i = 0; i < spec->layer_count && !ok; i++) {
        const Component *first = &spec->layers[i].components[0];
        const Rope *rope = first->kind == COMPONENT_ATTENTION ? first->attention.op.rope : NULL;
        ok = rope && rope->mrope_section[1] > 0;
    }
    load_require(ld, ok, "a model that takes images needs mrope_section");
}

/* A limit of an area, which older files have within `size`, or beside it. */
static int64_t area_limit(Loader *ld, const Json *processor, const char *field, const char *edge, int64_t absent) {
    const Json *size = json_get(processor, "size");
    return vision_count(ld, processor, field, vision_count(ld, size, edge, vision_count(ld, size, field, absent)));
}

ImageRule vision_area_rule(Loader *ld, int patch, int merge, int64_t min, int64_t max) {
    const Json *processor = load_processor(ld);
    ImageRule rule = vision_rule(ld, IMAGE_BICUBIC, COLOURS_CLIP);
    vision_expect_count(ld, "patch_size", patch);
    vision_expect_count(ld, "merge_size", merge);
    rule.sizing = SIZING_AREA;
    rule.patch = patch;
    rule.merge = merge;
    rule.pixels_min = area_limit(ld, processor, "min_pixels", "shortest_edge", min);
    rule.pixels_max = area_limit(ld, processor, "max_pixels", "longest_edge", max);
    rule.pixels_low = (int64_t)VISION_TOKENS_LOW * patch * merge * patch * merge;
    vision_check_rule(ld, &rule);
    return rule;
}

static double positive_setting(Loader *ld, const Json *object, const char *field, double absent) {
    const Json *value = setting(object, field);
    if (!value) return absent;
    const bool ok = json_is_number(value) && json_number(value) > 0 && json_number(value) < 1e3;
    load_require(ld, ok, "video preprocessing: %s must be a positive number below 1000", field);
    return ok ? json_number(value) : absent;
}

VideoRule vision_video_rule(Loader *ld, const VideoRule *usual) {
    const Json *processor = load_video_processor(ld);
    VideoRule rule = *usual;
    ImageRule *frame = &rule.frame;
    if (rule.fps > 0) rule.fps = positive_setting(ld, processor, "fps", rule.fps);
    rule.frames_min = (int)vision_count(ld, processor, "min_frames", rule.frames_min);
    rule.frames_max = (int)vision_count(ld, processor, "max_frames", rule.frames_max);
    if (frame->sizing == SIZING_AREA) {
        frame->pixels_min = area_limit(ld, processor, "min_pixels", "shortest_edge", frame->pixels_min);
        frame->pixels_max = area_limit(ld, processor, "max_pixels", "longest_edge", frame->pixels_max);
    }
    return rule;
}

VideoRule vision_area_video(Loader *ld, const VisionSpec *vision, bool together, int64_t min, int64_t max) {
    const int64_t unit = (int64_t)vision->rule.patch * vision->rule.merge, area = unit * unit;
    VideoRule usual = {.frame = vision->rule, .fps = 2, .frames_min = 4, .frames_max = 768, .together = 2};
    usual.frame.pixels_min = min * area;
    usual.frame.pixels_max = max * area;
    VideoRule rule = vision_video_rule(ld, &usual);
    rule.frame.frames = together ? usual.together : 0;
    rule.frame.enlarge = together;
    if (!together) rule.frame.pixels_max = min_i64(rule.frame.pixels_max, VIDEO_TOKENS_MAX * area);
    load_require(ld, rule.frame.pixels_min <= rule.frame.pixels_max && rule.frame.pixels_max >= area,
        "video preprocessing: frames of %lld to %lld pixels", (long long)rule.frame.pixels_min,
        (long long)rule.frame.pixels_max);
    return rule;
}

Component *vision_component(VisionSpec *vision, Layer *layer, ComponentKind kind, const Norm *norm) {
    Component *component = layer_add(&vision->tower, layer, kind);
    component->cache_entry = kind == COMPONENT_ATTENTION ? 0 : -1; /* a layer's keys are not read by later ones */
    vision->tower.cache_entries = 1;
    component->input_norm = norm;
    return component;
}
