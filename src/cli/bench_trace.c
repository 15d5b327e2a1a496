/* Where the time of a step goes: each operation's time, what it reads and computes, and the least that this takes on
 * the machine as measured right before and after. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "backend/trace.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/bench.h"

enum { NAME_WIDTH = 44 };
static const char between[] = "(decoder, between the operations)";

/* One kind of operation over all steps at one depth. */
typedef struct Row {
    Series us, bytes, operations, calls; /* per step */
} Row;

typedef struct Trace {
    Row rows[TRACE_LINES_MAX];
    Row between, step;
    Machine machine;
} Trace;

static bool trace_step(BenchWalk *bench, int tokens, Trace *trace, Error *error) {
    const int64_t start = clock_ns();
    if (!(tokens > 1 ? bench_walk_feed(bench, tokens, error) : bench_walk_on(bench, error))) return false;
    const double step_us = (double)(clock_ns() - start) * 1e-3;
    int count;
    const TraceLine *bench_cases = trace_lines(runner_backend(bench->walk.runner), &count);
    double inside_us = 0, bytes = 0, operations = 0;
    for (int i = 0; i < count; i++) {
        if (!bench_cases[i].calls) continue;
        Row *row = &trace->rows[i];
        series_add(&row->us, (double)bench_cases[i].ns * 1e-3);
        series_add(&row->bytes, (double)bench_cases[i].bytes);
        series_add(&row->operations, (double)bench_cases[i].operations);
        series_add(&row->calls, bench_cases[i].calls);
        inside_us += (double)bench_cases[i].ns * 1e-3;
        bytes += (double)bench_cases[i].bytes;
        operations += (double)bench_cases[i].operations;
    }
    series_add(&trace->between.us, step_us - inside_us);
    series_add(&trace->step.us, step_us);
    series_add(&trace->step.bytes, bytes);
    series_add(&trace->step.operations, operations);
    return true;
}

/* The steps of a prompt have its positions; those of generated tokens follow one another. */
static bool trace_round(BenchWalk *bench, const BenchPlan *plan, int depth, Trace *trace, Error *error) {
    const bool generate = plan->generate > 0;
    const int tokens = generate ? plan->generate : plan->prompt;
    if (!bench_walk_go(bench, depth, error)) return false;
    machine_peaks(&trace->machine);
    machine_read(&trace->machine);
    for (int done = 0; done < tokens;) {
        const int left = tokens - done, step = generate ? 1 : left < plan->chunk ? left : plan->chunk;
        if (!trace_step(bench, step, trace, error)) return false;
        done += step;
    }
    machine_read(&trace->machine);
    return true;
}

/* ---- output ---- */

typedef struct Figures {
    double calls, us, bytes, operations, floor_us;
    const char *by;
} Figures;

static Figures figures_of(const Trace *trace, const Row *row, bool integer) {
    Figures f = {series_median(&row->calls), series_median(&row->us), series_median(&row->bytes),
        series_median(&row->operations), 0, ""};
    f.floor_us = 1e6 * machine_floor(&trace->machine, f.bytes, f.operations, integer, &f.by);
    return f;
}

static int step_tokens(const BenchPlan *plan) {
    if (plan->generate) return 1;
    return plan->prompt < plan->chunk ? plan->prompt : plan->chunk;
}

static double rate(double amount, double us) { return us > 0 ? amount * 1e-3 / us : 0; }

static void write_row(Buffer *out, const char *name, const Figures *f, double step_us) {
    bench_pad(out, name, NAME_WIDTH);
    buffer_printf(out, " %6.0f %10.1f %6.1f", f->calls, f->us, 100 * f->us / step_us);
    if (f->bytes > 0)
        buffer_printf(out, " %9.2f %7.1f", f->bytes * 1e-6, rate(f->bytes, f->us));
    else
        buffer_printf(out, " %9s %7s", "", "");
    if (f->operations > 0)
        buffer_printf(out, " %7.0f", rate(f->operations, f->us));
    else
        buffer_printf(out, " %7s", "");
    if (f->floor_us > 0) buffer_printf(out, " %10.1f %5.0f %% %s", f->floor_us, 100 * f->floor_us / f->us, f->by);
    buffer_byte(out, '\n');
}

/* The lower bound of a step is the sum of its operations' bounds. */
static Figures step_figures(const Trace *trace, double floor_us) {
    Figures f = figures_of(trace, &trace->step, true);
    f.floor_us = floor_us;
    f.by = "";
    return f;
}

static void write_table(Buffer *out, const BenchWalk *bench, const BenchPlan *plan, int depth, const Trace *trace) {
    const Machine *machine = &trace->machine;
    int count;
    const TraceLine *bench_cases = trace_lines(runner_backend(bench->walk.runner), &count);
    const double step_us = series_median(&trace->step.us);
    buffer_printf(out, "%s on %s: a step of %d token%s at depth %d, medians of %d steps\n", plan->model,
        backend_describe(runner_backend(bench->walk.runner)), step_tokens(plan), step_tokens(plan) == 1 ? "" : "s",
        depth, trace->step.us.count);
    if (machine->read.count)
        buffer_printf(out, "limits of the same seconds: read %.1f GB/s [%.1f … %.1f]", series_median(&machine->read),
            series_at(&machine->read, 0), series_at(&machine->read, 1));
    if (machine->int8.count)
        buffer_printf(
            out, ", int8 %.0f GOP/s, f32 %.0f GFLOP/s", series_median(&machine->int8), series_median(&machine->f32));
    buffer_text(out, machine->read.count ? "\n" : "");
    bench_pad(out, "operation", NAME_WIDTH);
    buffer_text(out, "  calls    µs/step % step   MB read    GB/s   GOP/s   floor µs  of its limit\n");
    double floor_us = 0;
    for (int i = 0; i < count; i++) {
        const Figures f = figures_of(trace, &trace->rows[i], bench_cases[i].integer);
        if (f.calls == 0) continue;
        write_row(out, bench_cases[i].name, &f, step_us);
        floor_us += f.floor_us;
    }
    const Figures rest = figures_of(trace, &trace->between, false), step = step_figures(trace, floor_us);
    write_row(out, between, &rest, step_us);
    write_row(out, "step", &step, step_us);
}

static void write_json_row(Buffer *out, const char *name, const Figures *f, double step_us) {
    buffer_text(out, "{\"operation\":");
    json_write_string(out, slice_of(name));
    buffer_printf(out, ",\"calls\":%.0f,\"us\":%.3f,\"share\":%.5f,\"bytes\":%.0f,\"gbs\":%.3f,\"operations\":%.0f",
        f->calls, f->us, f->us / step_us, f->bytes, rate(f->bytes, f->us), f->operations);
    buffer_printf(out, ",\"gops\":%.2f,\"floor_us\":%.3f,\"of_limit\":%.4f,\"limit\":\"%s\"}",
        rate(f->operations, f->us), f->floor_us, f->us > 0 ? f->floor_us / f->us : 0, f->by);
}

static void write_json(Buffer *out, const BenchWalk *bench, const BenchPlan *plan, int depth, const Trace *trace) {
    const Machine *machine = &trace->machine;
    int count;
    const TraceLine *bench_cases = trace_lines(runner_backend(bench->walk.runner), &count);
    const double step_us = series_median(&trace->step.us);
    bench_walk_json(bench, plan, out);
    buffer_printf(out, ",\"tokens\":%d,\"depth\":%d,\"steps\":%d", step_tokens(plan), depth, trace->step.us.count);
    series_json(out, "read_gbs", &machine->read);
    series_json(out, "int8_gops", &machine->int8);
    series_json(out, "f32_gflops", &machine->f32);
    buffer_text(out, ",\"lines\":[");
    double floor_us = 0;
    for (int i = 0; i < count; i++) {
        const Figures f = figures_of(trace, &trace->rows[i], bench_cases[i].integer);
        if (f.calls == 0) continue;
        write_json_row(out, bench_cases[i].name, &f, step_us);
        buffer_byte(out, ',');
        floor_us += f.floor_us;
    }
    const Figures rest = figures_of(trace, &trace->between, false), step = step_figures(trace, floor_us);
    write_json_row(out, between, &rest, step_us);
    buffer_text(out, "],\"step\":");
    write_json_row(out, "step", &step, step_us);
    buffer_text(out, "}\n");
}

static bool trace_depths(BenchWalk *bench, const BenchPlan *plan, Buffer *out, Error *error) {
    bool ok = true;
    for (int i = 0; ok && i < plan->depth_count; i++) {
        Trace *trace = calloc(1, sizeof *trace);
        if (!trace) return fail(error, ERROR_MEMORY, "no memory for the trace");
        ok = bench_walk_machine(bench, plan, &trace->machine, error);
        for (int round = 0; ok && round < plan->rounds; round++)
            ok = trace_round(bench, plan, plan->depths[i], trace, error);
        if (ok && i && !plan->json) buffer_byte(out, '\n');
        if (ok) (plan->json ? write_json : write_table)(out, bench, plan, plan->depths[i], trace);
        machine_close(&trace->machine);
        free(trace);
    }
    return ok;
}

bool bench_trace(const BenchPlan *plan, Error *error) {
    BenchWalk bench;
    Buffer text = {0};
    const bool ok = bench_walk_open(&bench, plan, true, error) && trace_depths(&bench, plan, &text, error) &&
        bench_print(&text, error);
    buffer_free(&text);
    bench_walk_close(&bench);
    return ok;
}
