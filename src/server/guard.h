/* Deadlines of connections: a client that dawdles over its headers or body, idles on keep-alive or stops reading its
 * answer is cut off by a watchdog thread, so slow clients cannot hold the server's threads. Threads: any. */
#pragma once
#include <stdbool.h>

#include "base/error.h"

enum { HEADER_DEADLINE_S = 10, BODY_DEADLINE_S = 60, IDLE_DEADLINE_S = 60, READER_DEADLINE_S = 120 };

typedef struct Guard Guard;
typedef struct GuardEntry GuardEntry;
NODISCARD Guard *guard_open(Error *error);
void guard_close(Guard *guard);
GuardEntry *guard_add(Guard *guard, int fd); /* NULL: no memory; the others take NULL */
void guard_remove(Guard *guard, GuardEntry *entry);
void guard_deadline(Guard *guard, GuardEntry *entry, int seconds); /* from now; 0: none */
