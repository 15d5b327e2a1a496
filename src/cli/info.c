#include <stdio.h>
#include <string.h>

#include "backend/plugin.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "library/library.h"
#include "library/named.h"
#include "cli/session.h"
#include "engine/fitting.h"
#include "engine/placement.h"

static const Command command = {"info", "[MODEL]",
    "What a model is: layers, parameters, bytes by kind, and what it needs here.",
    "--fit measures this machine for a second and says how `apus serve` with the same options would run the model: "
    "what goes\n"
    "into memory, whether experts are streamed, the form of the KV cache, and the speed to expect. What was measured "
    "is\n"
    "kept, and serve plans with it.\n"
    "Examples:\n"
    "  apus info qwen-0.5b\n"
    "  apus info --kernels --device cuda\n"
    "  apus info qwen3-30b-a3b --fit --memory-budget 12G --slots 2 --ctx-size 8192 --kv-cache auto\n"};

static bool describe(const EngineOptions *options, Buffer *text, Error *error) {
    ModelOptions tables = options->model;
    tables.weights = WEIGHTS_LAZY;
    tables.experts.stream = false;
    RunnerOptions chunks = {.backend = options->backend};
    Model *model = model_open(options->directory, &tables, error);
    if (model) placement_runner(options, model, &chunks);
    Runner *runner = model ? runner_open(model, &chunks, error) : NULL;
    if (runner) runner_describe(runner, text);
    const bool ok = runner != NULL;
    runner_close(runner);
    model_close(model);
    return ok;
}

static bool fit(const EngineOptions *options, Buffer *text, Error *error) {
    EnginePlan plan;
    if (!engine_plan(options, PLAN_MEASURED, &plan, error)) return false;
    buffer_printf(text, "%-12s %s\n", "machine", plan.backend);
    fit_explain(&plan.machine, &plan.model, &plan.request, &plan.fit, text);
    return true;
}

/* Describes the device of --device; without the option, the first GPU. */
static int print_kernels(const char *device) {
    enum { TEXT_MAX = 16 << 10 };
    static char text[TEXT_MAX];
    Error error = {0};
    const char *name = !strcmp(device, "cpu") ? "auto" : device;
    if (!plugin_kernels(name, text, sizeof text, &error)) return report(&error);
    printf("%s", text);
    return 0;
}

int command_info(int argc, char **argv) {
    EngineArguments engine = ENGINE_ARGUMENTS_DEFAULT;
    bool wanted = false, kernels = false;
    const Option options[] = {
        {"--fit", NULL, OPTION_FLAG, &wanted, 0, 0, NULL, "measure this machine and say how the model would run on it"},
        {"--kernels", NULL, OPTION_FLAG, &kernels, 0, 0, NULL, "print which kernel of a GPU runs what; needs no model"},
        {"--slots", "-np", OPTION_INT, &engine.options.slots, 1, 1024, "N", "answers computed at once (8)"},
        ENGINE_OPTIONS(engine),
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 0, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (kernels) return print_kernels(engine.options.backend.device ? engine.options.backend.device : "auto");
    Error error = {0};
    if (!arguments.count) {
        fail(&error, ERROR_USAGE, "name a model, or --kernels");
        return report(&error);
    }
    Buffer directory = {0}, text = {0};
    EngineOptions request;
    const bool ok = named_resolve(arguments.values[0], progress_on_terminal(), &directory, NULL, &error) &&
        engine_options(&engine, directory.data, &request, &error) &&
        (wanted ? fit(&request, &text, &error) : describe(&request, &text, &error));
    if (ok) printf("%s", text.data ? text.data : "");
    buffer_free(&directory);
    buffer_free(&text);
    return ok ? 0 : report(&error);
}
