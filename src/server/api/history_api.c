#include "server/api/history_api.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "history/history.h"
#include "server/http/body.h"
#include "server/http/query.h"
#include "server/http/response.h"

enum { ITEMS_MAX = 1000, LIMIT_DEFAULT = 200 };

static bool is_on(Exchange *x, ApiError *error) {
    return x->server->history ||
        api_fail(error, 404, "history_off", NULL, "This server keeps no history; start it with --history DIR.");
}

static bool explain(const Error *why, ApiError *error) {
    if (why->code == ERROR_LIMIT) return api_fail(error, 507, "history_full", NULL, "%s.", why->text);
    log_error("%s", why->text);
    return api_fail(error, 503, "history_failed", NULL, "The history cannot be used; the server's log says why.");
}

static bool respond(Exchange *x, int64_t latest) {
    Buffer body = {0};
    buffer_printf(&body, "{\"object\":\"history\",\"id\":\"%s\",\"latest\":%" PRId64 "}",
        history_name(x->server->history), latest);
    return response_json(x, 200, &body);
}

bool answer_history(Exchange *x, Slice rest) {
    ApiError error = {0};
    Error why = {0};
    int64_t latest;
    if (!is_on(x, &error)) return response_error(x, &error);
    if (history_latest(x->server->history, &latest, &why)) return respond(x, latest);
    explain(&why, &error);
    return response_error(x, &error);
}

bool answer_history_changes(Exchange *x, Slice rest) {
    ApiError error = {0};
    Error why = {0};
    Buffer body = {0};
    int64_t after, limit, last;
    bool more;
    if (!is_on(x, &error) || !query_number(x, "after", 0, &after, &error) ||
        !query_number(x, "limit", LIMIT_DEFAULT, &limit, &error))
        return response_error(x, &error);
    if (limit < 1 || limit > ITEMS_MAX) limit = ITEMS_MAX;
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    if (!history_changes(x->server->history, after, (int)limit, &body, &last, &more, &why)) {
        buffer_free(&body);
        explain(&why, &error);
        return response_error(x, &error);
    }
    buffer_printf(&body, "],\"id\":\"%s\",\"last\":%" PRId64 ",\"more\":%s}", history_name(x->server->history), last,
        more ? "true" : "false");
    return response_json(x, 200, &body);
}

/* ---- storing ---- */

static bool check_text(Slice text, const char *name, ApiError *error) {
    return (text.size > 0 && text.size <= HISTORY_ID_MAX && !memchr(text.data, 0, text.size)) ||
        api_fail(
            error, 400, "invalid_value", name, "Invalid '%s': want 1 to %d bytes without a NUL.", name, HISTORY_ID_MAX);
}

static bool read_kind(Slice name, HistoryKind *kind, ApiError *error) {
    *kind = slice_is(name, "message") ? HISTORY_MESSAGE : HISTORY_CHAT;
    return *kind == HISTORY_MESSAGE || slice_is(name, "chat") ||
        api_fail(error, 400, "invalid_value", "kind", "Invalid 'kind': want chat or message.");
}

/* The value as its JSON is written here, in the arena. */
static bool read_value(const Json *value, Arena *arena, Slice *out, ApiError *error) {
    Buffer text = {.limit = HISTORY_VALUE_BYTES_MAX};
    if (!api_type(value, JSON_OBJECT, "value", error)) return false;
    json_write(&text, value);
    bool ok = !text.failed ||
        (text.limited ? api_fail(error, 413, "item_too_large", "value", "A value has more than %d bytes.",
                            HISTORY_VALUE_BYTES_MAX)
                      : api_out_of_memory(error));
    if (ok) {
        *out = (Slice){arena_copy(arena, buffer_view(&text)), text.size};
        ok = out->data || api_out_of_memory(error);
    }
    buffer_free(&text);
    return ok;
}

static bool read_item(const Json *object, Arena *arena, HistoryItem *item, ApiError *error) {
    Slice kind = {0};
    const Json *value = NULL;
    *item = (HistoryItem){0};
    if (!api_type(object, JSON_OBJECT, "items", error)) return false;
    for (JSON_EACH_PAIR(key, member, object)) {
        const Slice name = json_slice(key);
        bool ok = true;
        if (slice_is(name, "kind"))
            ok = api_string(member, "kind", &kind, error);
        else if (slice_is(name, "id"))
            ok = api_string(member, "id", &item->id, error);
        else if (slice_is(name, "chat"))
            ok = api_string(member, "chat", &item->chat, error);
        else if (slice_is(name, "updated"))
            ok = api_integer(member, "updated", 0, INT64_MAX, &item->updated_ms, error);
        else if (slice_is(name, "removed"))
            ok = api_bool(member, "removed", &item->removed, error);
        else if (slice_is(name, "value"))
            value = member;
        else
            ok = api_fail(error, 400, "unknown_parameter", "", "Unknown parameter: '%.*s'.",
                name.size < 64 ? (int)name.size : 64, name.data);
        if (!ok) return false;
    }
    if (!read_kind(kind, &item->kind, error) || !check_text(item->id, "id", error)) return false;
    if (item->kind == HISTORY_CHAT) item->chat = item->id;
    if (!check_text(item->chat, "chat", error)) return false;
    if (item->removed) return true;
    if (!value) return api_missing("value", error);
    return read_value(value, arena, &item->value, error);
}

static const Json *read_items(const Exchange *x, Arena *arena, ApiError *error) {
    const Json *body = body_object(x, arena, error), *items = json_get(body, "items");
    if (!body) return NULL;
    if (!items) return api_missing("items", error), NULL;
    if (!api_type(items, JSON_ARRAY, "items", error)) return NULL;
    if (items->size <= ITEMS_MAX) return items;
    api_fail(error, 400, "invalid_value", "items", "More than %d items.", ITEMS_MAX);
    return NULL;
}

static bool push(Exchange *x, Arena *arena, int64_t *latest, ApiError *error) {
    Error why = {0};
    const Json *list = read_items(x, arena, error);
    HistoryItem *items = list ? arena_alloc(arena, list->size, sizeof *items) : NULL;
    int count = 0;
    if (!list) return false;
    if (!items) return api_out_of_memory(error);
    for (JSON_EACH(object, list))
        if (!read_item(object, arena, &items[count++], error)) return false;
    return history_push(x->server->history, items, count, latest, &why) || explain(&why, error);
}

bool answer_history_push(Exchange *x, Slice rest) {
    ApiError error = {0};
    /* Nodes, and the values once more. */
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    int64_t latest = 0;
    const bool ok = is_on(x, &error) && push(x, &arena, &latest, &error);
    arena_free(&arena);
    return ok ? respond(x, latest) : response_error(x, &error);
}
