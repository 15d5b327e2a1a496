/* The part of the Loader that finds the text model in a file with more parts. */
#include <stdio.h>

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

VisionSpec *load_vision_part(Loader *ld) {
    static const char *const homes[] = {"vision_tower.", "model.vision_tower.", "model.visual.", "visual.",
        "vision_model.", "model.vision_model.", "vision_embedder.", "model.vision_embedder."};
    const Checkpoint *checkpoint = ld->source->checkpoint;
    const char *home = NULL;
    for (size_t i = 0; i < checkpoint->entry_count && !home; i++)
        for (size_t h = 0; h < COUNT_OF(homes) && !home; h++)
            if (slice_starts(checkpoint->entries[i].name, slice_of(homes[h]))) home = homes[h];
    if (!home || !json_get(ld->fields, "vision_config")) return NULL;
    VisionSpec *vision = loader_alloc(ld, 1, sizeof *vision);
    if (!vision) return NULL;
    vision->tower = (Spec){.family = ld->family, .embedding_scale = 1, .logit_scale = 1, .cache_entries = 1};
    ld->spec->vision = vision;
    load_enter(ld, "vision_config", home);
    load_body(ld, "");
    load_scope(ld, "%s", "");
    return vision;
}

const Json *load_processor(const Loader *ld) { return ld->source->processor; }
