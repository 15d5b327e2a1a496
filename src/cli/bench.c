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
#include "cli/commands.h"
#include "cli/models.h"
#include "cli/options.h"
#include "cli/walk.h"

enum { ROUNDS_MAX = 99 };

enum { PROBE_BYTES = 256 << 20 };

static const Command command = {"bench", "MODEL", "Measures prompt and generation speed beside the machine's limits.",
    "pp: prompt tokens per second, tg: generated tokens per second, at the given depth; medians over the rounds, with "
    "the\n"
    "smallest and largest. The read bandwidth is measured before each round; \"of limit\" is tg × bytes read per token "
    "÷ bandwidth.\n"
    "Example: apus bench qwen-0.5b -p 512 -n 64 --threads 2 --json\n"};

typedef struct Plan {
    int prompt, generate, depth, rounds, threads;
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

typedef struct Results {
    Series pp, tg, read, int8;
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
    r->read.value[r->read.count++] = limits_read(probe->pool, probe->memory, PROBE_BYTES) * 1e-9;
    r->int8.value[r->int8.count++] = limits_int8(probe->pool) * 1e-9;
}

static bool feed(Walk *walk, const int32_t *tokens, int count, int chunk, float *logits, Error *error) {
    for (int done = 0; done < count;) {
        const int rows = count - done < chunk ? count - done : chunk;
        if (!walk_step(walk, tokens + done, rows, done + rows == count, logits, error)) return false;
        done += rows;
    }
    return true;
}

static bool round_once(Walk *walk, const Probe *probe, const Plan *plan, int chunk, const int32_t *tokens,
    float *logits, Results *r, Error *error) {
    probe_limits(probe, r);
    walk_restart(walk);
    if (plan->depth && !feed(walk, tokens, plan->depth, chunk, logits, error)) return false;
    if (plan->prompt) {
        const double start = clock_seconds();
        if (!feed(walk, tokens, plan->prompt, chunk, logits, error)) return false;
        r->pp.value[r->pp.count++] = plan->prompt / (clock_seconds() - start);
        walk_restart(walk);
        if (plan->depth && !feed(walk, tokens, plan->depth, chunk, logits, error)) return false;
    }
    if (plan->generate) {
        if (!plan->depth && !walk_step(walk, tokens, 1, 1, logits, error)) return false;
        const double start = clock_seconds();
        for (int i = 0; i < plan->generate; i++)
            if (!walk_step(walk, tokens + i, 1, 1, logits, error)) return false;
        r->tg.value[r->tg.count++] = plan->generate / (clock_seconds() - start);
    }
    return true;
}

static bool measure(
    const Probe *probe, const char *directory, const char *cpu, Plan *plan, int chunk, Results *r, Error *error) {
    Walk walk;
    const int longest = plan->depth + (plan->prompt > plan->generate ? plan->prompt : plan->generate) + 1;
    const ModelOptions options = {
        .backend = {.cpu = cpu, .threads = plan->threads, .rows_max = chunk}, .context = longest};
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
    ok = ok && feed(&walk, tokens, plan->prompt ? 16 : 1, chunk, logits, error); /* faults the weights in */
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
           "s\":%.3f}\n",
        (unsigned long long)r->bytes, (unsigned long long)r->operations, share(tg, r->bytes, read),
        share(pp, r->operations, int8), r->load_s);
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
    printf("  int8 peak          %9.0f GOP/s  [%.0f … %.0f]  %.2f GOP per token\n", int8, at(&r->int8, 0),
        at(&r->int8, 1), (double)r->operations * 1e-9);
}

int command_bench(int argc, char **argv) {
    const char *cpu = "auto";
    int64_t prompt = 512, generate = 64, depth = 0, rounds = 5, threads = 0, chunk = 512;
    bool json = false;
    const Option options[] = {
        {"-p", "--prompt", OPTION_INTEGER, &prompt, 0, 1 << 20, "N", "prompt tokens (512)"},
        {"-n", "--generate", OPTION_INTEGER, &generate, 0, 1 << 20, "N", "tokens to generate (64)"},
        {"-d", "--depth", OPTION_INTEGER, &depth, 0, 1 << 20, "N", "tokens already in the cache (0)"},
        {"-r", "--rounds", OPTION_INTEGER, &rounds, 1, ROUNDS_MAX, "N", "rounds (5)"},
        {"--threads", "-t", OPTION_INTEGER, &threads, 0, 1024, "N", "threads (one per core)"},
        {"--prefill-size", NULL, OPTION_INTEGER, &chunk, 1, MODEL_ROWS_MAX, "N", "prompt tokens per step (512)"},
        {"--cpu", NULL, OPTION_TEXT, &cpu, 0, 0, "ISA", "instruction set (auto)"},
        {"--json", NULL, OPTION_FLAG, &json, 0, 0, NULL, "one JSON object"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer directory = {0}, name = {0};
    Results *results = calloc(1, sizeof *results);
    Plan plan = {(int)prompt, (int)generate, (int)depth, (int)rounds, threads ? (int)threads : pool_cores()};
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
