#include "cli/bench.h"
bool bench_operations(const BenchPlan *plan, Error *error) { return fail(error, ERROR_UNSUPPORTED, "not yet"); }
