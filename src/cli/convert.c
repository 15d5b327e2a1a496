#include <stdio.h>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/options.h"
#include "import/gguf/gguf.h"

static const Command command = {"convert", "FILE.gguf DIR", "Rewrites a GGUF file as an MLX checkpoint directory.",
    "The directory holds config.json, model.safetensors, tokenizer.json, tokenizer_config.json and the chat template.\n"
    "Q4_0 Q4_1 Q4_K Q5_0 Q5_1 Q5_K Q8_0 IQ4_NL F16 BF16 F32 convert exactly, Q6_K to the nearest 8-bit group of 32.\n"
    "With --compact all of them are exact and none but IQ4_NL grows: a Q4_K file makes a checkpoint a third smaller "
    "and faster\n"
    "than without. Only apus reads it. This is what serve, run, chat and bench make of a .gguf file by themselves.\n"};

int command_convert(int argc, char **argv) {
    Arguments arguments;
    bool compact = false;
    const Option options[] = {
        {"--compact", NULL, OPTION_FLAG, &compact, 0, 0, NULL, "keep the file's own sizes; for apus alone"},
        {0},
    };
    const OptionsResult result = options_parse(&command, options, argc, argv, 2, 2, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    int shown = -1;
    const GgufOptions how = {.compact = compact, .progress = progress_conversion, .context = &shown};
    if (!gguf_convert(arguments.values[0], arguments.values[1], &how, &error)) return report(&error);
    printf("%s\n", arguments.values[1]);
    return 0;
}
