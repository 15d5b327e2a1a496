/* Tokens of a prompt that stand for rows of images, clips and frames: their content ids and positions. */
#include "base/math.h"
#include "chat/prompt_media.h"

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
    *tokens = (RowTokens){.image.text = vision ? prompt_media_image_token(model) : NULL,
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
