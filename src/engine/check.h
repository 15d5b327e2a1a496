/* Ranges of the options of engines and requests, checked before anything else. False: ERROR_USAGE, which names value
 * and range. */
#pragma once
#include "engine/engine.h"

NODISCARD bool check_engine_options(const EngineOptions *options, Error *error);
/* All members except for the tokens of the prompt: check_token_ids(). */
NODISCARD bool check_request_options(const RequestOptions *options, int vocab, Error *error);
/* what: the field that holds the ids, for the error. */
NODISCARD bool check_token_ids(const int32_t *ids, int count, int vocab, const char *what, Error *error);
