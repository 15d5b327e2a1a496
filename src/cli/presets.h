/* Presets of serve: what a model's requests get that do not say, in `[MODEL]` sections of the file of settings and in
 * --preset. */
#pragma once
#include "base/error.h"
#include "server/api/request.h"

enum { PRESETS_MAX = 128 };

typedef struct Presets {
    int count;
    ModelPreset list[PRESETS_MAX];
} Presets;

/* "MODEL:temp=0.2,top-k=20"; a model's later settings are added to its earlier ones. presets: Presets, of static
 * lifetime. For OptionReader. */
NODISCARD bool presets_read(const char *text, void *presets, Error *error);
