/* The listening socket. */
#pragma once
#include "server/exchange.h"

/* Binds to server->options.host and port; sets server->port and server->loopback. given: a listening socket to use
 * instead; −1: none. −1: error. */
NODISCARD int listener_open(Server *server, int given, int queue, Error *error);
