#include "chat/prompt_media.h"

#include <stdio.h>
#include <string.h>

#include "base/math.h"

enum { MARKERS_MAX = 128 }; /* bytes of what stands around a view */

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

/* Adds the views of an image. The number of tokens is known from the header: it is checked before the pixels are
 * decoded. */
static bool open_items(
    PromptMedia *media, const ChatModel *model, const ChatMedia *part, int64_t *tokens, Error *error) {
    const ImageRule rule = rule_of(engine_vision(model->engine), part);
    const int context = chat_model_context(model);
    int width, height;
    media->parts[media->count] = (PromptPart){.kind = CONTENT_IMAGE};
    ImageDivision *division = &media->parts[media->count].division;
    Image image = {0}, views[IMAGE_VIEWS_MAX] = {0};
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
    bool ok = image_decode(part->bytes, &image, error) && image_views(&rule, division, &image, views, error);
    image_free(&image);
    for (int i = 0; i < division->count; i++) {
        MediaItem *item = ok ? media_item_new(&views[i], image_view_layout(division, i), error) : NULL;
        if (item)
            media->items[media->item_count++] = item;
        else
            image_free(&views[i]);
        ok = item != NULL;
    }
    media->image_count += ok;
    media->count += ok;
    return ok;
}

/* Adds a clip of audio, whose length is checked before it is decoded. */
static bool open_clip(
    PromptMedia *media, const ChatModel *model, const ChatMedia *part, int64_t *tokens, Error *error) {
    const AudioSpec *spec = engine_audio(model->engine);
    const int context = chat_model_context(model);
    Audio audio;
    if (!audio_decode(part->bytes, spec->seconds_max, &audio, error)) return false;
    const int rows = audio_rows(spec, audio.count);
    *tokens += rows;
    if (rows == 0) {
        fail(error, ERROR_FORMAT, "audio of %d samples at %d Hz is too short", audio.count, AUDIO_RATE);
    } else if (*tokens >= context) {
        fail(error, ERROR_LIMIT, "this audio takes %d tokens, and with what is before it %lld of the context of %d",
            rows, (long long)*tokens, context);
    } else {
        MediaItem *item = media_item_new_audio(&audio, rows, error);
        if (!item) return false;
        media->items[media->item_count++] = item;
        media->parts[media->count++] = (PromptPart){.kind = CONTENT_AUDIO, .tokens = rows};
        media->clip_count++;
        media->audio_tokens += rows;
        return true;
    }
    audio_free(&audio);
    return false;
}

/* ---- videos ---- */

/* The frames of a video while it is read. */
typedef struct Frames {
    PromptMedia *media;
    const PromptPart *part;
    const ImageRule *rule;
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

static bool read_frames(PromptMedia *media, const VideoSpec *spec, const Video *video, const int *chosen,
    const ImageRule *rule, Error *error) {
    PromptPart *part = &media->parts[media->count];
    Frames frames = {.media = media, .part = part, .rule = rule, .together = spec->rule.together};
    const bool ok = video_read(video, chosen, part->frames, take_frame, &frames, error);
    image_free(&frames.first);
    if (!ok) return false;
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
        read_frames(media, spec, &video, chosen, &rule, error);
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

/* ---- the text ---- */

static char *append(char *at, Slice text) {
    memcpy(at, text.data, text.size);
    return at + text.size;
}

/* The tokens of a view: one for each row, with row_end behind those of the grid's rows. */
static char *append_view(char *at, const VisionSpec *vision, const ImageLayout *layout) {
    for (int i = 0; i < layout->tokens; i++) {
        if (vision->row_end && i > 0 && i % layout->grid_columns == 0) at = append(at, slice_of(vision->row_end));
        at = append(at, slice_of(vision->token));
    }
    return at;
}

static char *append_tiles(char *at, const VisionSpec *vision, const ImageDivision *division) {
    for (int row = 0; row < division->rows; row++) {
        for (int column = 0; column < division->columns; column++) {
            at += snprintf(at, MARKERS_MAX, vision->tile, row + 1, column + 1);
            at = append_view(at, vision, &division->tile_layout);
        }
        at = append(at, slice_of(vision->tile_row_end));
    }
    return division->rows ? append(at, slice_of(vision->tiles_end)) : at;
}

/* The tiles, before, the whole image, after. */
static bool expansion(
    const VisionSpec *vision, const ImageDivision *division, Arena *arena, Slice *text, Error *error) {
    const ImageLayout *layout = &division->layout;
    const size_t row_end = vision->row_end ? strlen(vision->row_end) : 0;
    const size_t views = (size_t)image_division_tokens(division) * strlen(vision->token);
    const size_t markers = (size_t)division->count * MARKERS_MAX + (size_t)layout->grid_rows * row_end;
    char *out = arena_alloc(arena, views + markers, 1), *at = out;
    if (!out) return fail(error, arena_failure(arena), "no memory for the tokens of an image");
    if (vision->opening) at = append(at, slice_of(vision->opening));
    at = append_tiles(at, vision, division);
    at = append_view(append(at, slice_of(vision->before)), vision, layout);
    at = append(at, slice_of(vision->after));
    *text = (Slice){out, (size_t)(at - out)};
    return true;
}

/* The token of a row of a clip. */
static const char *clip_token(const AudioSpec *audio, int row, int rows) {
    return audio->last_token && row == rows - 1 ? audio->last_token : audio->token;
}

/* What stands for a clip. */
static bool clip_expansion(const AudioSpec *audio, int tokens, Arena *arena, Slice *text, Error *error) {
    const size_t bytes = (size_t)tokens * strlen(audio->token) + MARKERS_MAX;
    char *out = arena_alloc(arena, bytes, 1), *at = out;
    if (!out) return fail(error, arena_failure(arena), "no memory for the tokens of audio");
    at = append(at, slice_of(audio->before));
    for (int i = 0; i < tokens; i++) at = append(at, slice_of(clip_token(audio, i, tokens)));
    at = append(at, slice_of(audio->after));
    *text = (Slice){out, (size_t)(at - out)};
    return true;
}

/* A number below 100 in English words. */
static const char *number_words(int number, char words[MARKERS_MAX]) {
    static const char *const ones[] = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
        "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
    static const char *const tens[] = {
        "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"};
    if (number < 20)
        snprintf(words, MARKERS_MAX, "%s", ones[number]);
    else if (number < 100)
        snprintf(words, MARKERS_MAX, "%s%s%s", tens[number / 10], number % 10 ? "-" : "",
            number % 10 ? ones[number % 10] : "");
    else
        snprintf(words, MARKERS_MAX, "%d", number);
    return words;
}

static void time_text(VideoTime kind, double seconds, char text[MARKERS_MAX]) {
    const int whole = (int)seconds;
    if (kind == VIDEO_TENTHS || kind == VIDEO_BEGIN_TENTHS)
        snprintf(text, MARKERS_MAX, "%.1f", seconds);
    else if (kind == VIDEO_CLOCK)
        snprintf(text, MARKERS_MAX, "%02d:%02d", whole / 60, whole % 60);
    else
        snprintf(text, MARKERS_MAX, "%d", whole);
}

static char *append_format(char *at, const char *format, const char *first, const char *second) {
    return format ? at + snprintf(at, 2 * MARKERS_MAX, format, first, second) : at;
}

bool prompt_media_video_text(const VideoSpec *spec, const PromptPart *part, Arena *arena, Slice *text, Error *error) {
    const int rows = part->division.layout.tokens, whole = (int)part->seconds;
    const size_t bytes =
        (size_t)part->groups * ((size_t)rows * strlen(spec->token) + 5 * MARKERS_MAX) + 4 * MARKERS_MAX;
    char *out = arena_alloc(arena, bytes, 1), *at = out;
    char time[MARKERS_MAX], words[MARKERS_MAX];
    if (!out) return fail(error, arena_failure(arena), "no memory for the tokens of a video");
    snprintf(time, sizeof time, "%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
    at = append_format(at, spec->opening, number_words(part->frames, words), time);
    for (int i = 0; i < part->groups; i++) {
        time_text(spec->time, part->times[i], time);
        if (i > 0 && spec->between) at = append(at, slice_of(spec->between));
        at = append_format(at, spec->before, time, "");
        for (int row = 0; row < rows; row++) at = append(at, slice_of(spec->token));
        at = append_format(at, spec->after, time, "");
    }
    if (spec->closing) at = append(at, slice_of(spec->closing));
    *text = (Slice){out, (size_t)(at - out)};
    return true;
}

static int count_in(Slice text, Slice what) {
    int count = 0;
    for (const char *at = text.data, *end = text.data + text.size;
         at && (at = memmem(at, (size_t)(end - at), what.data, what.size)) != NULL; at += what.size)
        count++;
    return count;
}

/* What a model's template writes for a kind of parts; empty: the model does not take them. */
typedef struct Placeholder {
    ContentKind kind;
    const char *name; /* for errors */
    Slice text;
} Placeholder;

enum { PLACEHOLDERS = 3 };

static void find_placeholders(const ChatModel *model, Placeholder found[PLACEHOLDERS]) {
    const VisionSpec *vision = engine_vision(model->engine);
    const AudioSpec *audio = engine_audio(model->engine);
    const char *video = vision ? vision->video.placeholder : NULL;
    found[0] = (Placeholder){CONTENT_IMAGE, "images", slice_of(vision ? vision->placeholder : "")};
    found[1] = (Placeholder){CONTENT_AUDIO, "clips of audio", slice_of(audio ? audio->placeholder : "")};
    found[2] = (Placeholder){CONTENT_VIDEO, "videos", slice_of(video ? video : "")};
}

/* The first placeholder in a text; NULL: there is none. */
static const char *first_placeholder(
    const Placeholder placeholders[PLACEHOLDERS], Slice text, const Placeholder **which) {
    const char *first = NULL;
    for (int i = 0; i < PLACEHOLDERS; i++) {
        const Slice p = placeholders[i].text;
        const char *at = p.size ? memmem(text.data, text.size, p.data, p.size) : NULL;
        if (!at || (first && at > first)) continue;
        first = at;
        *which = &placeholders[i];
    }
    return first;
}

/* The template shows each part once. */
static bool check_shown(const PromptMedia *media, const Placeholder placeholders[PLACEHOLDERS], const Span *spans,
    size_t count, Error *error) {
    const int given[PLACEHOLDERS] = {media->image_count, media->clip_count, media->video_count};
    for (int k = 0; k < PLACEHOLDERS; k++) {
        int shown = 0;
        for (size_t i = 0; i < count && placeholders[k].text.size; i++)
            if (spans[i].from_template) shown += count_in(spans[i].text, placeholders[k].text);
        if (shown != given[k])
            return fail(
                error, ERROR_UNSUPPORTED, "the chat template shows %d of %d %s", shown, given[k], placeholders[k].name);
    }
    return true;
}

static bool expand_part(const ChatModel *model, const PromptPart *part, Arena *arena, Slice *text, Error *error) {
    const VisionSpec *vision = engine_vision(model->engine);
    switch (part->kind) {
    case CONTENT_AUDIO: return clip_expansion(engine_audio(model->engine), part->tokens, arena, text, error);
    case CONTENT_VIDEO: return prompt_media_video_text(&vision->video, part, arena, text, error);
    default: return expansion(vision, &part->division, arena, text, error);
    }
}

bool prompt_media_expand(
    const PromptMedia *media, const ChatModel *model, Span **spans, size_t *count, Arena *arena, Error *error) {
    if (media->count == 0) return true;
    Placeholder placeholders[PLACEHOLDERS];
    find_placeholders(model, placeholders);
    if (!check_shown(media, placeholders, *spans, *count, error)) return false;
    Span *out = arena_alloc(arena, *count + 2 * (size_t)media->count, sizeof *out);
    if (!out) return fail(error, arena_failure(arena), "no memory for the prompt");
    size_t used = 0;
    int shown = 0;
    const Placeholder *which;
    for (size_t i = 0; i < *count; i++) {
        Span rest = (*spans)[i];
        for (const char *at; rest.from_template && (at = first_placeholder(placeholders, rest.text, &which)) != NULL;) {
            const PromptPart *part = &media->parts[shown++];
            const size_t before = (size_t)(at - rest.text.data), size = which->text.size;
            if (part->kind != which->kind)
                return fail(
                    error, ERROR_UNSUPPORTED, "the chat template changes the order of images, audio and videos");
            out[used++] = (Span){.text = {rest.text.data, before}, .from_template = true};
            out[used] = (Span){.from_template = true};
            if (!expand_part(model, part, arena, &out[used++].text, error)) return false;
            rest.text = (Slice){at + size, rest.text.size - before - size};
        }
        out[used++] = rest;
    }
    *spans = out;
    *count = used;
    return true;
}

/* ---- places ---- */

int prompt_media_positions(const MediaSpan *spans, int count, int tokens, int32_t *positions) {
    int next = 0, at = 0, base = 0;
    for (int i = 0; i <= count; i++) {
        const MediaSpan *span = i < count ? &spans[i] : NULL;
        for (const int end = span ? span->begin : tokens; at < end; at++, next++)
            for (int dim = 0; dim < POSITION_DIMS_MAX; dim++) positions[dim * tokens + at] = next;
        if (!span) break;
        const ImageLayout *layout = &span->item->layout;
        if (media_item_is_audio(span->item)) continue; /* its rows count on as text does */
        if (!span->continues) base = next;
        for (int k = 0; k < layout->tokens; k++, at++) {
            positions[at] = base + span->time;
            positions[tokens + at] = base + k / layout->grid_columns;
            positions[2 * tokens + at] = base + k % layout->grid_columns;
        }
        next = max_int(next, base + max_int(span->time + 1, max_int(layout->grid_rows, layout->grid_columns)));
    }
    return next - tokens;
}

/* Tokens of an item that follow each other in the prompt. */
static int rows_together(const VisionSpec *vision, const MediaItem *item) {
    return !media_item_is_audio(item) && vision->row_end ? item->layout.grid_columns : item->tokens;
}

static bool alloc_spans(PromptMedia *media, const VisionSpec *vision, Arena *arena, Error *error) {
    size_t count = 0;
    for (int i = 0; i < media->item_count; i++)
        count += (size_t)(media->items[i]->tokens / rows_together(vision, media->items[i]));
    media->spans = arena_alloc(arena, count, sizeof *media->spans);
    return media->spans || fail(error, arena_failure(arena), "no memory for images, audio and videos");
}

/* Tokens that stand for rows. id −1: the model does not take such parts. */
typedef struct RowToken {
    const char *text;
    int32_t id;
} RowToken;

typedef struct RowTokens {
    RowToken image, video, audio, last; /* last: that of a clip's last row, if it is another */
} RowTokens;

static bool find_tokens(const ChatModel *model, RowTokens *tokens, Error *error) {
    const VisionSpec *vision = engine_vision(model->engine);
    const AudioSpec *audio = engine_audio(model->engine);
    *tokens = (RowTokens){.image.text = vision ? vision->token : NULL,
        .audio.text = audio ? audio->token : NULL,
        .last.text = audio ? audio->last_token : NULL};
    RowToken *const known[] = {&tokens->image, &tokens->audio, &tokens->last};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        known[i]->id = -1;
        if (known[i]->text && !tokenizer_id(model->tokenizer, slice_of(known[i]->text), &known[i]->id))
            return fail(error, ERROR_UNSUPPORTED, "the tokenizer has no token %s", known[i]->text);
    }
    tokens->video = (RowToken){.text = vision ? vision->video.token : NULL, .id = -1};
    if (tokens->video.text && !tokenizer_id(model->tokenizer, slice_of(tokens->video.text), &tokens->video.id))
        tokens->video.id = -1; /* such a model takes images alone: a video's tokens are not found */
    return true;
}

/* A place in the rows of all items. */
typedef struct Cursor {
    const PromptPart *part;
    int number, item, row; /* number: among all items; item: within the part */
} Cursor;

static int part_items(const PromptPart *part) {
    return part->kind == CONTENT_AUDIO ? 1 : part->kind == CONTENT_VIDEO ? part->groups : part->division.count;
}

static void next_row(const PromptMedia *media, Cursor *at) {
    if (++at->row < media->items[at->number]->tokens) return;
    at->row = 0;
    at->number++;
    if (++at->item < part_items(at->part)) return;
    at->item = 0;
    at->part++;
}

static const RowToken *expected_token(const RowTokens *tokens, const PromptPart *part, const MediaItem *item, int row) {
    if (part->kind == CONTENT_VIDEO) return &tokens->video;
    if (part->kind == CONTENT_IMAGE) return &tokens->image;
    return tokens->last.id >= 0 && row == item->tokens - 1 ? &tokens->last : &tokens->audio;
}

/* Position in time of a video's group behind the first one. */
static int group_time(const VideoSpec *video, const PromptPart *part, int group) {
    if (video->tokens_per_second <= 0) return group;
    const double group_s = video->rule.together * part->seconds / part->frames;
    return (int)((float)group * (float)(video->tokens_per_second * group_s));
}

/* Notes that token number `i` stands for the row at the cursor. */
static void place_row(PromptMedia *media, const VisionSpec *vision, const Cursor *at, int i) {
    MediaItem *item = media->items[at->number];
    const int together = rows_together(vision, item);
    const bool continues = at->part->kind == CONTENT_VIDEO && vision->video.one_grid && at->item > 0;
    const int time = continues ? group_time(&vision->video, at->part, at->item) : 0;
    if (at->row % together == 0)
        media->spans[media->span_count++] = (MediaSpan){
            .begin = i, .first = at->row, .rows = together, .item = item, .continues = continues, .time = time};
    media->content_ids[i] = media_item_content(item, at->row, continues ? time : -1);
}

/* Whether token number `i` follows the row before it, where it must. */
static bool follows(const PromptMedia *media, const VisionSpec *vision, const Cursor *at, int i) {
    const int before = at->row % rows_together(vision, media->items[at->number]);
    return before == 0 || media->spans[media->span_count - 1].begin + before == i;
}

bool prompt_media_place(PromptMedia *media, const ChatModel *model, const Tokens *prompt, Arena *arena, Error *error) {
    if (media->count == 0) return true;
    const VisionSpec *vision = engine_vision(model->engine);
    const bool grid = vision && vision->grid_positions;
    RowTokens tokens;
    if (!find_tokens(model, &tokens, error)) return false;
    media->content_ids = arena_alloc(arena, prompt->count, sizeof *media->content_ids);
    if (grid) media->positions = arena_alloc(arena, prompt->count * POSITION_DIMS_MAX, sizeof *media->positions);
    if (!media->content_ids || (grid && !media->positions) || prompt->count > INT32_MAX)
        return fail(error, arena_failure(arena), "no memory for a prompt of %zu tokens", prompt->count);
    if (!alloc_spans(media, vision, arena, error)) return false;
    const RowToken *const known[] = {&tokens.image, &tokens.video, &tokens.audio, &tokens.last};
    Cursor at = {.part = media->parts};
    for (size_t i = 0; i < prompt->count; i++) {
        const int32_t id = prompt->ids[i];
        const RowToken *token = NULL;
        media->content_ids[i] = (uint64_t)id;
        for (size_t k = 0; k < COUNT_OF(known); k++)
            if (known[k]->id == id) token = known[k];
        if (!token) continue;
        const bool left = at.number < media->item_count;
        if (!left || expected_token(&tokens, at.part, media->items[at.number], at.row)->id != id ||
            !follows(media, vision, &at, (int)i))
            return fail(error, ERROR_UNSUPPORTED, "the chat template writes %s itself", token->text);
        place_row(media, vision, &at, (int)i);
        next_row(media, &at);
    }
    if (at.number < media->item_count)
        return fail(error, ERROR_UNSUPPORTED, "the tokenizer does not keep the tokens of images, audio and videos");
    if (media->positions)
        media->position_offset =
            prompt_media_positions(media->spans, media->span_count, (int)prompt->count, media->positions);
    return true;
}
