/* What the plan expects of a run, beside which `apus bench --fit` sets what is measured. */
#include "cli/bench.h"
#include "library/library.h"

static EngineOptions options_of(const BenchPlan *plan) {
    int deepest = 0;
    for (int i = 0; i < plan->depth_count; i++) deepest = plan->depths[i] > deepest ? plan->depths[i] : deepest;
    return (EngineOptions){.directory = plan->directory,
        .model = {.context = deepest + (plan->prompt > plan->generate ? plan->prompt : plan->generate),
            .experts = plan->experts},
        .backend = plan->backend,
        .gpu_layers = plan->gpu_layers,
        .slots = 1,
        .prefill_size = plan->chunk,
        .calibrations = library_calibrations()};
}

bool bench_fit(const BenchPlan *plan, EnginePlan *out, Error *error) {
    const EngineOptions options = options_of(plan);
    if (!engine_plan(&options, PLAN_MEASURED, out, error)) return false;
    if (plan->prompt) out->request.prompt = plan->prompt;
    return true;
}

static Fit expected(const EnginePlan *fit, int depth) {
    FitRequest request = fit->request;
    Fit out;
    request.depth = depth;
    return fit_plan(&fit->machine, &fit->model, &request, &out, NULL) ? out : (Fit){0};
}

double bench_fit_decode(const EnginePlan *fit, const BenchPlan *plan, int depth) {
    return expected(fit, depth + plan->generate / 2).decode;
}

double bench_fit_prompt(const EnginePlan *fit, int depth) { return depth ? 0 : expected(fit, 0).prompt; }

void bench_fit_keep(const BenchPlan *plan, EnginePlan *fit, double decode, double prompt) {
    const EngineOptions options = options_of(plan);
    if (decode > 0) fit->machine.measured_decode = decode;
    if (prompt > 0) fit->machine.measured_prompt = prompt;
    engine_plan_keep(&options, fit);
}
