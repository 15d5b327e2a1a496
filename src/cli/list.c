#include <dirent.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/commands.h"
#include "cli/models.h"
#include "cli/options.h"

static const Command command = {"list", "", "The models in the cache, with their sizes.", NULL};

static uint64_t directory_bytes(const char *path) {
    uint64_t total = 0;
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        struct stat info;
        Buffer file = {0};
        buffer_printf(&file, "%s/%s", path, entry->d_name);
        if (!file.failed && !stat(file.data, &info) && S_ISREG(info.st_mode)) total += (uint64_t)info.st_size;
        buffer_free(&file);
    }
    if (directory) closedir(directory);
    return total;
}

int command_list(int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&command, NULL, argc, argv, 0, 0, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer cache = {0};
    if (!models_cache(&cache, &error)) return report(&error);
    struct dirent **entries = NULL;
    const int count = scandir(cache.data, &entries, NULL, alphasort);
    int shown = 0;
    for (int i = 0; i < count; i++) {
        struct stat info;
        Buffer path = {0};
        buffer_printf(&path, "%s/%s", cache.data, entries[i]->d_name);
        const size_t length = strlen(entries[i]->d_name);
        if (!path.failed && entries[i]->d_name[0] != '.' && !stat(path.data, &info)) {
            const bool gguf = S_ISREG(info.st_mode) && length > 5 && !strcmp(entries[i]->d_name + length - 5, ".gguf");
            const uint64_t bytes = gguf ? (uint64_t)info.st_size
                : S_ISDIR(info.st_mode) ? directory_bytes(path.data)
                                        : 0;
            if (bytes) {
                printf("%-40.*s %8.0f MB  %s\n", (int)(gguf ? length - 5 : length), entries[i]->d_name,
                    (double)bytes * 1e-6, gguf ? "GGUF, converted on first use" : "checkpoint");
                shown++;
            }
        }
        buffer_free(&path);
    }
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
    if (!shown) printf("no models in %s\n", cache.data);
    buffer_free(&cache);
    return 0;
}
