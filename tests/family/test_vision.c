/* Vision models against transformers: rows of images and of the frames of videos, logits of a prompt around them in one
 * step, in chunks and in single steps. Slices of rows, down to a single one, give the bits of the whole; so do
 * slices of spans of the text model. */
#include "base/file.h"
#include "compare.h"
#include "media/image_views.h"
#include "model/encoder.h"
#include "model/sliced_step.h"

#include <limits.h>
#include <unistd.h>

#define VISION_DATA "tests/family/vision"

/* Of the largest magnitude, on exact backends. */
static const double feature_limit = 1e-4, logit_limit = 3e-4;
/* Of the deviation of all values, on the others, whose KV pages are f16 and whose activations are rounded. */
static const double fast_feature_limit = 0.03;

static double distance_of(const float *ours, const float *golden, int64_t count) {
    double worst = 0, top = 0;
    for (int64_t i = 0; i < count; i++) {
        const double off = fabs((double)ours[i] - golden[i]);
        top = fmax(top, fabs(golden[i]));
        if (!(off <= worst)) worst = off;
    }
    return worst / top;
}

static double deviation_of(const float *ours, const float *golden, int64_t count) {
    double off = 0, all = 0;
    for (int64_t i = 0; i < count; i++) {
        off += ((double)ours[i] - golden[i]) * ((double)ours[i] - golden[i]);
        all += (double)golden[i] * golden[i];
    }
    return sqrt(off / all);
}

/* An image or a video as a model's encoder takes it: views, or groups of frames. */
typedef struct Picture {
    ImageDivision division;
    bool video;
    int count, frames; /* views or groups; frames of a video */
    Image first[IMAGE_VIEWS_MAX], second[IMAGE_VIEWS_MAX];
    int together;    /* frames of a group */
    ImageRule frame; /* of a video */
} Picture;

static const ImageLayout *layout_of(const Picture *picture, int i) {
    return picture->video ? &picture->division.layout : image_view_layout(&picture->division, i);
}

static bool take_frame(void *context, int number, const Image *frame, Error *error) {
    Picture *p = context;
    Image *to = number % p->together ? &p->second[number / p->together] : &p->first[number / p->together];
    return image_views(&p->frame, &p->division, frame, to, error);
}

static bool open_frames(Slice file, const VideoRule *rule, Picture *p, Error *error) {
    Video video;
    int chosen[VIDEO_CHOSEN_MAX];
    if (!video_open(file, &video, error)) return false;
    p->video = true;
    p->frames = video_choose(rule, &video, chosen);
    p->together = rule->together;
    p->frame = rule->frame;
    if (rule->frame.frames) p->frame.frames = p->frames;
    p->count = (p->frames + rule->together - 1) / rule->together;
    const bool ok = image_divide(&p->frame, video.width, video.height, &p->division, error) &&
        video_read(&video, chosen, p->frames, take_frame, p, error);
    video_close(&video);
    return ok;
}

static bool open_image(Slice file, const ImageRule *rule, Picture *p, Error *error) {
    Image original = {0};
    const bool ok = image_decode(file, &original, error) &&
        image_divide(rule, original.width, original.height, &p->division, error) &&
        image_views(rule, &p->division, &original, p->first, error);
    p->count = p->division.count;
    image_free(&original);
    return ok;
}

static bool open_picture(const Fixture *f, const char *name, const VisionSpec *spec, Picture *picture) {
    char path[128];
    Buffer file = {0};
    Error error = {0};
    const bool video = json_get(f->root, "groups");
    snprintf(path, sizeof path, VISION_DATA "/%s.%s", name, video ? "gif" : "png");
    bool ok = file_read(path, IMAGE_BYTES_MAX, &file, &error);
    ok = ok &&
        (video ? open_frames(buffer_view(&file), &spec->video.rule, picture, &error)
               : open_image(buffer_view(&file), &spec->rule, picture, &error));
    if (!ok && strstr(error.text, "by this build"))
        test_skip("no PNG decoder in this build");
    else
        TEST_MSG(ok, "%s", error.text);
    if (ok && video)
        TEST_MSG(picture->frames == json_get(f->root, "frames")->integer &&
                picture->count == json_get(f->root, "groups")->integer,
            "%s: %d frames, %d groups", name, picture->frames, picture->count);
    buffer_free(&file);
    return ok;
}

static void close_picture(Picture *picture) {
    for (int i = 0; i < IMAGE_VIEWS_MAX; i++) {
        image_free(&picture->first[i]);
        image_free(&picture->second[i]);
    }
}

static int tokens_of(const Picture *picture) {
    int tokens = 0;
    for (int i = 0; i < picture->count; i++) tokens += layout_of(picture, i)->tokens;
    return tokens;
}

static int64_t floats_of(const VisionSpec *spec, const Picture *picture) {
    int64_t floats = 0;
    for (int i = 0; i < picture->count; i++) floats += encoder_row_floats(spec, layout_of(picture, i));
    return floats;
}

/* Rows of the next slice: all, one, or a number that changes. */
typedef enum Slices { SLICES_WHOLE, SLICES_SINGLE, SLICES_RANDOM } Slices;

static int slice_rows(Slices slices, uint64_t *seed) {
    return slices == SLICES_WHOLE ? INT_MAX : slices == SLICES_SINGLE ? 1 : 1 + (int)(test_random(seed) % 50);
}

/* The rows of all views of an image, computed in slices, in memory of `to`. */
static float *encode(Encoder *encoder, const VisionSpec *spec, const Picture *picture, Slices slices, Backend *to) {
    const size_t bytes = (size_t)floats_of(spec, picture) * sizeof(float);
    Error error = {0};
    float *rows = to->ops->alloc(to, bytes, MEMORY_STEP, &error), *at = rows;
    bool ok = rows != NULL;
    uint64_t seed = 1;
    for (int i = 0; ok && i < picture->count; i++) {
        const ImageLayout *layout = layout_of(picture, i);
        const Image *second = picture->second[i].rgb ? &picture->second[i] : NULL;
        bool done = false;
        ok = encoder_begin(encoder, &picture->first[i], second, layout, &error);
        while (ok && !done) {
            const int most = slice_rows(slices, &seed);
            const EncoderWork work = encoder_next(encoder);
            int taken = most;
            ok = encoder_continue(encoder, &taken, &done, &error);
            TEST(taken > 0 && (taken <= most || work == ENCODE_LAYERS));
        }
        if (ok) encoder_take(encoder, to, at);
        at += encoder_row_floats(spec, layout);
    }
    TEST_MSG(ok, "%s", error.text);
    return rows;
}

static float *downloaded(Backend *backend, const float *rows, int64_t count) {
    float *out = malloc((size_t)count * sizeof *out);
    backend->ops->download(backend, out, rows, (size_t)count * sizeof *out);
    return out;
}

/* ---- the text model around an image ---- */

typedef struct Prompt {
    const Fixture *f;
    const VisionSpec *spec;
    int group;         /* tokens of the image, or of a group of a video's frames */
    const float *rows; /* memory of the backend */
    int hidden;
    int prompt; /* tokens before the steps */
    int span_count;
    BidirectionalSpan spans[IMAGE_VIEWS_MAX]; /* tokens that see each other */
    int32_t image_token;
    int32_t *positions; /* [POSITION_DIMS_MAX][prompt]; NULL: those of the cache */
    int position_offset;
} Prompt;

static int32_t *read_positions(const Fixture *f, int prompt, int *offset) {
    const Json *lists = json_get(f->root, "positions");
    *offset = 0;
    if (!lists) return NULL;
    int32_t *out = malloc(sizeof *out * (size_t)(POSITION_DIMS_MAX * prompt)), *to = out, most = 0;
    for (JSON_EACH(list, lists))
        for (JSON_EACH(item, list)) {
            *to = (int32_t)item->integer;
            most = *to > most ? *to : most;
            to++;
        }
    *offset = most + 1 - prompt;
    return out;
}

/* The runs of the image's tokens, or the whole prompt. */
static void find_spans(Prompt *p) {
    p->span_count = p->spec->bidirectional && p->spec->whole_prompt;
    p->spans[0] = (BidirectionalSpan){0, p->prompt};
    for (int i = 0; i < p->prompt && p->spec->bidirectional && !p->spec->whole_prompt; i++) {
        const bool here = p->f->tokens[i] == p->image_token, before = i && p->f->tokens[i - 1] == p->image_token;
        if (here && !before) p->spans[p->span_count++] = (BidirectionalSpan){i, i};
        if (here) p->spans[p->span_count - 1].end = i + 1;
    }
}

/* The image's rows among the prompt's tokens [from, end): one range for each run of its tokens. */
static int find_ranges(const Prompt *p, int from, int end, EmbeddingRange *ranges) {
    const int64_t block = (int64_t)p->group * p->hidden, sets = 1 + p->spec->deepstack_count;
    int count = 0, row = 0;
    for (int i = 0; i < end && i < p->prompt; i++) {
        if (p->f->tokens[i] != p->image_token) continue;
        const float *values = p->rows + row / p->group * sets * block + row % p->group * p->hidden;
        const bool first = row++ % p->group == 0;
        if (i < from) continue;
        if (i > from && p->f->tokens[i - 1] == p->image_token && !first)
            ranges[count - 1].rows++;
        else
            ranges[count++] = (EmbeddingRange){.row = i - from,
                .rows = 1,
                .values = values,
                .in_backend = true,
                .deepstack_layers = p->spec->deepstack_count,
                .deepstack = values + block,
                .deepstack_stride = block};
    }
    return count;
}

/* A span in slices, beside which another sequence goes on. Rows of spans have no logits. */
static bool slice_span(const Prompt *p, Runner *runner, KvCache *cache, KvSequence *s, int count) {
    EmbeddingRange ranges[FIXTURE_TOKENS_MAX];
    const int from = s->length;
    int first = 0;
    while (p->spans[first].begin < from) first++;
    const StepSequence sequence = {.rows = count,
        .kv = s,
        .tokens = p->f->tokens + from,
        .embedding_count = find_ranges(p, from, from + count, ranges),
        .embeddings = ranges,
        .span_count = 1,
        .spans = &p->spans[first]};
    Error error = {0};
    StepBuilder builder;
    KvSequence other = {0};
    uint64_t seed = 7;
    float *ignored = malloc((size_t)p->f->vocab * sizeof *ignored);
    SlicedStep *sliced = sliced_step_open(runner, &error);
    fixture_builder(&builder, count);
    step_begin(&builder, false);
    bool done = false;
    bool ok = sliced && ignored && kv_sequence_open(cache, NULL, &other, &error) && kv_reserve(cache, s, count, &error);
    if (ok) step_add_sequence(&builder, &sequence);
    const Step *step = ok ? step_end(&builder, &error) : NULL;
    ok = step && sliced_step_begin(sliced, cache, step, &error);
    for (int i = 0; ok && !done; i++) {
        int rows = slice_rows(i % 3 ? SLICES_RANDOM : SLICES_SINGLE, &seed);
        ok = sliced_step_continue(sliced, &rows, &done, &error);
        if (ok && i % 4 == 0 && other.length + 1 < p->f->count)
            ok = fixture_step(runner, cache, &other, p->f->tokens, 1, ignored, &error);
    }
    TEST_MSG(ok, "%s", error.text);
    if (ok) kv_advance(cache, s, count);
    kv_sequence_close(cache, &other);
    step_builder_close(&builder);
    sliced_step_close(sliced);
    free(ignored);
    return ok;
}

/* Rows [from, from + count) of the prompt, or one behind it. */
static bool step_of(const Prompt *p, Runner *runner, KvCache *cache, KvSequence *s, int count, float *logits) {
    const int from = s->length, end = from + count;
    EmbeddingRange ranges[FIXTURE_TOKENS_MAX];
    const int range_count = find_ranges(p, from, end, ranges);
    int first = 0, spans = 0;
    while (first < p->span_count && p->spans[first].begin < from) first++;
    while (first + spans < p->span_count && p->spans[first + spans].begin < end) spans++;
    int32_t positions[POSITION_DIMS_MAX * FIXTURE_TOKENS_MAX];
    for (int dim = 0; p->positions && dim < POSITION_DIMS_MAX; dim++)
        for (int i = 0; i < count && end <= p->prompt; i++)
            positions[dim * count + i] = p->positions[dim * p->prompt + from + i];
    const StepSequence sequence = {.tokens = p->f->tokens + from,
        .embedding_count = range_count,
        .embeddings = ranges,
        .positions = p->positions && end <= p->prompt ? positions : NULL,
        .position_offset = p->position_offset,
        .span_count = spans,
        .spans = p->spans + first};
    Error error = {0};
    const bool ok =
        fixture_step_of(runner, cache, s, count, &sequence, logits + (size_t)from * (size_t)p->f->vocab, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok;
}

/* Fewer rows where they would cut a span, more where one begins with them. */
static int whole_rows(const Prompt *p, int from, int rows) {
    for (int i = 0; i < p->span_count; i++) {
        const BidirectionalSpan *span = &p->spans[i];
        if (span->begin < from || span->begin >= from + rows || span->end <= from + rows) continue;
        return span->begin == from ? span->end - from : span->begin - from;
    }
    return rows;
}

static bool is_span(const Prompt *p, int from, int rows) {
    for (int i = 0; i < p->span_count; i++)
        if (p->spans[i].begin == from && p->spans[i].end == from + rows) return true;
    return false;
}

/* Steps of `chunk` rows, of which none cuts a span; single ones behind the prompt. slices: spans are computed so. */
static bool walk_prompt(const Prompt *p, Runner *runner, int chunk, bool slices, float *logits) {
    Error error = {0};
    KvSequence s = {0};
    const KvPlan *plan = runner_kv_plan(runner);
    KvCache *cache = kv_open(plan, 2 * kv_bytes_for(plan, NULL, p->f->count), &error);
    bool ok = cache && kv_sequence_open(cache, NULL, &s, &error);
    TEST_MSG(ok, "%s", error.text);
    while (ok && s.length < p->f->count) {
        const int left = p->prompt - s.length;
        const int rows = left <= 0 ? 1 : whole_rows(p, s.length, left < chunk ? left : chunk);
        ok = slices && is_span(p, s.length, rows) ? slice_span(p, runner, cache, &s, rows)
                                                  : step_of(p, runner, cache, &s, rows, logits);
    }
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    return ok;
}

static int sliced_count; /* runs with spans in slices */

static void check_text(Prompt *p, Runner *runner, const char *cpu) {
    const Fixture *f = p->f;
    const int64_t count = (int64_t)f->count * f->vocab;
    const bool exact = runner_backend(runner)->exact;
    static const int chunks[] = {FIXTURE_TOKENS_MAX, 7, 1};
    float *logits = calloc((size_t)count, sizeof *logits), *whole = calloc((size_t)count, sizeof *whole);
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        float *out = i ? logits : whole;
        if (!walk_prompt(p, runner, chunks[i], false, out)) continue;
        const double off = distance_of(out, fixture_golden(f, 0), count);
        if (exact)
            TEST_MSG(off <= logit_limit, "%s on %s in chunks of %d: logits off by %.2e", f->name, cpu, chunks[i], off);
        if (i)
            TEST_MSG(!memcmp(logits, whole, (size_t)count * sizeof *logits), "%s on %s: chunks of %d", f->name, cpu,
                chunks[i]);
    }
    /* Rows behind a span read what its slices have written. */
    if (p->span_count > 0 && !p->spec->whole_prompt && sliced_step_possible(runner) &&
        walk_prompt(p, runner, 1, true, logits)) {
        int64_t compared = 0, equal = 0;
        for (int i = p->spans[0].end; i < f->count; i++) {
            if (i < p->prompt && f->tokens[i] == p->image_token) continue;
            const int64_t at = (int64_t)i * f->vocab;
            compared++;
            equal += !memcmp(logits + at, whole + at, (size_t)f->vocab * sizeof *logits);
        }
        TEST_MSG(compared > 0 && equal == compared, "%s on %s: spans in slices: %lld of %lld rows", f->name, cpu,
            (long long)equal, (long long)compared);
        sliced_count++;
    }
    free(logits);
    free(whole);
}

/* ---- a fixture on a backend ---- */

static int warnings;
static void count_warning(void *context, const char *line) {
    warnings++;
    fprintf(stderr, "%s: %s\n", (const char *)context, line);
}

/* The rows of the first layer, without those that are added behind further ones. */
static float *first_rows(const VisionSpec *spec, const Picture *picture, const float *all, int hidden) {
    float *out = malloc((size_t)tokens_of(picture) * (size_t)hidden * sizeof *out), *to = out;
    for (int i = 0; i < picture->count; i++) {
        const ImageLayout *layout = layout_of(picture, i);
        const size_t floats = (size_t)layout->tokens * (size_t)hidden;
        memcpy(to, all, floats * sizeof *to);
        to += floats;
        all += encoder_row_floats(spec, layout);
    }
    return out;
}

static void check_rows(
    const Fixture *f, const char *name, const float *rows, int64_t count, bool exact, const char *cpu) {
    char path[128];
    Buffer golden = {0};
    Error error = {0};
    snprintf(path, sizeof path, VISION_DATA "/%s.features.f32", name);
    TEST_MSG(file_read(path, 1 << 24, &golden, &error), "%s", error.text);
    TEST_MSG(golden.size == (size_t)count * sizeof(float), "%s: %zu bytes of features", name, golden.size);
    if (golden.size == (size_t)count * sizeof(float)) {
        const float *values = (const float *)(const void *)golden.data;
        const double off = exact ? distance_of(rows, values, count) : deviation_of(rows, values, count);
        TEST_MSG(off <= (exact ? feature_limit : fast_feature_limit), "%s on %s: features off by %.2e", name, cpu, off);
    }
    buffer_free(&golden);
}

/* Tokens of images of 200 sizes, as the reference's processor expands them (tools/oracle/vision.py --sizes). */
static void check_sizes(const char *name, const ImageRule *rule) {
    Buffer file = {0};
    Error error = {0};
    int count = 0;
    const bool ok = file_read(VISION_DATA "/sizes.csv", 1 << 20, &file, &error);
    TEST_MSG(ok, "%s", error.text);
    buffer_byte(&file, 0);
    for (const char *line = ok ? file.data : NULL; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        char fixture[64];
        int width, height, tokens;
        ImageDivision division;
        if (sscanf(line, "%63[^,],%d,%d,%d", fixture, &width, &height, &tokens) != 4 || strcmp(fixture, name) != 0)
            continue;
        const bool taken = image_divide(rule, width, height, &division, &error);
        const int found = taken ? image_division_tokens(&division) : 0;
        const bool narrow =
            !taken && rule->sizing == SIZING_BUDGET; /* a side longer than the small table of positions */
        TEST_MSG(found == tokens || narrow, "%s: %d × %d: %d tokens, expected %d", name, width, height, found, tokens);
        count++;
    }
    TEST_MSG(count > 190, "%s: %d sizes", name, count);
    buffer_free(&file);
}

static void check_backend(Fixture *f, const char *name, const char *directory, const char *cpu) {
    const ModelOptions options = {
        .context = f->count, .strict_config = true, .warn = count_warning, .warn_context = f->name};
    const RunnerOptions chunks = {.backend = fixture_backend(cpu, 2, FIXTURE_TOKENS_MAX)};
    FixtureRun run;
    Error error = {0};
    Picture picture = {0};
    const bool video = json_get(f->root, "groups");
    warnings = 0;
    if (!fixture_run_open(&run, directory, &options, &chunks)) return;
    const VisionSpec *spec = model_spec(run.model)->vision;
    TEST(spec && warnings == 0);
    Encoder *encoder = spec ? encoder_open(run.model, &chunks.backend, f->count, &error) : NULL;
    TEST_MSG(encoder, "%s", error.text);
    if (spec && !video && !strcmp(cpu, fixture_cpus[0])) check_sizes(name, &spec->rule);
    if (encoder && open_picture(f, name, spec, &picture)) {
        Backend *backend = runner_backend(run.runner);
        const int hidden = model_hidden(run.model), tokens = tokens_of(&picture);
        const int64_t count = floats_of(spec, &picture);
        float *rows = encode(encoder, spec, &picture, SLICES_WHOLE, backend),
              *values = downloaded(backend, rows, count);
        const Slices slices = strcmp(cpu, fixture_cpus[0]) ? SLICES_RANDOM : SLICES_SINGLE;
        float *again = encode(encoder, spec, &picture, slices, backend), *others = downloaded(backend, again, count);
        TEST_MSG(!memcmp(values, others, (size_t)count * sizeof *values), "%s on %s: slices", name, cpu);
        free(others);
        backend->ops->release(backend, again);
        float *first = first_rows(spec, &picture, values, hidden);
        check_rows(f, name, first, (int64_t)tokens * hidden, backend->exact, cpu);
        free(first);
        Prompt prompt = {.f = f,
            .spec = spec,
            .group = picture.video ? picture.division.layout.tokens : tokens,
            .rows = rows,
            .hidden = hidden,
            .prompt = f->count - f->steps,
            .image_token = (int32_t)json_get(f->root, "image_token")->integer};
        int found = 0;
        for (int i = 0; i < prompt.prompt; i++) found += f->tokens[i] == prompt.image_token;
        TEST_MSG(found == tokens, "%s: %d tokens of the image, expected %d", name, tokens, found);
        find_spans(&prompt);
        prompt.positions = read_positions(f, prompt.prompt, &prompt.position_offset);
        check_text(&prompt, run.runner, cpu);
        free(prompt.positions);
        free(values);
        backend->ops->release(backend, rows);
    }
    close_picture(&picture);
    encoder_close(encoder);
    fixture_run_close(&run);
}

/* A model with these settings of image preprocessing; NULL: it was refused. */
static Model *open_with(const char *fixture, const char *settings, Error *error) {
    Fixture f;
    char path[128], directory[64];
    Model *model = NULL;
    *error = (Error){0};
    snprintf(path, sizeof path, "../vision/%s", fixture);
    if (!fixture_open(&f, path)) return NULL;
    if (fixture_write_variant(&f, 0, directory)) {
        TEST(fixture_write_text(directory, "preprocessor_config.json", slice_of(settings)));
        const ModelOptions options = {.context = f.count, .warn = count_warning, .warn_context = f.name};
        model = model_open(directory, &options, error);
    }
    snprintf(path, sizeof path, "%s/preprocessor_config.json", directory);
    unlink(path);
    fixture_remove(directory);
    fixture_close(&f);
    return model;
}

/* Settings that would change the pixels and that the family cannot honour. */
static void check_refusals(void) {
    static const struct {
        const char *fixture, *settings, *mention;
    } cases[] = {{"qwen3-vl", "{\"do_resize\": false}", "do_resize must be true"},
        {"gemma4-e", "{\"do_resize\": 0}", "do_resize must be true"},
        {"qwen2-vl", "{\"do_rescale\": false}", "do_rescale must be true"},
        {"glm-ocr", "{\"rescale_factor\": 0.0078431373}", "rescale_factor must be 1/255"},
        {"pixtral", "{\"do_center_crop\": true}", "do_center_crop must be false"},
        {"gemma3", "{\"do_pan_and_scan\": true}", "do_pan_and_scan must be false"},
        {"gemma3", "{\"size\": {\"height\": 112, \"width\": 112}}", "size must be 56 × 56"},
        {"mistral3", "{\"size\": {\"height\": 112, \"width\": 140}}", "size must be a square"},
        {"smolvlm", "{\"size\": {\"height\": 64, \"width\": 64}}", "longest_edge"},
        {"qwen3-5", "{\"patch_size\": 14}", "patch_size is 14, but the model's 16"},
        {"glm4v", "{\"merge_size\": 1}", "merge_size is 1, but the model's 2"},
        {"lfm2-vl", "{\"downsample_factor\": 4}", "downsample_factor is 4, but the model's 2"},
        {"gemma4-31b", "{\"pooling_kernel_size\": 2}", "pooling_kernel_size is 2, but the model's 3"},
        {"gemma4-unified", "{\"model_patch_size\": 48}", "model_patch_size is 48, but the model's 24"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error error;
        Model *model = open_with(cases[i].fixture, cases[i].settings, &error);
        TEST_MSG(!model && strstr(error.text, cases[i].mention), "%s with %s: \"%s\" does not mention %s",
            cases[i].fixture, cases[i].settings, error.text, cases[i].mention);
        model_close(model);
    }
}

/* Sizes as files spell them. */
static void check_spellings(void) {
    static const struct {
        const char *fixture, *settings;
        int64_t pixels; /* pixels_max, or the longest side */
    } cases[] = {{"qwen2-vl", "{\"size\": {\"min_pixels\": 3136, \"max_pixels\": 15680}}", 15680},
        {"qwen2-vl", "{\"size\": {\"shortest_edge\": 3136, \"longest_edge\": 15680}, \"max_pixels\": null}", 15680},
        {"qwen2-vl", "{\"size\": {\"shortest_edge\": 3136, \"longest_edge\": 15680}, \"max_pixels\": 12544}", 12544},
        {"glm4v", "{\"size\": {}}", 28 * 28 * 7500}, {"mistral3", "{\"size\": {\"height\": 112, \"width\": 112}}", 112},
        {"pixtral", "{\"size\": {\"longest_edge\": 96, \"height\": null, \"width\": null}}", 96},
        {"smolvlm", "{\"size\": {\"longest_edge\": 128, \"height\": null, \"width\": null}}", 128}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error error;
        Model *model = open_with(cases[i].fixture, cases[i].settings, &error);
        TEST_MSG(model, "%s with %s: %s", cases[i].fixture, cases[i].settings, error.text);
        if (!model) continue;
        const ImageRule *rule = &model_spec(model)->vision->rule;
        const int64_t found = rule->sizing == SIZING_AREA ? rule->pixels_max
            : rule->longest                               ? rule->longest
                                                          : rule->side;
        TEST_MSG(found == cases[i].pixels, "%s with %s: %lld", cases[i].fixture, cases[i].settings, (long long)found);
        model_close(model);
    }
}

static void check_fixture(const char *name, const bool *here) {
    Fixture f;
    char path[128], directory[64];
    Buffer processor = {0};
    snprintf(path, sizeof path, "../vision/%s", name);
    if (!fixture_open(&f, path)) return;
    if (fixture_write_variant(&f, 0, directory)) {
        json_write(&processor, json_get(f.root, "processor"));
        TEST(fixture_write_text(directory, "preprocessor_config.json", buffer_view(&processor)));
        const Json *video = json_get(f.root, "video_processor");
        buffer_clear(&processor);
        if (video) json_write(&processor, video);
        if (video) TEST(fixture_write_text(directory, "video_preprocessor_config.json", buffer_view(&processor)));
        for (size_t c = 0; c < FIXTURE_CPUS; c++)
            if (here[c]) check_backend(&f, name, directory, fixture_cpus[c]);
    }
    snprintf(path, sizeof path, "%s/preprocessor_config.json", directory);
    unlink(path);
    snprintf(path, sizeof path, "%s/video_preprocessor_config.json", directory);
    unlink(path);
    fixture_remove(directory);
    buffer_free(&processor);
    fixture_close(&f);
}

/* test_vision [NAME…]: these fixtures only. */
int main(int count, char **arguments) {
    static const char *const names[] = {"gemma3", "qwen2-vl", "qwen2-5-vl", "qwen3-5", "qwen3-vl", "qwen3-vl-moe",
        "pixtral", "mistral3", "idefics3", "smolvlm", "gemma4-e", "gemma4-31b", "gemma4-unified", "glm4v", "glm46v",
        "glm4v-moe", "glm-ocr", "fastvlm", "fastvlm-b", "lfm2-vl", "lfm2-vl-tiles", "paligemma", "paligemma2",
        "gemma3-b", "qwen2-vl-b", "qwen2-5-vl-b", "qwen3-vl-b", "mistral3-b", "idefics3-b", "glm4v-b", "qwen2-vl-video",
        "qwen2-5-vl-video", "qwen3-vl-video", "qwen3-5-video", "glm4v-video", "gemma4-e-video", "gemma4-31b-video",
        "smolvlm-video", "qwen3-vl-c", "gemma3-c", "smolvlm-c", "glm4v-c", "mistral3-c", "glm46v-c"};
    bool here[FIXTURE_CPUS];
    for (size_t c = 0; c < FIXTURE_CPUS; c++) here[c] = fixture_cpu_due(fixture_cpus[c]);
    for (int i = 1; i < count; i++) check_fixture(arguments[i], here);
    for (size_t i = 0; i < COUNT_OF(names) && count == 1; i++) check_fixture(names[i], here);
    if (count == 1) check_refusals();
    if (count == 1) check_spellings();
    TEST(count > 1 || sliced_count > 0);
    return test_done();
}
