/* What an engine and a request may be asked for: values in their ranges, before anything is done with them. False:
 * ERROR_USAGE that says what may be. */
#pragma once
#include "engine/engine.h"

NODISCARD bool check_engine_options(const EngineOptions *options, Error *error);
/* All but the prompt's tokens, which may be many. */
NODISCARD bool check_request_options(const RequestOptions *options, int vocab, Error *error);
/* what: whose ids they are. */
NODISCARD bool check_token_ids(const int32_t *ids, int count, int vocab, const char *what, Error *error);
