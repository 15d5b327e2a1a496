/* Several sequences together, as a server decodes them: each step gives every one of them a token. How many of them
 * there are is measured in turn, so that their speeds can be compared. On the processor nothing is sampled. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "cli/bench.h"

enum { HOT = 1000 }; /* a temperature at which tokens are as random as the processor's: streams do not become alike */

/* So many sequences at one depth. */
typedef struct Result {
    int streams, depth;
    Series tg;    /* tokens/s of all */
    Series read;  /* GB/s around them */
    Series share; /* share of the time to read the weights once per step */
    ExpertProviderStats experts;
} Result;

static bool measure_one(BenchWalk *bench, Machine *machine, const BenchPlan *plan, Result *r, Error *error) {
    for (int i = 0; i < r->streams; i++) {
        walk_choose(&bench->walk, i);
        if (!bench_walk_go(bench, r->depth, error)) return false;
    }
    machine_forget(machine);
    const ExpertProviderStats experts = bench_experts_now(bench);
    const double before = machine_read(machine), start = clock_seconds();
    if (!bench_walk_generate(bench, 0, r->streams, plan->generate, HOT, error)) return false;
    const double steps = plan->generate / (clock_seconds() - start);
    bench_experts_count(bench, &experts, &r->experts);
    const double read = (before + machine_read(machine)) / 2;
    series_add(&r->tg, steps * r->streams);
    if (read <= 0) return true;
    series_add(&r->read, read);
    series_add(&r->share, steps * (double)bench->weight_bytes * 1e-9 / read);
    return true;
}

/* The order of the contestants is reversed in each round. */
static bool measure(BenchWalk *bench, Machine *machine, const BenchPlan *plan, Result *results, Error *error) {
    const int count = plan->stream_count;
    for (int d = 0; d < plan->depth_count; d++)
        for (int round = 0; round < plan->rounds; round++)
            for (int i = 0; i < count; i++) {
                const int turn = round % 2 ? count - 1 - i : i;
                Result *r = &results[d * count + turn];
                r->streams = plan->streams[turn];
                r->depth = plan->depths[d];
                if (!measure_one(bench, machine, plan, r, error)) return false;
            }
    return true;
}

/* ---- output ---- */

static void write_table(Buffer *out, const BenchWalk *bench, const BenchPlan *plan, const Result *results) {
    buffer_printf(out, "%s on %s; tokens/s of all streams, medians of %d rounds [smallest … largest]\n", plan->model,
        backend_describe(runner_backend(bench->walk.runner)), plan->rounds);
    for (int i = 0; i < plan->depth_count * plan->stream_count; i++) {
        const Result *r = &results[i], *first = &results[i / plan->stream_count * plan->stream_count];
        const double tg = series_median(&r->tg);
        char what[48], figures[64];
        snprintf(what, sizeof what, "  %d stream%s @ %d", r->streams, r->streams == 1 ? "" : "s", r->depth);
        snprintf(figures, sizeof figures, "[%.1f … %.1f]", series_at(&r->tg, 0), series_at(&r->tg, 1));
        bench_pad(out, what, 22);
        buffer_printf(out, "%8.1f ", tg);
        bench_pad(out, figures, 18);
        buffer_printf(out, " %6.2f × the first %8.2f ms a step", tg / series_median(&first->tg), 1e3 * r->streams / tg);
        if (r->read.count)
            buffer_printf(out, ", %.0f %% of reading the weights at %.1f GB/s", 100 * series_median(&r->share),
                series_median(&r->read));
        buffer_byte(out, '\n');
    }
}

static void write_json(Buffer *out, const BenchWalk *bench, const BenchPlan *plan, const Result *results) {
    for (int i = 0; i < plan->depth_count * plan->stream_count; i++) {
        const Result *r = &results[i];
        bench_walk_json(bench, plan, out);
        buffer_printf(out, ",\"streams\":%d,\"generate\":%d,\"depth\":%d,\"rounds\":%d", r->streams, plan->generate,
            r->depth, plan->rounds);
        series_json(out, "tg", &r->tg);
        series_json(out, "read_gbs", &r->read);
        series_json(out, "tg_of_limit", &r->share);
        if (model_experts(bench->walk.model)) bench_experts_json(out, "experts", &r->experts);
        buffer_text(out, "}\n");
    }
}

bool bench_streams(const BenchPlan *plan, Error *error) {
    Result *results = calloc((size_t)(plan->depth_count * plan->stream_count), sizeof *results);
    if (!results) return fail(error, ERROR_MEMORY, "no memory for the results");
    BenchWalk bench;
    Machine machine = {0};
    Buffer text = {0};
    bool ok = bench_walk_open(&bench, plan, false, error) && bench_walk_machine(&bench, plan, &machine, error) &&
        measure(&bench, &machine, plan, results, error);
    if (ok) {
        (plan->json ? write_json : write_table)(&text, &bench, plan, results);
        ok = bench_print(&text, error);
    }
    buffer_free(&text);
    machine_close(&machine);
    bench_walk_close(&bench);
    free(results);
    return ok;
}
