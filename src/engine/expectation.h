/* What a plan (engine/fitting.h) says about a model in few words: whether it fits this machine, and how fast it is. */
#pragma once
#include "engine/fitting.h"

typedef enum ExpectedFit {
    EXPECTED_FITS,      /* weights, work areas and the KV cache of one whole context take at most EXPECTED_PERCENT */
    EXPECTED_TIGHT,     /* it runs, with less room for the cache or for other programs */
    EXPECTED_STREAMED,  /* experts are read from the disk as tokens need them */
    EXPECTED_TOO_LARGE, /* not even its floor fits */
} ExpectedFit;

/* Share of the memory up to which a model fits with room to spare. */
enum { EXPECTED_PERCENT = 75 };

typedef struct Expectation {
    ExpectedFit fit;       /* with the memory that this model would have alone */
    ExpectedFit now;       /* with the memory that is free now */
    uint64_t weight_bytes; /* all weights */
    uint64_t needed_bytes; /* weights, work areas, KV cache of one whole context */
    uint64_t floor_bytes;  /* the least with which it runs */
    uint64_t memory_bytes; /* free now */
    uint64_t alone_bytes;  /* free if no other model were loaded */
    uint64_t kv_bytes;     /* KV cache that the plan gives it now; 0: it is too large */
    int experts, held;     /* routed experts, and those that the plan now keeps in memory */
    int context;           /* tokens */
    double decode, prompt; /* tok/s; 0: nothing was measured */
    bool measured;         /* the speeds follow from measurements with weights of this very model */
} Expectation;

/* Plans as engine_fit() would with these options, without reading weights and without measuring: directory may be an
 * outline (hub_outline()). held_bytes: what models that are loaded would give back. A model that is too large is no
 * error. */
NODISCARD bool engine_expect(const EngineOptions *options, uint64_t held_bytes, Expectation *out, Error *error);
/* The same of a model of which only the size of its weights is known. */
void engine_expect_size(const EngineOptions *options, uint64_t weight_bytes, uint64_t held_bytes, Expectation *out);

/* Whether this machine was measured with weights of usual kinds, from which engine_expect() takes what was not measured
 * with a model. */
bool engine_machine_known(const EngineOptions *options);
/* Measures that in about a second, with all threads of the options, and keeps it. path: a large file on the disk of the
 * models; NULL: the disk stays unmeasured. */
NODISCARD bool engine_machine_measure(const EngineOptions *options, const char *path, Error *error);

/* These functions for programs whose engine may be another one, such as tests of the server. */
typedef struct ModelPlanner {
    bool (*expect)(const EngineOptions *options, uint64_t held_bytes, Expectation *out, Error *error);
    void (*expect_size)(const EngineOptions *options, uint64_t weight_bytes, uint64_t held_bytes, Expectation *out);
    bool (*machine_known)(const EngineOptions *options);
    bool (*machine_measure)(const EngineOptions *options, const char *path, Error *error);
} ModelPlanner;
extern const ModelPlanner engine_planner;
