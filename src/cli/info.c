#include <stdio.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/models.h"
#include "cli/options.h"
#include "model/runner.h"

static const Command command = {
    "info", "MODEL", "What a model is: layers, parameters, bytes by kind, and what it needs here.", NULL};

static void warn(void *context, const char *line) { log_warn("%s", line); }

int command_info(int argc, char **argv) {
    const char *device = "cpu", *cpu = "auto";
    int64_t threads = 0, context = 0;
    bool strict = false;
    const Option options[] = {
        {"--device", NULL, OPTION_TEXT, &device, 0, 0, "NAME",
            "cpu, cuda, cuda:N, or auto: a GPU where there is one (cpu)"},
        {"--cpu", NULL, OPTION_TEXT, &cpu, 0, 0, "ISA", "instruction set (auto)"},
        {"--threads", "-t", OPTION_INTEGER, &threads, 0, 1024, "N", "threads (one per core)"},
        {"--ctx-size", "-c", OPTION_INTEGER, &context, 0, 1 << 24, "N", "tokens of context to plan for"},
        {"--strict-config", NULL, OPTION_FLAG, &strict, 0, 0, NULL,
            "config fields that nothing here uses are an error"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer directory = {0}, text = {0};
    const ModelOptions wanted = {.context = (int)context, .strict_config = strict, .warn = warn};
    const RunnerOptions runs = {.backend = {.device = device, .cpu = cpu, .threads = (int)threads}};
    Model *model =
        model_resolve(arguments.values[0], &directory, &error) ? model_open(directory.data, &wanted, &error) : NULL;
    Runner *runner = model ? runner_open(model, &runs, &error) : NULL;
    if (runner) {
        runner_describe(runner, &text);
        printf("%s", text.data ? text.data : "");
    }
    const int code = runner ? 0 : report(&error);
    runner_close(runner);
    model_close(model);
    buffer_free(&directory);
    buffer_free(&text);
    return code;
}
