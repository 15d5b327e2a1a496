#include "chat/prompt_media.h"

#include <string.h>

#include "base/math.h"

void prompt_media_close(PromptMedia *media) {
    for (int i = 0; i < media->count; i++) media_item_release(media->spans[i].item);
    *media = (PromptMedia){0};
}

void prompt_media_request(const PromptMedia *media, RequestOptions *request) {
    request->media = media->spans;
    request->media_count = media->count;
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
    *tokens += layout.tokens;
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
    media->spans[media->count++] = (MediaSpan){.item = item};
    media->refused = NULL;
    return true;
}

bool prompt_media_open(PromptMedia *media, const ChatModel *model, const ChatMessage *messages, size_t message_count,
    Arena *arena, Error *error) {
    int64_t tokens = 0;
    *media = (PromptMedia){.spans = arena_alloc(arena, IMAGES_MAX, sizeof *media->spans)};
    if (!media->spans) return fail(error, arena_failure(arena), "no memory for images");
    for (size_t m = 0; m < message_count; m++)
        for (size_t i = 0; i < messages[m].part_count; i++) {
            const ContentPart *part = &messages[m].parts[i];
            if (part->kind != CONTENT_IMAGE) continue;
            if (!open_part(media, model, &messages[m], &part->media, &tokens, error)) return false;
        }
    return true;
}

/* ---- the text ---- */

/* before, token once for each row, after. */
static bool expansion(const VisionSpec *vision, int rows, Arena *arena, Slice *text, Error *error) {
    const Slice before = slice_of(vision->before), token = slice_of(vision->token), after = slice_of(vision->after);
    const size_t size = before.size + (size_t)rows * token.size + after.size;
    char *out = arena_alloc(arena, size, 1), *at = out;
    if (!out) return fail(error, arena_failure(arena), "no memory for the tokens of an image");
    memcpy(at, before.data, before.size);
    at += before.size;
    for (int i = 0; i < rows; i++, at += token.size) memcpy(at, token.data, token.size);
    memcpy(at, after.data, after.size);
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
            if (!expansion(vision, media->spans[image++].item->layout.tokens, arena, &out[used++].text, error))
                return false;
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
    int image = 0, row = 0;
    for (size_t i = 0; i < prompt->count; i++) {
        media->content_ids[i] = (uint64_t)prompt->ids[i];
        if (prompt->ids[i] != token) continue;
        MediaSpan *span = image < media->count ? &media->spans[image] : NULL;
        if (!span || (row > 0 && prompt->ids[i - 1] != token))
            return fail(error, ERROR_UNSUPPORTED, "the chat template writes %s itself", vision->token);
        if (row == 0) span->begin = (int)i;
        media->content_ids[i] = media_item_content(span->item, row);
        if (++row < span->item->layout.tokens) continue;
        image++;
        row = 0;
    }
    if (image < media->count || row > 0)
        return fail(error, ERROR_UNSUPPORTED, "the tokenizer does not keep %s", vision->token);
    if (media->positions)
        media->position_offset =
            prompt_media_positions(media->spans, media->count, (int)prompt->count, media->positions);
    return true;
}
