/* Single operations without a model: rounds over all lines, the limits measured again and again among them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/bench_cases.h"

enum {
    MEASURE_NS = 20000000, /* time per case and round */
    CALLS_MAX = 100000,
    LINES_PER_READ = 16, /* lines between two measurements of the read limit */
    NAME_WIDTH = 44,
    SPREAD_WIDTH = 26,
};

typedef struct Timing {
    int calls; /* calls per measurement */
    Series us; /* per call */
    Series of_limit;
} Timing;

typedef struct Operations {
    BenchFixture fixture;
    Machine machine;
    int count;
    BenchCase *bench_cases;
    Timing *timings;
} Operations;

/* Seconds that a call takes at least, by the limits measured last: to read its bytes, and to compute: to multiply, or
 * to issue what is counted of its instructions, whichever takes longer. */
typedef struct Roofline {
    double reading, computing;
    const char *unit; /* that computing waits for */
} Roofline;

static double latest(const Series *series) { return series->value[series->count - 1]; }
static double seconds_for(double amount, double giga_per_second) {
    return giga_per_second > 0 ? amount * 1e-9 / giga_per_second : 0;
}

static Roofline roofline(const Machine *machine, const BenchCase *bench_case) {
    const double multiplying = seconds_for(bench_case->operations + bench_case->besides,
                                   latest(bench_case->integer ? &machine->int8 : &machine->f32)) +
        seconds_for(bench_case->floats, latest(&machine->f32));
    const double issuing = seconds_for(bench_case->instructions, latest(&machine->issue));
    return (Roofline){seconds_for(bench_case->bytes, latest(&machine->read)), fmax(multiplying, issuing),
        issuing > multiplying     ? "issue"
            : bench_case->integer ? "int8"
                                  : "f32"};
}
static double floor_of(const Roofline *l) { return fmax(l->reading, l->computing); }
static const char *floor_by(const Roofline *l) { return l->reading >= l->computing ? "read" : l->unit; }

static void time_line(Operations *o, int i) {
    BenchCase *bench_case = &o->bench_cases[i];
    Timing *timing = &o->timings[i];
    if (!timing->calls) {
        bench_case->run(&o->fixture, bench_case, 1); /* touches what it needs */
        const int64_t calls = MEASURE_NS / (bench_case->run(&o->fixture, bench_case, 1) + 1) + 1;
        timing->calls = calls < CALLS_MAX ? (int)calls : CALLS_MAX;
    }
    const double seconds = (double)bench_case->run(&o->fixture, bench_case, timing->calls) * 1e-9 / timing->calls;
    const Roofline limits = roofline(&o->machine, bench_case);
    const double floor = floor_of(&limits);
    series_add(&timing->us, seconds * 1e6);
    if (floor > 0) series_add(&timing->of_limit, floor / seconds);
}

static void run_round(Operations *o) {
    machine_peaks(&o->machine);
    for (int i = 0; i < o->count; i++) {
        if (i % LINES_PER_READ == 0) machine_read(&o->machine);
        time_line(o, i);
    }
}

/* ---- output ---- */

static double rate(double amount, double us) { return us > 0 ? amount * 1e-3 / us : 0; }

/* Bytes and operations say how fast a line was; of weights in a cache only the operations are known to cost. */
static double line_bytes(const BenchCase *bench_case) {
    const Weight *w = &bench_case->weight;
    return bench_case->stay ? (double)weight_bytes(w) : bench_case->bytes;
}

static void write_rate(Buffer *out, int decimals, double value) {
    if (value > 0)
        buffer_printf(out, " %7.*f", decimals, value);
    else
        buffer_printf(out, " %7s", "");
}

static void write_table(Buffer *out, const Operations *o, const BenchPlan *plan) {
    const Machine *machine = &o->machine;
    buffer_printf(out, "%s; medians of %d rounds\n", backend_describe(o->fixture.backend), plan->rounds);
    buffer_printf(out,
        "limits of the same run: read %.1f GB/s [%.1f … %.1f], int8 %.0f GOP/s, f32 %.0f GFLOP/s, "
        "%.1f G vector instructions/s\n",
        series_median(&machine->read), series_at(&machine->read, 0), series_at(&machine->read, 1),
        series_median(&machine->int8), series_median(&machine->f32), series_median(&machine->issue));
    bench_pad(out, "operation", NAME_WIDTH);
    buffer_text(out, "       µs  [smallest … largest]         GB/s   GOP/s  of its limit\n");
    for (int i = 0; i < o->count; i++) {
        const BenchCase *bench_case = &o->bench_cases[i];
        const Timing *t = &o->timings[i];
        const double us = series_median(&t->us);
        char spread[48];
        const Roofline limits = roofline(machine, bench_case);
        snprintf(spread, sizeof spread, "[%.1f … %.1f]", series_at(&t->us, 0), series_at(&t->us, 1));
        bench_pad(out, bench_case->name, NAME_WIDTH);
        buffer_printf(out, " %9.1f ", us);
        bench_pad(out, spread, SPREAD_WIDTH);
        write_rate(out, 1, rate(line_bytes(bench_case), us));
        write_rate(out, 0, rate(bench_case->operations, us));
        if (t->of_limit.count) buffer_printf(out, " %5.0f %% %s", 100 * series_median(&t->of_limit), floor_by(&limits));
        if (bench_case->instructions > 0)
            buffer_printf(out, " (read %.1f µs, %s %.1f)", limits.reading * 1e6, limits.unit, limits.computing * 1e6);
        buffer_byte(out, '\n');
    }
}

static void write_json(Buffer *out, const Operations *o, const BenchPlan *plan) {
    const Machine *machine = &o->machine;
    buffer_text(out, "{\"backend\":");
    json_write_string(out, slice_of(backend_describe(o->fixture.backend)));
    buffer_printf(out, ",\"isa\":\"%s\",\"threads\":%d,\"rounds\":%d,\"memory_bytes\":%zu",
        o->fixture.backend->ops->name, plan->backend.threads, plan->rounds, o->fixture.bytes);
    buffer_printf(out, ",\"read_gbs\":%.3f,\"read_gbs_min\":%.3f,\"read_gbs_max\":%.3f", series_median(&machine->read),
        series_at(&machine->read, 0), series_at(&machine->read, 1));
    buffer_printf(out, ",\"int8_gops\":%.1f,\"f32_gflops\":%.1f,\"issue_gips\":%.1f,\"lines\":[",
        series_median(&machine->int8), series_median(&machine->f32), series_median(&machine->issue));
    for (int i = 0; i < o->count; i++) {
        const BenchCase *bench_case = &o->bench_cases[i];
        const Timing *t = &o->timings[i];
        const double us = series_median(&t->us);
        const Roofline limits = roofline(machine, bench_case);
        buffer_text(out, i ? ",{\"operation\":" : "{\"operation\":");
        json_write_string(out, slice_of(bench_case->name));
        buffer_printf(out, ",\"us\":%.4f,\"us_min\":%.4f,\"us_max\":%.4f,\"bytes\":%.0f,\"gbs\":%.3f", us,
            series_at(&t->us, 0), series_at(&t->us, 1), line_bytes(bench_case), rate(line_bytes(bench_case), us));
        buffer_printf(out, ",\"operations\":%.0f,\"gops\":%.2f,\"of_limit\":%.4f,\"limit\":\"%s\"",
            bench_case->operations, rate(bench_case->operations, us), series_median(&t->of_limit),
            t->of_limit.count ? floor_by(&limits) : "");
        buffer_printf(out, ",\"read_us\":%.4f,\"compute_us\":%.4f,\"compute_by\":\"%s\"}", limits.reading * 1e6,
            limits.computing * 1e6, limits.unit);
    }
    buffer_text(out, "]}\n");
}

static bool measure(Operations *o, const BenchPlan *plan, Error *error) {
    if (!bench_fixture_open(&o->fixture, plan, error)) return false;
    o->count = bench_cases_list(&o->fixture, plan->only, o->bench_cases);
    if (!o->count) return fail(error, ERROR_USAGE, "--only %s: no operation is called so", plan->only);
    if (!bench_fixture_fill(&o->fixture, error)) return false;
    const LimitsRange range = {o->fixture.memory, o->fixture.bytes};
    if (!machine_open(&o->machine, plan->backend.threads, o->fixture.backend->ops->name, &range, 1, error))
        return false;
    for (int round = 0; round < plan->rounds; round++) run_round(o);
    return true;
}

bool bench_operations(const BenchPlan *plan, Error *error) {
    Operations o = {
        .bench_cases = calloc(LINES_MAX, sizeof *o.bench_cases), .timings = calloc(LINES_MAX, sizeof *o.timings)};
    Buffer text = {0};
    bool ok =
        o.bench_cases && o.timings ? measure(&o, plan, error) : fail(error, ERROR_MEMORY, "no memory for the lines");
    if (ok) {
        (plan->json ? write_json : write_table)(&text, &o, plan);
        ok = bench_print(&text, error);
    }
    buffer_free(&text);
    machine_close(&o.machine);
    bench_fixture_close(&o.fixture);
    free(o.bench_cases);
    free(o.timings);
    return ok;
}
