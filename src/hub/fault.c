#include "hub/fault.h"

#include <string.h>

#include "base/json.h"
#include "hub/search.h"

enum { SUGGESTED_MAX = 4 };

static const char *host_of(const HubSettings *settings) { return strstr(settings->endpoint, "://") + 3; }

/* By the name alone, then by its first word: the org is what is most often wrong, and versions come second. */
void hub_suggest(HttpClient *client, const char *repo, Buffer *out) {
    const char *name = strchr(repo, '/') ? strchr(repo, '/') + 1 : repo;
    char text[HUB_REPO_MAX];
    for (size_t words = strlen(name); words; words = words == strlen(name) ? strcspn(name, "-_.") : 0) {
        Arena arena = {0};
        HubHit hits[SUGGESTED_MAX];
        Error ignored;
        size_t count = 0;
        memcpy(text, name, words);
        text[words] = '\0';
        const bool ok = hub_search_with(client, text, HUB_BY_DOWNLOADS, SUGGESTED_MAX, hits, &count, &arena, &ignored);
        for (size_t i = 0; ok && i < count; i++) buffer_printf(out, "%s%s", i ? ", " : "; did you mean ", hits[i].name);
        arena_free(&arena);
        if (ok && count) return;
        if (words == strlen(name) && strcspn(name, "-_.") == words) return;
    }
}

static bool not_found(HttpClient *client, const HubName *name, Error *error) {
    const HubSettings *settings = client->settings;
    Buffer like = {0};
    hub_suggest(client, name->repo, &like);
    fail(error, ERROR_NOT_FOUND, "%s is not on %s, or it is private%s%s", name->repo, host_of(settings),
        settings->token ? " and this token does not open it" : " (then set HF_TOKEN)",
        like.size && !like.failed ? like.data : "");
    buffer_free(&like);
    return false;
}

static bool refused(const HttpClient *client, const HubName *name, const HttpHead *head, Error *error) {
    const HubSettings *settings = client->settings;
    if (!strcmp(head->code, "GatedRepo") && !settings->token)
        return fail(error, ERROR_USAGE,
            "%s is gated: accept its terms at %s/%s, then set HF_TOKEN to a token of yours (%s/settings/tokens)",
            name->repo, settings->endpoint, name->repo, settings->endpoint);
    if (!strcmp(head->code, "GatedRepo"))
        return fail(error, ERROR_USAGE,
            "%s is gated, and the account of the token in %s may not read it yet: accept its terms, or wait for the "
            "answer, at %s/%s",
            name->repo, settings->token_source, settings->endpoint, name->repo);
    if (!strncmp(head->message, "Invalid credentials", 19))
        return fail(error, ERROR_USAGE, "%s does not know the token in %s: make another at %s/settings/tokens",
            host_of(settings), settings->token_source ? settings->token_source : "HF_TOKEN", settings->endpoint);
    return fail(error, ERROR_USAGE, "%s refuses %s (%ld)%s%s%s", host_of(settings), name->repo, head->status,
        head->message[0] ? ": " : "", head->message,
        settings->token ? "" : "; if it wants to know who asks, set HF_TOKEN");
}

bool hub_fault(HttpClient *client, const HubName *name, const char *what, const HttpHead *head, Error *error) {
    const HubSettings *settings = client->settings;
    const bool gated = !strcmp(head->code, "GatedRepo"), unknown = !strcmp(head->code, "RepoNotFound");
    const bool invalid = !strncmp(head->message, "Invalid credentials", 19);
    if (!strcmp(head->code, "RevisionNotFound"))
        return fail(error, ERROR_NOT_FOUND, "%s has no revision '%s' (%s/%s/tree/main lists what there is)", name->repo,
            name->revision, settings->endpoint, name->repo);
    if (!strcmp(head->code, "EntryNotFound"))
        return fail(error, ERROR_NOT_FOUND, "%s has no file %s", name->repo, what ? what : "of that name");
    /* Without a code, 401 is what the hub says of a repository that is not there as well. */
    if (unknown || head->status == 404 || (head->status == 401 && !gated && !invalid))
        return not_found(client, name, error);
    if (gated || head->status == 401 || head->status == 403) return refused(client, name, head, error);
    if (head->status == 429)
        return fail(error, ERROR_BUSY, "%s says that these are too many requests (429): try again %s%s",
            host_of(settings), head->retry_after_s >= 0 ? "when its Retry-After is over" : "later",
            settings->token ? "" : "; with a token (HF_TOKEN) the limit is higher");
    if (head->status >= 500)
        return fail(error, ERROR_BUSY, "%s has trouble (%ld)%s%s: try again later", host_of(settings), head->status,
            head->message[0] ? ": " : "", head->message);
    return fail(error, ERROR_IO, "%s answers %ld for %s%s%s%s%s", host_of(settings), head->status, name->repo,
        what ? "/" : "", what ? what : "", head->message[0] ? ": " : "", head->message);
}
