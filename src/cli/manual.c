/* The manual page and the shells' completions, from the same tables as --help. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"

static const Command man_command = {
    "man", "", "Shows the manual page on a terminal; elsewhere prints it as roff, as in: apus man >apus.1", NULL};
static const Command completion_command = {"completion", "bash|zsh|fish",
    "Prints what makes a shell complete commands and options, as in: source <(apus completion bash)", NULL};

/* debug is for developers and has commands of its own. */
static bool is_documented(const CommandEntry *command) { return strcmp(command->name, "debug") != 0; }

/* Has a command print that page of its help. */
static void print_page(const CommandEntry *command, const char *help) {
    char page[32];
    snprintf(page, sizeof page, "%s", help);
    if (is_documented(command)) (void)command->run(1, (char *[]){page});
}

static int terminal = -1; /* standard output while it leads to the viewer */

/* Has what is printed go to man(1). NULL: there is none here. */
static FILE *open_viewer(void) {
    if (system("command -v man >/dev/null 2>&1") != 0) return NULL;
    fflush(stdout);
    FILE *viewer = popen("man -l - 2>/dev/null", "w");
    terminal = viewer ? dup(STDOUT_FILENO) : -1;
    if (terminal >= 0 && dup2(fileno(viewer), STDOUT_FILENO) >= 0) return viewer;
    if (viewer) pclose(viewer);
    return NULL;
}

static int close_viewer(FILE *viewer) {
    fflush(stdout);
    (void)dup2(terminal, STDOUT_FILENO);
    close(terminal);
    return pclose(viewer) == 0 ? 0 : 1;
}

/* The help of each command, one behind the other. */
static int print_plain(const CommandEntry *commands) {
    for (const CommandEntry *c = commands; c->name; c++) {
        if (!is_documented(c)) continue;
        printf("%s", c == commands ? "" : "\n\n");
        print_page(c, "--help-all");
    }
    return 0;
}

int command_man(const CommandEntry *commands, int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&man_command, NULL, argc, argv, 0, 0, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    FILE *viewer = isatty(STDOUT_FILENO) ? open_viewer() : NULL;
    if (isatty(STDOUT_FILENO) && !viewer) return print_plain(commands);
    printf(
        ".TH APUS 1 \"\" \"apus " APUS_VERSION "\"\n.SH NAME\napus \\- a native inference server for language models\n"
        ".SH SYNOPSIS\n.B apus\nCOMMAND [OPTIONS] [ARGUMENTS]\n.SH COMMANDS\n");
    for (const CommandEntry *c = commands; c->name; c++) print_page(c, "--help=man");
    printf(".SH EXIT STATUS\n0, 1 after a failure (one line says which), 2 for a wrong command line.\n");
    return viewer ? close_viewer(viewer) : 0;
}

static void print_bash(const CommandEntry *commands) {
    printf("_apus() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} options\n"
           "    case ${COMP_WORDS[1]} in\n");
    for (const CommandEntry *c = commands; c->name; c++) {
        printf("    %s) options='\n", c->name);
        print_page(c, "--help=names");
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then COMPREPLY=($(compgen -W '");
    for (const CommandEntry *c = commands; c->name; c++) printf("%s ", c->name);
    printf("' -- \"$word\"))\n"
           "    elif [ \"${word:0:1}\" = - ]; then COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
           "    else COMPREPLY=($(compgen -f -- \"$word\")); fi\n"
           "}\ncomplete -o filenames -F _apus apus\n");
}

static void print_fish(const CommandEntry *commands) {
    for (const CommandEntry *c = commands; c->name; c++) {
        printf("complete -c apus -n __fish_use_subcommand -a %s\n"
               "complete -c apus -n '__fish_seen_subcommand_from %s' -a (string split \\n -- '",
            c->name, c->name);
        print_page(c, "--help=names");
        printf("')\n");
    }
}

int command_completion(const CommandEntry *commands, int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&completion_command, NULL, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    const char *shell = arguments.values[0];
    if (!strcmp(shell, "zsh")) printf("autoload -U +X bashcompinit && bashcompinit\n");
    if (!strcmp(shell, "bash") || !strcmp(shell, "zsh")) {
        print_bash(commands);
    } else if (!strcmp(shell, "fish")) {
        print_fish(commands);
    } else {
        fprintf(stderr, "apus completion: %s: want bash, zsh or fish\n", shell);
        return EXIT_USAGE;
    }
    return 0;
}
