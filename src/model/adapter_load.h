/* Reads the LoRA adapters of a model. */
#pragma once
#include "model/adapter.h"
#include "model/model_internal.h"

/* Gives the matrices of the model's Spec their updates, and the Spec its list of adapters. After the weights were
 * placed. Errors name the adapter and what it has that does not fit this model: ERROR_FORMAT for shapes,
 * ERROR_UNSUPPORTED for kinds of adapters and matrices, ERROR_NOT_FOUND for files. */
NODISCARD bool adapters_load(Model *model, const AdapterSource *sources, int count, Error *error);
