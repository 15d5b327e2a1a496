/* What `apus serve --lan` prepares and prints. */
#pragma once
#include "server/server.h"

/* Sets certificate, key, address and directory of the options, unless they are given. The strings stay until the
 * process ends. */
NODISCARD bool lan_prepare(ServerOptions *options, Error *error);
/* Prints the address for new devices, with its QR code, and the certificate's fingerprint. */
void lan_print(Server *server);
