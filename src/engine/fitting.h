/* The plan for a model and this machine (fit/fit.h), made before the model is opened. */
#pragma once
#include "engine/engine.h"
#include "fit/fit.h"

typedef struct EnginePlan {
    FitModel model;
    FitMachine machine;
    FitRequest request;
    Fit fit;
    char backend[BACKEND_DESCRIPTION_MAX];
} EnginePlan;

typedef enum PlanSource {
    PLAN_KNOWN,   /* what was measured before; anew only where experts are streamed and nothing is known of the disk */
    PLAN_MEASURED /* anew, and kept */
} PlanSource;

/* Looks at the model of the options, of which no weight is read, and at the memory of their device. ERROR_MEMORY, with
 * the floor, when it does not fit. */
NODISCARD bool engine_plan(const EngineOptions *options, PlanSource source, EnginePlan *out, Error *error);
/* Keeps what was measured end to end beside the plan's machine; a failure is logged. */
void engine_plan_keep(const EngineOptions *options, const EnginePlan *plan);
/* Makes the plan, logs it, and has the options say what it chose where they left a choice: whether experts are
 * streamed, the cache's memory, tokens per step, which layers a GPU has (a device that is to have all of them anyway
 * needs no plan). Without an explicit limit, a model that does not fit is a warning only. */
NODISCARD bool engine_fit(EngineOptions *options, Error *error);
