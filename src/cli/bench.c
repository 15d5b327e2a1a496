/* The command: what is to be measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "library/library.h"
#include "cli/options.h"

enum { TOKENS_MAX = 1 << 20 };

static const Command command = {"bench", "[MODEL]", "Measures speed beside the machine's limits.",
    "MODEL: prompt and generated tokens per second (pp, tg) at each depth; medians over the rounds, with the smallest\n"
    "and largest. tg is held against reading the same weights, right before and after; pp against int8 products.\n"
    "MODEL --streams 1,8: tokens of so many sequences together, without sampling, beside the first number of them.\n"
    "matrix MODEL: several lengths, plain, with experts from disk, with a quantised KV cache, and with both.\n"
    "drafts MODEL: what draft tokens gain, with recorded acceptance.\n"
    "MODEL --trace: where the time of a step goes, operation by operation; with -n 0 the prompt's.\n"
    "--operations: single operations on random data, without a model; --only PATTERN chooses lines, as in 'rows 1'.\n"
    "MODEL --quality TEXT: the forms of --kv-cache against f16 on the second half of -p tokens: divergence, "
    "agreement,\n"
    "perplexity.\n"
    "--against runs another program once in each round, before or after in turn: one that prints llama-bench's JSON;\n"
    "{depth} in the command stands for the depth.\n"
    "Examples:\n"
    "  apus bench qwen-0.5b -p 512 -n 64 -d 0,4096 --threads 2 --json\n"
    "  apus bench qwen-0.5b --trace -n 32 -d 4096\n"
    "  apus bench --operations --cpu avx2 --only '4-bit g64*rows 1'\n"
    "  apus bench qwen-0.5b --against 'llama-bench -m qwen-0.5b.gguf -t 2 -fa 1 -p 512 -n 64 -r 1 -o json'\n"};

static bool parse_depths(const char *text, BenchPlan *plan, Error *error) {
    for (const char *at = text;; at++) {
        char *end;
        const long depth = strtol(at, &end, 10);
        if (end == at || depth < 0 || depth > TOKENS_MAX || (*end && *end != ','))
            return fail(error, ERROR_USAGE, "option --depth: not usable: %s: want numbers from 0 to %d, with commas",
                text, TOKENS_MAX);
        if (plan->depth_count == DEPTHS_MAX)
            return fail(error, ERROR_USAGE, "option --depth: not usable: %s: at most %d depths", text, DEPTHS_MAX);
        plan->depths[plan->depth_count++] = (int)depth;
        if (!*end) return true;
        at = end;
    }
}

static bool parse_streams(const char *text, BenchPlan *plan, Error *error) {
    int most = 0;
    for (const char *at = text;; at++) {
        char *end;
        const long streams = strtol(at, &end, 10);
        if (end == at || streams < 1 || streams > WALK_FORMATS_MAX || (*end && *end != ',') ||
            plan->stream_count == WALK_FORMATS_MAX)
            return fail(error, ERROR_USAGE, "option --streams: not usable: %s: want numbers from 1 to %d, with commas",
                text, WALK_FORMATS_MAX);
        plan->streams[plan->stream_count++] = (int)streams;
        most = streams > most ? (int)streams : most;
        if (!*end) break;
        at = end;
    }
    if (plan->format_count > 1) return fail(error, ERROR_USAGE, "--streams takes one form of the KV cache");
    if (!plan->format_count) plan->formats[0] = (KvFormat){.k = KV_FULL};
    for (int i = 1; i < most; i++) plan->formats[i] = plan->formats[0];
    plan->format_count = most;
    return true;
}

static bool parse_formats(const char *text, BenchPlan *plan, Error *error) {
    char name[KV_FORMAT_NAME_MAX];
    for (const char *at = text; *at;) {
        const size_t length = strcspn(at, ",");
        if (plan->format_count == WALK_FORMATS_MAX)
            return fail(
                error, ERROR_USAGE, "option --kv-cache: not usable: %s: at most %d forms", text, WALK_FORMATS_MAX);
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        if (!kv_format_parse(name, &plan->formats[plan->format_count++], error)) return false;
        at += length + (at[length] == ',');
    }
    return true;
}

typedef struct Wish {
    bool trace, operations;
    const char *depths, *formats, *streams, *quality;
} Wish;

static bool check_wish(const Wish *wish, const char *model, BenchPlan *plan, Error *error) {
    if (!parse_formats(wish->formats, plan, error)) return false;
    if (wish->quality && (wish->operations || wish->trace || plan->against))
        return fail(error, ERROR_USAGE, "--quality goes with none of --operations, --trace and --against");
    if (wish->streams && (wish->operations || wish->trace || wish->quality || plan->against))
        return fail(error, ERROR_USAGE, "--streams goes with none of --operations, --trace, --quality and --against");
    if (wish->streams && !plan->generate) return fail(error, ERROR_USAGE, "--streams measures what -n generates");
    if (wish->streams && !parse_streams(wish->streams, plan, error)) return false;
    if (plan->text && (wish->operations || wish->quality))
        return fail(error, ERROR_USAGE, "--text goes with neither --operations nor --quality");
    if (wish->operations && model) return fail(error, ERROR_USAGE, "--operations measures without a model: %s", model);
    if (wish->operations && (wish->trace || plan->against))
        return fail(error, ERROR_USAGE, "--operations goes with neither --trace nor --against");
    if ((wish->operations || wish->trace) && backend_on_device(plan->backend.device))
        return fail(error, ERROR_USAGE, "%s takes times of the processor's operations, not those of --device %s",
            wish->operations ? "--operations" : "--trace", plan->backend.device);
    if (!wish->operations && !model) return fail(error, ERROR_USAGE, "name a model, or --operations");
    if (plan->only && !wish->operations) return fail(error, ERROR_USAGE, "--only chooses among --operations");
    if (wish->trace && plan->against) return fail(error, ERROR_USAGE, "--trace does not go with --against");
    if (!wish->operations && !plan->prompt && !plan->generate)
        return fail(error, ERROR_USAGE, "-p 0 -n 0: there is nothing to measure");
    if (plan->fit && (wish->operations || wish->trace || wish->streams || wish->quality))
        return fail(error, ERROR_USAGE, "--fit goes with none of --operations, --trace, --streams and --quality");
    if (!parse_depths(wish->depths, plan, error)) return false;
    if (wish->trace && plan->generate * (int64_t)plan->rounds > SERIES_MAX)
        return fail(error, ERROR_USAGE, "--trace: %d rounds of %d tokens are more than %d steps", plan->rounds,
            plan->generate, SERIES_MAX);
    return !plan->against || plan->depth_count == 1 || strstr(plan->against, "{depth}") ||
        fail(error, ERROR_USAGE, "--against with several depths: the command needs {depth} where it takes one");
}

static bool run(const Wish *wish, const char *model, BenchPlan *plan, Error *error) {
    if (!check_wish(wish, model, plan, error)) return false;
    if (!wish->quality) bench_quiet(plan->backend.threads); /* quality takes no times */
    if (!plan->backend.threads) plan->backend.threads = cores_of_process()->threads;
    if (wish->operations) return bench_operations(plan, error);
    Buffer directory = {0}, name = {0};
    bool ok = library_resolve(model, progress_on_terminal(), &directory, error);
    if (ok) {
        library_name_of(model, &name);
        plan->directory = directory.data;
        plan->model = name.data;
        ok = wish->quality  ? bench_quality(plan, wish->quality, error)
            : wish->streams ? bench_streams(plan, error)
            : wish->trace   ? bench_trace(plan, error)
                            : bench_model(plan, error);
    }
    buffer_free(&directory);
    buffer_free(&name);
    return ok;
}

int command_bench(int argc, char **argv) {
    if (argc > 0 && !strcmp(argv[0], "matrix")) return command_bench_matrix(argc - 1, argv + 1);
    if (argc > 0 && !strcmp(argv[0], "drafts")) return command_bench_drafts(argc - 1, argv + 1);
    BenchPlan plan = {.backend = {.device = "cpu", .cpu = "auto", .tensor_parallel = 1},
        .prompt = 512,
        .generate = 64,
        .rounds = 5,
        .chunk = 512};
    Wish wish = {.depths = "0", .formats = ""};
    const Option options[] = {
        {"-p", "--prompt", OPTION_INT, &plan.prompt, 0, TOKENS_MAX, "N", "prompt tokens (512)"},
        {"-n", "--generate", OPTION_INT, &plan.generate, 0, TOKENS_MAX, "N", "tokens to generate (64)"},
        {"-d", "--depth", OPTION_TEXT, &wish.depths, 0, 0, "N,…", "tokens already in the cache (0)"},
        {"--behind", NULL, OPTION_FLAG, &plan.behind, 0, 0, NULL, "generate behind the prompt, not at the depth"},
        {"-r", "--rounds", OPTION_INT, &plan.rounds, 1, ROUNDS_MAX, "N", "rounds (5)"},
        {"--threads", "-t", OPTION_INT, &plan.backend.threads, 0, POOL_THREADS_MAX, "N", "threads (one per core)"},
        {"--prefill-size", NULL, OPTION_INT, &plan.chunk, 1, RUNNER_ROWS_MAX, "N", "prompt tokens per step (512)"},
        {"--device", NULL, OPTION_TEXT, &plan.backend.device, 0, 0, "NAME",
            "cpu, cuda, cuda:N, or auto: a GPU where there is one (cpu)"},
        {"--gpu-layers", "-ngl", OPTION_INT, &plan.gpu_layers, 0, 4096, "N",
            "the last N layers are on the GPU, the others here (all)"},
        {"--tensor-parallel", NULL, OPTION_INT, &plan.backend.tensor_parallel, 1, BACKEND_RANKS_MAX, "N",
            "each layer is divided among N GPUs, the one of --device and those behind it (1)"},
        {"--cpu", NULL, OPTION_TEXT, &plan.backend.cpu, 0, 0, "ISA", "instruction set (auto)"},
        {"--streams", NULL, OPTION_TEXT, &wish.streams, 0, 0, "N,…",
            "sequences that generate together, measured in turn"},
        {"--kv-cache", NULL, OPTION_TEXT, &wish.formats, 0, 0, "FORM,…",
            "forms of the KV cache, measured in turn (f16)"},
        {"--text", NULL, OPTION_TEXT, &plan.text, 0, 0, "FILE",
            "tokens of this text instead of random ones (experts are chosen as in use)"},
        {"--quality", NULL, OPTION_TEXT, &wish.quality, 0, 0, "FILE", "what the forms cost on this text, of -p tokens"},
        {"--against", NULL, OPTION_TEXT, &plan.against, 0, 0, "COMMAND", "another program, run once in each round"},
        {"--trace", NULL, OPTION_FLAG, &wish.trace, 0, 0, NULL, "where the time of a step goes"},
        {"--operations", NULL, OPTION_FLAG, &wish.operations, 0, 0, NULL, "single operations, without a model"},
        {"--only", NULL, OPTION_TEXT, &plan.only, 0, 0, "PATTERN", "operations whose names contain this (* and ?)"},
        {"--precise", NULL, OPTION_FLAG, &plan.backend.precise, 0, 0, NULL, "activations as 16 bits instead of 8"},
        EXPERT_OPTIONS(plan.experts),
        {"--fit", NULL, OPTION_FLAG, &plan.fit, 0, 0, NULL,
            "what the plan of apus info --fit expects, and how far off it was"},
        {"--json", NULL, OPTION_FLAG, &plan.json, 0, 0, NULL, "a JSON object for each depth, on a line"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 0, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    return run(&wish, arguments.count ? arguments.values[0] : NULL, &plan, &error) ? 0 : report(&error);
}
