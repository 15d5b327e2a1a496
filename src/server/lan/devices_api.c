#include "server/lan/devices_api.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "server/http/body.h"
#include "server/http/response.h"
#include "server/lan/devices.h"
#include "server/lan/qr.h"

static bool is_on(const Exchange *x, ApiError *error) {
    return x->server->devices ||
        api_fail(error, 404, "lan_off", NULL, "This server pairs no devices; start it with --lan.");
}

static bool explain(const Error *why, const char *not_found, ApiError *error) {
    if (why->code == ERROR_NOT_FOUND)
        return api_fail(error, strcmp(not_found, "pairing_over") ? 404 : 403, not_found, NULL, "%s.", why->text);
    if (why->code == ERROR_LIMIT) return api_fail(error, 409, "too_many_devices", NULL, "%s; revoke one.", why->text);
    log_error("%s", why->text);
    return api_fail(error, 503, "devices_failed", NULL, "The devices cannot be changed; the server's log says why.");
}

bool answer_devices(Exchange *x, Slice rest) {
    ApiError error = {0};
    Device list[DEVICES_MAX];
    char current[DEVICE_ID_MAX] = "";
    Buffer body = {0};
    if (!is_on(x, &error)) return response_error(x, &error);
    if (x->key) (void)devices_have(x->server->devices, x->key, current);
    const int count = devices_list(x->server->devices, list);
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < count; i++) {
        buffer_printf(&body, "%s{\"object\":\"device\",\"id\":\"%s\",\"name\":", i ? "," : "", list[i].id);
        json_write_string(&body, slice_of(list[i].name));
        buffer_printf(&body, ",\"created\":%" PRId64 ",\"last_used\":%" PRId64 ",\"current\":%s}", list[i].created_s,
            list[i].used_s, strcmp(list[i].id, current) ? "false" : "true");
    }
    buffer_text(&body, "]}");
    return response_json(x, 200, &body);
}

void device_pairing_url(const Server *server, const char *secret, Buffer *out) {
    buffer_printf(out, "https://%s:%d/#/pair/%s", server->options.lan_address, server->port, secret);
}

bool answer_device_invite(Exchange *x, Slice rest) {
    ApiError error = {0};
    Error why = {0};
    char secret[DEVICE_SECRET_MAX];
    Buffer body = {0}, url = {0}, modules = {0};
    if (!is_on(x, &error)) return response_error(x, &error);
    if (!devices_invite(x->server->devices, secret, &why)) {
        explain(&why, "", &error);
        return response_error(x, &error);
    }
    device_pairing_url(x->server, secret, &url);
    const int width = url.failed ? 0 : qr_modules(url.data, &modules);
    buffer_text(&body, "{\"object\":\"pairing\",\"url\":");
    json_write_string(&body, buffer_view(&url));
    buffer_printf(&body, ",\"seconds\":%d,\"qr\":[", PAIRING_S);
    for (int y = 0; y < width; y++)
        buffer_printf(&body, "%s\"%.*s\"", y ? "," : "", width, modules.data + (size_t)y * (size_t)width);
    buffer_text(&body, "]}");
    body.failed |= url.failed;
    buffer_free(&url);
    buffer_free(&modules);
    return response_json(x, 200, &body);
}

static bool read_pairing(const Exchange *x, Arena *arena, Slice *secret, Slice *name, ApiError *error) {
    const Json *body = body_object(x, arena, error);
    if (!body) return false;
    for (JSON_EACH_PAIR(key, value, body)) {
        const Slice member = json_slice(key);
        bool ok;
        if (slice_is(member, "secret"))
            ok = api_string(value, "secret", secret, error);
        else if (slice_is(member, "name"))
            ok = api_string(value, "name", name, error);
        else
            ok = api_fail(error, 400, "unknown_parameter", "", "Unknown parameter: '%.*s'.",
                member.size < 64 ? (int)member.size : 64, member.data);
        if (!ok) return false;
    }
    return secret->data || api_missing("secret", error);
}

bool answer_device_pair(Exchange *x, Slice rest) {
    ApiError error = {0};
    Error why = {0};
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST};
    Slice secret = {0}, name = {0};
    char id[DEVICE_ID_MAX], key[DEVICE_SECRET_MAX];
    bool ok = is_on(x, &error) && read_pairing(x, &arena, &secret, &name, &error);
    ok = ok && (devices_pair(x->server->devices, secret, name, id, key, &why) || explain(&why, "pairing_over", &error));
    arena_free(&arena);
    if (!ok) return response_error(x, &error);
    log_info("device %s was paired from %s", id, x->client ? x->client : "an unknown address");
    Buffer body = {0};
    buffer_printf(&body, "{\"object\":\"device\",\"id\":\"%s\",\"key\":\"%s\"}", id, key);
    return response_json(x, 200, &body);
}

bool answer_device_revoke(Exchange *x, Slice id) {
    ApiError error = {0};
    Error why = {0};
    Buffer body = {0};
    if (!is_on(x, &error)) return response_error(x, &error);
    if (!devices_revoke(x->server->devices, id, &why)) {
        explain(&why, "device_not_found", &error);
        return response_error(x, &error);
    }
    buffer_text(&body, "{\"id\":");
    json_write_string(&body, id);
    buffer_text(&body, ",\"object\":\"device\",\"deleted\":true}");
    return response_json(x, 200, &body);
}
