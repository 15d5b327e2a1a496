#include "hub/commit.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "hub/fault.h"

bool commit_ask(
    HttpClient *client, const HubName *name, char commit[HUB_COMMIT_DIGITS + 1], bool *unreachable, Error *error) {
    const char *endpoint = client->settings->endpoint;
    Arena arena = {0};
    Buffer url = {0}, body = {0};
    HttpHead head = {0};
    buffer_printf(&url, "%s/api/models/%s/revision/", endpoint, name->repo);
    http_escape(&url, name->revision, false);
    bool ok = !url.failed || fail(error, ERROR_MEMORY, "no memory for an address");
    ok = ok && http_get(client, url.data, &body, &head, error);
    *unreachable = !ok || head.status == 429 || head.status >= 500;
    if (ok && head.status != 200) ok = hub_fault(client, name, NULL, &head, error);
    const Json *root = ok ? json_parse(&arena, buffer_view(&body), error) : NULL;
    const Json *sha = json_get(root, "sha");
    if (ok && (!sha || sha->type != JSON_STRING || !hub_is_hex(json_slice(sha), HUB_COMMIT_DIGITS)))
        ok = fail(error, ERROR_FORMAT, "%s does not answer as a Hugging Face Hub does%s", endpoint,
            getenv("HF_ENDPOINT") ? ": look at HF_ENDPOINT" : ": is there a proxy or a login page in between?");
    if (ok) {
        memcpy(commit, sha->string, HUB_COMMIT_DIGITS);
        commit[HUB_COMMIT_DIGITS] = '\0';
    }
    arena_free(&arena);
    buffer_free(&url);
    buffer_free(&body);
    return ok;
}
