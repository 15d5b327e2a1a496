/* Parts of a prompt: decoded, checked against the context, and resized. */
#include "chat/prompt_media.h"

#include <string.h>

#include "base/math.h"

void prompt_media_close(PromptMedia *media) {
    for (int i = 0; i < media->item_count; i++) media_item_release(media->items[i]);
    *media = (PromptMedia){0};
}

void prompt_media_request(const PromptMedia *media, RequestOptions *request) {
    request->media = media->spans;
    request->media_count = media->span_count;
    request->content_ids = media->content_ids;
    request->positions = media->positions;
    request->position_offset = media->position_offset;
}

/* ---- images ---- */

/* The rule of the family, for the detail that is asked for. */
static ImageRule rule_of(const VisionSpec *vision, const ChatMedia *part) {
    ImageRule rule = vision->rule;
    if (part->low_detail && rule.pixels_low > 0 && rule.pixels_low >= rule.pixels_min)
        rule.pixels_max = min_i64(rule.pixels_max, rule.pixels_low);
    if (part->low_detail) rule.tiles = false;
    return rule;
}

/* Whether the encoder's memory is enough. */
static bool check_encoder(const ChatModel *model, int tokens, const char *what, Error *error) {
    const MediaMemory memory = engine_media_memory(model->engine);
    return tokens <= memory.tokens_max ||
        fail(error, ERROR_LIMIT,
            "this %s takes %d tokens; the memory for encoding one allows %d, %.2f GB (see --memory-budget)", what,
            tokens, memory.tokens_max, (double)memory.encoder_bytes * 1e-9);
}

/* An image to be decoded into its views. */
typedef struct Views {
    const ImageRule *rule;
    const ImageDivision *division;
    Slice file;
} Views;

static bool decode_views(void *context, MediaItem **items, Error *error) {
    const Views *v = context;
    Image image = {0}, views[IMAGE_VIEWS_MAX] = {0};
    bool ok = image_decode(v->file, &image, error) && image_views(v->rule, v->division, &image, views, error);
    image_free(&image);
    for (int i = 0; i < v->division->count; i++) {
        items[i] = ok ? media_item_new(&views[i], image_view_layout(v->division, i), error) : NULL;
        if (!items[i]) image_free(&views[i]);
        ok = items[i];
    }
    for (int i = 0; !ok && i < v->division->count; i++) media_item_release(items[i]);
    return ok;
}

/* Adds the views of an image. The number of tokens is known from the header: it is checked before the pixels are
 * decoded. */
static bool open_items(
    PromptMedia *media, const ChatModel *model, const ChatMedia *part, int64_t *tokens, Error *error) {
    const ImageRule rule = rule_of(engine_vision(model->engine), part);
    const int context = chat_model_context(model);
    int width, height;
    media->parts[media->count] = (PromptPart){.kind = CONTENT_IMAGE};
    ImageDivision *division = &media->parts[media->count].division;
    if (!image_size(part->bytes, &width, &height, error) || !image_divide(&rule, width, height, division, error))
        return false;
    const int all = image_division_tokens(division);
    *tokens += all; /* and a few markers, which are not worth an error of their own */
    if (*tokens >= context)
        return fail(error, ERROR_LIMIT,
            "this image takes %d tokens, and with those before it %lld of the context of %d", all, (long long)*tokens,
            context);
    if (!check_encoder(model, max_int(division->layout.tokens, division->tile_layout.tokens), "image", error))
        return false;
    Views views = {.rule = &rule, .division = division, .file = part->bytes};
    if (!media_files_take(model->media_files, part->bytes, part->low_detail, division->count, decode_views, &views,
            media->items + media->item_count, error))
        return false;
    media->item_count += division->count;
    media->image_count++;
    media->count++;
    return true;
}

/* A clip to be decoded. */
typedef struct ClipFile {
    const AudioSpec *spec;
    Slice file;
} ClipFile;

static bool decode_clip(void *context, MediaItem **items, Error *error) {
    const ClipFile *clip = context;
    Audio audio;
    if (!audio_decode(clip->file, clip->spec->seconds_max, &audio, error)) return false;
    const int rows = audio_rows(clip->spec, audio.count);
    if (rows == 0) {
        fail(error, ERROR_FORMAT, "audio of %d samples at %d Hz is too short", audio.count, AUDIO_RATE);
        audio_free(&audio);
        return false;
    }
    *items = media_item_new_audio(&audio, rows, error);
    return *items;
}

/* Adds a clip of audio, whose length is checked while it is decoded. */
static bool open_clip(
    PromptMedia *media, const ChatModel *model, const ChatMedia *part, int64_t *tokens, Error *error) {
    ClipFile clip = {.spec = engine_audio(model->engine), .file = part->bytes};
    MediaItem **item = media->items + media->item_count;
    const int context = chat_model_context(model);
    if (!media_files_take(model->media_files, part->bytes, 0, 1, decode_clip, &clip, item, error)) return false;
    media->item_count++;
    const int rows = (*item)->tokens;
    *tokens += rows;
    if (*tokens >= context)
        return fail(error, ERROR_LIMIT,
            "this audio takes %d tokens, and with what is before it %lld of the context of %d", rows,
            (long long)*tokens, context);
    media->parts[media->count++] = (PromptPart){.kind = CONTENT_AUDIO, .tokens = rows};
    media->clip_count++;
    media->audio_tokens += rows;
    return true;
}

/* ---- videos ---- */

/* The frames of a video while it is read. */
typedef struct Frames {
    PromptMedia *media;
    const PromptPart *part;
    const ImageRule *rule;
    const Video *video;
    const int *chosen; /* frames that are taken */
    int together;
    Image first; /* first frame of a group whose second one is not there yet */
} Frames;

static bool add_group(Frames *f, Image *second, Error *error) {
    MediaItem *item = media_item_new_frames(&f->first, second, &f->part->division.layout, error);
    if (item) f->media->items[f->media->item_count++] = item;
    return item;
}

static bool take_frame(void *context, int number, const Image *frame, Error *error) {
    Frames *f = context;
    Image view = {0};
    if (!image_views(f->rule, &f->part->division, frame, &view, error)) return false;
    if (number % f->together > 0) return add_group(f, &view, error);
    f->first = view;
    return (f->together > 1 && number + 1 < f->part->frames) || add_group(f, &(Image){0}, error);
}

/* The times of all groups, as the prompt tells them. */
static void set_times(const VideoSpec *spec, const Video *video, const int *chosen, PromptPart *part) {
    for (int i = 0; i < part->groups; i++) {
        double times[2];
        for (int k = 0; k < 2; k++) {
            const int frame =
                chosen[min_int(i * spec->rule.together + k * (spec->rule.together - 1), part->frames - 1)];
            times[k] = frame ? video->ends_ms[frame - 1] / 1e3 : 0;
        }
        part->times[i] = spec->time == VIDEO_TENTHS ? (times[0] + times[1]) / 2 : times[0];
    }
}

static bool decode_frames(void *context, MediaItem **items, Error *error) {
    Frames *f = context;
    const bool ok = video_read(f->video, f->chosen, f->part->frames, take_frame, f, error);
    image_free(&f->first);
    return ok;
}

static bool read_frames(PromptMedia *media, const ChatModel *model, const VideoSpec *spec, const Video *video,
    const int *chosen, const ImageRule *rule, Error *error) {
    PromptPart *part = &media->parts[media->count];
    Frames frames = {
        .media = media, .part = part, .rule = rule, .video = video, .chosen = chosen, .together = spec->rule.together};
    if (!media_files_decode(model->media_files, decode_frames, &frames, NULL, error)) return false;
    set_times(spec, video, chosen, part);
    media->video_count++;
    media->count++;
    return true;
}

/* Adds the frames of a video, whose number of tokens is checked before a pixel is decoded. */
static bool open_video(PromptMedia *media, const ChatModel *model, const ChatMedia *media_part, Arena *arena,
    int64_t *tokens, Error *error) {
    const VideoSpec *spec = &engine_vision(model->engine)->video;
    const int context = chat_model_context(model);
    PromptPart *part = &media->parts[media->count];
    ImageRule rule = spec->rule.frame;
    Video video;
    int chosen[VIDEO_CHOSEN_MAX];
    if (!video_open(media_part->bytes, &video, error)) return false;
    *part = (PromptPart){.kind = CONTENT_VIDEO,
        .frames = video_choose(&spec->rule, &video, chosen),
        .seconds = video.ends_ms[video.count - 1] / 1e3};
    part->groups = (part->frames + spec->rule.together - 1) / spec->rule.together;
    part->times = arena_alloc(arena, (size_t)part->groups, sizeof *part->times);
    if (rule.frames) rule.frames = max_int(part->frames, spec->rule.together);
    bool ok = part->times || fail(error, arena_failure(arena), "no memory for a video");
    ok = ok && image_divide(&rule, video.width, video.height, &part->division, error);
    const int64_t all = ok ? (int64_t)part->groups * image_division_tokens(&part->division) : 0;
    *tokens += all;
    if (ok && *tokens >= context)
        ok = fail(error, ERROR_LIMIT,
            "this video takes %lld tokens (%d frames), and with what is before it %lld of the context of %d",
            (long long)all, part->frames, (long long)*tokens, context);
    ok = ok && check_encoder(model, part->division.layout.tokens, "video", error) &&
        read_frames(media, model, spec, &video, chosen, &rule, error);
    video_close(&video);
    return ok;
}

/* ---- all parts ---- */

bool prompt_media_takes(const ChatModel *model, ContentKind kind) {
    const VisionSpec *vision = engine_vision(model->engine);
    if (kind == CONTENT_AUDIO) return engine_audio(model->engine);
    return vision && (kind != CONTENT_VIDEO || vision->video.rule.together > 0);
}

static bool open_part(PromptMedia *media, const ChatModel *model, const ChatMessage *message, const ContentPart *part,
    Arena *arena, int64_t *tokens, Error *error) {
    const ContentKind kind = part->kind;
    const char *name = kind == CONTENT_AUDIO ? "audio" : kind == CONTENT_VIDEO ? "videos" : "images";
    media->refused = &part->media;
    media->refused_kind = kind;
    if (!prompt_media_takes(model, kind)) return fail(error, ERROR_UNSUPPORTED, "this model takes no %s", name);
    if (strcmp(message->role, "user") != 0 && strcmp(message->role, "tool") != 0)
        return fail(error, ERROR_UNSUPPORTED, "messages of the role '%s' cannot have %s", message->role, name);
    if (kind == CONTENT_IMAGE && media->image_count == IMAGES_MAX)
        return fail(error, ERROR_LIMIT, "more than %d images", IMAGES_MAX);
    if (kind == CONTENT_AUDIO && media->clip_count == CLIPS_MAX)
        return fail(error, ERROR_LIMIT, "more than %d clips", CLIPS_MAX);
    if (kind == CONTENT_VIDEO && media->video_count == VIDEOS_MAX)
        return fail(error, ERROR_LIMIT, "more than %d videos", VIDEOS_MAX);
    const bool ok = kind == CONTENT_AUDIO ? open_clip(media, model, &part->media, tokens, error)
        : kind == CONTENT_VIDEO           ? open_video(media, model, &part->media, arena, tokens, error)
                                          : open_items(media, model, &part->media, tokens, error);
    if (ok) media->refused = NULL;
    return ok;
}

bool prompt_media_open(PromptMedia *media, const ChatModel *model, const ChatMessage *messages, size_t message_count,
    Arena *arena, Error *error) {
    enum {
        PARTS_MAX = IMAGES_MAX + CLIPS_MAX + VIDEOS_MAX,
        ITEMS_MAX = IMAGES_MAX * IMAGE_VIEWS_MAX + CLIPS_MAX + VIDEOS_MAX * VIDEO_CHOSEN_MAX,
    };
    int64_t tokens = 0;
    *media = (PromptMedia){.parts = arena_alloc(arena, PARTS_MAX, sizeof *media->parts),
        .items = arena_alloc(arena, ITEMS_MAX, sizeof *media->items)};
    if (!media->parts || !media->items)
        return fail(error, arena_failure(arena), "no memory for images, audio and videos");
    for (size_t m = 0; m < message_count; m++)
        for (size_t i = 0; i < messages[m].part_count; i++) {
            const ContentPart *part = &messages[m].parts[i];
            if (!content_is_media(part->kind)) continue;
            if (!open_part(media, model, &messages[m], part, arena, &tokens, error)) return false;
        }
    return true;
}
