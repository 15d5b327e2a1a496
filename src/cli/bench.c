/* Speed end to end, beside the limits of the machine measured in the same run, interleaved: medians of several rounds.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/cpu/limits.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/models.h"
#include "cli/options.h"
#include "cli/walk.h"

enum { ROUNDS_MAX = 99, PROBE_BYTES = 256 << 20, PEER_OUTPUT_MAX = 1 << 20 };

static const Command command = {"bench", "MODEL", "Measures prompt and generation speed beside the machine's limits.",
    "pp: prompt tokens per second, tg: generated tokens per second, at the given depth; medians over the rounds, with "
    "the\n"
    "smallest and largest. Before each round the limits are measured: reading memory, and int8 products in registers. "
    "tg is\n"
    "held against bytes per token ÷ bandwidth, pp against operations per token ÷ int8 peak.\n"
    "--against runs another program once in each round, in the same scheduler group: one that prints llama-bench's "
    "JSON.\n"
    "Examples:\n"
    "  apus bench qwen-0.5b -p 512 -n 64 --threads 2 --json\n"
    "  apus bench qwen-0.5b --against 'llama-bench -m qwen-0.5b.gguf -t 2 -fa 1 -p 512 -n 64 -r 1 -o json'\n"};

typedef struct Plan {
    int prompt, generate, depth, rounds, threads;
    bool precise;
    const char *against; /* a command, or NULL */
} Plan;

typedef struct Series {
    double value[ROUNDS_MAX];
    int count;
} Series;

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double at(const Series *series, double part) {
    double sorted[ROUNDS_MAX];
    if (!series->count) return 0;
    memcpy(sorted, series->value, sizeof sorted);
    qsort(sorted, (size_t)series->count, sizeof *sorted, ascending);
    return sorted[(int)lround(part * (series->count - 1))];
}

static void add(Series *series, double value) { series->value[series->count++] = value; }

typedef struct Results {
    Series pp, tg, read, int8;
    Series peer_pp, peer_tg;
    double load_s;
    uint64_t bytes, operations; /* per token */
    char *backend;
} Results;

/* On a shared machine the scheduler's group of this session would share its cores with whatever else runs: take one of
 * our own and the best priority we may have. Without the right to it nothing changes. */
static void quiet_self(void) {
    setsid();
    FILE *group = fopen("/proc/self/autogroup", "w");
    if (group) {
        fputs("-20", group);
        fclose(group);
    }
    setpriority(PRIO_PROCESS, 0, -20);
}

/* The machine's limits need threads and memory of their own. */
typedef struct Probe {
    Pool *pool;
    uint8_t *memory;
} Probe;

static bool probe_open(Probe *probe, int threads, Error *error) {
    probe->memory = aligned_alloc(2 << 20, PROBE_BYTES);
    if (!probe->memory) return fail(error, ERROR_MEMORY, "out of memory");
    madvise(probe->memory, PROBE_BYTES, MADV_HUGEPAGE);
    memset(probe->memory, 1, PROBE_BYTES);
    probe->pool = pool_open(threads, error);
    return probe->pool != NULL;
}

static void probe_close(Probe *probe) {
    if (probe->pool) pool_close(probe->pool);
    free(probe->memory);
}

static void probe_limits(const Probe *probe, Results *r) {
    add(&r->read, limits_read(probe->pool, probe->memory, PROBE_BYTES) * 1e-9);
    add(&r->int8, limits_int8(probe->pool) * 1e-9);
}

/* llama-bench -o json: an array of runs with n_prompt, n_gen and avg_ts. */
static bool run_peer(const char *shell, Results *r, Error *error) {
    Buffer text = {.limit = PEER_OUTPUT_MAX};
    Arena arena = {0};
    FILE *pipe = popen(shell, "r");
    if (!pipe) return fail(error, ERROR_IO, "cannot run %s", shell);
    char block[4096];
    for (size_t got; (got = fread(block, 1, sizeof block, pipe)) > 0;) buffer_append(&text, block, got);
    const int status = pclose(pipe);
    const Json *runs = status || text.failed ? NULL : json_parse(&arena, buffer_view(&text), error);
    bool ok = runs && runs->type == JSON_ARRAY;
    if (!ok) fail(error, ERROR_FORMAT, "--against: the command did not print a JSON array (exit status %d)", status);
    if (ok) {
        for (JSON_EACH(run, runs)) {
            const Json *prompt = json_get(run, "n_prompt"), *speed = json_get(run, "avg_ts");
            if (json_is_number(prompt) && json_is_number(speed))
                add(json_number(prompt) > 0 ? &r->peer_pp : &r->peer_tg, json_number(speed));
        }
        ok = r->peer_pp.count < ROUNDS_MAX && r->peer_tg.count < ROUNDS_MAX;
        if (!ok) fail(error, ERROR_LIMIT, "--against: more than %d results", ROUNDS_MAX);
    }
    buffer_free(&text);
    arena_free(&arena);
    return ok;
}

static bool feed(Walk *walk, const int32_t *tokens, int count, int chunk, float *logits, Error *error) {
    for (int done = 0; done < count;) {
        const int rows = count - done < chunk ? count - done : chunk;
        if (!walk_step(walk, tokens + done, rows, done + rows == count, logits, error)) return false;
        done += rows;
    }
    return true;
}

/* Back to the depth that every measurement starts from. */
static bool rewind_to(Walk *walk, const Plan *plan, int chunk, const int32_t *tokens, float *logits, Error *error) {
    if (walk_rewind(walk, plan->depth)) return true;
    walk_restart(walk);
    return feed(walk, tokens, plan->depth, chunk, logits, error);
}

static bool round_once(Walk *walk, const Probe *probe, const Plan *plan, int chunk, const int32_t *tokens,
    float *logits, Results *r, Error *error) {
    probe_limits(probe, r);
    if (plan->prompt) {
        if (!rewind_to(walk, plan, chunk, tokens, logits, error)) return false;
        const double start = clock_seconds();
        if (!feed(walk, tokens, plan->prompt, chunk, logits, error)) return false;
        add(&r->pp, plan->prompt / (clock_seconds() - start));
    }
    if (plan->generate) {
        if (!rewind_to(walk, plan, chunk, tokens, logits, error)) return false;
        const double start = clock_seconds();
        for (int i = 0; i < plan->generate; i++)
            if (!walk_step(walk, tokens + i, 1, 1, logits, error)) return false;
        add(&r->tg, plan->generate / (clock_seconds() - start));
    }
    return !plan->against || run_peer(plan->against, r, error);
}

static bool measure(
    const Probe *probe, const char *directory, const char *cpu, Plan *plan, int chunk, Results *r, Error *error) {
    Walk walk;
    const int longest = plan->depth + (plan->prompt > plan->generate ? plan->prompt : plan->generate) + 16;
    const ModelOptions options = {
        .backend = {.cpu = cpu, .threads = plan->threads, .precise = plan->precise, .rows_max = chunk},
        .context = longest};
    const double start = clock_seconds();
    if (!walk_open(&walk, directory, &options, longest, error)) return false;
    r->load_s = clock_seconds() - start;
    model_step_cost(walk.model, &r->bytes, &r->operations);
    r->backend = strdup(backend_describe(model_backend(walk.model)));
    const int vocab = model_vocab(walk.model);
    int32_t *tokens = calloc((size_t)longest, sizeof *tokens);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    bool ok = tokens && logits && r->backend ? true : fail(error, ERROR_MEMORY, "out of memory");
    uint32_t random = 1;
    for (int i = 0; ok && i < longest; i++)
        tokens[i] = (int32_t)((random = random * 1664525u + 1013904223u) % (uint32_t)vocab);
    ok = ok &&
        feed(&walk, tokens, plan->depth ? plan->depth : 16, chunk, logits, error); /* faults the weights in, too */
    for (int i = 0; ok && i < plan->rounds; i++) ok = round_once(&walk, probe, plan, chunk, tokens, logits, r, error);
    free(tokens);
    free(logits);
    walk_close(&walk);
    return ok;
}

static double share(double speed, uint64_t per_token, double giga) {
    return giga > 0 ? speed * (double)per_token * 1e-9 / giga : 0;
}

static void print_json(const char *model, const Plan *plan, const Results *r) {
    const double pp = at(&r->pp, 0.5), tg = at(&r->tg, 0.5), read = at(&r->read, 0.5), int8 = at(&r->int8, 0.5);
    printf(
        "{\"model\":\"%s\",\"backend\":\"%s\",\"threads\":%d,\"prompt\":%d,\"generate\":%d,\"depth\":%d,\"rounds\":%d,",
        model, r->backend, plan->threads, plan->prompt, plan->generate, plan->depth, plan->rounds);
    printf("\"pp\":%.2f,\"pp_min\":%.2f,\"pp_max\":%.2f,\"tg\":%.2f,\"tg_min\":%.2f,\"tg_max\":%.2f,", pp,
        at(&r->pp, 0), at(&r->pp, 1), tg, at(&r->tg, 0), at(&r->tg, 1));
    printf("\"read_gbs\":%.2f,\"read_gbs_min\":%.2f,\"read_gbs_max\":%.2f,\"int8_gops\":%.1f,", read, at(&r->read, 0),
        at(&r->read, 1), int8);
    printf("\"bytes_per_token\":%llu,\"operations_per_token\":%llu,\"tg_of_limit\":%.3f,\"pp_of_limit\":%.3f,\"load_"
           "s\":%.3f",
        (unsigned long long)r->bytes, (unsigned long long)r->operations, share(tg, r->bytes, read),
        share(pp, r->operations, int8), r->load_s);
    if (plan->against) printf(",\"peer_pp\":%.2f,\"peer_tg\":%.2f", at(&r->peer_pp, 0.5), at(&r->peer_tg, 0.5));
    printf("}\n");
}

static void print_table(const char *model, const Plan *plan, const Results *r) {
    const double pp = at(&r->pp, 0.5), tg = at(&r->tg, 0.5), read = at(&r->read, 0.5), int8 = at(&r->int8, 0.5);
    printf("%s on %s, loaded in %.2f s; medians of %d rounds [smallest … largest]\n", model, r->backend, r->load_s,
        plan->rounds);
    if (plan->prompt)
        printf("  pp %-6d @ %-6d %9.1f tok/s  [%.1f … %.1f]  %.0f GOP/s, %.0f %% of the int8 peak\n", plan->prompt,
            plan->depth, pp, at(&r->pp, 0), at(&r->pp, 1), pp * (double)r->operations * 1e-9,
            100 * share(pp, r->operations, int8));
    if (plan->generate)
        printf("  tg %-6d @ %-6d %9.1f tok/s  [%.1f … %.1f]  %.1f GB/s, %.0f %% of the read limit\n", plan->generate,
            plan->depth, tg, at(&r->tg, 0), at(&r->tg, 1), tg * (double)r->bytes * 1e-9,
            100 * share(tg, r->bytes, read));
    printf("  read limit         %9.1f GB/s   [%.1f … %.1f]  %.0f MB of weights per token\n", read, at(&r->read, 0),
        at(&r->read, 1), (double)r->bytes * 1e-6);
    if (r->peer_pp.count)
        printf("  against: pp        %9.1f tok/s  [%.1f … %.1f]  we have %.2f ×\n", at(&r->peer_pp, 0.5),
            at(&r->peer_pp, 0), at(&r->peer_pp, 1), pp / at(&r->peer_pp, 0.5));
    if (r->peer_tg.count)
        printf("  against: tg        %9.1f tok/s  [%.1f … %.1f]  we have %.2f ×\n", at(&r->peer_tg, 0.5),
            at(&r->peer_tg, 0), at(&r->peer_tg, 1), tg / at(&r->peer_tg, 0.5));
    printf("  int8 peak          %9.0f GOP/s  [%.0f … %.0f]  %.2f GOP per token\n", int8, at(&r->int8, 0),
        at(&r->int8, 1), (double)r->operations * 1e-9);
}

int command_bench(int argc, char **argv) {
    const char *cpu = "auto", *against = NULL;
    int64_t prompt = 512, generate = 64, depth = 0, rounds = 5, threads = 0, chunk = 512;
    bool json = false, precise = false;
    const Option options[] = {
        {"-p", "--prompt", OPTION_INTEGER, &prompt, 0, 1 << 20, "N", "prompt tokens (512)"},
        {"-n", "--generate", OPTION_INTEGER, &generate, 0, 1 << 20, "N", "tokens to generate (64)"},
        {"-d", "--depth", OPTION_INTEGER, &depth, 0, 1 << 20, "N", "tokens already in the cache (0)"},
        {"-r", "--rounds", OPTION_INTEGER, &rounds, 1, ROUNDS_MAX, "N", "rounds (5)"},
        {"--threads", "-t", OPTION_INTEGER, &threads, 0, 1024, "N", "threads (one per core)"},
        {"--prefill-size", NULL, OPTION_INTEGER, &chunk, 1, MODEL_ROWS_MAX, "N", "prompt tokens per step (512)"},
        {"--cpu", NULL, OPTION_TEXT, &cpu, 0, 0, "ISA", "instruction set (auto)"},
        {"--against", NULL, OPTION_TEXT, &against, 0, 0, "COMMAND", "another program, run once in each round"},
        {"--precise", NULL, OPTION_FLAG, &precise, 0, 0, NULL, "activations as 16 bits instead of 8"},
        {"--json", NULL, OPTION_FLAG, &json, 0, 0, NULL, "one JSON object"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer directory = {0}, name = {0};
    Results *results = calloc(1, sizeof *results);
    Plan plan = {
        (int)prompt, (int)generate, (int)depth, (int)rounds, threads ? (int)threads : pool_cores(), precise, against};
    Probe probe = {0};
    quiet_self();
    bool ok =
        results ? model_resolve(arguments.values[0], &directory, &error) : fail(&error, ERROR_MEMORY, "out of memory");
    ok = ok && probe_open(&probe, plan.threads, &error) &&
        measure(&probe, directory.data, cpu, &plan, (int)chunk, results, &error);
    model_name_of(arguments.values[0], &name);
    if (ok) (json ? print_json : print_table)(name.data, &plan, results);
    probe_close(&probe);
    if (results) free(results->backend);
    free(results);
    buffer_free(&directory);
    buffer_free(&name);
    return ok ? 0 : report(&error);
}
