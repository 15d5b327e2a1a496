/* What Step.tokens holds: a token id, TOKEN_GIVEN, or a reference to a token that the step before samples
 * (token_from_output()). Shared with the kernels of devices. */
#pragma once
#include <stdint.h>

enum {
    TOKEN_GIVEN = -1,    /* the row has no token: a range of Step.embeddings covers it */
    TOKEN_OUTPUT_0 = -2, /* the token sampled for output 0 of the step before; output i: TOKEN_OUTPUT_0 − i */
};

static inline int32_t token_from_output(int output) { return TOKEN_OUTPUT_0 - output; }
/* The output that a token refers to; negative: it is a token id or TOKEN_GIVEN. */
static inline int token_output(int32_t token) { return TOKEN_OUTPUT_0 - token; }
