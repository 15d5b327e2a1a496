/* Load shedding: choosing the connection to close when a limit is reached. Thread: of connections. */
#pragma once
#include "server/http/connection.h"

/* Closes one connection: the one idle for longest, else the slowest sender of a request. False: there is none. */
bool shed_one(Http *http, int64_t now);
/* While unread responses exceed their limit: closes the connection that has read nothing for longest. */
void shed_unread(Http *http);
/* Returns memory to the system after many large heads or bodies; glibc would keep it. */
void shed_reset(Http *http);
