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

/* Adds the views of an image. The number of tokens is known from the header: it is checked before the pixels are
 * decoded. */
static bool open_items(
    PromptMedia *media, const ChatModel *model, const ChatMedia *part, int64_t *tokens, Error *error) {
    const ImageRule rule = rule_of(engine_vision(model->engine), part);
    const int context = chat_model_context(model);
    int width, height;
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
        media->parts[media->count++] = (PromptPart){.audio = true, .tokens = rows};
        media->clip_count++;
        media->audio_tokens += rows;
        return true;
    }
    audio_free(&audio);
    return false;
}

static bool open_part(PromptMedia *media, const ChatModel *model, const ChatMessage *message, const ContentPart *part,
    int64_t *tokens, Error *error) {
    const bool audio = part->kind == CONTENT_AUDIO;
    const char *name = audio ? "audio" : "images";
    const bool takes = audio ? engine_audio(model->engine) != NULL : engine_vision(model->engine) != NULL;
    media->refused = &part->media;
    media->refused_audio = audio;
    if (!takes) return fail(error, ERROR_UNSUPPORTED, "this model takes no %s", name);
    if (strcmp(message->role, "user") != 0 && strcmp(message->role, "tool") != 0)
        return fail(error, ERROR_UNSUPPORTED, "messages of the role '%s' cannot have %s", message->role, name);
    if (!audio && media->image_count == IMAGES_MAX) return fail(error, ERROR_LIMIT, "more than %d images", IMAGES_MAX);
    if (audio && media->clip_count == CLIPS_MAX) return fail(error, ERROR_LIMIT, "more than %d clips", CLIPS_MAX);
    if (!(audio ? open_clip : open_items)(media, model, &part->media, tokens, error)) return false;
    media->refused = NULL;
    return true;
}

bool prompt_media_open(PromptMedia *media, const ChatModel *model, const ChatMessage *messages, size_t message_count,
    Arena *arena, Error *error) {
    int64_t tokens = 0;
    *media = (PromptMedia){.parts = arena_alloc(arena, IMAGES_MAX + CLIPS_MAX, sizeof *media->parts),
        .items = arena_alloc(arena, (size_t)IMAGES_MAX * IMAGE_VIEWS_MAX + CLIPS_MAX, sizeof *media->items)};
    if (!media->parts || !media->items) return fail(error, arena_failure(arena), "no memory for images and audio");
    for (size_t m = 0; m < message_count; m++)
        for (size_t i = 0; i < messages[m].part_count; i++) {
            const ContentPart *part = &messages[m].parts[i];
            if (part->kind != CONTENT_IMAGE && part->kind != CONTENT_AUDIO) continue;
            if (!open_part(media, model, &messages[m], part, &tokens, error)) return false;
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

static int count_in(Slice text, Slice what) {
    int count = 0;
    for (const char *at = text.data, *end = text.data + text.size;
         at && (at = memmem(at, (size_t)(end - at), what.data, what.size)) != NULL; at += what.size)
        count++;
    return count;
}

/* The placeholders of a model's template; empty: the model does not take such parts. */
typedef struct Placeholders {
    Slice image, audio;
} Placeholders;

/* The first placeholder in a text; NULL: there is none. */
static const char *find_placeholder(const Placeholders *p, Slice text, bool *audio) {
    const char *image_at = p->image.size ? memmem(text.data, text.size, p->image.data, p->image.size) : NULL;
    const char *audio_at = p->audio.size ? memmem(text.data, text.size, p->audio.data, p->audio.size) : NULL;
    *audio = audio_at && (!image_at || audio_at < image_at);
    return *audio ? audio_at : image_at;
}

/* The template shows each image and clip once. */
static bool check_shown(
    const PromptMedia *media, const Placeholders *p, const Span *spans, size_t count, Error *error) {
    int images = 0, clips = 0;
    for (size_t i = 0; i < count; i++) {
        if (!spans[i].from_template) continue;
        if (p->image.size) images += count_in(spans[i].text, p->image);
        if (p->audio.size) clips += count_in(spans[i].text, p->audio);
    }
    if (images != media->image_count)
        return fail(error, ERROR_UNSUPPORTED, "the chat template shows %d of %d images", images, media->image_count);
    return clips == media->clip_count ||
        fail(error, ERROR_UNSUPPORTED, "the chat template shows %d of %d clips of audio", clips, media->clip_count);
}

bool prompt_media_expand(
    const PromptMedia *media, const ChatModel *model, Span **spans, size_t *count, Arena *arena, Error *error) {
    if (media->count == 0) return true;
    const VisionSpec *vision = engine_vision(model->engine);
    const AudioSpec *audio = engine_audio(model->engine);
    const Placeholders placeholders = {
        slice_of(vision ? vision->placeholder : ""), slice_of(audio ? audio->placeholder : "")};
    if (!check_shown(media, &placeholders, *spans, *count, error)) return false;
    Span *out = arena_alloc(arena, *count + 2 * (size_t)media->count, sizeof *out);
    if (!out) return fail(error, arena_failure(arena), "no memory for the prompt");
    size_t used = 0;
    int shown = 0;
    bool clip;
    for (size_t i = 0; i < *count; i++) {
        Span rest = (*spans)[i];
        for (const char *at; rest.from_template && (at = find_placeholder(&placeholders, rest.text, &clip)) != NULL;) {
            const PromptPart *part = &media->parts[shown++];
            const size_t before = (size_t)(at - rest.text.data),
                         size = clip ? placeholders.audio.size : placeholders.image.size;
            if (part->audio != clip)
                return fail(error, ERROR_UNSUPPORTED, "the chat template changes the order of images and audio");
            out[used++] = (Span){.text = {rest.text.data, before}, .from_template = true};
            out[used] = (Span){.from_template = true};
            Slice *text = &out[used++].text;
            if (!(clip ? clip_expansion(audio, part->tokens, arena, text, error)
                       : expansion(vision, &part->division, arena, text, error)))
                return false;
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
    int next = 0, at = 0;
    for (int i = 0; i <= count; i++) {
        const MediaSpan *span = i < count ? &spans[i] : NULL;
        for (const int end = span ? span->begin : tokens; at < end; at++, next++)
            for (int dim = 0; dim < POSITION_DIMS_MAX; dim++) positions[dim * tokens + at] = next;
        if (!span) break;
        const ImageLayout *layout = &span->item->layout;
        if (media_item_is_audio(span->item)) continue; /* its rows count on as text does */
        for (int k = 0; k < layout->tokens; k++, at++) {
            positions[at] = next;
            positions[tokens + at] = next + k / layout->grid_columns;
            positions[2 * tokens + at] = next + k % layout->grid_columns;
        }
        next += max_int(layout->grid_rows, layout->grid_columns);
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
    return media->spans || fail(error, arena_failure(arena), "no memory for images and audio");
}

/* The id of the token that stands for a row; −1: the model does not take such parts. */
static bool find_token(const ChatModel *model, const char *token, int32_t *id, Error *error) {
    *id = -1;
    return !token || tokenizer_id(model->tokenizer, slice_of(token), id) ||
        fail(error, ERROR_UNSUPPORTED, "the tokenizer has no token %s", token);
}

bool prompt_media_place(PromptMedia *media, const ChatModel *model, const Tokens *prompt, Arena *arena, Error *error) {
    if (media->count == 0) return true;
    const VisionSpec *vision = engine_vision(model->engine);
    const AudioSpec *audio = engine_audio(model->engine);
    const bool grid = vision && vision->grid_positions;
    int32_t image_token, audio_token, last_token;
    if (!find_token(model, vision ? vision->token : NULL, &image_token, error) ||
        !find_token(model, audio ? audio->token : NULL, &audio_token, error) ||
        !find_token(model, audio ? audio->last_token : NULL, &last_token, error))
        return false;
    media->content_ids = arena_alloc(arena, prompt->count, sizeof *media->content_ids);
    if (grid) media->positions = arena_alloc(arena, prompt->count * POSITION_DIMS_MAX, sizeof *media->positions);
    if (!media->content_ids || (grid && !media->positions) || prompt->count > INT32_MAX)
        return fail(error, arena_failure(arena), "no memory for a prompt of %zu tokens", prompt->count);
    if (!alloc_spans(media, vision, arena, error)) return false;
    int number = 0, row = 0;
    for (size_t i = 0; i < prompt->count; i++) {
        const int32_t id = prompt->ids[i];
        media->content_ids[i] = (uint64_t)id;
        if (id != image_token && id != audio_token && id != last_token) continue;
        MediaItem *item = number < media->item_count ? media->items[number] : NULL;
        const int together = item ? rows_together(vision, item) : 1, before = row % together;
        const bool clip = item && media_item_is_audio(item), last = clip && last_token >= 0 && row == item->tokens - 1;
        const MediaSpan *span = before > 0 ? &media->spans[media->span_count - 1] : NULL;
        if (!item ||
            id !=
                (last          ? last_token
                        : clip ? audio_token
                               : image_token) ||
            (span && span->begin + before != (int)i))
            return fail(error, ERROR_UNSUPPORTED, "the chat template writes %s itself",
                id == image_token       ? vision->token
                    : id == audio_token ? audio->token
                                        : audio->last_token);
        if (before == 0)
            media->spans[media->span_count++] =
                (MediaSpan){.begin = (int)i, .first = row, .rows = together, .item = item};
        media->content_ids[i] = media_item_content(item, row);
        if (++row < item->tokens) continue;
        number++;
        row = 0;
    }
    if (number < media->item_count || row > 0)
        return fail(error, ERROR_UNSUPPORTED, "the tokenizer does not keep the tokens of images and audio");
    if (media->positions)
        media->position_offset =
            prompt_media_positions(media->spans, media->span_count, (int)prompt->count, media->positions);
    return true;
}
