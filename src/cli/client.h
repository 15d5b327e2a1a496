/* Requests to a server of this machine, for commands about it. */
#pragma once
#include "base/buffer.h"
#include "base/error.h"

enum { CLIENT_PORT_DEFAULT = 5413 };

/* Sends a request to 127.0.0.1 and appends the body of the response. body: JSON; data NULL: none. key: an API key;
 * NULL: none. ERROR_NOT_FOUND: no server listens there; ERROR_USAGE: it wants another key; ERROR_IO: the response is
 * none. *status: that of HTTP. */
NODISCARD bool client_ask(int port, const char *key, const char *method, const char *path, Slice body, int *status,
    Buffer *response, Error *error);
