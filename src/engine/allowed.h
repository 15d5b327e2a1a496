/* Which tokens a choice may draw next: its constraint's mask, without end tokens as long as they are ignored or come
 * too soon. */
#pragma once
#include "engine/request.h"

typedef struct EndTokens {
    const int32_t *ids;
    int count;
} EndTokens;

/* Brings choice->allowed and its mask up to the token drawn last. False: the constraint failed. */
NODISCARD bool allowed_update(Request *request, AnswerChoice *choice, int vocab, EndTokens ends, Error *error);
