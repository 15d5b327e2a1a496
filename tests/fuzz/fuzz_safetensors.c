/* Safetensors: an input is one file of a checkpoint, or, when it starts with a brace, the index beside a small valid
 * one. What is accepted lies inside its file and can be read. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tensor/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char directory[] = "/dev/shm/apus-fuzz-XXXXXX";
static char directory_plain[] = "/tmp/apus-fuzz-XXXXXX";
static const char valid[] = "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}   abcd";

static const char *root;
static char path_model[64], path_index[64];

static void cleanup(void) {
    unlink(path_model);
    unlink(path_index);
    rmdir(root);
}

static void setup(void) {
    root = mkdtemp(directory);
    if (!root) root = mkdtemp(directory_plain);
    CHECK(root);
    snprintf(path_model, sizeof path_model, "%s/model.safetensors", root);
    snprintf(path_index, sizeof path_index, "%s/model.safetensors.index.json", root);
    atexit(cleanup);
}

static void put(const char *path, const void *bytes, size_t size) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!root) setup();
    bool index = size && data[0] == '{';
    put(path_model, index ? (const void *)valid : data, index ? sizeof valid - 1 : size);
    if (index) put(path_index, data, size);
    Checkpoint checkpoint;
    Error error = {0};
    if (checkpoint_open(&checkpoint, root, &error)) {
        unsigned sum = 0;
        for (size_t i = 0; i < checkpoint.entry_count; i++) {
            const TensorEntry *entry = &checkpoint.entries[i];
            const FileMap *file = &checkpoint.files[entry->file];
            CHECK(entry->offset <= file->size && entry->tensor.bytes <= file->size - entry->offset);
            const uint8_t *bytes = entry->tensor.data;
            for (size_t k = 0; k < entry->tensor.bytes; k++) sum += bytes[k];
            CHECK(checkpoint_find(&checkpoint, entry->name.data) == entry);
        }
        CHECK(sum != 1u << 31); /* the bytes are needed */
        checkpoint_close(&checkpoint);
    } else {
        CHECK(error.code != ERROR_NONE);
    }
    if (index) unlink(path_index);
    return 0;
}
