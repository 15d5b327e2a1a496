/* Placeholders of a rendered prompt become the tokens of their parts. */
#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "chat/prompt_media.h"

enum { MARKERS_MAX = 128 }; /* bytes of what stands around a view */

static char *append(char *at, Slice text) {
    memcpy(at, text.data, text.size);
    return at + text.size;
}

const char *prompt_media_image_token(const ChatModel *model) {
    const VisionSpec *vision = engine_vision(model->engine);
    int32_t id;
    return !vision->spare_token || tokenizer_id(model->tokenizer, slice_of(vision->token), &id) ? vision->token
                                                                                                : vision->spare_token;
}

/* What stands for an image. */
typedef struct Writing {
    const VisionSpec *vision;
    Slice token;
} Writing;

/* The tokens of a view: one for each row, with row_end behind those of the grid's rows. */
static char *append_view(char *at, const Writing *w, const ImageLayout *layout) {
    const VisionSpec *vision = w->vision;
    for (int i = 0; i < layout->tokens; i++) {
        if (vision->row_end && i > 0 && i % layout->grid_columns == 0) at = append(at, slice_of(vision->row_end));
        at = append(at, w->token);
    }
    return at;
}

static char *append_tiles(char *at, const Writing *w, const ImageDivision *division) {
    const VisionSpec *vision = w->vision;
    for (int row = 0; row < division->rows; row++) {
        for (int column = 0; column < division->columns; column++) {
            at += snprintf(at, MARKERS_MAX, vision->tile, row + 1, column + 1);
            at = append_view(at, w, &division->tile_layout);
        }
        at = append(at, slice_of(vision->tile_row_end));
    }
    return division->rows ? append(at, slice_of(vision->tiles_end)) : at;
}

/* The tiles, before, the whole image, after. */
static bool expansion(const ChatModel *model, const ImageDivision *division, Arena *arena, Slice *text, Error *error) {
    const VisionSpec *vision = engine_vision(model->engine);
    const Writing writing = {vision, slice_of(prompt_media_image_token(model))};
    const ImageLayout *layout = &division->layout;
    const size_t row_end = vision->row_end ? strlen(vision->row_end) : 0;
    const size_t views = (size_t)image_division_tokens(division) * writing.token.size;
    const size_t markers = (size_t)division->count * MARKERS_MAX + (size_t)layout->grid_rows * row_end;
    char *out = arena_alloc(arena, views + markers, 1), *at = out;
    if (!out) return fail(error, arena_failure(arena), "no memory for the tokens of an image");
    if (vision->opening) at = append(at, slice_of(vision->opening));
    at = append_tiles(at, &writing, division);
    at = append_view(append(at, slice_of(vision->before)), &writing, layout);
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
    default: return expansion(model, &part->division, arena, text, error);
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
