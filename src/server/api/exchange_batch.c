#include "server/api/exchange_batch.h"

#include "server/api/cache_params.h"
#include "server/api/endpoint.h"
#include "server/http/deadlines.h"
#include "server/http/response.h"

static bool given_up(void *context, bool waits) {
    ExchangeBatch *b = context;
    return server_stopped(b->x->server) || deadlines_over(b->x, waits, &b->over) || response_client_gone(b->x);
}

void exchange_batch_init(ExchangeBatch *b, const Exchange *x, const Tokens *prompts, int count) {
    const CacheOptions cache = {0};
    *b = (ExchangeBatch){.x = x,
        .batch = {.prompts = prompts,
            .count = count,
            .cache_salt = cache_salt(&cache, x->key),
            .given_up = given_up,
            .context = b}};
}

bool exchange_batch_failed(const ExchangeBatch *b, const Error *why, ApiError *error) {
    if (!b->over.status) return api_engine_failed(error, why);
    *error = b->over;
    return false;
}
