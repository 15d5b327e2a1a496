/* The HTTP side of a server: start listening, stop. */
#pragma once
#include "server/exchange.h"

NODISCARD bool http_start(Server *server, Error *error);
void http_stop(Server *server); /* returns when no request is being answered */
