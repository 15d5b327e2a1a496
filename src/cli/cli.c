#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/slice.h"
#include "cli/commands.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"serve", "serve a model over the OpenAI API", command_serve},
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
    {"debug", "instruments for comparing with other implementations", command_debug},
};

static const char *command_name_at(const void *unused, int i) {
    (void)unused;
    return i < (int)COUNT_OF(commands) ? commands[i].name : NULL;
}

static void print_overview(FILE *out) {
    fprintf(out, "apus: a native inference server for language models\n\nCommands (apus COMMAND --help):\n");
    for (size_t i = 0; i < COUNT_OF(commands); i++) fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fprintf(out,
        "\nExamples:\n"
        "  apus serve model.gguf               OpenAI API on http://127.0.0.1:5413/v1\n"
        "  apus chat mlx-community/Qwen3-0.6B-4bit\n"
        "                                      a conversation in the terminal; the model comes from the hub\n"
        "  echo 'Why is the sky blue?' | apus run qwen-0.5b\n"
        "  apus info qwen-0.5b\n");
}

/* What was printed may still be on its way to a device that is full. */
static int finish_output(int code) {
    if (!fflush(stdout) && !ferror(stdout)) return code;
    fprintf(stderr, "apus: cannot write the output: %s\n", strerror(errno));
    return code ? code : 1;
}

int cli_main(int argc, char **argv) {
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_overview(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("apus " APUS_VERSION "\n");
        return 0;
    }
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (!strcmp(argv[1], commands[i].name)) return finish_output(commands[i].run(argc - 2, argv + 2));
    const char *nearest = nearest_name(slice_of(argv[1]), command_name_at, NULL);
    fprintf(stderr, "apus: unknown command '%s'%s%s%s (apus --help)\n", argv[1], nearest ? "; did you mean " : "",
        nearest ? nearest : "", nearest ? "?" : "");
    return EXIT_USAGE;
}
