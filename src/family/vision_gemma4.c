/* The vision parts of Gemma 4, around the tower; the unified model has none, its patches of 48 pixels become tokens at
 * once. Reference: transformers, models/gemma4_unified/modeling_gemma4_unified.py. */
#include "family/vision_gemma4.h"

#include "base/math.h"

static void load_embedder(Loader *ld, VisionSpec *vision) {
    const float eps = 1e-5F;
    const int patch = load_int_or(ld, "model_patch_size", 48), hidden = load_int_or(ld, "mm_embed_dim", 3840);
    const int places = load_int_or(ld, "mm_posemb_size", 1120), values = patch * patch * 3;
    load_expect_int(ld, "output_proj_dims", hidden);
    load_ignore(ld, "num_soft_tokens", "patch_size", "pooling_kernel_size", NULL);
    vision->tower.hidden = hidden;
    vision_expect_count(ld, "model_patch_size", patch);
    vision->rule = gemma4_rule(ld, patch, 1, places, 0, 1);
    vision->pixel_norm = load_layer_norm(ld, "patch_ln1", values, eps);
    vision->patch = load_linear(ld, "patch_dense", hidden, values, true);
    vision->embedding_norm = load_layer_norm(ld, "patch_ln2", hidden, eps);
    vision->patch_norm = load_layer_norm(ld, "pos_norm", hidden, eps);
    const int side = vision->rule.side / patch;
    vision->positions =
        (PositionTable){POSITIONS_AXES, side, load_axes(ld, "pos_embedding", places, hidden, side, true)};
}

/* Frames have fewer tokens than images. */
static void load_video(Loader *ld, VisionSpec *vision) {
    const ImageRule *image = &vision->rule;
    const int64_t unit = (int64_t)image->patch * image->merge;
    const Json *processor = load_video_processor(ld);
    const int64_t tokens = vision_count(ld, processor, "max_soft_tokens", GEMMA4_TOKENS_LEAST);
    VideoRule usual = {.frame = *image, .frames_min = 1, .together = 1};
    usual.frames_max = (int)vision_count(ld, processor, "num_frames", 32);
    usual.frame.pixels_max = min_i64(tokens * unit * unit, image->pixels_max);
    vision->video = (VideoSpec){.rule = vision_video_rule(ld, &usual),
        .placeholder = "<|video|>",
        .before = "%s <|image>",
        .token = "<|video|>",
        .after = "<image|>",
        .between = " ",
        .time = VIDEO_CLOCK};
}

void vision_load_gemma4(Loader *ld, Spec *spec, bool bidirectional) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    const float eps = load_positive_or(ld, "rms_norm_eps", 1e-6);
    if (load_has(ld, "patch_dense.weight"))
        load_embedder(ld, vision);
    else
        gemma4_load_tower(ld, vision);
    load_return(ld, &root);
    const bool raw = load_has(ld, "model.embed_vision.embedding_projection.weight");
    const int hidden = vision->tower.hidden;
    load_scope(ld, "%sembed_vision.", raw ? "model." : "");
    vision->merger.stage_count = 1;
    vision->merger.stages[0] = (MergerStage){.norm = load_rms(ld, NULL, hidden, eps),
        .weight = load_linear(ld, "embedding_projection", spec->hidden, hidden, false),
        .activation = {.kind = ACT_NONE}};
    vision->bidirectional = bidirectional;
    vision->placeholder = vision->token = "<|image|>";
    vision->before = "<|image>";
    vision->after = "<image|>";
    load_video(ld, vision);
    load_return(ld, &root);
}
