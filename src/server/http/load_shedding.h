/* When clients want more than there is: who takes most without need gives way.
 * The thread of connections. */
#pragma once
#include "server/http/connection.h"

/* Makes room for one more: of those between requests the one that is for longest, else who has long begun a request
 * and sends it slowest. False: there is nobody. */
bool shed_one(Http *http, int64_t now);
/* While answers that nobody takes are too much together: ends who has taken nothing for longest. */
void shed_unread(Http *http);
/* After a crowd of large heads or bodies, their memory goes back to the system: glibc would keep it. */
void shed_reset(Http *http);
