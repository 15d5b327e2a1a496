#include "cli/session.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

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

EngineOptions engine_options(const EngineArguments *arguments, const char *directory) {
    return (EngineOptions){
        .directory = directory,
        .model = {.backend = {.cpu = arguments->cpu, .threads = (int)arguments->threads, .precise = arguments->precise},
            .weights = arguments->weights,
            .progress = show_reading,
            .context = (int)arguments->context,
            .strict_config = arguments->strict_config,
            .warn = warn},
        .slots = (int)arguments->slots,
        .queue_max = (int)arguments->queue,
        .prefill_size = (int)arguments->prefill_size,
        .kv_bytes = (size_t)arguments->kv_bytes,
    };
}

bool session_open(Session *session, const char *directory, const EngineArguments *arguments, Error *error) {
    *session = (Session){0};
    EngineArguments one = *arguments;
    one.slots = 1;
    const EngineOptions options = engine_options(&one, directory);
    Error why = {0};
    session->engine = engine_open(&options, error); /* first: its weights come in while the vocabulary is read */
    session->tokenizer = session->engine ? tokenizer_open(directory, error) : NULL;
    bool ok = session->tokenizer;
    if (ok) {
        session->template = template_open(directory, &why);
        ok = session->template || why.code == ERROR_NOT_FOUND;
        if (!ok) *error = why;
    }
    ok = ok && template_token_variables(directory, &session->token_pairs, error);
    if (!ok) session_close(session);
    return ok;
}

void session_close(Session *session) {
    engine_close(session->engine);
    template_free(session->template);
    tokenizer_close(session->tokenizer);
    buffer_free(&session->token_pairs);
    *session = (Session){0};
}

static bool encode_messages(Session *session, Slice messages, Tokens *prompt, Error *error) {
    if (!session->template)
        return fail(error, ERROR_UNSUPPORTED, "this model has no chat template; use: apus run --raw");
    Buffer text = {0};
    Arena arena = {0};
    Rendered rendered = {0};
    buffer_text(&text, "{\"messages\":");
    buffer_slice(&text, messages);
    buffer_text(&text, ",\"add_generation_prompt\":true");
    buffer_slice(&text, buffer_view(&session->token_pairs));
    buffer_byte(&text, '}');
    const Json *variables = text.failed ? NULL : json_parse(&arena, buffer_view(&text), error);
    const bool ok = variables && template_render(session->template, variables, &rendered, error) &&
        tokenizer_encode_spans(session->tokenizer, rendered.spans, rendered.span_count, prompt, error);
    rendered_free(&rendered);
    arena_free(&arena);
    buffer_free(&text);
    return ok;
}

static bool stream(
    Session *session, Request *request, const volatile int *stop, Buffer *text, SessionAnswer *answer, Error *error) {
    enum { READ_AT_ONCE = 16, WAIT_MS = 50 };
    Detokenizer *detokenizer = detokenizer_new(session->tokenizer, true, error);
    if (!detokenizer) return false;
    const double start = clock_seconds();
    bool ok = true;
    TokenOut tokens[READ_AT_ONCE];
    Finish finish = FINISH_NONE;
    while (ok && finish == FINISH_NONE) {
        if (stop && *stop) request_cancel(request);
        const size_t before = text->size;
        const int count = request_read(request, 0, tokens, READ_AT_ONCE, WAIT_MS, &finish);
        if (count > 0 && answer->tokens == 0) answer->first_s = clock_seconds() - start;
        answer->tokens += count;
        for (int i = 0; i < count && ok; i++) ok = detokenizer_push(detokenizer, tokens[i].id, text, error);
        if (ok && finish != FINISH_NONE) ok = detokenizer_finish(detokenizer, text, error);
        if (text->size > before) {
            fwrite(text->data + before, 1, text->size - before, stdout);
            fflush(stdout);
        }
    }
    detokenizer_free(detokenizer);
    answer->finish = finish;
    answer->total_s = clock_seconds() - start;
    if (ok && finish == FINISH_ERROR) request_error(request, error);
    return ok && finish != FINISH_ERROR;
}

bool session_answer(Session *session, Slice messages, const char *raw, const SamplingArguments *sampling,
    const volatile int *stop, Buffer *text, SessionAnswer *answer, Error *error) {
    Tokens prompt = {0};
    *answer = (SessionAnswer){0};
    bool ok = raw ? tokenizer_encode(session->tokenizer, slice_of(raw), CONTROL_RECOGNISED, true, &prompt, error)
                  : encode_messages(session, messages, &prompt, error);
    if (ok && prompt.count == 0) ok = fail(error, ERROR_USAGE, "the prompt is empty");
    uint64_t seed = (uint64_t)sampling->seed;
    if (sampling->seed < 0 && getentropy(&seed, sizeof seed)) seed = (uint64_t)clock_ns();
    const RequestOptions options = {
        .prompt = prompt.ids,
        .prompt_count = (int)prompt.count,
        .max_tokens = sampling->max_tokens ? (int)sampling->max_tokens : INT32_MAX,
        .choices = 1,
        .sampling = {.temperature = (float)sampling->temperature,
            .top_p = (float)sampling->top_p,
            .min_p = (float)sampling->min_p,
            .top_k = (int)sampling->top_k,
            .repetition_penalty = (float)sampling->repetition_penalty,
            .seed = seed,
            .logprobs = -1},
    };
    Request *request = ok ? engine_submit(session->engine, &options, error) : NULL;
    answer->prompt_tokens = (int)prompt.count;
    ok = request && stream(session, request, stop, text, answer, error);
    if (request) request_free(request);
    tokens_free(&prompt);
    return ok;
}
