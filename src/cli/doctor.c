#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/plugin.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "library/library.h"
#include "cli/options.h"

static const Command command = {"doctor", "", "What this machine offers: processor, memory, cache directory.", NULL};

enum { DEVICES_TEXT_MAX = 1024 };

int command_doctor(int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&command, NULL, argc, argv, 0, 0, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    printf("apus       %s\n", APUS_VERSION);
    const BackendOptions options = {.cpu = "auto", .rows_max = 1};
    Backend *backend = backend_open(&options, &error);
    printf("processor  %s\n", backend ? backend_describe(backend) : error.text);
    backend_close(backend);
    char devices[DEVICES_TEXT_MAX];
    plugin_describe(devices, sizeof devices);
    printf("gpu        %s\n", devices);
    const double gb = 1e-9;
    printf("memory     %.1f GB, %.1f GB free\n", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) * gb,
        (double)memory_available() * gb);
    Buffer cache = {0};
    if (!library_path(&cache, &error) || !file_make_directories(cache.data, &error)) {
        printf("cache      %s\n", error.text);
        buffer_free(&cache);
        return 1;
    }
    struct statvfs disk;
    const double room = statvfs(cache.data, &disk) ? 0 : (double)disk.f_bavail * (double)disk.f_frsize * gb;
    printf(
        "cache      %s (%s, %.0f GB free)\n", cache.data, access(cache.data, W_OK) ? "not writable" : "writable", room);
    buffer_free(&cache);
    return 0;
}
