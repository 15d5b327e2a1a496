#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "cli/commands.h"

static int print_man(int argc, char **argv);
static int print_completion(int argc, char **argv);

static const CommandEntry commands[] = {
    {"serve", "serve a model over the OpenAI API", command_serve},
    {"app", "open the web app of a running server", command_app},
    {"chat", "talk to a model in the terminal", command_chat},
    {"run", "answer one prompt", command_run},
    {"pull", "bring a model from the Hugging Face Hub", command_pull},
    {"search", "find models on the hub", command_search},
    {"list", "the models that are here", command_list},
    {"rm", "remove models", command_rm},
    {"info", "what a model is and what it needs here", command_info},
    {"convert", "rewrite a GGUF file as an MLX checkpoint", command_convert},
    {"bench", "measure speed beside the machine's limits", command_bench},
    {"doctor", "what this machine offers", command_doctor},
    {"man", "the manual page", print_man},
    {"completion", "what makes a shell complete options", print_completion},
    {"debug", "instruments for comparing with other implementations", command_debug},
    {0},
};

static int print_man(int argc, char **argv) { return command_man(commands, argc, argv); }
static int print_completion(int argc, char **argv) { return command_completion(commands, argc, argv); }

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
    for (const CommandEntry *c = commands; c->name; c++)
        if (!strcmp(name, c->name)) return c->run(argc, argv);
    const char *nearest = nearest_name(slice_of(name), command_name_at, NULL);
    fprintf(stderr, "apus: unknown command '%s'%s%s%s (apus --help)\n", name, nearest ? "; did you mean " : "",
        nearest ? nearest : "", nearest ? "?" : "");
    return EXIT_USAGE;
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
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_overview(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("apus " APUS_VERSION "\n");
        return 0;
    }
    if (serves_at_once(argv[1])) return finish_output(command_serve_swiftlm(argc - 1, argv + 1));
    return finish_output(run_command(argv[1], argc - 2, argv + 2));
}
