/* For files of vision parts: what they share. */
#pragma once
#include "family/vision.h"

enum {
    VISION_PATCH_MAX = 64,  /* pixels */
    VISION_SIDE_MAX = 4096, /* pixels */
    VISION_WINDOW_MAX = 32, /* patches of a window's side */
    VIDEO_TOKENS_MIN = 128, /* the fewest and the most tokens that the frames of one set of rows have */
    VIDEO_TOKENS_MAX = 768,
    VISION_TOKENS_LOW = 256,   /* the most tokens of an image with low detail, where a family can choose */
    VISION_AREA_MIN = 56 * 56, /* pixels of an image of Qwen-VL models whose files say nothing */
    VISION_AREA_MAX = 28 * 28 * 1280,
};

/* image_mean and image_std of files that say nothing. */
typedef enum VisionColours {
    COLOURS_PLAIN, /* 0 and 1 */
    COLOURS_HALF,  /* 0.5 and 0.5 */
    COLOURS_CLIP,
} VisionColours;

/* An integer of the image preprocessing's settings; object may be NULL. */
int64_t vision_count(Loader *ld, const Json *object, const char *field, int64_t absent);
/* A switch and an integer of these settings that the family has no choice of: they are absent or have this value. */
void vision_expect_switch(Loader *ld, const char *field, bool value);
void vision_expect_count(Loader *ld, const char *field, int count);
/* Filter, mean and deviation; filter, colours: those that the family has by default. */
ImageRule vision_rule(Loader *ld, ImageFilter filter, VisionColours colours);
void vision_check_rule(Loader *ld, const ImageRule *rule);
/* Positions of images have three dimensions. */
void vision_check_rope(Loader *ld, const Spec *spec);
/* Images of an area between two limits, as Qwen2-VL and later ones take them; min, max: pixels by default. */
ImageRule vision_area_rule(Loader *ld, int patch, int merge, int64_t min, int64_t max);
/* Which frames of a video are taken and how large they are: `usual`, with what the settings of video preprocessing
 * have instead. */
VideoRule vision_video_rule(Loader *ld, const VideoRule *usual);
/* Frames whose area lies between two limits: of each, or with `together` of all of them (Qwen2-VL, Qwen3-VL). min, max:
 * in tokens. */
VideoRule vision_area_video(Loader *ld, const VisionSpec *vision, bool together, int64_t min, int64_t max);
/* Adds a component behind a norm to a layer of the tower. */
Component *vision_component(VisionSpec *vision, Layer *layer, ComponentKind kind, const Norm *norm);
