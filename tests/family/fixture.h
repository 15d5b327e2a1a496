/* The golden checkpoints of tools/oracle: reads tests/family/data/NAME.json, makes the weights by the same
 * formula, writes config.json and model.safetensors into a directory of their own, and walks a model over the tokens.
 * Failures are counted by TEST. */
#pragma once
#include "base/json.h"
#include "model/runner.h"
#include "model/step_builder.h"
#include "tensor/safetensors.h"
#include "test.h"

#define FIXTURE_DATA "tests/family/data"

enum { FIXTURE_TENSORS_MAX = 512, FIXTURE_TOKENS_MAX = 512, FIXTURE_CPUS = 7 };

/* ---- reading ---- */

typedef struct Fixture {
    char name[64];
    Arena arena;
    Buffer text, golden_bytes;
    const Json *root, *variants;
    int vocab, count, steps;
    int32_t tokens[FIXTURE_TOKENS_MAX];
} Fixture;

bool fixture_open(Fixture *f, const char *name);
void fixture_close(Fixture *f);
const Json *fixture_variant(const Fixture *f, int variant);
const float *fixture_golden(const Fixture *f, int variant); /* logits [count, vocab] */
/* Names of all fixtures, in the order of the folder's entries; returns how many. */
enum { FIXTURE_NAMES_MAX = 512 };
int fixture_names(char names[][64], int capacity);

/* ---- writing ---- */

typedef struct FixtureFile {
    int count;
    int stacked; /* the matrix that is being added is a stack of so many dimensions; 0: it is not */
    int64_t stack[TENSOR_RANK_MAX - 2];
    TensorHeader header[FIXTURE_TENSORS_MAX];
    void *bytes[FIXTURE_TENSORS_MAX];
    size_t size[FIXTURE_TENSORS_MAX];
} FixtureFile;

/* The values of a tensor by the formula, allocated with malloc. */
float *fixture_values(
    const char *name, int rank, int64_t rows, int64_t cols, double norm_offset, double embedding_range);
/* Owns bytes (malloc). */
void fixture_add(
    Fixture *f, FixtureFile *out, const char *name, DType dtype, int rank, int64_t rows, int64_t cols, void *bytes);
/* Without the sync of file_write_atomic: some tests write thousands. */
bool fixture_write_text(const char *directory, const char *name, Slice text);
void fixture_config(const Fixture *f, int variant, Buffer *out); /* config.json of a variant */
FixtureFile *fixture_tensors(Fixture *f, int variant);           /* freed by fixture_write() */
/* A checkpoint in a new directory, whose path goes to directory. Frees file. */
bool fixture_write(FixtureFile *file, Slice config, char directory[64]);
bool fixture_write_variant(Fixture *f, int variant, char directory[64]);
void fixture_remove(const char *directory);

/* ---- running ---- */

/* Backends to try; those that the machine or the build lacks are skipped. "ref" is everywhere, and so is "fence": ref
 * behind backend/fence.h, except under sanitizers (""), which prove the same. "generated", which is none of them: the
 * best CPU backend behind backend/generated.h. */
extern const char *const fixture_cpus[FIXTURE_CPUS];
BackendOptions fixture_backend(const char *cpu, int threads, int rows_max);
bool fixture_cpu_here(const char *cpu);
bool fixture_cpu_due(const char *cpu); /* here, and not "ref" where a sample is enough: "fence" runs the same code */
/* Whether case `number` of a test runs on fixture_cpus[index]: in a sample the vector instruction sets take turns. */
bool fixture_case_due(size_t number, size_t index);

/* A model and its runner, both owned. */
typedef struct FixtureRun {
    Model *model;
    Runner *runner;
    int vocab;
} FixtureRun;

void fixture_run_close(FixtureRun *run);
/* False with the error: neither is open. */
bool fixture_run_try(
    FixtureRun *run, const char *directory, const ModelOptions *model, const RunnerOptions *options, Error *error);
/* Whether the error says that a device lacks an operation, which it names. The processor has them all. */
bool fixture_lacking(const RunnerOptions *options, const Error *error);
/* False where it is lacking or, counted as a failure, where it cannot be opened. */
bool fixture_run_open(FixtureRun *run, const char *directory, const ModelOptions *model, const RunnerOptions *options);

/* Room for steps of up to `rows` rows, all with outputs. Aborts without memory. */
void fixture_builder(StepBuilder *builder, int rows);
/* One step of a single sequence; rows, kv and the outputs, which all rows have, are filled in. logits: [rows, vocab].
 */
bool fixture_step_of(
    Runner *runner, KvCache *cache, KvSequence *s, int rows, const StepSequence *of, float *logits, Error *error);
bool fixture_step(
    Runner *runner, KvCache *cache, KvSequence *s, const int32_t *tokens, int rows, float *logits, Error *error);
/* All tokens in steps of `chunk`, the last `steps` of them singly, as an answer's. logits: [count, vocab]. */
bool fixture_walk(Runner *runner, const int32_t *tokens, int count, int chunk, int steps, float *logits);
