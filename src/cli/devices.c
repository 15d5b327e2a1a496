/* `apus devices`: devices that are paired with `apus serve --lan`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/commands.h"
#include "server/lan/devices.h"

static const Command command = {"devices", "[add NAME | revoke ID]",
    "Devices that are paired with `apus serve --lan` on this machine. A running server sees changes at once.",
    "  apus devices                 lists them\n"
    "  apus devices add laptop      prints a key for a program, as in --api-key\n"
    "  apus devices revoke 1f2e3d4c5b6a\n"};

static void print_day(int64_t seconds) {
    char text[32] = "never";
    const time_t when = (time_t)seconds;
    struct tm local;
    if (seconds && localtime_r(&when, &local)) strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
    printf("  %-16s", text);
}

static int list(Devices *devices) {
    Device all[DEVICES_MAX];
    const int count = devices_list(devices, all);
    if (count == 0) printf("no devices are paired; apus serve --lan pairs them\n");
    if (count > 0) printf("%-12s  %-16s  %-16s  NAME\n", "ID", "PAIRED", "LAST USE");
    for (int i = 0; i < count; i++) {
        printf("%-12s", all[i].id);
        print_day(all[i].created_s);
        print_day(all[i].used_s);
        printf("  %s\n", all[i].name);
    }
    return 0;
}

static bool add(Devices *devices, const char *name, Error *error) {
    char secret[DEVICE_SECRET_MAX], id[DEVICE_ID_MAX], key[DEVICE_SECRET_MAX];
    if (!devices_invite(devices, secret, error) ||
        !devices_pair(devices, slice_of(secret), slice_of(name), id, key, error))
        return false;
    printf("%s\n", key);
    fprintf(stderr, "the key of device %s; it is shown only now\n", id);
    return true;
}

int command_devices(int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&command, NULL, argc, argv, 0, 2, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer path = {0};
    const char *what = arguments.count ? arguments.values[0] : "";
    const bool adds = !strcmp(what, "add"), revokes = !strcmp(what, "revoke");
    if (arguments.count && (arguments.count != 2 || (!adds && !revokes)))
        return fail(&error, ERROR_USAGE, "want nothing, add NAME, or revoke ID"), report(&error);
    Devices *devices = lan_path(&path, &error) ? devices_open(path.data, &error) : NULL;
    bool ok = devices != NULL;
    if (ok && adds) ok = add(devices, arguments.values[1], &error);
    if (ok && revokes) ok = devices_revoke(devices, slice_of(arguments.values[1]), &error);
    if (ok && !arguments.count) list(devices);
    devices_close(devices);
    buffer_free(&path);
    return ok ? 0 : report(&error);
}
