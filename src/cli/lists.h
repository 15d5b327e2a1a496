/* Options of `apus serve` whose value is a list with commas. Errors name the option and what it takes. */
#pragma once
#include "base/buffer.h"
#include "server/server.h"

enum { ALIASES_MAX = 256 };

/* --allow-origin (origins), --allow-host: the list with spaces and a NUL behind. */
NODISCARD bool list_take(const char *option, const char *given, bool origins, Buffer *list, Error *error);
/* --mcp: the origins of the URLs, with spaces and a NUL behind. They go into a header, so they hold no other characters
 * than those of scheme, host and port. */
NODISCARD bool list_take_origins(const char *urls, Buffer *origins, Error *error);
/* --alias: NAME=MODEL; changes the text, into which the aliases point. aliases: [ALIASES_MAX]. */
NODISCARD bool list_take_aliases(char *text, ModelAlias *aliases, int *count, Error *error);
