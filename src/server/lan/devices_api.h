/* Paired devices over HTTP. 404 lan_off where the server was started without --lan. */
#pragma once
#include "server/exchange.h"

/* The address that a new device opens; the secret is behind a #, which browsers do not send. */
void device_pairing_url(const Server *server, const char *secret, Buffer *out);

/* GET /v1/devices: all of them; `current` is the one that asks. */
bool answer_devices(Exchange *x, Slice rest);
/* POST /v1/devices/pairing: begins a pairing: its address, also as a QR code. */
bool answer_device_invite(Exchange *x, Slice rest);
/* POST /v1/devices/pair {"secret","name"}: ends one; needs no key, and gives one. */
bool answer_device_pair(Exchange *x, Slice rest);
/* DELETE /v1/devices/ID: its key opens nothing from now on. */
bool answer_device_revoke(Exchange *x, Slice id);
