/* The part of the Loader that finds the text model in a file with more parts. */
#include <stdio.h>

#include "model/audio.h"
#include "model/loader/internal.h"
#include "model/vision.h"

/* Fields beside text_config, about the other parts and their tokens. */
static const char *const media_fields[] = {"audio_config", "audio_token_id", "boa_token_id", "boi_token_id",
    "boi_token_index", "eoa_token_id", "eoa_token_index", "eoi_token_id", "eoi_token_index", "image_end_token_id",
    "image_start_token_id", "image_token_id", "image_token_index", "language_model_only", "mm_tokens_per_image",
    "projector_config", "tie_word_embeddings", "video_end_token_id", "video_start_token_id", "video_token_id",
    "video_token_index", "vision_config", "vision_end_token_id", "vision_start_token_id"};

void load_body(Loader *ld, const char *body) { snprintf(ld->body, sizeof ld->body, "%s", body); }

void load_text_part(Loader *ld) {
    const Checkpoint *checkpoint = ld->source->checkpoint;
    if (json_get(ld->fields, "text_config")) {
        for (size_t i = 0; i < COUNT_OF(media_fields); i++) loader_get(ld, ld->fields, media_fields[i]);
        load_enter(ld, "text_config", "");
    }
    ld->text_part = true;
    if (checkpoint_find(checkpoint, "language_model.model.embed_tokens.weight"))
        snprintf(ld->prefix, sizeof ld->prefix, "language_model.");
    else if (checkpoint_find(checkpoint, "language_model.embed_tokens.weight")) {
        snprintf(ld->prefix, sizeof ld->prefix, "language_model.");
        load_body(ld, "");
    } else if (checkpoint_find(checkpoint, "model.text_model.embed_tokens.weight"))
        load_body(ld, "model.text_model.");
    else if (checkpoint_find(checkpoint, "model.language_model.embed_tokens.weight"))
        load_body(ld, "model.language_model.");
}

LoadPlace load_place(const Loader *ld) {
    LoadPlace place = {.fields = ld->fields};
    memcpy(place.where, ld->where, sizeof place.where);
    memcpy(place.prefix, ld->prefix, sizeof place.prefix);
    memcpy(place.body, ld->body, sizeof place.body);
    memcpy(place.scope, ld->scope, sizeof place.scope);
    return place;
}

void load_return(Loader *ld, const LoadPlace *place) {
    ld->fields = place->fields;
    memcpy(ld->where, place->where, sizeof place->where);
    memcpy(ld->prefix, place->prefix, sizeof place->prefix);
    memcpy(ld->body, place->body, sizeof place->body);
    memcpy(ld->scope, place->scope, sizeof place->scope);
}

/* The first of these beginnings that a tensor's name has; NULL: none. */
static const char *find_home(const Loader *ld, const char *const *homes, size_t count) {
    const Checkpoint *checkpoint = ld->source->checkpoint;
    for (size_t i = 0; i < checkpoint->entry_count; i++)
        for (size_t h = 0; h < count; h++)
            if (slice_starts(checkpoint->entries[i].name, slice_of(homes[h]))) return homes[h];
    return NULL;
}

static void enter_part(Loader *ld, const char *config, const char *home) {
    load_enter(ld, config, home);
    load_body(ld, "");
    load_scope(ld, "%s", "");
}

/* The vision part without a tower yet. */
static VisionSpec *new_vision_part(Loader *ld) {
    VisionSpec *vision = loader_alloc(ld, 1, sizeof *vision);
    if (!vision) return NULL;
    vision->tower = (Spec){.family = ld->family, .embedding_scale = 1, .logit_scale = 1, .cache_entries = 1};
    ld->spec->vision = vision;
    return vision;
}

VisionSpec *load_conv_part(Loader *ld, int most) {
    static const char *const homes[] = {"vision_tower.vision_model.", "model.vision_tower.vision_tower.model."};
    const char *home = find_home(ld, homes, COUNT_OF(homes));
    VisionSpec *vision = home ? new_vision_part(ld) : NULL;
    if (!vision) return NULL;
    vision->conv = loader_alloc(ld, 1, sizeof *vision->conv);
    if (vision->conv) vision->conv->layers = loader_alloc(ld, (size_t)most, sizeof *vision->conv->layers);
    snprintf(ld->prefix, sizeof ld->prefix, "%s", home);
    load_body(ld, "");
    load_scope(ld, "%s", "");
    return vision->conv && vision->conv->layers ? vision : NULL;
}

VisionSpec *load_vision_part(Loader *ld) {
    static const char *const homes[] = {"vision_tower.", "model.vision_tower.", "model.visual.", "visual.",
        "vision_model.", "model.vision_model.", "vision_embedder.", "model.vision_embedder."};
    const char *home = find_home(ld, homes, COUNT_OF(homes));
    if (!home || !json_get(ld->fields, "vision_config")) return NULL;
    VisionSpec *vision = new_vision_part(ld);
    if (vision) enter_part(ld, "vision_config", home);
    return vision;
}

AudioSpec *load_audio_part(Loader *ld) {
    static const char *const towers[] = {"audio_tower.", "model.audio_tower."},
                             *const rows[] = {"embed_audio.", "model.embed_audio."};
    const char *home = find_home(ld, towers, COUNT_OF(towers));
    const Json *config = json_get(ld->fields, "audio_config");
    if (!home) home = find_home(ld, rows, COUNT_OF(rows));
    if (!home || !config || config->type == JSON_NULL) return NULL;
    AudioSpec *audio = loader_alloc(ld, 1, sizeof *audio);
    if (!audio) return NULL;
    ld->spec->audio = audio;
    enter_part(ld, "audio_config", home);
    return audio;
}

void load_conformer(Loader *ld, AudioSpec *audio) {
    load_require(
        ld, audio->layer_count <= LAYERS_MAX, "audio: %d layers, at most %d can be", audio->layer_count, LAYERS_MAX);
    audio->layers = loader_alloc(ld, (size_t)audio->layer_count, sizeof *audio->layers);
    if (!audio->layers) audio->layer_count = 0;
}

const Json *load_processor(const Loader *ld) { return ld->source->processor; }

const Json *load_video_processor(const Loader *ld) { return ld->source->video_processor; }

const Json *load_extractor(const Loader *ld) { return ld->source->extractor; }
