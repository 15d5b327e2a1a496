#include "cli/session.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/utf8.h"
#include "chat/generation.h"
#include "cli/progress.h"
#include "library/library.h"
#include "engine/fitting.h"

static void warn(void *context, const char *line) { log_warn("%s", line); }

/* Of "--weights ram": on a terminal only, and gone when it is done. */
static void show_reading(void *context, uint64_t done, uint64_t total) {
    static int shown;
    const int percent = total ? (int)(done * 100 / total) : 100;
    if (!isatty(STDERR_FILENO) || percent == shown) return;
    shown = percent;
    fprintf(stderr, "\r\033[K");
    if (done < total)
        fprintf(
            stderr, "  reading weights %3d %%  %.0f of %.0f MB", percent, (double)done * 1e-6, (double)total * 1e-6);
    fflush(stderr);
}

static bool take_gpu_layers(const char *text, EngineOptions *out, Error *error) {
    const bool there = backend_on_device(out->backend.device);
    if (!text || !strcmp(text, "all")) return true;
    if (!strcmp(text, "auto")) {
        out->gpu_layers = there ? GPU_LAYERS_AUTO : GPU_LAYERS_ALL;
        return true;
    }
    char *end;
    const long count = strtol(text, &end, 10);
    if (end == text || *end || count < 0 || count > INT_MAX)
        return fail(error, ERROR_USAGE, "--gpu-layers %.40s: want a number of layers, auto or all", text);
    if (count > 0 && !there)
        return fail(
            error, ERROR_USAGE, "--gpu-layers %.40s needs a GPU: --device cuda, or auto where there is one", text);
    out->gpu_layers = (int)count;
    if (count == 0) out->backend.device = NULL;
    return true;
}

/* Found as the models of arguments are. */
static bool take_draft_model(const char *model, EngineOptions *out, Error *error) {
    static Buffer directory; /* until the process ends, as the arguments are */
    if (!model)
        return !out->speculation.draft_tokens || out->model.mtp ||
            fail(error, ERROR_USAGE, "--num-draft-tokens is of --draft-model or --mtp: name one of them, too");
    if (out->model.mtp) return fail(error, ERROR_USAGE, "--mtp and --draft-model exclude each other");
    buffer_clear(&directory);
    if (!library_resolve(model, progress_on_terminal(), &directory, error)) return fail_while(error, "--draft-model");
    out->speculation.draft_directory = directory.data;
    return true;
}

bool session_read_adapter(const char *text, void *arguments, Error *error) {
    AdapterArguments *adapters = arguments;
    const char *equals = strchr(text, '=');
    const size_t size = equals ? (size_t)(equals - text) : 0;
    if (size == 0 || size >= ADAPTER_NAME_MAX || !equals[1] || text[size - 1] == ':')
        return fail(error, ERROR_USAGE, "%.60s: want NAME=DIR or MODEL:NAME=DIR", text);
    if (adapters->count == ADAPTERS_MAX) return fail(error, ERROR_USAGE, "at most %d adapters", ADAPTERS_MAX);
    char *name = adapters->names[adapters->count];
    memcpy(name, text, size);
    name[size] = 0;
    adapters->list[adapters->count++] = (AdapterSource){name, equals + 1};
    return true;
}

bool engine_options(const EngineArguments *arguments, const char *directory, EngineOptions *out, Error *error) {
    *out = arguments->options;
    out->directory = directory;
    out->model.adapters = arguments->adapters.list;
    out->model.adapter_count = arguments->adapters.count;
    out->model.progress = show_reading;
    out->model.warn = warn;
    out->fit = engine_fit;
    out->calibrations = library_calibrations();
    out->speculation.lookup = !arguments->no_lookup;
    if (out->backend.tensor_parallel > 1 && !backend_on_device(out->backend.device))
        return fail(error, ERROR_USAGE, "--tensor-parallel %d needs GPUs: --device cuda", out->backend.tensor_parallel);
    if (!take_draft_model(arguments->draft_model, out, error)) return false;
    return take_gpu_layers(arguments->gpu_layers, out, error) && cache_options(&arguments->cache, out, error);
}

ChatModel *session_open(const char *directory, const EngineArguments *arguments, Error *error) {
    EngineOptions options;
    if (!engine_options(arguments, directory, &options, error)) return NULL;
    options.slots = 1;
    return chat_model_open(directory, &options, error);
}

void session_print_stats(const SessionAnswer *answer, FILE *out) {
    const int later = answer->tokens - 1;
    fprintf(out, "%d prompt tokens, %d token%s, first after %.2f s", answer->prompt_tokens, answer->tokens,
        answer->tokens == 1 ? "" : "s", answer->first_s);
    if (later > 0) fprintf(out, ", %.1f tok/s", later / (answer->total_s - answer->first_s));
    fprintf(out, "\n");
    if (answer->drafts.drafted > 0)
        fprintf(out, "%llu draft tokens, %llu accepted\n", (unsigned long long)answer->drafts.drafted,
            (unsigned long long)answer->drafts.accepted);
}

void session_clean(Slice text, Buffer *out) {
    for (size_t at = 0; at < text.size;) {
        uint32_t code;
        const int length = utf8_decode(text.data + at, text.size - at, &code);
        if (length > 0)
            buffer_append(out, text.data + at, (size_t)length);
        else
            buffer_text(out, "\xEF\xBF\xBD");
        at += (size_t)abs(length);
    }
}

/* Whether it can be read. */
static bool check_media(ContentKind kind, Slice bytes, Error *error) {
    int width, height;
    Audio audio;
    Video video;
    if (kind == CONTENT_IMAGE) return image_size(bytes, &width, &height, error);
    if (kind == CONTENT_AUDIO) {
        if (!audio_decode(bytes, AUDIO_SECONDS_MAX, &audio, error)) return false;
        audio_free(&audio);
        return true;
    }
    if (!video_open(bytes, &video, error)) return false;
    video_close(&video);
    return true;
}

bool session_read_media(ContentKind kind, const char *path, Buffer *file, ContentPart *part, Error *error) {
    const size_t most = kind == CONTENT_IMAGE ? IMAGE_BYTES_MAX
        : kind == CONTENT_AUDIO               ? AUDIO_BYTES_MAX
                                              : VIDEO_BYTES_MAX;
    if (!file_read(path, most, file, error)) return false;
    *part = (ContentPart){.kind = kind, .media = {.bytes = buffer_view(file), .part = path, .field = path}};
    return check_media(kind, part->media.bytes, error) || fail_while(error, "%s", path);
}

/* arena: of the images and the audio. */
static bool encode(const ChatModel *model, const SessionPrompt *prompt, Arena *arena, Tokens *tokens,
    PromptMedia *media, Error *error) {
    if (prompt->raw)
        return tokenizer_encode(model->tokenizer, slice_of(prompt->raw), CONTROL_RECOGNISED, true, tokens, error);
    if (!model->template) return fail(error, ERROR_UNSUPPORTED, "this model has no chat template; use: apus run --raw");
    const ChatPrompt chat = {.messages = prompt->messages, .message_count = prompt->count};
    return chat_prompt(model, &chat, arena, tokens, media, error);
}

static SamplingOptions sampling_options(const SamplingArguments *arguments) {
    uint64_t seed = (uint64_t)arguments->seed;
    if (arguments->seed < 0 && getentropy(&seed, sizeof seed)) seed = (uint64_t)clock_ns();
    return (SamplingOptions){
        .temperature = (float)arguments->temperature,
        .top_p = (float)arguments->top_p,
        .min_p = (float)arguments->min_p,
        .top_k = (int)arguments->top_k,
        .repetition_penalty = (float)arguments->repetition_penalty,
        .seed = seed,
        .logprobs = -1,
    };
}

static bool print_answer(Generation *g, const volatile int *stop, Buffer *text, SessionAnswer *answer, Error *error) {
    enum { WAIT_MS = 50 };
    const double start = clock_seconds();
    Choice *choice = g->choices;
    bool ok = true;
    while (ok && !generation_done(g)) {
        if (stop && *stop) generation_cancel(g);
        ok = generation_pump(g, WAIT_MS, error);
        if (answer->tokens == 0 && choice->generated > 0) answer->first_s = clock_seconds() - start;
        answer->tokens = (int)choice->generated;
        if (choice->text.size == 0) continue;
        const size_t written = fwrite(choice->text.data, 1, choice->text.size, stdout);
        if (written < choice->text.size || fflush(stdout))
            return fail(error, ERROR_IO, "cannot write the answer: %s", strerror(errno));
        buffer_slice(text, buffer_view(&choice->text));
        buffer_clear(&choice->text);
    }
    answer->finish = choice->finish;
    for (int source = 0; source < DRAFT_SOURCES; source++) {
        const DraftStats drafts = generation_drafts(g, (DraftSource)source);
        answer->drafts.drafted += drafts.drafted;
        answer->drafts.accepted += drafts.accepted;
    }
    answer->total_s = clock_seconds() - start;
    return ok && (!text->failed || fail(error, ERROR_MEMORY, "no memory for the answer's text"));
}

bool session_answer(const ChatModel *model, const SessionPrompt *prompt, const SamplingArguments *sampling,
    const volatile int *stop, Buffer *text, SessionAnswer *answer, Error *error) {
    Tokens tokens = {0};
    PromptMedia media = {0};
    Arena arena = {0};
    Generation generation = {0};
    *answer = (SessionAnswer){0};
    bool ok = encode(model, prompt, &arena, &tokens, &media, error);
    GenerationOptions options = {
        .request = {.choices = 1,
            .max_tokens = sampling->max_tokens ? (int)sampling->max_tokens : INT32_MAX,
            .adapter = model_adapter_count(engine_model(model->engine)) > 0,
            .sampling = sampling_options(sampling)},
        .prompts = &tokens,
        .prompt_count = 1,
    };
    prompt_media_request(&media, &options.request);
    answer->prompt_tokens = (int)tokens.count;
    ok = ok && generation_open(&generation, model, &options, error) &&
        print_answer(&generation, stop, text, answer, error);
    generation_close(&generation);
    prompt_media_close(&media);
    tokens_free(&tokens);
    arena_free(&arena);
    return ok;
}
