/* The commit that a revision of a repository stands for on the hub. */
#pragma once
#include "hub/cache.h"
#include "hub/http.h"

/* *unreachable: there was no answer, or none that counts (429, 5xx). */
NODISCARD bool commit_ask(
    HttpClient *client, const HubName *name, char commit[HUB_COMMIT_DIGITS + 1], bool *unreachable, Error *error);
