/* GGUF: an input is a file to convert. What is accepted becomes a checkpoint that opens and JSON files that parse; what
 * is refused leaves nothing behind. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "import/gguf/gguf.h"
#include "tensor/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char directory[] = "/dev/shm/apus-fuzz-XXXXXX";
static char directory_plain[] = "/tmp/apus-fuzz-XXXXXX";
static const char *root;
static char path_source[64], path_target[64], path_partial[80];

static void target_remove(void) {
    DIR *list = opendir(path_target);
    for (struct dirent *item; list && (item = readdir(list));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", path_target, item->d_name);
        if (item->d_name[0] != '.') unlink(path);
    }
    if (list) closedir(list);
    rmdir(path_target);
}

static void cleanup(void) {
    target_remove();
    unlink(path_source);
    rmdir(root);
}

static void setup(void) {
    root = mkdtemp(directory);
    if (!root) root = mkdtemp(directory_plain);
    CHECK(root);
    snprintf(path_source, sizeof path_source, "%s/model.gguf", root);
    snprintf(path_target, sizeof path_target, "%s/model", root);
    snprintf(path_partial, sizeof path_partial, "%s.partial", path_target);
    atexit(cleanup);
}

static void json_check(const char *name) {
    char path[128];
    Buffer text = {0};
    Arena arena = {0};
    Error error = {0};
    snprintf(path, sizeof path, "%s/%s", path_target, name);
    if (file_exists(path)) CHECK(file_read(path, 0, &text, &error) && json_parse(&arena, buffer_view(&text), &error));
    arena_free(&arena);
    buffer_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!root) setup();
    int fd = open(path_source, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
    Error error = {0};
    const GgufOptions options = {.compact = size % 2}; /* both forms, each input in one */
    if (gguf_convert(path_source, path_target, &options, &error)) {
        Checkpoint checkpoint;
        CHECK(checkpoint_open(&checkpoint, path_target, &error));
        checkpoint_close(&checkpoint);
        json_check("config.json");
        json_check("tokenizer.json");
        json_check("tokenizer_config.json");
        target_remove();
    } else {
        CHECK(error.code != ERROR_NONE && !file_exists(path_target) && !file_exists(path_partial));
    }
    return 0;
}
