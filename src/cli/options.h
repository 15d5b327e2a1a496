/* Command lines as tables: options of a command, their help, their values. `--name value` and `--name=value`. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/slice.h"
#include "cli/expert_faults.h"

/* The value's type is in brackets. */
typedef enum OptionKind {
    OPTION_FLAG,      /* [bool] set to true */
    OPTION_INT,       /* [int] */
    OPTION_INTEGER,   /* [int64_t] */
    OPTION_BYTES,     /* [int64_t, uint64_t, size_t] 4G, 512M; auto: 0, where that is in the range */
    OPTION_DURATION,  /* [int64_t] seconds: 90, 90s, 10m, 2h */
    OPTION_NUMBER,    /* [double] */
    OPTION_CHOICE,    /* [enum] a word of `argument`, "a|b|c": min for the first, min + 1 for the second, … */
    OPTION_TEXT,      /* [const char *] */
    OPTION_READ,      /* [OptionReader] a text that a function of its own reads */
    OPTION_GROUP,     /* not an option: `name` is the title of those that follow, in the help */
    OPTION_GROUP_ALL, /* the same; those that follow are shown by --help-all only */
    OPTION_ARGUMENT,  /* another way to give one of the arguments */
    OPTION_LATER      /* a SwiftLM option that is not supported yet; help says so */
} OptionKind;

typedef struct OptionReader {
    bool (*read)(const char *text, void *value, Error *error); /* false: the text is unusable, the error says why */
    void *value;
} OptionReader;

typedef struct Option {
    const char *name;    /* "--threads"; NULL ends a table */
    const char *aliases; /* other names, as in "-np, --parallel"; NULL: none */
    OptionKind kind;
    void *value;          /* points to the kind's type */
    double min, max;      /* range of numbers */
    const char *argument; /* "N", for the help */
    const char *help;     /* ends with the default where there is one */
} Option;

typedef struct Command {
    const char *name;
    const char *arguments; /* "MODEL [PROMPT]" */
    const char *summary;   /* one line */
    const char *details;   /* paragraphs and examples shown by --help; NULL: none */
} Command;

enum { POSITIONAL_MAX = 1024 }; /* a prompt's words, too */
typedef struct Arguments {
    int count;
    const char *values[POSITIONAL_MAX];
} Arguments;

typedef enum OptionsResult { OPTIONS_OK, OPTIONS_HELP, OPTIONS_ERROR } OptionsResult;

#define OPTIONS_TITLE(title)                                                                                           \
    { title, NULL, OPTION_GROUP, NULL, 0, 0, NULL, NULL }
#define OPTIONS_TITLE_ALL(title)                                                                                       \
    { title, NULL, OPTION_GROUP_ALL, NULL, 0, 0, NULL, NULL }

/* clang-format off */
/* Rows for an ExpertOptions (model/model.h). */
#define EXPERT_OPTIONS(e)                                                                                              \
    {"--stream-experts", NULL, OPTION_FLAG, &(e).stream, 0, 0, NULL,                                           \
        "experts of a mixture stay in their files and are read when they are needed"},                                 \
    {"--memory-budget", NULL, OPTION_BYTES, &(e).memory_budget, 0, 1e15, "SIZE",                                       \
        "with --stream-experts, all the memory that the model may take: 12G, or auto: 9/10 of what is free (auto)"},   \
    {"--expert-io", NULL, OPTION_CHOICE, &(e).cache.io, 0, 0, "auto|io_uring|threads|page-cache",                                                   \
        "how experts are read; page-cache is for comparison (auto)"},                           \
    {"--ssd-prefetch", NULL, OPTION_FLAG, &(e).prefetch, 0, 0, NULL,                                               \
        "experts of the next layer are read ahead where that proves to be faster"},                                    \
    OPTIONS_TITLE_ALL("Debugging"),                                                                                    \
    {"--route-trace", NULL, OPTION_TEXT, &(e).cache.trace, 0, 0, "FILE",                                               \
        "writes which experts were used, for tools/replay_routes.py"},                                               \
    {"--expert-faults", NULL, OPTION_READ, &(OptionReader){expert_faults_read, &(e).cache.faults}, 0, 0, "WHAT",      \
        "for tests, faults of reads by chance: fail:0.001,cut:0.1,hang:0.0001,slow:5 (nothing)"}
/* clang-format on */

/* argv after the command's name. --help prints the command's page, --help-all with every option, and gives
 * OPTIONS_HELP; an error is printed with the next thing to type. min and max positional arguments. --help=man and
 * --help=names print the page for a manual (roff) and the options' names and long aliases, a line each. */
OptionsResult options_parse(
    const Command *command, const Option *options, int argc, char **argv, int min, int max, Arguments *arguments);

/* The same with settings from elsewhere: a file of `name = value` lines (names as the options', without the dashes;
 * `model` for an argument; # begins a comment) that --config or APUS_CONFIG names, then the environment (APUS_KV_MEMORY
 * for --kv-memory, APUS_KV_BYTES for its alias), then argv. What comes later wins; arguments of argv replace the
 * file's. */
OptionsResult options_parse_configured(
    const Command *command, const Option *options, int argc, char **argv, int min, int max, Arguments *arguments);

enum { EXIT_USAGE = 2 };

/* Prints "apus: …" and returns 1 (2 for usage errors). */
int report(const Error *error);
