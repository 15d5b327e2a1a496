/* The part of the Loader that finds the text model in a file with more parts. */
#include <stdio.h>

#include "model/loader/internal.h"

/* Beginnings of the names of tensors that a text model does not have. */
static const char *const media[] = {"audio_tower.", "model.audio_tower.", "model.embed_audio.", "model.embed_vision.",
    "model.multi_modal_projector.", "model.vision_tower.", "model.visual.", "multi_modal_projector.", "vision_model.",
    "vision_tower.", "visual."};

/* Fields beside text_config, about the other parts and their tokens. */
static const char *const media_fields[] = {"audio_config", "audio_token_id", "boi_token_index", "eoi_token_index",
    "image_token_id", "image_token_index", "language_model_only", "mm_tokens_per_image", "projector_config",
    "tie_word_embeddings", "video_token_id", "vision_config", "vision_end_token_id", "vision_start_token_id"};

void load_body(Loader *ld, const char *body) { snprintf(ld->body, sizeof ld->body, "%s", body); }

static bool begins(Slice name, const char *with) {
    const size_t length = strlen(with);
    return name.size >= length && memcmp(name.data, with, length) == 0;
}

static void leave_out_media(Loader *ld) {
    const Checkpoint *checkpoint = ld->source->checkpoint;
    size_t count = 0;
    for (size_t i = 0; i < checkpoint->entry_count; i++) {
        for (size_t m = 0; m < COUNT_OF(media); m++) {
            if (!begins(checkpoint->entries[i].name, media[m])) continue;
            ld->tensor_used[i] = 1;
            count++;
            break;
        }
    }
    if (count > 0)
        loader_warn(
            ld, "%zu tensors for images and sound are left out: %s is loaded as a text model", count, ld->family);
}

void load_text_part(Loader *ld) {
    const Checkpoint *checkpoint = ld->source->checkpoint;
    if (json_get(ld->fields, "text_config")) {
        for (size_t i = 0; i < COUNT_OF(media_fields); i++) loader_get(ld, ld->fields, media_fields[i]);
        load_enter(ld, "text_config", "");
    }
    leave_out_media(ld);
    if (checkpoint_find(checkpoint, "language_model.model.embed_tokens.weight"))
        snprintf(ld->prefix, sizeof ld->prefix, "language_model.");
    else if (checkpoint_find(checkpoint, "model.language_model.embed_tokens.weight"))
        load_body(ld, "model.language_model.");
}
