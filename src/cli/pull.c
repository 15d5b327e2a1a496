#include <stdio.h>

#include "cli/commands.h"
#include "cli/progress.h"
#include "library/library.h"

static const Command command = {"pull", "ORG/NAME[:FILE][@REVISION]",
    "Brings a model from the Hugging Face Hub into the cache.",
    "Only what is needed comes: config, tokenizer, templates and safetensors, or one GGUF file. FILE is that file or "
    "its\n"
    "quantisation. An interrupted download goes on where it was; every file's hash is checked before it counts. The "
    "cache is\n"
    "that of Python's huggingface_hub.\n\n"
    "  apus pull mlx-community/Qwen3-0.6B-4bit\n"
    "  apus pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M\n"
    "  apus pull ORG/NAME@v1.0\n\n"
    "Environment: HF_TOKEN (for gated and private models), HF_ENDPOINT, HF_HOME or HF_HUB_CACHE, HF_HUB_OFFLINE.\n"
    "serve, run and chat do the same on a model's first use.\n"};

int command_pull(int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&command, NULL, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    HubName name;
    Buffer path = {0};
    const bool ok = hub_name_parse(arguments.values[0], &name, &error) &&
        library_fetch(&name, true, progress_on_terminal(), &path, &error);
    if (ok) printf("%s\n", path.data);
    buffer_free(&path);
    return ok ? 0 : report(&error);
}
