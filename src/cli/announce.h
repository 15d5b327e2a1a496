/* What `apus serve` prints when it is ready and when it ends: text for a person, or events for a supervisor, which are
 * lines of JSON on standard output, {"event": …}, in SwiftLM's words. */
#pragma once
#include "server/server.h"

/* Addresses, models, whether a key is needed, and a request to try. seconds: that the start took. */
void announce_ready(const Server *server, const ServerOptions *options, double seconds);
void announce_ready_event(const Server *server, const ServerOptions *options);
/* why: NULL: the end was requested. */
void announce_exit(const Error *why);
