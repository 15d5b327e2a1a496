#include "server/admin/hub_search.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "hub/hub.h"
#include "server/http/body.h"
#include "server/http/response.h"

enum { QUERY_BYTES_MAX = 256, LIMIT_MAX = 100, LIMIT_DEFAULT = 30 };

typedef struct Search {
    char query[QUERY_BYTES_MAX];
    HubOrder order;
    int64_t limit;
} Search;

static bool read_order(Slice name, HubOrder *order, ApiError *error) {
    static const char *const names[] = {"downloads", "likes", "trending", "updated"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!slice_is(name, names[i])) continue;
        *order = (HubOrder)i;
        return true;
    }
    return api_fail(error, 400, "invalid_value", "sort", "Invalid 'sort': want downloads, likes, trending or updated.");
}

static bool read_search(const Exchange *x, Search *search, ApiError *error) {
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    const Json *body = body_object(x, &arena, error);
    Slice query = {0}, sort = slice_of("downloads");
    search->limit = LIMIT_DEFAULT;
    bool ok = body != NULL;
    if (ok) {
        for (JSON_EACH_PAIR(key, value, body)) {
            const Slice name = json_slice(key);
            if (!ok) break;
            if (value->type == JSON_NULL) continue;
            if (slice_is(name, "query"))
                ok = api_string(value, "query", &query, error);
            else if (slice_is(name, "sort"))
                ok = api_string(value, "sort", &sort, error);
            else if (slice_is(name, "limit"))
                ok = api_integer(value, "limit", 1, LIMIT_MAX, &search->limit, error);
            else
                ok = api_fail(error, 400, "unknown_parameter", "", "Unknown parameter: '%.*s'.",
                    name.size < 64 ? (int)name.size : 64, name.data);
        }
    }
    ok = ok && read_order(sort, &search->order, error);
    if (ok && !query.size) ok = api_missing("query", error);
    if (ok && (query.size >= sizeof search->query || memchr(query.data, 0, query.size)))
        ok = api_fail(error, 400, "invalid_value", "query", "Invalid 'query': want at most %d bytes without a NUL.",
            QUERY_BYTES_MAX - 1);
    if (ok) memcpy(search->query, query.data, query.size);
    if (ok) search->query[query.size] = '\0';
    arena_free(&arena);
    return ok;
}

static void write_hit(const HubHit *hit, Buffer *out) {
    buffer_text(out, "{\"id\":");
    json_write_string(out, slice_of(hit->name));
    buffer_printf(out,
        ",\"object\":\"hub_model\",\"parameters\":%" PRId64 ",\"bytes\":%" PRId64 ",\"downloads\":%" PRId64
        ",\"likes\":%" PRId64 ",\"gated\":%s,\"gguf\":%s,\"mlx\":%s,\"updated\":",
        hit->parameters, hit->bytes, hit->downloads, hit->likes, hit->gated ? "true" : "false",
        hit->gguf ? "true" : "false", hit->mlx ? "true" : "false");
    if (hit->updated)
        json_write_string(out, slice_of(hit->updated));
    else
        buffer_text(out, "null");
    buffer_byte(out, '}');
}

bool answer_hub_search(Exchange *x, Slice rest) {
    ApiError error = {0};
    Error why = {0};
    Search search;
    HubSettings settings;
    HubHits hits;
    if (!x->server->options.allow_pull) {
        api_fail(
            &error, 403, "pull_not_allowed", NULL, "This server does not search the hub; start it with --allow-pull.");
        return response_error(x, &error);
    }
    if (!read_search(x, &search, &error)) return response_error(x, &error);
    bool ok = hub_settings_read(&settings, &why);
    if (ok) {
        ok = hub_search(&settings, search.query, search.order, (int)search.limit, &hits, &why);
        hub_settings_free(&settings);
    }
    if (!ok) {
        log_warn("search of the hub: %s", why.text);
        api_fail(&error, 503, "hub_failed", NULL, "%s.", why.text);
        return response_error(x, &error);
    }
    Buffer body = {0};
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < hits.count; i++) {
        if (i) buffer_byte(&body, ',');
        write_hit(&hits.hits[i], &body);
    }
    buffer_text(&body, "]}");
    hub_hits_free(&hits);
    return response_json(x, 200, &body);
}
