/* GET /api/models?search=…: huggingface_hub's hf_api.py, list_models. */
#include "hub/search.h"

#include <string.h>

#include "base/json.h"

static int64_t number_of(const Json *object, const char *key) {
    const Json *value = json_get(object, key);
    return value && value->type == JSON_INTEGER ? value->integer : 0;
}

/* {"parameters": {TYPE: count, …}} */
static int64_t bytes_of(const Json *safetensors) {
    static const struct {
        const char *type;
        int bits;
    } types[] = {{"F64", 64}, {"F32", 32}, {"F16", 16}, {"BF16", 16}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"I64", 64},
        {"I32", 32}, {"U32", 32}, {"I16", 16}, {"I8", 8}, {"U8", 8}, {"BOOL", 8}};
    const Json *parameters = json_get(safetensors, "parameters");
    double bits = 0;
    if (!parameters || parameters->type != JSON_OBJECT) return 0;
    for (size_t i = 0; i < COUNT_OF(types); i++) bits += (double)number_of(parameters, types[i].type) * types[i].bits;
    return bits > 0 && bits < 1e18 ? (int64_t)(bits / 8) : 0;
}

static void hit_read(const Json *model, const char *name, HubHit *hit) {
    *hit = (HubHit){.name = name, .downloads = number_of(model, "downloads"), .likes = number_of(model, "likes")};
    const Json *gated = json_get(model, "gated"), *tags = json_get(model, "tags");
    hit->gated = gated && (gated->type == JSON_STRING || (gated->type == JSON_BOOL && gated->boolean));
    hit->bytes = bytes_of(json_get(model, "safetensors"));
    hit->parameters = number_of(json_get(model, "safetensors"), "total");
    if (!hit->parameters) hit->parameters = number_of(json_get(model, "gguf"), "total");
    if (!tags || tags->type != JSON_ARRAY) return;
    for (JSON_EACH(tag, tags)) {
        if (tag->type != JSON_STRING) continue;
        hit->gguf |= slice_is(json_slice(tag), "gguf");
        hit->mlx |= slice_is(json_slice(tag), "mlx");
    }
}

bool hub_search_with(HttpClient *client, const char *text, HubOrder order, int limit, HubHit *hits, size_t *count,
    Arena *arena, Error *error) {
    Buffer url = {0}, body = {0};
    HttpHead head;
    *count = 0;
    buffer_printf(&url, "%s/api/models?search=", client->settings->endpoint);
    http_escape(&url, text, false);
    static const char *const orders[] = {"downloads", "likes", "trendingScore", "lastModified"};
    buffer_printf(&url, "&sort=%s&limit=%d", orders[order], limit);
    static const char *const wanted[] = {"downloads", "gated", "gguf", "lastModified", "likes", "safetensors", "tags"};
    for (size_t i = 0; i < COUNT_OF(wanted); i++) buffer_printf(&url, "&expand=%s", wanted[i]);
    bool ok = !url.failed || fail(error, ERROR_MEMORY, "no memory for a search");
    ok = ok && http_get(client, url.data, &body, &head, error);
    if (ok && head.status != 200)
        ok = fail(error, head.status == 429 ? ERROR_BUSY : ERROR_IO, "%s answers %ld to a search%s%s",
            client->settings->endpoint, head.status, head.message[0] ? ": " : "", head.message);
    const Json *root = ok ? json_parse(arena, buffer_view(&body), error) : NULL;
    if (ok && !root) ok = fail_while(error, "the answer to a search");
    if (ok && root->type != JSON_ARRAY)
        ok = fail(error, ERROR_FORMAT, "the answer to a search is %s, not an array", json_type_name(root));
    if (ok) {
        for (JSON_EACH(model, root)) {
            const Json *id = json_get(model, "id");
            HubName name;
            Error ignored;
            if (*count == (size_t)limit || !id || id->type != JSON_STRING || id->size >= HUB_REPO_MAX) continue;
            char *copy = arena_copy(arena, json_slice(id));
            if (!copy && !(ok = fail(error, ERROR_MEMORY, "no memory for the hits"))) break;
            if (!hub_name_parse(copy, &name, &ignored)) continue;
            hit_read(model, copy, &hits[*count]);
            const Json *updated = json_get(model, "lastModified");
            if (updated && updated->type == JSON_STRING) hits[*count].updated = arena_copy(arena, json_slice(updated));
            (*count)++;
        }
    }
    buffer_free(&url);
    buffer_free(&body);
    return ok;
}

bool hub_search(const HubSettings *settings, const char *text, HubOrder order, int limit, HubHits *hits, Error *error) {
    *hits = (HubHits){0};
    HttpClient client;
    if (settings->offline)
        return fail(error, ERROR_USAGE, "HF_HUB_OFFLINE is set: there is nothing to search without the hub");
    if (!http_open(&client, settings, NULL, error)) return false;
    hits->hits = arena_alloc(&hits->arena, (size_t)limit, sizeof *hits->hits);
    bool ok = hits->hits || fail(error, ERROR_MEMORY, "no memory for the hits");
    ok = ok && hub_search_with(&client, text, order, limit, hits->hits, &hits->count, &hits->arena, error);
    http_close(&client);
    if (!ok) hub_hits_free(hits);
    return ok;
}

void hub_hits_free(HubHits *hits) {
    arena_free(&hits->arena);
    *hits = (HubHits){0};
}
