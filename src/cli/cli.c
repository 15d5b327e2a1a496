#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "cli/commands.h"

static int print_man(int argc, char **argv);
static int print_help(int argc, char **argv);
static int print_version(int argc, char **argv);
static int print_completion(int argc, char **argv);

static const CommandEntry commands[] = {
    {"serve", "serve a model over the OpenAI API", command_serve},
    {"app", "open the web app of a running server", command_app},
    {"launch", "start a coding agent on a running server", command_launch},
    {"chat", "talk to a model in the terminal", command_chat},
    {"run", "answer one prompt", command_run},
    {"pull", "bring a model from the Hugging Face Hub", command_pull},
    {"search", "find models on the hub", command_search},
    {"list", "the models that are here (also ls)", command_list},
    {"rm", "remove models", command_rm},
    {"info", "what a model is and what it needs here (also show)", command_info},
    {"ps", "the models of a running server", command_ps},
    {"stop", "unload a model of a running server", command_stop},
    {"devices", "devices that are paired with apus serve --lan", command_devices},
    {"convert", "rewrite a GGUF file as an MLX checkpoint", command_convert},
    {"bench", "measure speed beside the machine's limits", command_bench},
    {"doctor", "what this machine offers", command_doctor},
    {"version", "the version", print_version},
    {"help", "the page of a command, as in: apus help serve", print_help},
    {"man", "the manual page", print_man},
    {"completion", "what makes a shell complete options", print_completion},
    {"debug", "instruments for comparing with other implementations", command_debug},
    {0},
};

static int print_man(int argc, char **argv) { return command_man(commands, argc, argv); }
static int print_completion(int argc, char **argv) { return command_completion(commands, argc, argv); }

/* What other programs call a command. */
static const char *own_name(const char *name) {
    static const struct {
        const char *other, *own;
    } names[] = {{"ls", "list"}, {"show", "info"}, {"remove", "rm"}, {"--version", "version"}, {"-v", "version"}};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(name, names[i].other)) return names[i].own;
    return name;
}

static int print_version(int argc, char **argv) {
    static const Command command = {"version", "", "Prints the version.", NULL};
    Arguments arguments;
    const OptionsResult result = options_parse(&command, NULL, argc, argv, 0, 0, &arguments);
    if (result == OPTIONS_OK) printf("apus " APUS_VERSION "\n");
    return result == OPTIONS_ERROR ? EXIT_USAGE : 0;
}

static const char *command_name_at(const void *unused, int i) {
    (void)unused;
    return commands[i].name;
}

static void print_overview(FILE *out) {
    fprintf(out, "apus: a native inference server for language models\n\nCommands (apus COMMAND --help):\n");
    for (const CommandEntry *c = commands; c->name; c++) fprintf(out, "  %-11s %s\n", c->name, c->summary);
    fprintf(out,
        "\nExamples:\n"
        "  apus serve model.gguf               OpenAI API on http://127.0.0.1:5413/v1\n"
        "  apus chat mlx-community/Qwen3-0.6B-4bit\n"
        "                                      a conversation in the terminal; the model comes from the hub\n"
        "  echo 'Why is the sky blue?' | apus run qwen-0.5b\n"
        "  apus info qwen-0.5b\n");
}

static int run_command(const char *name, int argc, char **argv) {
    name = own_name(name);
    for (const CommandEntry *c = commands; c->name; c++)
        if (!strcmp(name, c->name)) return c->run(argc, argv);
    const char *nearest = nearest_name(slice_of(name), command_name_at, NULL);
    fprintf(stderr, "apus: unknown command '%s'%s%s%s (apus --help)\n", name, nearest ? "; did you mean " : "",
        nearest ? nearest : "", nearest ? "?" : "");
    return EXIT_USAGE;
}

static int print_help(int argc, char **argv) {
    static const Command command = {
        "help", "[COMMAND]", "Prints what --help of a command does, or all commands.", NULL};
    Arguments arguments;
    const OptionsResult result = options_parse(&command, NULL, argc, argv, 0, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_ERROR ? EXIT_USAGE : 0;
    if (arguments.count) return run_command(arguments.values[0], 1, (char *[]){(char[]){"--help"}});
    print_overview(stdout);
    return 0;
}

/* What was printed may still be on its way to a device that is full. */
static int finish_output(int code) {
    if (!fflush(stdout) && !ferror(stdout)) return code;
    fprintf(stderr, "apus: cannot write the output: %s\n", strerror(errno));
    return code ? code : 1;
}

/* As SwiftLM is called: `apus --model M --port 5413` serves. */
static bool serves_at_once(const char *first) { return !strncmp(first, "--", 2) && first[2]; }

int cli_main(int argc, char **argv) {
    if (argc < 2) {
        print_start();
        return finish_output(0);
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        print_overview(stdout);
        return finish_output(0);
    }
    if (serves_at_once(argv[1]) && strcmp(argv[1], "--version") != 0)
        return finish_output(command_serve_swiftlm(argc - 1, argv + 1));
    return finish_output(run_command(argv[1], argc - 2, argv + 2));
}
