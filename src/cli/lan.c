#include "cli/lan.h"

#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "server/lan/address.h"
#include "server/lan/certificate.h"
#include "server/lan/devices.h"
#include "server/lan/qr.h"

static char fingerprint[FINGERPRINT_MAX];

bool lan_prepare(ServerOptions *options, Error *error) {
    static Buffer directory, certificate, key;
    static char addresses[ADDRESSES_MAX][ADDRESS_MAX];
    const bool any = !strcmp(options->host, "0.0.0.0");
    if (any && lan_addresses(addresses) == 0) return fail(error, ERROR_USAGE, "--lan: this machine is in no network");
    options->lan_address = any ? addresses[0] : options->host;
    if (!lan_path(&directory, error)) return false;
    options->lan_directory = directory.data;
    Devices *devices = devices_open(directory.data, error); /* makes the directory */
    devices_close(devices);
    if (!devices || options->tls_certificate) return devices != NULL;
    if (!certificate_ensure(directory.data, options->lan_address, &certificate, &key, fingerprint, error)) return false;
    options->tls_certificate = certificate.data;
    options->tls_key = key.data;
    return true;
}

void lan_print(Server *server) {
    Error error = {0};
    Buffer url = {0}, code = {0};
    if (!server_invite(server, &url, &error)) {
        printf("  pairing  not possible: %s\n\n", error.text);
        return;
    }
    if (qr_print(url.data, &code))
        printf("Scan with a phone's camera to pair it (within %d minutes, once):\n\n%s\n", PAIRING_S / 60, code.data);
    else
        printf("To pair a device (within %d minutes, once), open:\n", PAIRING_S / 60);
    printf("  %s\n\n", url.data);
    if (fingerprint[0])
        printf(
            "The certificate is self-signed, so the browser asks once. Its SHA-256 fingerprint:\n  %s\n", fingerprint);
    printf("More devices: `apus devices add`, or the app's settings. `apus devices` lists them.\n\n");
    fflush(stdout);
    buffer_free(&url);
    buffer_free(&code);
}
