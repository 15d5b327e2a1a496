/* The socket that a server listens at. */
#pragma once
#include "server/exchange.h"

/* By server->host and port; sets server->port to the real one, and loopback. −1: error says why. */
NODISCARD int listener_open(Server *server, int queue, Error *error);
