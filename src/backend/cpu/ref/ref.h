/* backend/cpu/ref/: the reference backend: f32 throughout, the specification of every operation. */
#pragma once
#include "backend/backend.h"

NODISCARD Backend *ref_open(const BackendOptions *options, Error *error);
