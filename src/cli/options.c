#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/nearest.h"

enum { HELP_LEFT = 27, HELP_WIDTH = 100 }; /* columns of a page */

/* Name i of an option: its own, then its aliases; empty behind the last. */
static Slice option_name(const Option *o, int i) {
    if (i == 0) return slice_of(o->name);
    const char *at = o->aliases ? o->aliases : "";
    for (; i > 1 && *at; i--) {
        at += strcspn(at, ",");
        at += strspn(at, ", ");
    }
    return (Slice){at, strcspn(at, ",")};
}

static bool is_long(Slice name) { return name.size > 2 && !strncmp(name.data, "--", 2); }

/* A row that is a title, or an option that is not there. */
static bool is_no_option(const Option *o) {
    return o->kind == OPTION_LATER || o->kind == OPTION_GROUP || o->kind == OPTION_GROUP_ALL;
}

/* Columns on a terminal. */
static int width_of(const char *text, size_t size) {
    int width = 0;
    for (size_t i = 0; i < size; i++) width += ((uint8_t)text[i] & 0xc0) != 0x80;
    return width;
}

/* An option and its help in two columns; an option that is wider than the first has a line of its own. */
static void print_option(const char *left, const char *help) {
    int at = 2 + width_of(left, strlen(left));
    printf("  %s", left);
    if (at > HELP_LEFT - 2) {
        printf("\n");
        at = 0;
    }
    while (*help) {
        const size_t size = strcspn(help, " ");
        const int width = width_of(help, size);
        if (at > HELP_LEFT && at + 1 + width > HELP_WIDTH) {
            printf("\n");
            at = 0;
        }
        const int space = at < HELP_LEFT ? HELP_LEFT - at : 1;
        printf("%*s%.*s", space, "", (int)size, help);
        at += space + width;
        help += size;
        help += strspn(help, " ");
    }
    printf("\n");
}

/* all: with the groups that are for few readers. */
static void print_help(const Command *command, const Option *options, bool all) {
    int left_out = 0;
    bool shown = true;
    const bool titled = options && (options->kind == OPTION_GROUP || options->kind == OPTION_GROUP_ALL);
    const char *arguments = command->arguments;
    printf("apus %s%s%s\n\n%s\n", command->name, *arguments ? " " : "", arguments, command->summary);
    if (options && options->name && !titled) printf("\nOptions:\n");
    for (const Option *o = options; o && o->name; o++) {
        char left[64];
        if (o->kind == OPTION_LATER) continue;
        if (o->kind == OPTION_GROUP || o->kind == OPTION_GROUP_ALL) {
            shown = all || o->kind == OPTION_GROUP;
            if (shown) printf("\n%s:\n", o->name);
            continue;
        }
        left_out += !shown;
        if (!shown) continue;
        snprintf(left, sizeof left, "%s%s%s%s%s", o->aliases ? o->aliases : "", o->aliases ? ", " : "", o->name,
            o->argument ? " " : "", o->argument ? o->argument : "");
        print_option(left, o->help);
    }
    if (left_out) printf("\n%d more options: apus %s --help-all\n", left_out, command->name);
    if (command->details) printf("\n%s", command->details);
}

/* For roff: a minus that stays one, backslashes, and no dot or quote that would be a request. */
static void print_roff(const char *text) {
    if (*text == '.' || *text == '\'') fputs("\\&", stdout);
    for (; *text; text++) {
        if (*text == '-')
            fputs("\\-", stdout);
        else if (*text == '\\')
            fputs("\\e", stdout);
        else
            putchar(*text);
        if (*text == '\n' && (text[1] == '.' || text[1] == '\'')) fputs("\\&", stdout);
    }
}

static void print_manual(const Command *command, const Option *options) {
    printf(".SS apus %s ", command->name);
    print_roff(command->arguments);
    printf("\n");
    print_roff(command->summary);
    printf("\n");
    for (const Option *o = options; o && o->name; o++) {
        if (o->kind == OPTION_GROUP || o->kind == OPTION_GROUP_ALL) printf(".PP\n.B %s\n", o->name);
        if (is_no_option(o)) continue;
        printf(".TP\n.B ");
        if (o->aliases) print_roff(o->aliases);
        if (o->aliases) printf(", ");
        print_roff(o->name);
        printf(" %s\n", o->argument ? o->argument : "");
        print_roff(o->help);
        printf("\n");
    }
    if (!command->details) return;
    printf(".PP\n.nf\n");
    print_roff(command->details);
    printf(".fi\n");
}

static bool print_asked(const char *text, const Command *command, const Option *options) {
    if (!strcmp(text, "--help") || !strcmp(text, "-h")) {
        print_help(command, options, false);
    } else if (!strcmp(text, "--help-all")) {
        print_help(command, options, true);
    } else if (!strcmp(text, "--help=man")) {
        print_manual(command, options);
    } else if (!strcmp(text, "--help=names")) {
        for (const Option *o = options; o && o->name; o++) {
            Slice name;
            for (int i = 0; !is_no_option(o) && (name = option_name(o, i)).size; i++)
                if (i == 0 || is_long(name)) printf("%.*s\n", (int)name.size, name.data);
        }
    } else {
        return false;
    }
    return true;
}

PRINTF_LIKE(2, 0)
static OptionsResult usage(const Command *command, const char *format, const char *what, const char *value) {
    fprintf(stderr, "apus %s: ", command->name);
    fprintf(stderr, format, what, value);
    fprintf(stderr, " (apus %s --help)\n", command->name);
    return OPTIONS_ERROR;
}

static OptionsResult not_there(const Command *command, const Option *o) {
    return usage(command, "option %s is not there yet: %s", o->name, o->help);
}

static OptionsResult add_argument(const Command *command, const char *text, int max, Arguments *arguments) {
    if (arguments->count == max || arguments->count == POSITIONAL_MAX)
        return usage(command, "unexpected argument '%s'%s", text, "");
    arguments->values[arguments->count++] = text;
    return OPTIONS_OK;
}

static const Option *find(const Option *options, const char *text, size_t length) {
    for (const Option *o = options; o && o->name; o++) {
        Slice name;
        if (o->kind == OPTION_GROUP || o->kind == OPTION_GROUP_ALL) continue;
        for (int i = 0; (name = option_name(o, i)).size; i++)
            if (name.size == length && !strncmp(name.data, text, length)) return o;
    }
    return NULL;
}

/* names: one after the other, each with its NUL. */
static const char *name_at(const void *names, int i) {
    const Buffer *buffer = names;
    size_t at = 0;
    for (; i > 0 && at < buffer->size; i--) at += strlen(buffer->data + at) + 1;
    return at < buffer->size ? buffer->data + at : NULL;
}

/* options: NULL for a command without any. */
static OptionsResult unknown_option(const Command *command, const Option *options, const char *text, size_t size) {
    Buffer names = {0};
    for (const Option *o = options; o && o->name; o++) {
        Slice name;
        const bool title = o->kind == OPTION_GROUP || o->kind == OPTION_GROUP_ALL;
        for (int i = 0; !title && (name = option_name(o, i)).size; i++) {
            buffer_append(&names, name.data, name.size);
            buffer_byte(&names, 0);
        }
    }
    buffer_append(&names, "--help", sizeof "--help");
    const char *nearest = size > 3 && !names.failed ? nearest_name((Slice){text, size}, name_at, &names) : NULL;
    const OptionsResult result = nearest ? usage(command, "unknown option '%s'; did you mean %s?", text, nearest)
                                         : usage(command, "unknown option '%s'%s", text, "");
    buffer_free(&names);
    return result;
}

static bool parse_number(const Option *o, const char *text, double *out) {
    char *end;
    errno = 0;
    if (o->kind == OPTION_BYTES && !strcmp(text, "auto")) {
        *out = 0;
        return o->min <= 0;
    }
    *out = strtod(text, &end);
    if (end == text || errno || !isfinite(*out)) return false;
    if (o->kind == OPTION_BYTES && *end) {
        static const char units[] = "KMGT";
        const char *unit = isalpha((unsigned char)*end) ? strchr(units, *end & ~0x20) : NULL;
        if (!unit) return false;
        *out *= pow(1024, (double)(unit - units + 1));
        end++;
        if (*end == 'i') end++;
        if (*end == 'B') end++;
    } else if (o->kind == OPTION_DURATION && *end) {
        static const char units[] = "smh";
        const char *unit = strchr(units, *end);
        if (!unit) return false;
        *out *= pow(60, (double)(unit - units));
        end++;
    }
    return *end == 0 && (o->kind == OPTION_NUMBER || *out == floor(*out)) && *out >= o->min && *out <= o->max;
}

static bool parse_choice(const Option *o, const char *text, int *out) {
    const size_t size = strlen(text);
    *out = (int)o->min;
    for (const char *word = o->argument;; word++, ++*out) {
        const size_t length = strcspn(word, "|");
        if (length == size && !strncmp(word, text, size)) return true;
        word += length;
        if (!*word) return false;
    }
}

/* why: of OPTION_READ. */
static bool store(const Option *o, const char *text, Error *why) {
    int choice;
    double number;
    int64_t integer;
    switch (o->kind) {
    case OPTION_TEXT: *(const char **)o->value = text; return true;
    case OPTION_READ: {
        const OptionReader *reader = o->value;
        return reader->read(text, reader->value, why);
    }
    case OPTION_FLAG: *(bool *)o->value = true; return true;
    case OPTION_NUMBER:
        if (!parse_number(o, text, &number)) return false;
        *(double *)o->value = number;
        return true;
    case OPTION_CHOICE:
        if (!parse_choice(o, text, &choice)) return false;
        *(int *)o->value = choice;
        return true;
    case OPTION_INT:
        if (!parse_number(o, text, &number)) return false;
        *(int *)o->value = (int)number;
        return true;
    case OPTION_INTEGER:
    case OPTION_BYTES:
    case OPTION_DURATION:
        if (!parse_number(o, text, &number)) return false;
        integer = (int64_t)number;
        memcpy(o->value, &integer, sizeof integer); /* an integer of any type with 64 bits */
        return true;
    case OPTION_GROUP:
    case OPTION_GROUP_ALL:
    case OPTION_ARGUMENT:
    case OPTION_LATER: break;
    }
    return false;
}

/* as: how the option was called. why: of OPTION_READ. */
static OptionsResult unusable_value(
    const Command *command, const Option *o, const char *as, const char *value, const Error *why) {
    char problem[160];
    if (o->kind == OPTION_READ)
        snprintf(problem, sizeof problem, "%.150s", why->text);
    else if (o->kind == OPTION_CHOICE)
        snprintf(problem, sizeof problem, "%.40s: want %s", value, o->argument);
    else if (o->kind == OPTION_BYTES)
        snprintf(
            problem, sizeof problem, "%.40s: want a size, as in 512M or 4G%s", value, o->min > 0 ? "" : ", or auto");
    else if (o->kind == OPTION_DURATION)
        snprintf(problem, sizeof problem,
            o->min > 1 ? "%.40s: want a time, as in 90s, 10m or 2h, of at least %.0fs"
                       : "%.40s: want a time, as in 90s, 10m or 2h",
            value, o->min);
    else
        snprintf(problem, sizeof problem, "%.40s: want %s from %.10g to %.10g", value,
            o->kind == OPTION_NUMBER ? "a number" : "a whole number", o->min, o->max);
    return usage(command, "option %s: not usable: %s", as, problem);
}

OptionsResult options_parse(
    const Command *command, const Option *options, int argc, char **argv, int min, int max, Arguments *arguments) {
    arguments->count = 0;
    char as[64];
    bool only_arguments = false;
    for (int i = 0; i < argc; i++) {
        const char *text = argv[i];
        if (!only_arguments && !strcmp(text, "--")) {
            only_arguments = true;
            continue;
        }
        if (only_arguments || text[0] != '-' || !text[1]) {
            if (add_argument(command, text, max, arguments) != OPTIONS_OK) return OPTIONS_ERROR;
            continue;
        }
        if (print_asked(text, command, options)) return OPTIONS_HELP;
        const char *equals = strncmp(text, "--", 2) ? NULL : strchr(text, '=');
        const size_t size = equals ? (size_t)(equals - text) : strlen(text);
        const Option *o = find(options, text, size);
        if (!o) return unknown_option(command, options, text, size);
        const char *value = NULL;
        if (o->kind == OPTION_LATER) return not_there(command, o);
        if (o->kind == OPTION_FLAG && equals) return usage(command, "option %s takes no value%s", text, "");
        if (o->kind != OPTION_FLAG) {
            value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!value) return usage(command, "option %s needs a value (%s)", text, o->argument);
        }
        if (o->kind == OPTION_ARGUMENT) {
            if (add_argument(command, value, max, arguments) != OPTIONS_OK) return OPTIONS_ERROR;
            continue;
        }
        Error why = {0};
        snprintf(as, sizeof as, "%.*s", (int)size, text);
        if (!store(o, value, &why)) return unusable_value(command, o, as, value, &why);
    }
    if (arguments->count < min) return usage(command, "missing argument: %s%s", command->arguments, "");
    return OPTIONS_OK;
}

static const Option *config_option(const Option *options) {
    const Option *o = find(options, "--config", strlen("--config"));
    CHECK(o && o->kind == OPTION_TEXT);
    return o;
}

/* The file that is named before anything is parsed: its values come first. */
static const char *config_path(int argc, char **argv) {
    static const char name[] = "--config";
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++) {
        if (!strcmp(argv[i], name)) return i + 1 < argc ? argv[i + 1] : NULL;
        if (!strncmp(argv[i], "--config=", sizeof name)) return argv[i] + sizeof name;
    }
    return getenv("APUS_CONFIG");
}

/* value: with a flag true or false. where: for the message. */
static bool set_option(const Command *command, const Option *o, const char *value, const char *where) {
    if (o->kind == OPTION_LATER) return not_there(command, o) == OPTIONS_OK;
    const bool on = !strcmp(value, "true") || !strcmp(value, "1"), off = !strcmp(value, "false") || !strcmp(value, "0");
    Error why = {0};
    if (o->kind == OPTION_FLAG ? on || off : store(o, value, &why)) {
        if (o->kind == OPTION_FLAG) *(bool *)o->value = on;
        return true;
    }
    fprintf(stderr, "%s: ", where);
    if (o->kind == OPTION_FLAG)
        (void)usage(command, "option %s: not usable: %s: want true or false", o->name, value);
    else
        (void)unusable_value(command, o, o->name, value, &why);
    return false;
}

/* A line of a section [MODEL]: a setting of --preset. */
static bool set_in_section(const Command *command, const Option *options, const char *section, const char *name,
    const char *value, const char *where) {
    char text[512];
    const Option *o = find(options, "--preset", strlen("--preset"));
    const int size = snprintf(text, sizeof text, "%s:%s=%s", section, name, value);
    if (o && size < (int)sizeof text && !strchr(value, ',')) return set_option(command, o, text, where);
    fprintf(stderr, "%s: %s\n", where, o ? "want one value of a setting" : "sections are for apus serve");
    return false;
}

/* One line of a file: NUL-terminated, changed in place. section: the name in the last [NAME] line, NULL: none. */
static bool set_line(const Command *command, const Option *options, char *line, const char *where, const char **section,
    Arguments *arguments) {
    static const char blanks[] = " \t\r";
    char *end = line + strlen(line), *equals;
    line += strspn(line, blanks);
    while (end > line && strchr(blanks, end[-1])) *--end = 0;
    if (!*line || *line == '#') return true;
    if (*line == '[' && end > line + 2 && end[-1] == ']') {
        end[-1] = 0;
        *section = line + 1;
        return true;
    }
    equals = strchr(line, '=');
    if (!equals) {
        fprintf(stderr, "%s: want: name = value\n", where);
        return false;
    }
    char *value = equals + 1 + strspn(equals + 1, blanks), name[64];
    while (equals > line && strchr(blanks, equals[-1])) equals--;
    *equals = 0;
    if (*section) return set_in_section(command, options, *section, line, value, where);
    if (!strcmp(line, "model") && arguments->count < POSITIONAL_MAX) {
        arguments->values[arguments->count++] = value;
        return true;
    }
    snprintf(name, sizeof name, "--%.60s", line);
    const Option *o = find(options, name, strlen(name));
    if (o) return set_option(command, o, value, where);
    fprintf(stderr, "%s: ", where);
    (void)unknown_option(command, options, name, strlen(name));
    return false;
}

static bool set_from_file(const Command *command, const Option *options, const char *path, Arguments *arguments) {
    enum { CONFIG_BYTES_MAX = 1 << 20 };
    static Buffer text; /* options point into it as long as the process lives */
    Error error = {0};
    if (!file_read(path, CONFIG_BYTES_MAX, &text, &error)) {
        report(&error);
        return false;
    }
    if (text.size && memchr(text.data, 0, text.size)) {
        fprintf(stderr, "%s: a zero byte: not a file of settings\n", path);
        return false;
    }
    char where[512], *line = text.data;
    const char *section = NULL;
    for (int number = 1; line && *line; number++) {
        char *end = strchr(line, '\n'), *next = end ? end + 1 : NULL;
        if (end) *end = 0;
        snprintf(where, sizeof where, "%s:%d", path, number);
        if (!set_line(command, options, line, where, &section, arguments)) return false;
        line = next;
    }
    return true;
}

/* From the variable of one of the option's names: APUS_KV_MEMORY for --kv-memory. */
static bool set_from_variable(const Command *command, const Option *o, Slice name) {
    char variable[64] = "APUS_";
    size_t size = strlen(variable);
    for (size_t i = 2; i < name.size && size + 1 < sizeof variable; i++)
        variable[size++] = name.data[i] == '-' ? '_' : (char)toupper((unsigned char)name.data[i]);
    variable[size] = 0;
    const char *value = getenv(variable);
    /* Kubernetes sets APUS_PORT=tcp://… beside a service that is called apus. */
    return !value || !strncmp(value, "tcp://", 6) || set_option(command, o, value, variable);
}

static bool set_from_environment(const Command *command, const Option *options) {
    for (const Option *o = options; o->name; o++) {
        Slice name;
        for (int i = 0; o->kind != OPTION_ARGUMENT && !is_no_option(o) && (name = option_name(o, i)).size; i++)
            if (is_long(name) && !set_from_variable(command, o, name)) return false;
    }
    return true;
}

static bool asks_for_help(int argc, char **argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!strncmp(argv[i], "--help", strlen("--help")) || !strcmp(argv[i], "-h")) return true;
    return false;
}

OptionsResult options_parse_configured(
    const Command *command, const Option *options, int argc, char **argv, int min, int max, Arguments *arguments) {
    if (asks_for_help(argc, argv)) { /* also of those whose settings are wrong */
        const OptionsResult asked = options_parse(command, options, argc, argv, 0, max, arguments);
        if (asked != OPTIONS_OK) return asked;
    }
    Arguments from_file = {0};
    const char *path = config_path(argc, argv);
    *(const char **)config_option(options)->value = path;
    if (path && !set_from_file(command, options, path, &from_file)) return OPTIONS_ERROR;
    if (!set_from_environment(command, options)) return OPTIONS_ERROR;
    const OptionsResult result = options_parse(command, options, argc, argv, 0, max, arguments);
    if (result == OPTIONS_OK && arguments->count == 0) *arguments = from_file;
    if (result == OPTIONS_OK && arguments->count > max)
        return usage(command, "unexpected argument '%s'%s", arguments->values[max], "");
    if (result == OPTIONS_OK && arguments->count < min)
        return usage(command, "missing argument: %s%s", command->arguments, "");
    return result;
}

int report(const Error *error) {
    fprintf(stderr, "apus: %s\n", error->text);
    return error->code == ERROR_USAGE ? EXIT_USAGE : 1;
}
