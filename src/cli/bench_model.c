/* Speed end to end at several depths, beside the limits of the machine, interleaved with another program if wished. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/bench.h"

enum { PEER_OUTPUT_MAX = 1 << 20, COMMAND_MAX = 4096 };

/* At one depth. */
typedef struct Results {
    Series pp, tg, token_ms;
    Series read, read_best;    /* GB/s around each tg */
    Series pp_share, tg_share; /* share of the limit measured in the same round */
    Series int8;
    Series peer_pp, peer_tg;
    uint64_t bytes; /* that a generated token reads: weights and KV cache */
    int depth;
    int64_t kv_resident;
    char format[KV_FORMAT_NAME_MAX];
    double expected_pp, expected_tg; /* --fit; 0: nothing is */
    double disk, disk_one,
        routed; /* --fit: bytes per second at its best and one read at a time; of experts per token */
    ExpertProviderStats pp_experts, tg_experts; /* counted while these were measured */
} Results;

/* The command for a depth: {depth} replaced. */
static bool peer_command(const char *against, int depth, char *out, size_t size, Error *error) {
    static const char place[] = "{depth}";
    const char *at = strstr(against, place);
    const int before = at ? (int)(at - against) : (int)strlen(against);
    char number[16] = "";
    if (at) snprintf(number, sizeof number, "%d", depth);
    const char *after = at ? at + strlen(place) : "";
    return (size_t)snprintf(out, size, "%.*s%s%s", before, against, number, after) < size ||
        fail(error, ERROR_LIMIT, "--against: the command is longer than %zu bytes", size);
}

/* llama-bench -o json: an array of runs with n_gen and avg_ts. Those that generate may have n_prompt as well: a depth.
 */
static bool run_peer(const BenchPlan *plan, int depth, Results *r, Error *error) {
    char shell[COMMAND_MAX], block[4096];
    if (!peer_command(plan->against, depth, shell, sizeof shell, error)) return false;
    Buffer text = {.limit = PEER_OUTPUT_MAX};
    Arena arena = {0};
    FILE *pipe = bench_popen(shell);
    if (!pipe) return fail(error, ERROR_IO, "cannot run %s", shell);
    for (size_t got; (got = fread(block, 1, sizeof block, pipe)) > 0;) buffer_append(&text, block, got);
    const int status = pclose(pipe);
    const Json *chunks = status || text.failed ? NULL : json_parse(&arena, buffer_view(&text), error);
    const bool ok = chunks && chunks->type == JSON_ARRAY;
    if (!ok) fail(error, ERROR_FORMAT, "--against: the command did not print a JSON array (exit status %d)", status);
    if (ok) {
        for (JSON_EACH(run, chunks)) {
            const Json *decode_rows = json_get(run, "n_gen"), *speed = json_get(run, "avg_ts");
            if (json_is_number(decode_rows) && json_is_number(speed))
                series_add(json_number(decode_rows) > 0 ? &r->peer_tg : &r->peer_pp, json_number(speed));
        }
    }
    buffer_free(&text);
    arena_free(&arena);
    return ok;
}

static bool measure_prompt(BenchWalk *bench, const BenchPlan *plan, int depth, Results *r, Error *error) {
    if (!bench_walk_go(bench, depth, error)) return false;
    const ExpertProviderStats experts = bench_experts_now(bench);
    const double start = clock_seconds();
    if (!bench_walk_feed(bench, plan->prompt, error)) return false;
    const double speed = plan->prompt / (clock_seconds() - start);
    bench_experts_count(bench, &experts, &r->pp_experts);
    const double peak = r->int8.count ? r->int8.value[r->int8.count - 1] : 0;
    series_add(&r->pp, speed);
    if (peak > 0) series_add(&r->pp_share, speed * (double)bench->operations * 1e-9 / peak);
    return true;
}

static bool measure_generation(
    BenchWalk *bench, Machine *machine, const BenchPlan *plan, int depth, Results *r, Error *error) {
    if (plan->behind) depth += plan->prompt;
    if (!bench_walk_go(bench, depth, error)) return false;
    r->kv_resident = bench->kv_resident[bench->walk.chosen];
    r->bytes = bench->weight_bytes + bench_walk_kv_bytes(bench, depth + plan->generate / 2);
    machine_forget(machine);
    const ExpertProviderStats experts = bench_experts_now(bench);
    const double before = machine_read(machine), start = clock_seconds();
    if (!bench_walk_generate(bench, bench->walk.chosen, 1, plan->generate, 0, error)) return false;
    const double speed = plan->generate / (clock_seconds() - start);
    for (int i = 0; i < plan->generate; i++)
        series_add(&r->token_ms, 1e3 * (bench->ended[i] - (i ? bench->ended[i - 1] : start)));
    bench_experts_count(bench, &experts, &r->tg_experts);
    const double read = (before + machine_read(machine)) / 2;
    series_add(&r->tg, speed);
    if (machine->read_best.count) series_add(&r->read_best, series_at(&machine->read_best, 1));
    if (read <= 0) return true;
    series_add(&r->read, read);
    series_add(&r->tg_share, speed * (double)r->bytes * 1e-9 / read);
    return true;
}

/* The order of the contestants is reversed in each round. */
static bool round_once(
    BenchWalk *bench, Machine *machine, const BenchPlan *plan, int depth, int round, Results *r, Error *error) {
    const bool peer_first = plan->against && round % 2;
    if (peer_first && !run_peer(plan, depth, r, error)) return false;
    machine_forget(machine);
    machine_peaks(machine);
    if (machine->int8.count) series_add(&r->int8, series_median(&machine->int8));
    if (plan->prompt && !measure_prompt(bench, plan, depth, r, error)) return false;
    if (plan->generate && !measure_generation(bench, machine, plan, depth, r, error)) return false;
    return !plan->against || peer_first || run_peer(plan, depth, r, error);
}

/* ---- output ---- */

/* Every combination of depth and cache format. */
static int results_count(const BenchPlan *plan) {
    return plan->depth_count * (plan->format_count ? plan->format_count : 1);
}

/* A line per depth and format. */
static void write_json(Buffer *out, const BenchWalk *bench, const BenchPlan *plan, const Results *results) {
    uint64_t peak, anonymous;
    bench_memory(&peak, &anonymous);
    for (int i = 0; i < results_count(plan); i++) {
        const Results *r = &results[i];
        bench_walk_json(bench, plan, out);
        buffer_printf(out, ",\"prompt\":%d,\"generate\":%d,\"depth\":%d,\"rounds\":%d", plan->prompt, plan->generate,
            r->depth, plan->rounds);
        buffer_printf(out, ",\"kv_cache\":\"%s\"", r->format);
        series_json(out, "pp", &r->pp);
        series_json(out, "tg", &r->tg);
        if (r->token_ms.count)
            buffer_printf(out, ",\"token_ms\":%.5g,\"token_ms_p99\":%.5g", series_median(&r->token_ms),
                series_at(&r->token_ms, 0.99));
        series_json(out, "read_gbs", &r->read);
        series_json(out, "read_best_gbs", &r->read_best);
        series_json(out, "int8_gops", &r->int8);
        series_json(out, "pp_of_limit", &r->pp_share);
        series_json(out, "tg_of_limit", &r->tg_share);
        series_json(out, "peer_pp", &r->peer_pp);
        series_json(out, "peer_tg", &r->peer_tg);
        buffer_printf(out, ",\"bytes_per_token\":%llu,\"weight_bytes\":%llu,\"operations_per_token\":%llu",
            (unsigned long long)r->bytes, (unsigned long long)bench->weight_bytes,
            (unsigned long long)bench->operations);
        if (model_experts(bench->walk.model)) {
            const ExpertProviderStats all = bench_experts_now(bench);
            buffer_printf(out, ",\"expert_slots\":%d,\"experts\":%d,\"expert_cache_bytes\":%zu,\"expert_io\":\"%s\"",
                all.slots, all.experts, all.bytes, all.io);
            bench_experts_json(out, "pp_experts", &r->pp_experts);
            bench_experts_json(out, "tg_experts", &r->tg_experts);
        }
        if (r->expected_pp > 0) buffer_printf(out, ",\"expected_pp\":%.5g", r->expected_pp);
        if (r->expected_tg > 0) buffer_printf(out, ",\"expected_tg\":%.5g", r->expected_tg);
        if (r->disk > 0)
            buffer_printf(out, ",\"disk_gbs\":%.4g,\"disk_one_gbs\":%.4g,\"routed_bytes\":%.0f", r->disk * 1e-9,
                r->disk_one * 1e-9, r->routed);
        buffer_printf(out, ",\"kv_resident_bytes\":%lld", (long long)r->kv_resident);
        buffer_printf(out, ",\"load_s\":%.4f,\"rss_peak_bytes\":%llu,\"anonymous_bytes\":%llu}\n", bench->load_s,
            (unsigned long long)peak, (unsigned long long)anonymous);
    }
}

static void write_spread(Buffer *out, const char *what, const char *unit, const Series *series) {
    bench_pad(out, what, 20);
    buffer_printf(
        out, "%9.1f %-5s  [%.1f … %.1f]", series_median(series), unit, series_at(series, 0), series_at(series, 1));
}

static void write_peer(Buffer *out, const char *what, const Series *ours, const Series *peer) {
    if (!ours->count || !peer->count) return;
    write_spread(out, what, "tok/s", peer);
    buffer_printf(out, "  we have %.2f ×\n", series_median(ours) / series_median(peer));
}

static void write_expected(Buffer *out, const char *what, double expected, const Series *measured) {
    if (expected <= 0) return;
    bench_pad(out, what, 20);
    buffer_printf(
        out, "%9.1f tok/s  by the plan: %+.0f %%\n", expected, 100 * (expected / series_median(measured) - 1));
}

static void write_share(Buffer *out, const Series *share, const char *limit) {
    if (share->count) buffer_printf(out, ", %.0f %% of %s", 100 * series_median(share), limit);
    buffer_byte(out, '\n');
}

static void write_results(Buffer *out, const BenchWalk *bench, const BenchPlan *plan, const Results *r) {
    char what[48], cache[KV_FORMAT_NAME_MAX + 2] = "";
    if (plan->format_count) snprintf(cache, sizeof cache, " %s", r->format);
    if (r->pp.count) {
        snprintf(what, sizeof what, "  pp %-6d @ %d%s", plan->prompt, r->depth, cache);
        write_spread(out, what, "tok/s", &r->pp);
        buffer_printf(out, "  %.0f GOP/s", series_median(&r->pp) * (double)bench->operations * 1e-9);
        write_share(out, &r->pp_share, "the int8 peak");
        write_expected(out, "    expected: pp", r->expected_pp, &r->pp);
        write_peer(out, "    against: pp", &r->pp, &r->peer_pp);
    }
    if (r->tg.count) {
        snprintf(what, sizeof what, "  tg %-6d @ %d%s", plan->generate, r->depth, cache);
        write_spread(out, what, "tok/s", &r->tg);
        buffer_printf(out, "  %.1f GB/s", series_median(&r->tg) * (double)r->bytes * 1e-9);
        write_share(out, &r->tg_share, "the read limit");
        write_expected(out, "    expected: tg", r->expected_tg, &r->tg);
        write_peer(out, "    against: tg", &r->tg, &r->peer_tg);
        if (r->read.count)
            write_spread(out, "    read limit", "GB/s", &r->read);
        else
            buffer_text(out, "  ");
        buffer_printf(out, "  %.0f MB of weights and %.0f MB of KV cache per token, which took %.0f MB of memory\n",
            (double)bench->weight_bytes * 1e-6, (double)(r->bytes - bench->weight_bytes) * 1e-6,
            (double)r->kv_resident * 1e-6);
    }
}

static void write_experts(Buffer *out, ExpertProviderStats s) {
    const double wanted = (double)(s.hits + s.misses);
    buffer_printf(out,
        "  experts: %d of %d in %.2f GB, by %s; %.1f %% of %.0f were there, %.2f GB read at %.2f GB/s, waited %.2f s\n",
        s.slots, s.experts, (double)s.bytes * 1e-9, s.io, wanted > 0 ? 100 * (double)s.hits / wanted : 0, wanted,
        (double)s.read_bytes * 1e-9, s.read_s > 0 ? (double)s.read_bytes * 1e-9 / s.read_s : 0, s.stall_s);
}

static void write_table(Buffer *out, const BenchWalk *bench, const BenchPlan *plan, const Results *results) {
    uint64_t peak, anonymous;
    bench_memory(&peak, &anonymous);
    buffer_printf(out, "%s on %s; medians of %d rounds [smallest … largest]\n", plan->model,
        backend_describe(runner_backend(bench->walk.runner)), plan->rounds);
    buffer_printf(out, "  loaded in %.3f s; memory %.0f MB at most, %.0f MB of it our own (the rest is the files)\n",
        bench->load_s, (double)peak * 1e-6, (double)anonymous * 1e-6);
    for (int i = 0; i < results_count(plan); i++) write_results(out, bench, plan, &results[i]);
    ExpertProvider *source = model_experts(bench->walk.model);
    if (source) write_experts(out, source->stats(source));
    if (results[0].int8.count) write_spread(out, "  int8 peak", "GOP/s", &results[0].int8);
    buffer_printf(out, "  %.2f GOP per token\n", (double)bench->operations * 1e-9);
}

static bool measure(BenchWalk *bench, Machine *machine, const BenchPlan *plan, Results *results, Error *error) {
    const int formats = bench->walk.format_count;
    for (int i = 0; i < plan->depth_count; i++) {
        for (int round = 0; round < plan->rounds; round++) {
            for (int f = 0; f < formats; f++) {
                const int turn = round % 2 ? formats - 1 - f : f;
                Results *r = &results[i * formats + turn];
                r->depth = plan->depths[i];
                kv_format_name(&bench->walk.sequence[turn].format, r->format, sizeof r->format);
                walk_choose(&bench->walk, turn);
                if (!round_once(bench, machine, plan, r->depth, round, r, error)) return false;
            }
        }
    }
    return true;
}

static void score(const BenchPlan *plan, EnginePlan *fit, Results *results) {
    for (int i = 0; i < results_count(plan); i++) {
        Results *r = &results[i];
        r->expected_tg = bench_fit_decode(fit, plan, r->depth);
        r->expected_pp = bench_fit_prompt(fit, r->depth);
        if (fit->machine.disk.block_bytes == 0) continue;
        r->disk = disk_rate(&fit->machine.disk, fit->machine.disk.depth);
        r->disk_one = disk_rate(&fit->machine.disk, 1);
        for (int k = 0; k < fit->model.kind_count; k++)
            if (fit->model.kind[k].routed) r->routed += fit->model.kind[k].bytes;
    }
    bench_fit_keep(plan, fit, series_median(&results[0].tg), series_median(&results[0].pp));
}

bool bench_model(const BenchPlan *plan, Error *error) {
    Results *results = calloc((size_t)results_count(plan), sizeof *results);
    if (!results) return fail(error, ERROR_MEMORY, "no memory for the results");
    BenchWalk bench;
    Machine machine = {0};
    Buffer text = {0};
    EnginePlan fit;
    if (plan->fit && !bench_fit(plan, &fit, error)) {
        free(results);
        return false;
    }
    bool ok = bench_walk_open(&bench, plan, false, error) && bench_walk_machine(&bench, plan, &machine, error) &&
        measure(&bench, &machine, plan, results, error);
    if (ok && plan->fit) score(plan, &fit, results);
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
