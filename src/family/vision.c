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

static void read_three(Loader *ld, const Json *processor, const char *field, float absent, float out[3]) {
    const Json *value = setting(processor, field), *item = value ? json_first(value) : NULL;
    for (int i = 0; i < 3; i++) out[i] = absent;
    if (!value) return;
    bool ok = value->type == JSON_ARRAY && value->size == 3;
    for (int i = 0; ok && i < 3; i++, item = json_next(item)) {
        ok = json_is_number(item) && fabs(json_number(item)) < 1e3;
        if (ok) out[i] = (float)json_number(item);
    }
    load_require(ld, ok, "image preprocessing: %s must be three numbers", field);
}

ImageRule vision_rule(Loader *ld, ImageFilter filter) {
    const Json *processor = load_processor(ld);
    ImageRule rule = {.filter = (ImageFilter)vision_count(ld, processor, "resample", filter)};
    load_require(ld, rule.filter >= IMAGE_LANCZOS && rule.filter <= IMAGE_BICUBIC,
        "image preprocessing: resample %d is not supported; 1, 2 and 3 are", (int)rule.filter);
    read_three(ld, processor, "image_mean", 0.5F, rule.mean);
    read_three(ld, processor, "image_std", 0.5F, rule.std);
    for (int c = 0; c < 3; c++)
        load_require(ld, rule.std[c] > 0, "image preprocessing: image_std[%d] is %g", c, (double)rule.std[c]);
    return rule;
}

void vision_check_rule(Loader *ld, const ImageRule *rule) {
    const int64_t unit = (int64_t)rule->patch * rule->merge;
    load_require(ld, rule->patch <= VISION_PATCH_MAX && unit <= IMAGE_SIDE_MAX,
        "image preprocessing: patches of %d pixels, %d on a side of a group, are not supported", rule->patch,
        rule->merge);
    if (rule->sizing == SIZING_FIXED)
        load_require(ld, rule->side % unit == 0 && rule->side <= VISION_SIDE_MAX,
            "image preprocessing: images of %d pixels, must be a multiple of %d up to %d", rule->side, (int)unit,
            VISION_SIDE_MAX);
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

ImageRule vision_area_rule(Loader *ld, int patch, int merge) {
    const Json *processor = load_processor(ld), *size = json_get(processor, "size");
    ImageRule rule = vision_rule(ld, IMAGE_BICUBIC);
    rule.sizing = SIZING_AREA;
    rule.patch = patch;
    rule.merge = merge;
    rule.pixels_min = vision_count(ld, processor, "min_pixels", vision_count(ld, size, "shortest_edge", 56 * 56));
    rule.pixels_max = vision_count(ld, processor, "max_pixels", vision_count(ld, size, "longest_edge", 28 * 28 * 1280));
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
    const Json *processor = load_video_processor(ld), *size = json_get(processor, "size");
    VideoRule rule = *usual;
    ImageRule *frame = &rule.frame;
    if (rule.fps > 0) rule.fps = positive_setting(ld, processor, "fps", rule.fps);
    rule.frames_min = (int)vision_count(ld, processor, "min_frames", rule.frames_min);
    rule.frames_max = (int)vision_count(ld, processor, "max_frames", rule.frames_max);
    if (frame->sizing == SIZING_AREA) {
        frame->pixels_min =
            vision_count(ld, processor, "min_pixels", vision_count(ld, size, "shortest_edge", frame->pixels_min));
        frame->pixels_max =
            vision_count(ld, processor, "max_pixels", vision_count(ld, size, "longest_edge", frame->pixels_max));
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
