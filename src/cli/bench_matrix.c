/* `apus bench matrix`: a model at several lengths, plain, with experts from disk, with a quantised KV cache, and with
 * both. Each cell is a process of its own, so that none finds what another has left in memory. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "fit/fit.h"
#include "library/library.h"

extern char **environ;

enum { LENGTHS_MAX = 8, MODES = 4, WORDS_MAX = 32, BAR_WIDTH = 30 };

static const Command command = {"bench matrix", "MODEL",
    "Measures a model at several lengths: plain, with experts from disk, with a quantised KV cache, and with both.",
    "Tokens per second of a prompt of each length, and of the tokens generated behind it. Below the table stands why\n"
    "there is no column for a form, or no row for a length.\n"
    "  apus bench matrix qwen3-30b-a3b --memory-budget 12G --markdown docs/profiling/laptop.md\n"};

static const struct Mode {
    const char *name;
    bool disk, turbo;
} modes[MODES] = {{"plain", false, false}, {"SSD", true, false}, {"turbo", false, true}, {"SSD + turbo", true, true}};

typedef struct Matrix {
    const char *model, *budget, *threads, *text; /* all but the model: NULL: not given */
    int64_t lengths[LENGTHS_MAX];
    int length_count;
    int64_t rounds, generate;
    double pp[MODES][LENGTHS_MAX], tg[MODES][LENGTHS_MAX]; /* tokens per second; 0: not measured */
    char why[MODES][160];                                  /* why a mode has no figures; "": it has */
    char backend[160];
} Matrix;

static bool read_lengths(const char *text, Matrix *m, Error *error) {
    for (const char *at = text; *at;) {
        char *end;
        const long length = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || length < 1 || m->length_count == LENGTHS_MAX)
            return fail(error, ERROR_USAGE, "--tokens %s: want 1 to %d lengths, as in 512,40000", text, LENGTHS_MAX);
        m->lengths[m->length_count++] = length;
        at = *end ? end + 1 : end;
    }
    return m->length_count > 0 || fail(error, ERROR_USAGE, "--tokens: want a length");
}

/* ---- a cell ---- */

/* Runs this program with the words; appends what it prints. False: it failed, and the last line of its errors is in
 * `why`. */
static bool run_self(const char **words, Buffer *out, char *why, size_t size) {
    int pipes[2][2] = {{-1, -1}, {-1, -1}};
    Buffer errors = {0};
    pid_t child = -1;
    int status = 1;
    posix_spawn_file_actions_t actions;
    if (pipe(pipes[0]) || pipe(pipes[1]) || posix_spawn_file_actions_init(&actions)) return false;
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_adddup2(&actions, pipes[i][1], i + 1);
        posix_spawn_file_actions_addclose(&actions, pipes[i][0]);
    }
    const bool started =
        !posix_spawn(&child, "/proc/self/exe", &actions, NULL, (char *const *)(uintptr_t)words, environ);
    posix_spawn_file_actions_destroy(&actions);
    for (int i = 0; i < 2; i++) {
        char block[4096];
        close(pipes[i][1]);
        /* Errors are a few lines, which the pipe holds until the output has ended. */
        for (ssize_t got; started && (got = read(pipes[i][0], block, sizeof block)) > 0;)
            buffer_append(i ? &errors : out, block, (size_t)got);
        close(pipes[i][0]);
    }
    while (started && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    const bool ok = started && WIFEXITED(status) && WEXITSTATUS(status) == 0 && !out->failed;
    while (errors.size > 0 && errors.data[errors.size - 1] == '\n') errors.size--;
    Slice last = buffer_view(&errors);
    for (size_t i = errors.size; i > 0 && last.size == errors.size; i--)
        if (errors.data[i - 1] == '\n') last = (Slice){errors.data + i, errors.size - i};
    if (last.size > 6 && !memcmp(last.data, "apus: ", 6)) last = (Slice){last.data + 6, last.size - 6};
    if (!ok) snprintf(why, size, "%.*s", last.size ? (int)last.size : 6, last.size ? last.data : "failed");
    buffer_free(&errors);
    return ok;
}

static bool read_figure(const Json *line, const char *name, double *speed) {
    const Json *figure = json_get(line, name);
    if (json_is_number(figure)) *speed = json_number(figure);
    return json_is_number(figure);
}

/* Reading a prompt of that length and generating behind it. */
static bool measure(Matrix *m, int mode, int index) {
    char count[24], tokens[24], rounds[24];
    const char *words[WORDS_MAX] = {
        "apus", "bench", m->model, "--json", "-p", count, "-n", tokens, "-r", rounds, "--behind"};
    int at = 11;
    snprintf(count, sizeof count, "%lld", (long long)m->lengths[index]);
    snprintf(tokens, sizeof tokens, "%lld", (long long)m->generate);
    snprintf(rounds, sizeof rounds, "%lld", (long long)m->rounds);
    if (modes[mode].turbo) words[at++] = "--kv-cache", words[at++] = "turbo";
    if (modes[mode].disk) words[at++] = "--stream-experts";
    if (modes[mode].disk && m->budget) words[at++] = "--memory-budget", words[at++] = m->budget;
    if (m->text) words[at++] = "--text", words[at++] = m->text;
    if (m->threads) words[at++] = "--threads", words[at++] = m->threads;
    Buffer out = {0};
    Arena arena = {0};
    Error why = {0};
    bool ok = run_self(words, &out, m->why[mode], sizeof m->why[mode]);
    const Json *line = ok ? json_parse(&arena, buffer_view(&out), &why) : NULL;
    const Json *backend = json_get(line, "backend");
    ok = read_figure(line, "pp", &m->pp[mode][index]) && read_figure(line, "tg", &m->tg[mode][index]);
    if (ok && backend && backend->type == JSON_STRING)
        snprintf(m->backend, sizeof m->backend, "%.*s", (int)backend->size, backend->string);
    char *reason = m->why[mode][0] == '/' ? strstr(m->why[mode], ": ") : NULL; /* behind a folder of this machine */
    if (reason) memmove(m->why[mode], reason + 2, strlen(reason + 2) + 1);
    if (!ok && !m->why[mode][0]) snprintf(m->why[mode], sizeof m->why[mode], "the run printed no figure");
    arena_free(&arena);
    buffer_free(&out);
    return ok;
}

/* ---- what was found ---- */

static void print_bars(Matrix *m, const char *title, double (*speeds)[LENGTHS_MAX]) {
    double most = 0;
    for (int mode = 0; mode < MODES; mode++)
        for (int i = 0; i < m->length_count; i++) most = speeds[mode][i] > most ? speeds[mode][i] : most;
    printf("\n%s\n", title);
    for (int i = 0; i < m->length_count; i++) {
        for (int mode = 0; mode < MODES; mode++) {
            const double speed = speeds[mode][i];
            if (speed <= 0) continue;
            printf("  %7lld  %-11s %10.1f  ", (long long)m->lengths[i], modes[mode].name, speed);
            for (int k = 0; k < (int)(speed / most * BAR_WIDTH + 0.5); k++) printf("█");
            printf("\n");
        }
    }
}

/* Why modes have no figures, a reason of several once. */
static void write_reasons(const Matrix *m, Buffer *out) {
    for (int mode = 0; mode < MODES; mode++) {
        bool said = !m->why[mode][0];
        for (int i = 0; i < mode; i++) said = said || !strcmp(m->why[i], m->why[mode]);
        if (said) continue;
        buffer_printf(out, "\n%s", modes[mode].name);
        for (int i = mode + 1; i < MODES; i++)
            if (!strcmp(m->why[i], m->why[mode])) buffer_printf(out, ", %s", modes[i].name);
        buffer_printf(out, ": %s\n", m->why[mode]);
    }
}

static bool is_measured(const Matrix *m, int mode, int index) { return m->pp[mode][index] > 0; }

/* A row for each length and a column for each mode that have figures. seconds: with the time that a prompt takes. */
static void write_table(
    const Matrix *m, const char *title, const double (*speeds)[LENGTHS_MAX], bool seconds, Buffer *out) {
    bool columns[MODES] = {0};
    buffer_printf(out, "\n## %s\n\n| tokens |", title);
    for (int mode = 0; mode < MODES; mode++) {
        for (int i = 0; i < m->length_count; i++) columns[mode] = columns[mode] || is_measured(m, mode, i);
        if (columns[mode]) buffer_printf(out, " %s |", modes[mode].name);
    }
    buffer_text(out, "\n|---:|");
    for (int mode = 0; mode < MODES; mode++)
        if (columns[mode]) buffer_text(out, "---:|");
    for (int i = 0; i < m->length_count; i++) {
        bool any = false;
        for (int mode = 0; mode < MODES; mode++) any = any || is_measured(m, mode, i);
        if (!any) continue;
        buffer_printf(out, "\n| %lld |", (long long)m->lengths[i]);
        for (int mode = 0; mode < MODES; mode++) {
            if (!columns[mode]) continue;
            if (is_measured(m, mode, i)) buffer_printf(out, " %.1f", speeds[mode][i]);
            if (is_measured(m, mode, i) && seconds)
                buffer_printf(out, " (%.1f s)", (double)m->lengths[i] / speeds[mode][i]);
            buffer_text(out, " |");
        }
    }
    buffer_byte(out, '\n');
}

static void write_markdown(const Matrix *m, Buffer *out) {
    char title[80];
    Buffer name = {0}; /* without the folders of this machine */
    library_name_of(m->model, &name);
    buffer_printf(out, "# %.*s\n\n", SLICE_SHOWN(buffer_view(&name)));
    fit_describe_machine(out);
    buffer_free(&name);
    buffer_printf(out, "; %s.\nPrompts have exactly as many tokens, %s. Medians of %lld round%s.\n", m->backend,
        m->text ? "of a text" : "random ones", (long long)m->rounds, m->rounds == 1 ? "" : "s");
    write_table(m, "Prompt: tokens per second (seconds to the first token)", m->pp, true, out);
    snprintf(
        title, sizeof title, "Generation: tokens per second, %lld tokens behind the prompt", (long long)m->generate);
    write_table(m, title, m->tg, false, out);
    write_reasons(m, out);
}

static bool write_file(const Matrix *m, const char *path, Error *error) {
    Buffer text = {0};
    write_markdown(m, &text);
    const bool ok = text.failed ? fail(error, ERROR_MEMORY, "no memory for the table")
                                : file_write_atomic(path, buffer_view(&text), error);
    buffer_free(&text);
    return ok;
}

/* The file is written after each length: a long run may be ended. */
static bool measure_all(Matrix *m, const char *markdown, Error *error) {
    bool ok = true;
    for (int i = 0; i < m->length_count && ok; i++) {
        for (int mode = 0; mode < MODES; mode++) {
            if (m->why[mode][0]) continue;
            if (isatty(STDERR_FILENO))
                fprintf(stderr, "\r\033[K  %lld tokens, %s", (long long)m->lengths[i], modes[mode].name);
            (void)measure(m, mode, i);
        }
        ok = !markdown || m->pp[0][0] == 0 || write_file(m, markdown, error);
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    return ok;
}

int command_bench_matrix(int argc, char **argv) {
    const char *lengths = "512,40000,100000", *markdown = NULL;
    static Matrix matrix;
    Matrix *m = &matrix;
    *m = (Matrix){.rounds = 3, .generate = 32};
    const Option options[] = {
        {"--tokens", NULL, OPTION_TEXT, &lengths, 0, 0, "N,…", "lengths of the prompt (512,40000,100000)"},
        {"--rounds", "-r", OPTION_INTEGER, &m->rounds, 1, 100, "N", "rounds of each measurement (3)"},
        {"--generate", "-n", OPTION_INTEGER, &m->generate, 1, 4096, "N", "tokens to generate (32)"},
        {"--text", NULL, OPTION_TEXT, &m->text, 0, 0, "FILE", "prompts are the beginning of this text (random tokens)"},
        {"--memory-budget", NULL, OPTION_TEXT, &m->budget, 0, 0, "SIZE", "memory of the runs with experts from disk"},
        {"--threads", "-t", OPTION_TEXT, &m->threads, 0, 0, "N", "threads (one per core)"},
        {"--markdown", NULL, OPTION_TEXT, &markdown, 0, 0, "FILE", "write the table there, too"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    m->model = arguments.values[0];
    if (!read_lengths(lengths, m, &error)) return report(&error);
    if (!measure_all(m, markdown, &error)) return report(&error);
    if (m->pp[0][0] == 0) {
        fail(&error, ERROR_IO, "%s", m->why[0]);
        return report(&error);
    }
    printf("%s\n", m->backend);
    print_bars(m, "prompt, tokens per second", m->pp);
    print_bars(m, "generation, tokens per second", m->tg);
    Buffer reasons = {0};
    write_reasons(m, &reasons);
    printf("%.*s", SLICE_SHOWN(buffer_view(&reasons)));
    buffer_free(&reasons);
    return 0;
}
