/* --expert-faults: faults of expert reads, for tests. */
#pragma once
#include "base/error.h"

/* "fail:0.001,cut:0.1,hang:0.0001,slow:5,silence:500,seed:7", each of them or not, into an ExpertCacheFaults
 * (weights/expert_cache_io.h). An OptionReader. */
NODISCARD bool expert_faults_read(const char *text, void *faults, Error *error);
