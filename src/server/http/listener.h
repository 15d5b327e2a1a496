/* The socket that a server listens at. */
#pragma once
#include "server/exchange.h"

/* By server->options.host and port; sets server->port to the real one, and loopback. −1: error says why. given: a
 * socket that listens already, which is taken instead; −1: there is none. */
NODISCARD int listener_open(Server *server, int given, int queue, Error *error);
