/* Whether models fit this machine, those of it and those of the hub. Threads: any; a measurement takes all threads. */
#pragma once
#include "engine/expectation.h"
#include "library/outline.h"

/* "fits", "tight", "streams" or "too_large". */
const char *expected_name(ExpectedFit fit);

/* Measures the machine with the options' threads, about a second, and keeps that; nothing where it is known. A failure
 * is a warning in the log. */
void expected_measure(const ModelPlanner *planner, const EngineOptions *options);

/* Plans a model; options->directory is ignored. held_bytes: as for engine_expect(). A model that is too large is no
 * error. */
NODISCARD bool expected_of(const ModelPlanner *planner, const EngineOptions *options, const ModelOutline *outline,
    uint64_t held_bytes, Expectation *out, Error *error);
