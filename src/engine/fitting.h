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
    bool recalled; /* the machine is the calibration of this model */
} EnginePlan;

typedef enum PlanSource {
    PLAN_KNOWN,    /* from the calibration; measures only if experts are streamed and the disk was not measured */
    PLAN_MEASURED, /* measures, and keeps the calibration */
    PLAN_TYPICAL   /* never measures: what was not measured with this model is taken from measurements with weights of
                      usual kinds (fit_transfer()), if there are any; weights may be absent (hub_outline()) */
} PlanSource;

/* Plans from the model's headers, without reading weights, and the free memory of the device. ERROR_MEMORY, with the
 * floor, if the model does not fit; *out then has the model, the machine, and the budget and the floor of the fit. */
NODISCARD bool engine_plan(const EngineOptions *options, PlanSource source, EnginePlan *out, Error *error);
/* Key of the calibration with weights of usual kinds. backend: memory for a part of it. */
NODISCARD bool engine_typical_key(
    const EngineOptions *options, char backend[BACKEND_DESCRIPTION_MAX], CalibrationKey *out, Error *error);
/* Keeps the plan's machine, with its end-to-end measurements, as the calibration; a failure is logged. */
void engine_plan_keep(const EngineOptions *options, const EnginePlan *plan);
/* Plans, logs the plan, and sets the options that are left open: streamed experts, bytes of the KV cache, prefill size,
 * layers on the GPU. Without a plan if all layers are on a device. Without an explicit limit, a model that does not fit
 * is only a warning. */
NODISCARD bool engine_fit(EngineOptions *options, Error *error);
