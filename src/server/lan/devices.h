/* server/lan/: serving a local network: paired devices, the certificate, addresses, QR codes.
 *
 * Paired devices, each with a key of its own, in one JSON file that holds only digests of keys. Processes share it: the
 * server, and `apus devices`, whose changes the server sees at the next request.
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"

enum {
    DEVICES_MAX = 64,
    PAIRINGS_MAX = 8,
    DEVICE_ID_MAX = 20,     /* with the NUL */
    DEVICE_NAME_MAX = 65,   /* bytes with the NUL */
    DEVICE_SECRET_MAX = 40, /* key, or secret of a pairing, with the NUL */
    PAIRING_S = 600,        /* time in which a pairing may be used, once */
};

typedef struct Device {
    char id[DEVICE_ID_MAX], name[DEVICE_NAME_MAX];
    int64_t created_s, used_s; /* since 1970; used_s: last request, 0: none; it is kept when the server ends */
} Device;

typedef struct Devices Devices;

/* Appends the directory of certificate and devices: ${APUS_STATE:-${XDG_STATE_HOME:-~/.local/state}/apus}/lan. */
NODISCARD bool lan_path(Buffer *path, Error *error);
/* directory: created with mode 0700 where it is absent. */
NODISCARD Devices *devices_open(const char *directory, Error *error);
void devices_close(Devices *devices); /* NULL is fine */

/* Whether this is the key of a device, whose id it then writes. id: NULL: not wanted. */
bool devices_have(Devices *devices, const char *key, char id[DEVICE_ID_MAX]);
/* Copies the devices, the oldest first; returns their number. */
int devices_list(Devices *devices, Device out[DEVICES_MAX]);
/* Begins a pairing: its secret is to be shown to the new device. */
NODISCARD bool devices_invite(Devices *devices, char secret[DEVICE_SECRET_MAX], Error *error);
/* Ends a pairing: the new device and its key. ERROR_NOT_FOUND: no such pairing, or its time is over; ERROR_LIMIT:
 * DEVICES_MAX. */
NODISCARD bool devices_pair(
    Devices *devices, Slice secret, Slice name, char id[DEVICE_ID_MAX], char key[DEVICE_SECRET_MAX], Error *error);
/* The device's key opens nothing from now on. ERROR_NOT_FOUND. */
NODISCARD bool devices_revoke(Devices *devices, Slice id, Error *error);
