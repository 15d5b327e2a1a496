/* `apus bench drafts`: what speculative decoding gains on a model of any weights, with recorded acceptance. The answers
 * are the model's own; a scripted proposer takes their tokens where the recording says that a draft token was right,
 * and others where it was wrong. With a draft model or a multi-token prediction head, that runs as usual, and the
 * script replaces the tokens that it drafts: their time is in the measurement. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/math.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "library/library.h"

enum { ANSWERS_MAX = 64, POSITIONS_MAX = 1024, PROMPT = 64, FILE_BYTES_MAX = 1 << 22, TIMEOUT_MS = 1000 };

/* A position of a recorded answer: the length of the match and the right tokens from here on of a lookup; of a draft
 * model or a head, whether its token was right. */
typedef struct Recorded {
    uint8_t match, right;
} Recorded;

typedef struct Answer {
    char kind[32];
    int count;
    Recorded at[POSITIONS_MAX];
    int32_t tokens[POSITIONS_MAX]; /* the model's, without draft tokens */
    int known;
    double plain_s; /* decode time of this round without draft tokens */
} Answer;

typedef struct Replay {
    bool lookup; /* the recording has lookups */
    int count, streams, vocab;
    Answer *answers; /* [count] */
    Series ratios[ANSWERS_MAX];
    uint64_t drafted[ANSWERS_MAX], accepted[ANSWERS_MAX];
} Replay;

static const Command command = {"bench drafts", "MODEL",
    "What draft tokens gain where so many of them are right as in a recording.",
    "The recording (bench/acceptance.csv) has, for answers of several kinds, which draft tokens were right: of "
    "lookups\n"
    "for --source lookup, otherwise of a small model, which stands for --mtp or --draft-model. The model may have any\n"
    "weights (tools/make_bench_model.py): its own answers are replayed. A line for each kind: the median and the "
    "least\n"
    "of decode times without draft tokens over those with them.\n"
    "Examples:\n"
    "  apus bench drafts DIR --replay bench/acceptance.csv --mtp --kinds code,chat\n"
    "  apus bench drafts DIR --replay bench/acceptance.csv --source lookup --kinds edit --stream-experts\n"};

/* ---- the recording ---- */

/* Whether a list with commas has the word; an empty list has all. */
static bool listed(const char *list, Slice word) {
    if (!*list) return true;
    for (const char *at = list; *at;) {
        const size_t length = strcspn(at, ",");
        if (slice_equal((Slice){at, length}, word)) return true;
        at += length + (at[length] == ',');
    }
    return false;
}

/* "match:right" for each position with a match, "-" for others; of a model "1" and "0". */
static bool read_pattern(const char *text, Answer *a) {
    for (const char *at = text; *at && *at != '\n' && a->count < POSITIONS_MAX; a->count++) {
        char *end;
        const long match = *at == '-' ? 0 : strtol(at, &end, 10);
        if (*at == '-') end = (char *)at + 1;
        const long right = *end == ':' ? strtol(end + 1, &end, 10) : match;
        if (end == at || match < 0 || match > UINT8_MAX || right < 0 || right > UINT8_MAX) return false;
        a->at[a->count] = (Recorded){(uint8_t)match, (uint8_t)right};
        at = end + (*end == ' ');
    }
    return a->count > 1;
}

/* Lines of source,kind,answer,pattern. */
static bool read_recording(const char *path, const char *source, const char *kinds, Replay *r, Error *error) {
    Buffer text = {0};
    bool ok = file_read(path, FILE_BYTES_MAX, &text, error);
    buffer_byte(&text, 0);
    char *rest = text.data;
    ok = ok && (!text.failed || fail(error, ERROR_MEMORY, "no memory for %s", path));
    for (char *line; ok && (line = strsep(&rest, "\n")) != NULL;) {
        const char *own = strsep(&line, ","), *kind = strsep(&line, ","), *number = strsep(&line, ",");
        if (!number || !line || strcmp(own, source) || !listed(kinds, slice_of(kind))) continue;
        if (r->count == ANSWERS_MAX) break;
        Answer *a = &r->answers[r->count++];
        snprintf(a->kind, sizeof a->kind, "%s", kind);
        ok = read_pattern(line, a);
        if (!ok) fail(error, ERROR_FORMAT, "%s: answer %s of %s cannot be read", path, number, kind);
    }
    buffer_free(&text);
    return ok && (r->count > 0 || fail(error, ERROR_USAGE, "%s has no answers of %s, %s", path, source, kinds));
}

/* ---- the proposer ---- */

static int script(void *context, uint64_t seed, int choice, int position, int max, int32_t *tokens, int *match) {
    const Replay *r = context;
    const Answer *a = &r->answers[seed];
    const int first = position - PROMPT;
    if (first >= a->count || (r->lookup && !a->at[first].match)) return 0;
    int count = min_int(max, r->lookup ? max : a->count - first), right = r->lookup ? a->at[first].right : 0;
    *match = r->lookup ? a->at[first].match : 0;
    while (!r->lookup && right < count && a->at[first + right].right) right++;
    for (int i = 0; i < count; i++) {
        const int32_t token = first + i < a->known ? a->tokens[first + i] : 0;
        tokens[i] = i < right ? token : (token + 1) % r->vocab;
    }
    return count;
}

/* ---- runs ---- */

static Request *submit(Engine *engine, const Replay *r, int number, Error *error) {
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (int32_t)((uint32_t)(number * PROMPT + i) * 2654435761u >> 8) % r->vocab;
    const RequestOptions options = {.prompt = prompt,
        .prompt_count = PROMPT,
        .max_tokens = r->answers[number].count,
        .choices = 1,
        .cache_off = true,
        .sampling = {
            .top_p = 1, .repetition_penalty = 1, .seed = (uint64_t)number, .ignore_eos = true, .logprobs = -1}};
    return engine_submit(engine, &options, error);
}

/* Reads an answer; *seconds: its decode time. False with the error: it failed, or is another one. */
static bool finish(Replay *r, Request *request, int number, bool plain, double *seconds, Error *error) {
    Answer *a = &r->answers[number];
    TokenOut out[64];
    Finish finish = FINISH_NONE;
    bool same = true;
    int count = 0;
    while (finish == FINISH_NONE) {
        const int got = request_read(request, 0, out, COUNT_OF(out), TIMEOUT_MS, &finish);
        for (int i = 0; i < got; i++, count++) {
            if (count < a->known) same = same && a->tokens[count] == out[i].id;
            if (count >= a->known && plain) a->tokens[a->known++] = out[i].id;
        }
    }
    const RequestStats stats = request_stats(request);
    *seconds = stats.decode_s;
    for (int source = 0; source < DRAFT_SOURCES; source++) {
        r->drafted[number] += stats.drafts[source].drafted;
        r->accepted[number] += stats.drafts[source].accepted;
    }
    if (finish == FINISH_ERROR) request_error(request, error);
    if (finish == FINISH_LENGTH && !same) fail(error, ERROR_DEVICE, "an answer with draft tokens is another one");
    return finish == FINISH_LENGTH && same;
}

static bool run_all(Replay *r, const EngineOptions *options, bool plain, Error *error) {
    Engine *engine = engine_open(options, error);
    if (!engine) return false;
    r->vocab = model_vocab(engine_model(engine));
    bool ok = true;
    for (int first = 0; ok && first < r->count; first += r->streams) {
        Request *requests[ANSWERS_MAX] = {0};
        const int end = min_int(first + r->streams, r->count);
        for (int i = first; ok && i < end; i++) ok = (requests[i] = submit(engine, r, i, error)) != NULL;
        for (int i = first; i < end; i++) {
            double seconds = 0;
            ok = ok && finish(r, requests[i], i, plain, &seconds, error);
            if (plain)
                r->answers[i].plain_s = seconds;
            else if (ok)
                series_add(&r->ratios[i], r->answers[i].plain_s / seconds);
            request_free(requests[i]);
        }
    }
    engine_close(engine);
    return ok;
}

static void print_kinds(const Replay *r, int rounds) {
    static Series kind;
    for (int i = 0; i < r->count; i++) {
        uint64_t drafted = 0, accepted = 0;
        int tokens = 0, before = 0;
        while (strcmp(r->answers[before].kind, r->answers[i].kind)) before++;
        if (before < i) continue;
        kind.count = 0;
        for (int k = i; k < r->count; k++) {
            if (strcmp(r->answers[k].kind, r->answers[i].kind)) continue;
            for (int n = 0; n < r->ratios[k].count; n++) series_add(&kind, r->ratios[k].value[n]);
            drafted += r->drafted[k] / (uint64_t)rounds;
            accepted += r->accepted[k] / (uint64_t)rounds;
            tokens += r->answers[k].count;
        }
        printf("%-12s %6.2f × (least %.2f), %d tokens, %llu of %llu draft tokens accepted\n", r->answers[i].kind,
            series_median(&kind), series_at(&kind, 0), tokens, (unsigned long long)accepted,
            (unsigned long long)drafted);
    }
}

static bool replay(Replay *r, const EngineOptions *options, int rounds, Error *error) {
    EngineOptions plain = *options, drafts = *options;
    plain.model.mtp = false;
    plain.speculation = (SpeculationOptions){0};
    drafts.speculation.lookup = false;
    drafts.speculation.script = script;
    drafts.speculation.script_context = r;
    for (int round = 0; round < rounds; round++)
        if (!run_all(r, &plain, true, error) || !run_all(r, &drafts, false, error)) return false;
    print_kinds(r, rounds);
    return true;
}

int command_bench_drafts(int argc, char **argv) {
    EngineArguments engine = ENGINE_ARGUMENTS_DEFAULT;
    const char *recording = "bench/acceptance.csv", *kinds = "", *source = "model";
    int rounds = 3, streams = 1;
    const Option options[] = {
        {"--replay", NULL, OPTION_TEXT, &recording, 0, 0, "FILE", "the recording (bench/acceptance.csv)"},
        {"--source", NULL, OPTION_TEXT, &source, 0, 0, "model|lookup", "what was recorded (model)"},
        {"--kinds", NULL, OPTION_TEXT, &kinds, 0, 0, "KIND,…", "of answers (all)"},
        {"--rounds", "-r", OPTION_INT, &rounds, 1, ROUNDS_MAX, "N", "rounds (3)"},
        {"--streams", NULL, OPTION_INT, &streams, 1, ANSWERS_MAX, "N", "answers at once (1)"},
        ENGINE_OPTIONS(engine),
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    static Replay r;
    Error error = {0};
    Buffer directory = {0};
    EngineOptions request;
    r = (Replay){
        .lookup = !strcmp(source, "lookup"), .streams = streams, .answers = calloc(ANSWERS_MAX, sizeof *r.answers)};
    bool ok = r.answers || fail(&error, ERROR_MEMORY, "no memory for the recording");
    ok = ok && read_recording(recording, source, kinds, &r, &error) &&
        library_resolve(arguments.values[0], progress_on_terminal(), &directory, &error) &&
        engine_options(&engine, directory.data, &request, &error);
    if (ok && !r.lookup && !request.model.mtp && !request.speculation.draft_directory)
        ok = fail(&error, ERROR_USAGE, "a recording of a model needs one: --mtp or --draft-model");
    if (ok) {
        request.slots = streams;
        ok = replay(&r, &request, rounds, &error);
    }
    buffer_free(&directory);
    free(r.answers);
    return ok ? 0 : report(&error);
}
