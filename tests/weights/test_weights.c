/* Weights in memory: copies equal the file, only what is wanted is read, a file that shrank and memory that does not
 * suffice are errors that say so, touching changes nothing. */
#include "weights/weights.h"

#include <stdlib.h>
#include <unistd.h>

#include "test.h"

static char root[] = "/tmp/apus-weights-XXXXXX";
static char path[128];

enum { ROWS = 5000, COLS = 1000, FAR_ROWS = 30000 };

/* Three tensors; the second is large enough that the third lies far behind the first. */
static void write_file(void) {
    static const TensorHeader headers[] = {
        {.name = "first", .dtype = DTYPE_U32, .rank = 2, .shape = {ROWS, COLS}},
        {.name = "unwanted", .dtype = DTYPE_U32, .rank = 2, .shape = {FAR_ROWS, COLS}},
        {.name = "last", .dtype = DTYPE_U8, .rank = 2, .shape = {77, 13}},
    };
    Error error = {0};
    SafetensorsWriter *writer = safetensors_create(path, headers, 3, &error);
    TEST_MSG(writer, "%s", error.text);
    uint64_t state = 1;
    static uint32_t row[COLS];
    bool ok = true;
    for (int r = 0; r < ROWS + FAR_ROWS; r++) {
        for (int c = 0; c < COLS; c++) row[c] = (uint32_t)test_random(&state);
        ok = ok && safetensors_write(writer, row, sizeof row, &error);
    }
    ok = ok && safetensors_write(writer, row, 77 * 13, &error) && safetensors_finish(writer, &error);
    TEST_MSG(ok, "%s", error.text);
}

typedef struct Seen {
    uint64_t last, total;
    bool falls;
} Seen;

static void watch(void *context, uint64_t done, uint64_t total) {
    Seen *seen = context;
    seen->falls = seen->falls || done < seen->last;
    seen->last = done;
    seen->total = total;
}

static void test_read(void) {
    Error error = {0};
    Checkpoint checkpoint;
    TEST(checkpoint_open(&checkpoint, root, &error));
    WeightStore *store = weights_open(&checkpoint, true, &error);
    const TensorEntry *first = checkpoint_find(&checkpoint, "first"), *last = checkpoint_find(&checkpoint, "last");
    const TensorEntry *unwanted = checkpoint_find(&checkpoint, "unwanted");
    const uint8_t *a = weights_place(store, first), *b = weights_place(store, last);
    TEST(a != first->tensor.data && b - a == (ptrdiff_t)(last->offset - first->offset));
    TEST(((uintptr_t)a - first->offset) % (2 << 20) == 0);
    Seen seen = {0};
    TEST_MSG(weights_load(store, watch, &seen, &error), "%s", error.text);
    TEST(seen.last == seen.total && !seen.falls && seen.total == first->tensor.bytes + last->tensor.bytes);
    TEST(!memcmp(a, first->tensor.data, first->tensor.bytes));
    TEST(!memcmp(b, last->tensor.data, last->tensor.bytes));
    const uint8_t *middle = a + (unwanted->offset - first->offset) + unwanted->tensor.bytes / 2;
    uint8_t any = 0;
    for (int i = 0; i < 4096; i++) any |= middle[i];
    TEST_MSG(any == 0, "what nobody wants was read");
    weights_close(store);
    checkpoint_close(&checkpoint);
}

static void test_touch(void) {
    Error error = {0};
    Checkpoint checkpoint;
    TEST(checkpoint_open(&checkpoint, root, &error));
    for (int hurry = 0; hurry < 2; hurry++) {
        WeightStore *store = weights_open(&checkpoint, false, &error);
        const TensorEntry *first = checkpoint_find(&checkpoint, "first");
        TEST(weights_place(store, first) == first->tensor.data);
        TEST(weights_load(store, NULL, NULL, &error));
        if (!hurry) usleep(20000);
        weights_close(store);
    }
    TEST(!file_damaged(&checkpoint.files[0]));
    checkpoint_close(&checkpoint);
}

static void test_shrunk(void) {
    Error error = {0};
    Checkpoint checkpoint;
    TEST(checkpoint_open(&checkpoint, root, &error));
    TEST(truncate(path, 10 << 20) == 0);
    WeightStore *store = weights_open(&checkpoint, true, &error);
    TEST(weights_place(store, checkpoint_find(&checkpoint, "first")) != NULL);
    TEST(!weights_load(store, NULL, NULL, &error));
    TEST_MSG(error.code == ERROR_IO && strstr(error.text, path) && strstr(error.text, "shorter"), "%s", error.text);
    weights_close(store);
    checkpoint_close(&checkpoint);
}

/* A file with a hole of a terabyte. */
static void test_too_large(void) {
    static const char header[] =
        "{\"huge\":{\"dtype\":\"U8\",\"shape\":[1048576,1048576],\"data_offsets\":[0,1099511627776]}}";
    const uint64_t size = sizeof header - 1;
    FILE *file = fopen(path, "wb");
    TEST(file && fwrite(&size, 8, 1, file) == 1 && fwrite(header, size, 1, file) == 1);
    const bool grown =
        file && fflush(file) == 0 && ftruncate(fileno(file), (off_t)(8 + size + (UINT64_C(1) << 40))) == 0;
    if (file) fclose(file);
    Error error = {0};
    Checkpoint checkpoint;
    if (!grown || !checkpoint_open(&checkpoint, root, &error)) {
        printf("no file of a terabyte here: %s\n", error.text);
        return;
    }
    WeightStore *store = weights_open(&checkpoint, true, &error);
    const TensorEntry *huge = checkpoint_find(&checkpoint, "huge");
    TEST(weights_place(store, huge) != NULL);
    TEST(!weights_load(store, NULL, NULL, &error));
    TEST_MSG(error.code == ERROR_MEMORY && strstr(error.text, "1099.51 GB") && strstr(error.text, "are free"), "%s",
        error.text);
    weights_close(store);
    checkpoint_close(&checkpoint);
}

int main(void) {
    if (!mkdtemp(root)) return 1;
    snprintf(path, sizeof path, "%s/model.safetensors", root);
    write_file();
    test_read();
    test_touch();
    test_shrunk();
    test_too_large();
    unlink(path);
    rmdir(root);
    return test_done();
}
