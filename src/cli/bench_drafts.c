/* `apus bench drafts`: what speculative decoding gains on a model of any weights, with recorded acceptance. The answers
 * are the model's own, sampled at temperature 1, as a greedy text of random weights would repeat itself and its
 * experts; a scripted proposer takes their tokens where the recording says that a draft token was right, and others
 * where it was wrong. With a draft model or a multi-token prediction head, that runs as usual, and the script replaces
 * the tokens that it drafts: their time is in the measurement. Each answer is made without and with draft tokens in
 * turn: of lookups by one engine, as two differ by up to 7 % with the places of their weights in memory; of a model or
 * a head by two, as a head's rows would be in the steps of both. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/process.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "engine/resources.h"
#include "library/library.h"

enum {
    ANSWERS_MAX = 64,
    POSITIONS_MAX = 1024,
    PROMPT = 64,  /* tokens */
    WARM_UP = 16, /* tokens of an answer that is not measured */
    FILE_BYTES_MAX = 1 << 22,
    TIMEOUT_MS = 1000,
    PROGRESS_S = 10
};

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
} Answer;

/* Seconds without and with draft tokens. */
typedef struct Times {
    double plain, drafts;
} Times;

/* What an answer takes from its first token to its last, or answers at once from the first request to the last token.
 */
typedef struct Spent {
    double decode_s;
    double cpu_s; /* processor time of the process, which other programs disturb less */
} Spent;

/* Streamed experts of an answer, its prompt included: bytes read, and seconds that steps waited for them. */
typedef struct Reading {
    double bytes, stall_s;
} Reading;

typedef struct Replay {
    bool lookup; /* the recording has lookups */
    bool silent; /* the script has no draft tokens; changed between answers */
    int count, streams, vocab;
    Answer *answers; /* [count] */
    Times times[ANSWERS_MAX][ROUNDS_MAX], cpu[ANSWERS_MAX][ROUNDS_MAX];
    Times all[ROUNDS_MAX], all_cpu[ROUNDS_MAX]; /* those of answers at once */
    uint64_t drafted[ANSWERS_MAX], accepted[ANSWERS_MAX];
    Reading reading[2][ANSWERS_MAX]; /* without and with draft tokens, all rounds together */
} Replay;

static const Command command = {"bench drafts", "MODEL",
    "What draft tokens gain where so many of them are right as in a recording.",
    "The recording (bench/acceptance.csv) has, for answers of several kinds, which draft tokens were right: of "
    "lookups\n"
    "for --source lookup, otherwise of a small model, which stands for --mtp or --draft-model. The model may have any\n"
    "weights (tools/make_bench_model.py): its own answers are replayed, without and with draft tokens in turn, of\n"
    "models and heads by two engines, which both take memory. A line for each kind: the median of decode times\n"
    "without draft tokens over those with them, and the least answer's median of its rounds; the same of each side's\n"
    "best rounds, which other programs disturb least; the ratio of processor times; medians of tokens per second.\n"
    "With --streams a next answer begins when one ends, and a last line has the throughput.\n"
    "Examples:\n"
    "  apus bench drafts DIR --mtp --kinds code,chat\n"
    "  apus bench drafts DIR --source lookup --kinds edit --stream-experts --memory-budget 2300M\n"};

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

/* Lines of source,kind,answer,pattern; of each answer the first `most` tokens. */
static bool read_recording(const char *path, const char *source, const char *kinds, int most, Replay *r, Error *error) {
    Buffer text = {0};
    const bool own_place = !*path; /* what --replay names otherwise */
    if (own_place) path = "bench/acceptance.csv";
    bool ok = file_read(path, FILE_BYTES_MAX, &text, error);
    if (!ok && own_place)
        fail(error, ERROR_USAGE, "%s, a file of Apus's sources, is not below this folder: name it with --replay", path);
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
        a->count = min_int(a->count, most);
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
    if (r->silent || first >= a->count || (r->lookup && !a->at[first].match)) return 0;
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

static Request *submit(Engine *engine, const Replay *r, int number, int tokens, Error *error) {
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (int32_t)((uint32_t)(number * PROMPT + i) * 2654435761u >> 8) % r->vocab;
    const RequestOptions options = {.prompt = prompt,
        .prompt_count = PROMPT,
        .max_tokens = tokens,
        .choices = 1,
        .cache_off = true,
        .sampling = {.temperature = 1,
            .top_p = 1,
            .repetition_penalty = 1,
            .seed = (uint64_t)number,
            .ignore_eos = true,
            .logprobs = -1}};
    return engine_submit(engine, &options, error);
}

/* Reads an answer. What is read first is known. False with the error: it failed, or is another one. */
static bool finish(Replay *r, Request *request, int number, bool with, Spent *spent, Error *error) {
    Answer *a = &r->answers[number];
    TokenOut out[64];
    Finish finish = FINISH_NONE;
    bool same = true;
    int count = 0;
    int64_t told_ns = clock_ns();
    double begun_cpu_s = process_use().cpu_s;
    while (finish == FINISH_NONE) {
        const int got = request_read(request, 0, out, COUNT_OF(out), TIMEOUT_MS, &finish);
        if (count == 0) begun_cpu_s = process_use().cpu_s; /* behind the prompt */
        for (int i = 0; i < got; i++, count++) {
            if (count < a->known)
                same = same && a->tokens[count] == out[i].id;
            else
                a->tokens[a->known++] = out[i].id;
        }
        if (clock_ns() - told_ns < PROGRESS_S * INT64_C(1000000000)) continue;
        log_info("%s, answer %d of %d, %s draft tokens: %d tokens", a->kind, number + 1, r->count,
            with ? "with" : "without", count);
        told_ns = clock_ns();
    }
    const RequestStats stats = request_stats(request);
    *spent = (Spent){stats.decode_s, process_use().cpu_s - begun_cpu_s};
    r->reading[with][number].bytes += (double)stats.expert_read_bytes;
    r->reading[with][number].stall_s += stats.expert_stall_s;
    for (int source = 0; source < DRAFT_SOURCES; source++) {
        r->drafted[number] += stats.drafts[source].drafted;
        r->accepted[number] += stats.drafts[source].accepted;
    }
    if (finish == FINISH_ERROR) request_error(request, error);
    if (finish == FINISH_LENGTH && !same) fail(error, ERROR_DEVICE, "an answer with draft tokens is another one");
    return finish == FINISH_LENGTH && same;
}

/* Answers `first` to `end`, as many at once as the engine has slots. with: with draft tokens; tokens: of each, 0: all;
 * spent: [end − first]; all: together. */
static bool answer(
    Replay *r, Engine *engine, bool with, int first, int end, int tokens, Spent *spent, Spent *all, Error *error) {
    Request *requests[ANSWERS_MAX] = {0};
    bool ok = true;
    const int64_t start_ns = clock_ns();
    const double start_cpu_s = process_use().cpu_s;
    r->silent = !with;
    for (int i = first; ok && i < end; i++)
        ok = (requests[i] = submit(engine, r, i, tokens ? tokens : r->answers[i].count, error)) != NULL;
    for (int i = first; i < end; i++) {
        ok = ok && finish(r, requests[i], i, with, &spent[i - first], error);
        request_free(requests[i]);
    }
    *all = (Spent){(double)(clock_ns() - start_ns) * 1e-9, process_use().cpu_s - start_cpu_s};
    return ok;
}

/* What an answer from `first` to `end` read of streamed experts, in the mean; nothing where they are in memory. */
static void print_reading(const Replay *r, int first, int end, int rounds) {
    Reading mean[2] = {0};
    for (int with = 0; with < 2; with++)
        for (int i = first; i < end; i++) {
            mean[with].bytes += r->reading[with][i].bytes / (rounds * (end - first));
            mean[with].stall_s += r->reading[with][i].stall_s / (rounds * (end - first));
        }
    if (mean[0].bytes + mean[1].bytes > 0)
        printf("%-12s experts of an answer: %.2f -> %.2f GB read, %.2f -> %.2f s waited for\n", "",
            mean[0].bytes * 1e-9, mean[1].bytes * 1e-9, mean[0].stall_s, mean[1].stall_s);
}

/* Shortest time without over shortest time with draft tokens: disturbances make steps longer, never shorter. */
static double best_rounds(const Times *times, int rounds) {
    Times best = times[0];
    for (int n = 1; n < rounds; n++)
        best = (Times){fmin(best.plain, times[n].plain), fmin(best.drafts, times[n].drafts)};
    return best.plain / best.drafts;
}

/* The line of the answers from `first` to `end`, which are of one kind. The least is an answer's median, as a single
 * round is disturbed by more than drafts can lose. */
static void print_kind(const Replay *r, int first, int end, int rounds) {
    static Series ratio, own, plain, drafts, cpu, best;
    uint64_t drafted = 0, accepted = 0;
    int tokens = 0;
    double least = INFINITY;
    ratio.count = plain.count = drafts.count = cpu.count = best.count = 0;
    for (int i = first; i < end; i++) {
        own.count = 0;
        for (int n = 0; n < rounds; n++) {
            const Times *times = &r->times[i][n];
            series_add(&own, times->plain / times->drafts);
            series_add(&ratio, times->plain / times->drafts);
            series_add(&cpu, r->cpu[i][n].plain / r->cpu[i][n].drafts);
            series_add(&plain, r->answers[i].count / times->plain);
            series_add(&drafts, r->answers[i].count / times->drafts);
        }
        least = fmin(least, series_median(&own));
        series_add(&best, best_rounds(r->times[i], rounds));
        drafted += r->drafted[i] / (uint64_t)rounds;
        accepted += r->accepted[i] / (uint64_t)rounds;
        tokens += r->answers[i].count;
    }
    printf("%-12s %6.2f × (least %.2f; best rounds %.2f ×, least %.2f", r->answers[first].kind, series_median(&ratio),
        least, series_median(&best), series_at(&best, 0));
    if (r->streams == 1)
        printf("; processor time %.2f ×", series_median(&cpu)); /* that of answers at once is one sum */
    printf("), %.2f -> %.2f tok/s, %d tokens, %llu of %llu draft tokens accepted\n", series_median(&plain),
        series_median(&drafts), tokens, (unsigned long long)accepted, (unsigned long long)drafted);
    print_reading(r, first, end, rounds);
    fflush(stdout);
}

/* The line of all answers, which slow each other down. */
static void print_together(const Replay *r, int rounds) {
    static Series ratio, cpu, plain, drafts;
    int tokens = 0;
    for (int i = 0; i < r->count; i++) tokens += r->answers[i].count;
    for (int n = 0; n < rounds; n++) {
        series_add(&ratio, r->all[n].plain / r->all[n].drafts);
        series_add(&cpu, r->all_cpu[n].plain / r->all_cpu[n].drafts);
        series_add(&plain, tokens / r->all[n].plain);
        series_add(&drafts, tokens / r->all[n].drafts);
    }
    printf("%-12s %6.3f × (%.3f to %.3f; best rounds %.3f ×; processor time %.3f ×), %.2f -> %.2f tok/s, %d at once\n",
        "together", series_median(&ratio), series_at(&ratio, 0), series_at(&ratio, 1), best_rounds(r->all, rounds),
        series_median(&cpu), series_median(&plain), series_median(&drafts), r->streams);
    fflush(stdout);
}

/* Answers of one kind are neighbours. */
static int end_of_kind(const Replay *r, int first) {
    int end = first + 1;
    while (end < r->count && !strcmp(r->answers[end].kind, r->answers[first].kind)) end++;
    return end;
}

/* Without and with draft tokens in turn, every round of some answers before the next answers; the first answer without
 * them is the known one. A kind's line is printed when its last answer is. */
static bool run_answers(Replay *r, Engine *plain, Engine *drafts, int rounds, Error *error) {
    Spent spent[2][ANSWERS_MAX], all[2];
    int printed = 0;
    if (!answer(r, plain, false, 0, 1, WARM_UP, spent[0], all, error) ||
        !answer(r, drafts, true, 0, 1, WARM_UP, spent[1], all, error))
        return false;
    memset(r->drafted, 0, sizeof r->drafted);
    memset(r->accepted, 0, sizeof r->accepted);
    memset(r->reading, 0, sizeof r->reading);
    const int turn_answers = r->streams > 1 ? r->count : 1; /* a next one begins when one of the streams ends */
    for (int first = 0; first < r->count; first += turn_answers) {
        const int end = first + turn_answers;
        for (int round = 0; round < rounds; round++) {
            for (int turn = 0; turn < 2; turn++) {
                const bool with = (turn + round) % 2;
                if (!answer(r, with ? drafts : plain, with, first, end, 0, spent[with], &all[with], error))
                    return false;
            }
            for (int i = first; i < end; i++) {
                const Spent *without = &spent[0][i - first], *with = &spent[1][i - first];
                r->times[i][round] = (Times){without->decode_s, with->decode_s};
                r->cpu[i][round] = (Times){without->cpu_s, with->cpu_s};
            }
            r->all[round] = (Times){all[0].decode_s, all[1].decode_s};
            r->all_cpu[round] = (Times){all[0].cpu_s, all[1].cpu_s};
            log_info("%s, answers to %d of %d, round %d of %d: %.1f s without draft tokens, %.1f s with them",
                r->answers[first].kind, end, r->count, round + 1, rounds, spent[0][0].decode_s, spent[1][0].decode_s);
        }
        for (int next; printed < end && (next = end_of_kind(r, printed)) <= end; printed = next)
            print_kind(r, printed, next, rounds);
    }
    if (r->streams > 1) print_together(r, rounds);
    return true;
}

/* What the KV cache has room for: two engines may share the memory. */
static int context_of(const Replay *r) {
    int longest = 0;
    for (int i = 0; i < r->count; i++) longest = max_int(longest, r->answers[i].count);
    return PROMPT + longest + DRAFT_TOKENS_MAX;
}

static bool replay(Replay *r, const EngineOptions *options, int rounds, Error *error) {
    EngineOptions plain = *options, drafts = *options;
    plain.model.mtp = false;
    plain.speculation = (SpeculationOptions){0};
    drafts.speculation.lookup = false;
    drafts.speculation.script = script;
    drafts.speculation.script_context = r;
    Engine *with = engine_open(&drafts, error);
    Engine *without = !with || r->lookup ? with : engine_open(&plain, error);
    if (without) r->vocab = model_vocab(engine_model(with));
    const bool ok = without && run_answers(r, without, with, rounds, error);
    engine_close(with);
    if (without != with) engine_close(without);
    return ok;
}

int command_bench_drafts(int argc, char **argv) {
    EngineArguments engine = ENGINE_ARGUMENTS_DEFAULT;
    const char *recording = "", *kinds = "", *source = "model";
    int rounds = 3, streams = 1, tokens = 128;
    const Option options[] = {
        {"--replay", NULL, OPTION_TEXT, &recording, 0, 0, "FILE",
            "the recording (bench/acceptance.csv below this folder)"},
        {"--source", NULL, OPTION_TEXT, &source, 0, 0, "model|lookup", "what was recorded (model)"},
        {"--kinds", NULL, OPTION_TEXT, &kinds, 0, 0, "KIND,…", "of answers (all)"},
        {"--tokens", "-n", OPTION_INT, &tokens, WARM_UP, POSITIONS_MAX, "N", "of an answer, at most (128)"},
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
    ok = ok && read_recording(recording, source, kinds, tokens, &r, &error) &&
        library_resolve(arguments.values[0], progress_on_terminal(), &directory, &error) &&
        engine_options(&engine, directory.data, &request, &error);
    if (ok && !r.lookup && !request.model.mtp && !request.speculation.draft_directory)
        ok = fail(&error, ERROR_USAGE, "a recording of a model needs one: --mtp or --draft-model");
    if (ok) {
        request.slots = streams;
        request.queue_max = ANSWERS_MAX;
        if (!request.model.context) request.model.context = context_of(&r);
        request.resources = resources_open(request.backend.threads, &error);
        ok = request.resources && replay(&r, &request, rounds, &error);
        resources_close(request.resources);
    }
    buffer_free(&directory);
    free(r.answers);
    return ok ? 0 : report(&error);
}
