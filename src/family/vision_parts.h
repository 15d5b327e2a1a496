/* For files of vision parts: what they share. */
#pragma once
#include "family/vision.h"

enum { VISION_PATCH_MAX = 64, VISION_SIDE_MAX = 4096 /* pixels */ };

/* An integer of the image preprocessing's settings; object may be NULL. */
int64_t vision_count(Loader *ld, const Json *object, const char *field, int64_t absent);
/* Filter, mean and deviation; filter: the one that the family has by default. */
ImageRule vision_rule(Loader *ld, ImageFilter filter);
void vision_check_rule(Loader *ld, const ImageRule *rule);
/* Adds a component behind a norm to a layer of the tower. */
Component *vision_component(VisionSpec *vision, Layer *layer, ComponentKind kind, const Norm *norm);
