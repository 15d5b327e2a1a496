/* Requests of the Responses API. */
#pragma once
#include "server/api/params.h"

/* As params_read_chat; request->echo becomes what the response repeats of its request. */
NODISCARD bool responses_read(ApiRequest *request, const Json *body, ApiError *error);
