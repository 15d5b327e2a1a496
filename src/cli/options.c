#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(const Command *command, const Option *options) {
    printf("apus %s %s\n\n%s\n", command->name, command->arguments, command->summary);
    if (options && options->name) printf("\nOptions:\n");
    for (const Option *o = options; o && o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s%s", o->alias ? o->alias : "", o->alias ? ", " : "", o->name,
            o->argument ? " " : "", o->argument ? o->argument : "");
        printf("  %-24s %s\n", left, o->help);
    }
    if (command->details) printf("\n%s", command->details);
}

PRINTF_LIKE(2, 0)
static OptionsResult usage(const Command *command, const char *format, const char *what, const char *value) {
    fprintf(stderr, "apus %s: ", command->name);
    fprintf(stderr, format, what, value);
    fprintf(stderr, " (apus %s --help)\n", command->name);
    return OPTIONS_ERROR;
}

static const Option *find(const Option *options, const char *text, size_t length) {
    for (const Option *o = options; o && o->name; o++)
        if ((strlen(o->name) == length && !strncmp(o->name, text, length)) ||
            (o->alias && strlen(o->alias) == length && !strncmp(o->alias, text, length)))
            return o;
    return NULL;
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
        const char *unit = strchr(units, *end & ~0x20);
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

static bool store(const Option *o, const char *text) {
    double number;
    switch (o->kind) {
    case OPTION_TEXT: *(const char **)o->value = text; return true;
    case OPTION_FLAG: *(bool *)o->value = true; return true;
    case OPTION_NUMBER:
        if (!parse_number(o, text, &number)) return false;
        *(double *)o->value = number;
        return true;
    case OPTION_INTEGER:
    case OPTION_BYTES:
    case OPTION_DURATION:
        if (!parse_number(o, text, &number)) return false;
        *(int64_t *)o->value = (int64_t)number;
        return true;
    }
    return false;
}

OptionsResult options_parse(
    const Command *command, const Option *options, int argc, char **argv, int min, int max, Arguments *arguments) {
    arguments->count = 0;
    bool only_arguments = false;
    for (int i = 0; i < argc; i++) {
        const char *text = argv[i];
        if (!only_arguments && !strcmp(text, "--")) {
            only_arguments = true;
            continue;
        }
        if (only_arguments || text[0] != '-' || !text[1]) {
            if (arguments->count == max || arguments->count == POSITIONAL_MAX)
                return usage(command, "unexpected argument '%s'%s", text, "");
            arguments->values[arguments->count++] = text;
            continue;
        }
        if (!strcmp(text, "--help") || !strcmp(text, "-h")) {
            print_help(command, options);
            return OPTIONS_HELP;
        }
        const char *equals = strncmp(text, "--", 2) ? NULL : strchr(text, '=');
        const Option *o = find(options, text, equals ? (size_t)(equals - text) : strlen(text));
        if (!o) return usage(command, "unknown option '%s'%s", text, "");
        const char *value = NULL;
        if (o->kind == OPTION_FLAG && equals) return usage(command, "option %s takes no value%s", o->name, "");
        if (o->kind != OPTION_FLAG) {
            value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!value) return usage(command, "option %s needs a value (%s)", o->name, o->argument);
        }
        if (!store(o, value)) {
            char range[96];
            snprintf(range, sizeof range, "%s: want %s from %.10g to %.10g", value,
                o->kind == OPTION_NUMBER ? "a number" : "a whole number", o->min, o->max);
            return usage(command, "option %s: not usable: %s", o->name, range);
        }
    }
    if (arguments->count < min) return usage(command, "missing argument: %s%s", command->arguments, "");
    return OPTIONS_OK;
}

int report(const Error *error) {
    fprintf(stderr, "apus: %s\n", error->text);
    return error->code == ERROR_USAGE ? EXIT_USAGE : 1;
}
