/* What the parts of `apus bench` share: the wish, series of measurements, and the machine measured beside them. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "backend/cpu/limits/limits.h"
#include "base/buffer.h"
#include "cli/walk.h"
#include "engine/fitting.h"
#include "text/tokenizer/tokenizer.h"

enum { SERIES_MAX = 1024, ROUNDS_MAX = 99, DEPTHS_MAX = 16 };

typedef struct BenchPlan {
    const char *model;     /* as the user calls it; NULL with --operations */
    const char *directory; /* checkpoint directory */
    BackendOptions backend;
    const char *against; /* a command, or NULL */
    const char *only;    /* which operations */
    const char *text;    /* file whose tokens are read instead of random ones; NULL: none */
    int prompt, generate, rounds, chunk, gpu_layers;
    int depths[DEPTHS_MAX], depth_count;
    KvFormat formats[WALK_FORMATS_MAX]; /* KV cache formats, measured in turn; none: full precision */
    int format_count;
    int streams[WALK_FORMATS_MAX], stream_count; /* sequences together, measured in turn */
    bool behind;                                 /* tokens are generated behind the prompt, not at the depth */
    bool json, fit;
    ExpertOptions experts;
} BenchPlan;

bool bench_model(const BenchPlan *plan, Error *error);                     /* bench_model.c: end to end */
bool bench_trace(const BenchPlan *plan, Error *error);                     /* bench_trace.c: operation by operation */
bool bench_operations(const BenchPlan *plan, Error *error);                /* bench_operations.c: without a model */
bool bench_streams(const BenchPlan *plan, Error *error);                   /* bench_streams.c: sequences together */
bool bench_quality(const BenchPlan *plan, const char *text, Error *error); /* bench_quality.c: formats against f16 */

/* ---- bench_machine.c ---- */

typedef struct Series {
    double value[SERIES_MAX];
    int count;
} Series;
void series_add(Series *series, double value); /* beyond SERIES_MAX: dropped */
/* 0: the smallest, 0.5: the median, 1: the largest; 0 when there is none. */
double series_at(const Series *series, double part);
/* ,"name":median,"name_min":…,"name_max":…; nothing of an empty one. */
void series_json(Buffer *out, const char *name, const Series *series);
static inline double series_median(const Series *series) { return series_at(series, 0.5); }

/* Limits of the machine, measured in the same seconds as the rest: the CPU with its own threads, or the GPUs' read
 * rate. Series without measurements are empty. */
typedef struct Machine {
    Pool *pool;
    LimitsMemory memory;
    const char *isa;
    BackendOptions gpu;     /* device NULL: it is not one */
    Series read, read_best; /* GB/s */
    Series int8, f32;       /* GOP/s, GFLOP/s */
    Series issue;           /* vector instructions, G/s */
} Machine;
NODISCARD bool machine_open(
    Machine *machine, int threads, const char *isa, const LimitsRange *ranges, int64_t count, Error *error);
void machine_close(Machine *machine);  /* safe on a zeroed one */
double machine_read(Machine *machine); /* GB/s now; 0: it is not measured */
void machine_peaks(Machine *machine);  /* int8, f32 and issue now */
void machine_forget(Machine *machine); /* begins new series */
/* Seconds that this much takes at least, by the medians; *by: what binds, "read", "int8" or "f32". */
double machine_floor(const Machine *machine, double bytes, double operations, bool integer, const char **by);

/* A scheduler group and priority of our own, and as many cores as threads. Before anything starts a thread. */
void bench_quiet(int threads);
/* popen(shell, "r") on all the cores that were ours to begin with. */
FILE *bench_popen(const char *shell);
/* Memory of this process in bytes; 0: unknown. */
void bench_memory(uint64_t *peak, uint64_t *anonymous);

/* ---- bench_walk.c: a model to measure ---- */

typedef struct BenchWalk {
    Walk walk;
    int chunk;
    int32_t *tokens; /* tokens of the plan's text, or random ones: as many as the longest sequence, and for as many
                        steps together */
    uint32_t random; /* what the next token is made of */
    float *logits;   /* logits of the last step */
    double *ended;   /* [generate] clock_seconds() of each step that generates */
    double load_s;
    int64_t kv_resident[WALK_FORMATS_MAX]; /* what our anonymous memory grew by as each sequence was filled */
    LimitsRange *ranges;                   /* what a generated token reads */
    int64_t range_count;
    uint64_t weight_bytes, operations; /* cost of one decode token */
} BenchWalk;
/* The tokens of a text file by the model's tokenizer, at least so many. */
NODISCARD bool bench_text(const BenchPlan *plan, const char *path, int least, Tokens *tokens, Error *error);
NODISCARD bool bench_walk_open(BenchWalk *bench, const BenchPlan *plan, bool trace, Error *error);
void bench_walk_close(BenchWalk *bench); /* safe on a zeroed one */
/* Where its weights are; no limits are those of layers on both sides. */
NODISCARD bool bench_walk_machine(const BenchWalk *bench, const BenchPlan *plan, Machine *machine, Error *error);
NODISCARD bool bench_walk_feed(BenchWalk *bench, int count, Error *error);
NODISCARD bool bench_walk_on(BenchWalk *bench, Error *error); /* by a token, as of an answer */
/* Steps of `count` sequences from `first` on (with one of a processor the chosen one). Tokens are random without
 * sampling; on a backend that samples they are its samples at this temperature, with one step of lookahead, as in the
 * engine. */
NODISCARD bool bench_walk_generate(BenchWalk *bench, int first, int count, int steps, float temperature, Error *error);
NODISCARD bool bench_walk_go(BenchWalk *bench, int depth, Error *error); /* to this length, forwards or back */
uint64_t bench_walk_kv_bytes(const BenchWalk *bench, int depth);         /* that a token reads of the cache there */

/* Expert cache counters of a streamed model (zero for others): current; difference to `before` added to a sum; as a
 * JSON member. */
ExpertProviderStats bench_experts_now(const BenchWalk *bench);
void bench_experts_count(const BenchWalk *bench, const ExpertProviderStats *before, ExpertProviderStats *sum);
void bench_experts_json(Buffer *out, const char *name, const ExpertProviderStats *stats);

/* ---- bench_fit.c: what was expected, of `apus bench --fit` ---- */

/* The plan of a run like this one, on a machine that is measured now. */
NODISCARD bool bench_fit(const BenchPlan *plan, EnginePlan *out, Error *error);
/* What it expects at a depth; 0: nothing. */
double bench_fit_decode(const EnginePlan *fit, const BenchPlan *plan, int depth);
double bench_fit_prompt(const EnginePlan *fit, int depth);
/* Keeps what was measured instead, for apus info. */
void bench_fit_keep(const BenchPlan *plan, EnginePlan *fit, double decode, double prompt);

/* {"model":…,"backend":…,"isa":…,"threads":…: how every object begins. */
void bench_walk_json(const BenchWalk *bench, const BenchPlan *plan, Buffer *out);
NODISCARD bool bench_print(const Buffer *text, Error *error);
/* text, then blanks up to a width in characters. */
void bench_pad(Buffer *out, const char *text, int width);

/* `apus bench matrix`; argv behind the word. Returns the exit code. */
int command_bench_matrix(int argc, char **argv);
/* `apus bench drafts`; the same. */
int command_bench_drafts(int argc, char **argv);
