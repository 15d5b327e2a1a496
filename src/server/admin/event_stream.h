/* Streams of server-sent events about the server itself. Each holds its thread until its client goes; their number is
 * limited. */
#pragma once
#include "server/exchange.h"

/* send: writes the stream from its head to its end; false: the client is gone. 429 where too many clients watch. */
bool event_stream_run(Exchange *x, bool (*send)(Exchange *x));
/* Sends `out` and empties it; a comment after a long silence. *told_ns: time of the last bytes, at first that of the
 * head. False: the client is gone, or memory ended. */
NODISCARD bool event_stream_send(Exchange *x, Buffer *out, int64_t *told_ns);
/* Whether streams end because the server stops. */
bool event_stream_ends(const Server *server);
