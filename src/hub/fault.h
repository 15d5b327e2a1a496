/* What a status of the hub means, in one line that says what to do. */
#pragma once
#include "hub/http.h"

/* Sets the error for an answer that is none of 2xx. what: a file of the repository, or NULL for all of it. Asks the hub
 * for names like it when there is none. Returns false. */
bool hub_fault(HttpClient *client, const HubName *name, const char *what, const HttpHead *head, Error *error);
/* Appends ", did you mean …" when the hub has names like it. */
void hub_suggest(HttpClient *client, const char *repo, Buffer *out);
