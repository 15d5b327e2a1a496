/* Runs a fuzz target over files instead of inputs made up by libFuzzer: every file of the folders, and every file,
 * given as arguments. An input that breaks the target ends the process, so what is reached has passed. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int passed, failed;

static void replay_file(const char *path) {
    Buffer bytes = {0};
    Error error = {0};
    fprintf(stderr, "%s\n", path); /* before the run: the last line names the input that broke it */
    uint8_t *exact = NULL;
    if (file_read(path, 0, &bytes, &error)) exact = malloc(bytes.size ? bytes.size : 1);
    if (exact) { /* a block that ends where the input ends: the address sanitizer sees what reads further */
        if (bytes.size) memcpy(exact, bytes.data, bytes.size);
        LLVMFuzzerTestOneInput(exact, bytes.size);
        passed++;
    } else {
        fprintf(stderr, "cannot replay it: %s\n", error.text);
        failed++;
    }
    free(exact);
    buffer_free(&bytes);
}

static void replay_directory(const char *path) {
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char name[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        replay_file(name);
    }
    if (directory) closedir(directory);
}

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        if (file_is_directory(arguments[i])) {
            replay_directory(arguments[i]);
        } else {
            replay_file(arguments[i]);
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
