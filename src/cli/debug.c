/* Instruments for comparing with other implementations: JSON lines in, JSON lines out; logits as .npy. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "library/library.h"
#include "cli/options.h"
#include "cli/walk.h"
#include "server/api/fields.h"
#include "text/calls/debug.h"
#include "text/grammar/debug.h"
#include "text/jinja/template.h"
#include "text/tokenizer/debug.h"

enum { LINE_BYTES_MAX = 256 << 20, LOGITS_ROWS = 256 };

static const Command tokens_command = {"debug tokens", "MODEL", "Text to token ids, a JSON line each.",
    "{\"text\":\"…\",\"special\":true,\"bos\":false} → {\"ids\":[…]}. special=false: control tokens in the text stay "
    "text. {\"texts\":[…]} → {\"count\":…,\"seconds\":…}: ids in all, processor time. A line that is refused gives "
    "{\"error\":\"…\"}.\n"};
static const Command detokens_command = {"debug detokens", "MODEL", "Token ids to text, a JSON line each.",
    "{\"ids\":[…],\"skip_special\":false} → {\"text\":\"…\"}; with \"stream\":true → {\"pieces\":[…]}. A line "
    "that is refused gives {\"error\":\"…\"}.\n"};
static const Command grammar_command = {"debug grammar", "MODEL", "Whether texts fit grammars, a JSON line each.",
    "{\"schema\":{…},\"text\":\"…\"} → {\"accepted\":true,\"mask_us\":[…]}; instead of a schema a \"regex\", or "
    "rules as \"gbnf\" or \"lark\"; instead of a text \"sample\":N, for a random one of at most N tokens.\n"};
static const Command calls_command = {"debug calls", "", "Calls of tools at random, and how they are read.",
    "{\"format\":\"hermes\",\"tools\":[…],\"seed\":1,\"count\":9} → {\"answers\":[{\"text\":\"…\","
    "\"calls\":[[name, arguments], …]}, …]}, a JSON line each.\n"};
static const Command prompt_command = {"debug prompt", "[MODEL]", "Renders a chat template.",
    "Standard input: one object with messages, tools, add_generation_prompt, … → {\"prompt\":\"…\"}\n"};
static const Command logits_command = {"debug logits", "MODEL", "Logits of a token sequence as an .npy file.",
    "Example: apus debug logits DIR --tokens 1,2,3 --steps 1 --cpu ref --out logits.npy\n"};

static const Command fields_command = {"debug fields", "", "The fields of requests, as docs/api shows them.", ""};

static void warn(void *context, const char *line) { log_warn("%s", line); }

static void print_line(const Buffer *out) {
    fwrite(out->data, 1, out->size, stdout);
    putchar('\n');
    fflush(stdout); /* a program may wait for the answer */
}

typedef struct LineContext {
    const Tokenizer *tokenizer;
    const Vocabulary *vocabulary; /* for grammars */
} LineContext;
typedef bool (*LineFunction)(const LineContext *, Slice line, Buffer *out, Error *error);

static bool tokens_line(const LineContext *context, Slice line, Buffer *out, Error *error) {
    return text_debug_tokens(context->tokenizer, line, out, error);
}
static bool detokens_line(const LineContext *context, Slice line, Buffer *out, Error *error) {
    return text_debug_detokens(context->tokenizer, line, out, error);
}
static bool grammar_line(const LineContext *context, Slice line, Buffer *out, Error *error) {
    return text_debug_grammar(context->tokenizer, context->vocabulary, line, out, error);
}

static bool calls_line(const LineContext *context, Slice line, Buffer *out, Error *error) {
    (void)context;
    return text_debug_calls(line, out, error);
}

/* A refused line gets a line of output as well, so that inputs and outputs stay aligned. */
static void answer_line(LineFunction function, const LineContext *context, Slice line, Buffer *out) {
    Error error = {0};
    buffer_clear(out);
    if (!function(context, line, out, &error)) {
        buffer_clear(out);
        buffer_text(out, "{\"error\":");
        json_write_string(out, slice_of(error.text));
        buffer_byte(out, '}');
    }
    print_line(out);
}

static int each_line(const Command *command, int argc, char **argv, LineFunction function) {
    Arguments arguments;
    const int models = function != calls_line;
    const OptionsResult result = options_parse(command, NULL, argc, argv, models, models, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer directory = {0}, out = {0};
    Tokenizer *tokenizer = models && library_resolve(arguments.values[0], progress_on_terminal(), &directory, &error)
        ? tokenizer_open(directory.data, &error)
        : NULL;
    Vocabulary *vocabulary =
        tokenizer && function == grammar_line ? vocabulary_of(tokenizer, NULL, 0, NULL, &error) : NULL;
    const LineContext context = {tokenizer, vocabulary};
    bool ok = !models || (tokenizer && (vocabulary || function != grammar_line));
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t length; ok && (length = getline(&line, &capacity, stdin)) > 0;) {
        if (length == 1 && line[0] == '\n') continue;
        answer_line(function, &context, (Slice){line, (size_t)length}, &out);
    }
    if (ok && ferror(stdin)) ok = fail(&error, ERROR_IO, "cannot read standard input");
    if (fflush(stdout) && ok) ok = fail(&error, ERROR_IO, "cannot write standard output");
    free(line);
    buffer_free(&out);
    buffer_free(&directory);
    vocabulary_free(vocabulary);
    tokenizer_close(tokenizer);
    return ok ? 0 : report(&error);
}

static bool read_stdin(Buffer *text, Error *error) {
    char block[1 << 16];
    text->limit = LINE_BYTES_MAX;
    for (size_t got; (got = fread(block, 1, sizeof block, stdin)) > 0;) buffer_append(text, block, got);
    return !text->failed || fail(error, ERROR_LIMIT, "standard input is larger than %d bytes", LINE_BYTES_MAX);
}

static Template *open_template(const Arguments *arguments, const char *file, Error *error) {
    Buffer text = {0};
    Template *template = NULL;
    if (file) {
        if (file_read(file, TEMPLATE_SOURCE_MAX, &text, error)) template = template_compile(buffer_view(&text), error);
    } else if (arguments->count < 1) {
        fail(error, ERROR_USAGE, "name a model or a --template");
    } else if (library_resolve(arguments->values[0], progress_on_terminal(), &text, error)) {
        template = template_open(text.data, error);
    }
    buffer_free(&text);
    return template;
}

static double processor_seconds(void) {
    struct timespec now;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0 ? (double)now.tv_sec + (double)now.tv_nsec * 1e-9 : 0;
}

/* The prompt, or with `repeat` the least processor time that it took. */
static bool write_prompt(const Template *template, Slice in, int64_t repeat, Buffer *out, Error *error) {
    double best = INFINITY;
    for (int64_t i = 0; i < repeat; i++) {
        const double start = processor_seconds();
        buffer_clear(out);
        if (!template_debug_prompt(template, in, out, error)) return false;
        best = fmin(best, processor_seconds() - start);
    }
    if (!repeat) return template_debug_prompt(template, in, out, error);
    buffer_clear(out);
    buffer_text(out, "{\"seconds\":");
    json_write_number(out, best);
    buffer_byte(out, '}');
    return true;
}

static int debug_prompt(int argc, char **argv) {
    const char *file = NULL;
    int64_t repeat = 0;
    const Option options[] = {
        {"--template", NULL, OPTION_TEXT, &file, 0, 0, "FILE", "a Jinja file instead of a model's"},
        {"--repeat", NULL, OPTION_INTEGER, &repeat, 0, 1 << 20, "N",
            "render N times; the answer is the least processor time, {\"seconds\":…} (0)"},
        {0}};
    Arguments arguments;
    const OptionsResult result = options_parse(&prompt_command, options, argc, argv, 0, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer in = {0}, out = {0};
    Template *template = open_template(&arguments, file, &error);
    const bool ok =
        template && read_stdin(&in, &error) && write_prompt(template, buffer_view(&in), repeat, &out, &error);
    if (ok) print_line(&out);
    template_free(template);
    buffer_free(&in);
    buffer_free(&out);
    return ok ? 0 : report(&error);
}

/* "1,2,3" or "@FILE" with such a list. */
static bool parse_ids(const char *text, int vocab, Tokens *ids, Error *error) {
    while (*text) {
        char *end;
        const long id = strtol(text, &end, 10);
        if (end == text || id < 0 || id >= vocab)
            return fail(error, ERROR_USAGE, "--tokens: '%.20s' is not a token id below %d", text, vocab);
        if (!tokens_push(ids, (int32_t)id))
            return fail(error, ERROR_MEMORY, "no memory for %zu token ids", ids->count + 1);
        text = end;
        while (*text == ',' || *text == ' ' || *text == '\n') text++;
    }
    return ids->count > 0 || fail(error, ERROR_USAGE, "--tokens: no token");
}

static void write_npy_header(FILE *file, long rows, long columns) {
    enum { HEADER_BYTES = 128, PREFIX_BYTES = 10 };
    char header[HEADER_BYTES + 1];
    const int length = HEADER_BYTES - PREFIX_BYTES;
    const int used = snprintf(
        header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': (%ld, %ld), }", rows, columns);
    memset(header + used, ' ', (size_t)(length - used));
    header[length - 1] = '\n';
    const unsigned char prefix[PREFIX_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, 0};
    fwrite(prefix, 1, sizeof prefix, file);
    fwrite(header, 1, (size_t)length, file);
}

static bool write_logits(Walk *walk, const Tokens *ids, int steps, int chunk, FILE *file, Error *error) {
    const int vocab = model_vocab(walk->model), count = (int)ids->count;
    float *logits;
    write_npy_header(file, count, vocab);
    bool ok = true;
    for (int done = 0; ok && done < count;) {
        const int prefill = count - steps - done;
        const int rows = walk_rows(walk, prefill <= 0 ? 1 : prefill < chunk ? prefill : chunk);
        ok = (prefill > 0 ? walk_step(walk, ids->ids + done, rows, rows, &logits, error)
                          : walk_step_on(walk, ids->ids[done], &logits, error)) &&
            (fwrite(logits, sizeof *logits, (size_t)rows * (size_t)vocab, file) == (size_t)rows * (size_t)vocab ||
                fail(error, ERROR_IO, "cannot write the logits"));
        done += rows;
    }
    return ok;
}

static int debug_logits(int argc, char **argv) {
    const char *list = NULL, *path = NULL, *cpu = "auto", *device = "cpu", *form = "f16";
    int64_t steps = 0, threads = 0, chunk = LOGITS_ROWS, layers = 0, parts = 1;
    bool precise = false;
    const Option options[] = {
        {"--tokens", NULL, OPTION_TEXT, &list, 0, 0, "IDS", "token ids: 1,2,3 or @FILE"},
        {"--steps", NULL, OPTION_INTEGER, &steps, 0, 1 << 24, "N", "the last N tokens go one at a time (0)"},
        {"--chunk", NULL, OPTION_INTEGER, &chunk, 1, RUNNER_ROWS_MAX, "N", "tokens per prefill step (256)"},
        {"--device", NULL, OPTION_TEXT, &device, 0, 0, "NAME",
            "cpu, cuda, cuda:N, or auto: a GPU where there is one (cpu)"},
        {"--gpu-layers", "-ngl", OPTION_INTEGER, &layers, 0, 4096, "N",
            "the last N layers are on the GPU, the others here (all)"},
        {"--tensor-parallel", NULL, OPTION_INTEGER, &parts, 1, BACKEND_RANKS_MAX, "N",
            "each layer is divided among N GPUs, the one of --device and those behind it (1)"},
        {"--cpu", NULL, OPTION_TEXT, &cpu, 0, 0, "ISA", "ref computes in f32 throughout, KV pages included (auto)"},
        {"--threads", "-t", OPTION_INTEGER, &threads, 0, 1024, "N", "threads (one per core)"},
        {"--precise", NULL, OPTION_FLAG, &precise, 0, 0, NULL, "activations as 16 bits instead of 8"},
        {"--kv-cache", NULL, OPTION_TEXT, &form, 0, 0, "FORM", "how the KV cache is kept (f16)"},
        {"--out", "-o", OPTION_TEXT, &path, 0, 0, "FILE", "f32 [tokens, vocab] as .npy"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&logits_command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer directory = {0}, text = {0};
    Tokens ids = {0};
    Walk walk = {0};
    FILE *file = NULL;
    KvFormat format;
    bool ok = list && path ? library_resolve(arguments.values[0], progress_on_terminal(), &directory, &error)
                           : fail(&error, ERROR_USAGE, "debug logits needs --tokens and --out");
    ok = ok && kv_format_parse(form, &format, &error);
    if (ok && list[0] == '@')
        ok = file_read(list + 1, LINE_BYTES_MAX, &text, &error);
    else if (ok)
        buffer_text(&text, list);
    ok = ok && parse_ids(text.data ? text.data : "", INT32_MAX, &ids, &error);
    const BackendOptions backend = {.device = device,
        .cpu = cpu,
        .threads = (int)threads,
        .precise = precise,
        .rows_max = (int)chunk,
        .tensor_parallel = (int)parts};
    const ModelOptions model = {
        .context = (int)ids.count, /* beyond max_position_embeddings as well: the reference computes that too */
        .warn = warn};
    ok = ok && walk_open(&walk, directory.data, &model, &backend, (int)layers, &format, 1, (int)ids.count, &error);
    for (size_t i = 0; ok && i < ids.count; i++)
        if (ids.ids[i] >= model_vocab(walk.model))
            ok = fail(&error, ERROR_USAGE, "--tokens: %d is not below the vocabulary of %d", ids.ids[i],
                model_vocab(walk.model));
    if (ok && !(file = fopen(path, "wb"))) ok = fail(&error, ERROR_IO, "cannot write %s", path);
    ok = ok &&
        write_logits(&walk, &ids, steps < (int64_t)ids.count ? (int)steps : (int)ids.count, (int)chunk, file, &error);
    if (file && fclose(file) && ok) ok = fail(&error, ERROR_IO, "cannot write %s", path);
    walk_close(&walk);
    tokens_free(&ids);
    buffer_free(&directory);
    buffer_free(&text);
    return ok ? 0 : report(&error);
}

static int debug_fields(int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&fields_command, NULL, argc, argv, 0, 0, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Buffer out = {0};
    size_t count;
    const FieldTable *tables = field_tables(&count);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buffer_byte(&out, '\n');
        field_table_write(&tables[i], &out);
        member_table_write(&tables[i], &out);
    }
    if (!out.failed) fwrite(out.data, 1, out.size, stdout);
    buffer_free(&out);
    return 0;
}

int command_debug(int argc, char **argv) {
    const char *what = argc > 0 ? argv[0] : "";
    if (!strcmp(what, "tokens")) return each_line(&tokens_command, argc - 1, argv + 1, tokens_line);
    if (!strcmp(what, "detokens")) return each_line(&detokens_command, argc - 1, argv + 1, detokens_line);
    if (!strcmp(what, "grammar")) return each_line(&grammar_command, argc - 1, argv + 1, grammar_line);
    if (!strcmp(what, "calls")) return each_line(&calls_command, argc - 1, argv + 1, calls_line);
    if (!strcmp(what, "prompt")) return debug_prompt(argc - 1, argv + 1);
    if (!strcmp(what, "logits")) return debug_logits(argc - 1, argv + 1);
    if (!strcmp(what, "fields")) return debug_fields(argc - 1, argv + 1);
    const bool help = !strcmp(what, "--help") || !strcmp(what, "-h");
    fprintf(
        help ? stdout : stderr, "apus debug tokens|detokens|grammar|calls|prompt|logits|fields … (each with --help)\n");
    return help ? 0 : EXIT_USAGE;
}
