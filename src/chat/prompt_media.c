#include "chat/prompt_media.h"

#include <string.h>

#include "base/math.h"

void prompt_media_close(PromptMedia *media) {
    for (int i = 0; i < media->count; i++) media_item_release(media->items[i]);
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
    const int64_t unit = (int64_t)rule.patch * rule.merge, low = IMAGE_TOKENS_LOW * unit * unit;
    if (part->low_detail && rule.sizing == SIZING_AREA && low >= rule.pixels_min)
        rule.pixels_max = min_i64(rule.pixels_max, low);
    return rule;
}

/* The number of tokens is known from the header: it is checked before the pixels are decoded. */
static MediaItem *open_item(const ChatModel *model, const ChatMedia *part, int64_t *tokens, Error *error) {
    const ImageRule rule = rule_of(engine_vision(model->engine), part);
    const int context = chat_model_context(model);
    int width, height;
    ImageLayout layout;
    Image image = {0}, resized = {0};
    if (!image_size(part->bytes, &width, &height, error) || !image_layout(&rule, width, height, &layout, error))
        return NULL;
    *tokens += layout.tokens; /* and a few markers, which are not worth an error of their own */
    if (*tokens >= context) {
        fail(error, ERROR_LIMIT, "this image takes %d tokens, and with those before it %lld of the context of %d",
            layout.tokens, (long long)*tokens, context);
        return NULL;
    }
    const bool ok = image_decode(part->bytes, &image, error) &&
        image_resize(&image, layout.width, layout.height, rule.filter, &resized, error);
    image_free(&image);
    return ok ? media_item_new(&resized, &layout, error) : NULL;
}

static bool open_part(PromptMedia *media, const ChatModel *model, const ChatMessage *message, const ChatMedia *part,
    int64_t *tokens, Error *error) {
    media->refused = part;
    if (!engine_vision(model->engine)) return fail(error, ERROR_UNSUPPORTED, "this model takes no images");
    if (strcmp(message->role, "user") != 0 && strcmp(message->role, "tool") != 0)
        return fail(error, ERROR_UNSUPPORTED, "messages of the role '%s' cannot have images", message->role);
    if (media->count == IMAGES_MAX) return fail(error, ERROR_LIMIT, "more than %d images", IMAGES_MAX);
    MediaItem *item = open_item(model, part, tokens, error);
    if (!item) return false;
    media->items[media->count++] = item;
    media->refused = NULL;
    return true;
}

bool prompt_media_open(PromptMedia *media, const ChatModel *model, const ChatMessage *messages, size_t message_count,
    Arena *arena, Error *error) {
    int64_t tokens = 0;
    *media = (PromptMedia){.items = arena_alloc(arena, IMAGES_MAX, sizeof *media->items)};
    if (!media->items) return fail(error, arena_failure(arena), "no memory for images");
    for (size_t m = 0; m < message_count; m++)
        for (size_t i = 0; i < messages[m].part_count; i++) {
            const ContentPart *part = &messages[m].parts[i];
            if (part->kind != CONTENT_IMAGE) continue;
            if (!open_part(media, model, &messages[m], &part->media, &tokens, error)) return false;
        }
    return true;
}

/* ---- the text ---- */

static char *append(char *at, Slice text) {
    memcpy(at, text.data, text.size);
    return at + text.size;
}

/* before, token once for each row with row_end behind those of the grid's rows, after. */
static bool expansion(const VisionSpec *vision, const ImageLayout *layout, Arena *arena, Slice *text, Error *error) {
    const Slice before = slice_of(vision->before), token = slice_of(vision->token), after = slice_of(vision->after);
    const Slice row_end = slice_of(vision->row_end ? vision->row_end : "");
    const size_t size =
        before.size + (size_t)layout->tokens * token.size + (size_t)(layout->grid_rows - 1) * row_end.size + after.size;
    char *out = arena_alloc(arena, size, 1), *at = out;
    if (!out) return fail(error, arena_failure(arena), "no memory for the tokens of an image");
    at = append(at, before);
    for (int i = 0; i < layout->tokens; i++) {
        if (i > 0 && i % layout->grid_columns == 0) at = append(at, row_end);
        at = append(at, token);
    }
    append(at, after);
    *text = (Slice){out, size};
    return true;
}

static int count_in(Slice text, Slice what) {
    int count = 0;
    for (const char *at = text.data, *end = text.data + text.size;
         at && (at = memmem(at, (size_t)(end - at), what.data, what.size)) != NULL; at += what.size)
        count++;
    return count;
}

bool prompt_media_expand(
    const PromptMedia *media, const ChatModel *model, Span **spans, size_t *count, Arena *arena, Error *error) {
    if (media->count == 0) return true;
    const VisionSpec *vision = engine_vision(model->engine);
    const Slice placeholder = slice_of(vision->placeholder);
    int found = 0;
    for (size_t i = 0; i < *count; i++)
        if ((*spans)[i].from_template) found += count_in((*spans)[i].text, placeholder);
    if (found != media->count)
        return fail(error, ERROR_UNSUPPORTED, "the chat template shows %d of %d images", found, media->count);
    Span *out = arena_alloc(arena, *count + 2 * (size_t)media->count, sizeof *out);
    if (!out) return fail(error, arena_failure(arena), "no memory for the prompt");
    size_t used = 0;
    int image = 0;
    for (size_t i = 0; i < *count; i++) {
        Span rest = (*spans)[i];
        for (const char *at; rest.from_template &&
             (at = memmem(rest.text.data, rest.text.size, placeholder.data, placeholder.size)) != NULL;) {
            const size_t before = (size_t)(at - rest.text.data);
            out[used++] = (Span){.text = {rest.text.data, before}, .from_template = true};
            out[used] = (Span){.from_template = true};
            if (!expansion(vision, &media->items[image++]->layout, arena, &out[used++].text, error)) return false;
            rest.text = (Slice){at + placeholder.size, rest.text.size - before - placeholder.size};
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
        for (int k = 0; k < layout->tokens; k++, at++) {
            positions[at] = next;
            positions[tokens + at] = next + k / layout->grid_columns;
            positions[2 * tokens + at] = next + k % layout->grid_columns;
        }
        next += max_int(layout->grid_rows, layout->grid_columns);
    }
    return next - tokens;
}

/* Tokens of an image that follow each other in the prompt. */
static int rows_together(const VisionSpec *vision, const MediaItem *item) {
    return vision->row_end ? item->layout.grid_columns : item->layout.tokens;
}

static bool alloc_spans(PromptMedia *media, const VisionSpec *vision, Arena *arena, Error *error) {
    size_t count = 0;
    for (int i = 0; i < media->count; i++)
        count += (size_t)(media->items[i]->layout.tokens / rows_together(vision, media->items[i]));
    media->spans = arena_alloc(arena, count, sizeof *media->spans);
    return media->spans || fail(error, arena_failure(arena), "no memory for images");
}

bool prompt_media_place(PromptMedia *media, const ChatModel *model, const Tokens *prompt, Arena *arena, Error *error) {
    if (media->count == 0) return true;
    const VisionSpec *vision = engine_vision(model->engine);
    int32_t token;
    if (!tokenizer_id(model->tokenizer, slice_of(vision->token), &token))
        return fail(error, ERROR_UNSUPPORTED, "the tokenizer has no token %s", vision->token);
    media->content_ids = arena_alloc(arena, prompt->count, sizeof *media->content_ids);
    if (vision->grid_positions)
        media->positions = arena_alloc(arena, prompt->count * POSITION_DIMS_MAX, sizeof *media->positions);
    if (!media->content_ids || (vision->grid_positions && !media->positions) || prompt->count > INT32_MAX)
        return fail(error, arena_failure(arena), "no memory for a prompt of %zu tokens", prompt->count);
    if (!alloc_spans(media, vision, arena, error)) return false;
    int image = 0, row = 0;
    for (size_t i = 0; i < prompt->count; i++) {
        media->content_ids[i] = (uint64_t)prompt->ids[i];
        if (prompt->ids[i] != token) continue;
        MediaItem *item = image < media->count ? media->items[image] : NULL;
        const int together = item ? rows_together(vision, item) : 1, before = row % together;
        if (!item || (before > 0 && prompt->ids[i - 1] != token))
            return fail(error, ERROR_UNSUPPORTED, "the chat template writes %s itself", vision->token);
        if (before == 0) media->spans[media->span_count++] = (MediaSpan){(int)i, row, together, item};
        media->content_ids[i] = media_item_content(item, row);
        if (++row < item->layout.tokens) continue;
        image++;
        row = 0;
    }
    if (image < media->count || row > 0)
        return fail(error, ERROR_UNSUPPORTED, "the tokenizer does not keep %s", vision->token);
    if (media->positions)
        media->position_offset =
            prompt_media_positions(media->spans, media->span_count, (int)prompt->count, media->positions);
    return true;
}
