#include "server/http/body.h"

#include <string.h>
#include <unistd.h>

static bool refuse_large(ApiError *error) {
    return api_fail(error, 413, NULL, NULL, "The request body is larger than %d bytes.", BODY_BYTES_MAX);
}

static bool refuse_overload(ApiError *error) {
    return api_fail(error, 503, "overloaded", NULL,
        "The server holds too many large requests at once: at most %d bytes. Please try again.", BODIES_BYTES_MAX);
}

size_t body_text_max(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const size_t part = pages > 0 && page > 0 ? (size_t)pages / TEXT_MEMORY_PART * (size_t)page : 0;
    return part > TEXT_BYTES_LEAST ? part : TEXT_BYTES_LEAST;
}

bool body_hold(Exchange *x, size_t bytes, ApiError *error) {
    size_t *all = &x->server->text_bytes;
    const size_t together = __atomic_add_fetch(all, bytes, __ATOMIC_RELAXED);
    if (together <= x->server->text_bytes_max || together == bytes) {
        x->text_bytes = bytes;
        return true;
    }
    __atomic_sub_fetch(all, bytes, __ATOMIC_RELAXED);
    return api_fail(error, 503, "overloaded", NULL, "The server is reading too many large requests. Please try again.");
}

bool body_admit(Exchange *x, ApiError *error) { return body_hold(x, x->body.size * TEXT_MADE_PER_BYTE, error); }

bool body_fits(const Server *server, uint64_t bytes, ApiError *error) {
    if (bytes > BODY_BYTES_MAX) return refuse_large(error);
    const size_t others = __atomic_load_n(&server->body_bytes, __ATOMIC_RELAXED);
    return others <= BODIES_BYTES_MAX - bytes || refuse_overload(error);
}

static bool append(Exchange *x, const char *data, size_t size) {
    if (size > BODY_BYTES_MAX - x->body.size) return refuse_large(&x->refusal);
    if (__atomic_add_fetch(&x->server->body_bytes, size, __ATOMIC_RELAXED) > BODIES_BYTES_MAX) {
        __atomic_sub_fetch(&x->server->body_bytes, size, __ATOMIC_RELAXED);
        return refuse_overload(&x->refusal);
    }
    buffer_append(&x->body, data, size);
    if (!x->body.failed) return true;
    __atomic_sub_fetch(&x->server->body_bytes, size, __ATOMIC_RELAXED);
    return api_out_of_memory(&x->refusal);
}

bool body_take(Exchange *x, const char *data, size_t size) {
    const bool wanted = !strcmp(x->request->method, "POST");
    if (wanted && !x->refusal.status && append(x, data, size)) return true;
    body_free(x);
    x->discarded += size;
    if (x->discarded <= BODY_DISCARD_MAX) return true;
    if (!x->refusal.status) refuse_large(&x->refusal);
    return false;
}

const Json *body_object(const Exchange *x, Arena *arena, ApiError *error) {
    Error why = {0};
    const Json *body = json_parse(arena, buffer_view(&x->body), &why);
    if (body && body->type == JSON_OBJECT) return body;
    if (body)
        api_fail(error, 400, NULL, NULL, "The body of your request must be a JSON object, but it is %s.",
            json_type_name(body));
    else if (why.code == ERROR_MEMORY)
        api_out_of_memory(error);
    else
        api_fail(error, 400, NULL, NULL, "We could not parse the JSON body of your request: %s.", why.text);
    return NULL;
}

bool body_model(const Exchange *x, Arena *arena, Slice *model, ApiError *error) {
    const Json *body = body_object(x, arena, error);
    if (!body) return false;
    const Json *value = json_get(body, "model");
    if (!value || value->type == JSON_NULL)
        return api_fail(error, 400, "missing_required_parameter", "model", "Missing required parameter: 'model'.");
    for (JSON_EACH_PAIR(key, ignored, body)) {
        (void)ignored;
        if (!slice_is(json_slice(key), "model"))
            return api_fail(error, 400, "unknown_parameter", NULL, "The only argument here is 'model'.");
    }
    return api_string(value, "model", model, error);
}

void body_keep(Exchange *x, size_t bytes) {
    if (bytes >= x->text_bytes) return;
    __atomic_sub_fetch(&x->server->text_bytes, x->text_bytes - bytes, __ATOMIC_RELAXED);
    x->text_bytes = bytes;
}

void body_free(Exchange *x) {
    __atomic_sub_fetch(&x->server->body_bytes, x->body.size, __ATOMIC_RELAXED);
    buffer_free(&x->body);
    __atomic_sub_fetch(&x->server->text_bytes, x->text_bytes, __ATOMIC_RELAXED);
    x->text_bytes = 0;
}
