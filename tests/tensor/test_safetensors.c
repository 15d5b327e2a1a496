/* Safetensors: what the writer writes the reader reads, and every way in which a header can lie is refused with a
 * message that names the tensor. */
#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include "tensor/safetensors.h"
#include "test.h"

static char root[] = "/tmp/apus-safetensors-XXXXXX";

static const char *path_of(const char *name) {
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

static void clear_directory(void) {
    DIR *directory = opendir(root);
    for (struct dirent *item; (item = readdir(directory));) {
        if (item->d_name[0] != '.') unlink(path_of(item->d_name));
    }
    closedir(directory);
}

static void put_file(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(path_of(name), "wb");
    TEST(file && fwrite(bytes, 1, size, file) == size);
    fclose(file);
}

/* A file of the given header text and size bytes of data. */
static void put_safetensors(const char *name, const char *header, size_t size) {
    static uint8_t bytes[4096];
    uint64_t length = strlen(header);
    memset(bytes, 7, sizeof bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    put_file(name, bytes, 8 + length + size);
}

static bool expect_error(const char *what, const char *part) {
    Checkpoint checkpoint;
    Error error = {0};
    bool opened = checkpoint_open(&checkpoint, root, &error);
    TEST_MSG(!opened, "%s was accepted", what);
    TEST_MSG(opened || strstr(error.text, part), "%s gave \"%s\", without \"%s\"", what, error.text, part);
    checkpoint_close(&checkpoint);
    return opened;
}

static void test_roundtrip(void) {
    static const TensorHeader headers[] = {
        {.name = "a.weight", .dtype = DTYPE_F32, .rank = 2, .shape = {2, 3}},
        {.name = "quote\"\\\xC3\xA9", .dtype = DTYPE_U8, .rank = 1, .shape = {5}},
        {.name = "scalar", .dtype = DTYPE_BF16, .rank = 0},
        {.name = "empty", .dtype = DTYPE_I64, .rank = 3, .shape = {4, 0, 9}},
        {.name = "last", .dtype = DTYPE_BOOL, .rank = 5, .shape = {1, 1, 3, 1, 1}},
    };
    uint8_t data[24 + 5 + 2 + 3];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 37 + 1);
    Error error;
    SafetensorsWriter *writer = safetensors_create(path_of("model.safetensors"), headers, COUNT_OF(headers), &error);
    TEST(writer);
    if (!writer) return;
    TEST(safetensors_write(writer, data, 10, &error));
    TEST_MSG(access(path_of("model.safetensors"), F_OK) != 0, "half a file has its final name");
    TEST(safetensors_write(writer, data + 10, sizeof data - 10, &error));
    TEST(safetensors_finish(writer, &error));

    Checkpoint checkpoint;
    TEST_MSG(checkpoint_open(&checkpoint, root, &error), "%s", error.text);
    TEST(checkpoint.entry_count == COUNT_OF(headers) && checkpoint.file_count == 1);
    size_t at = 0;
    for (size_t i = 0; i < COUNT_OF(headers); i++) {
        const TensorEntry *entry = checkpoint_find(&checkpoint, headers[i].name);
        TEST_MSG(entry, "%s", headers[i].name);
        if (!entry) continue;
        const Tensor *tensor = &entry->tensor;
        TEST(tensor->dtype == headers[i].dtype && tensor->rank == headers[i].rank);
        TEST(memcmp(tensor->shape, headers[i].shape, sizeof tensor->shape) == 0);
        TEST(tensor->bytes == 0 || memcmp(tensor->data, data + at, tensor->bytes) == 0);
        TEST(tensor->data == checkpoint.files[0].data + entry->offset);
        at += tensor->bytes;
    }
    TEST(at == sizeof data);
    TEST((uintptr_t)checkpoint_find(&checkpoint, "a.weight")->tensor.data % 64 == 0);
    TEST(!checkpoint_find(&checkpoint, "a.weigh") && !checkpoint_find(&checkpoint, "__metadata__"));
    checkpoint_close(&checkpoint);
    checkpoint_close(&checkpoint);
}

static void test_abandon(void) {
    Error error;
    TensorHeader header = {.name = "a", .dtype = DTYPE_F32, .rank = 1, .shape = {4}};
    SafetensorsWriter *writer = safetensors_create(path_of("model.safetensors"), &header, 1, &error);
    TEST(writer && safetensors_write(writer, "abcd", 4, &error));
    safetensors_abandon(writer);
    safetensors_abandon(NULL);
    expect_error("an abandoned file", "holds no model*.safetensors");
    DIR *directory = opendir(root);
    for (struct dirent *item; (item = readdir(directory));) TEST_MSG(item->d_name[0] == '.', "%s", item->d_name);
    closedir(directory);
    TEST(!safetensors_create("/nonexistent/model.safetensors", &header, 1, &error) && error.code == ERROR_IO);
    TensorHeader huge = {.name = "h", .dtype = DTYPE_F32, .rank = 3, .shape = {1ll << 40, 1ll << 40, 4}};
    TEST(!safetensors_create(path_of("model.safetensors"), &huge, 1, &error) && error.code == ERROR_LIMIT);
    TensorHeader full = {.name = "f", .dtype = DTYPE_F32, .rank = 2, .shape = {1ll << 30, 1ll << 30}}; /* 4 EiB */
    TEST(!safetensors_create(path_of("model.safetensors"), &full, 1, &error) && strstr(error.text, "make room"));
    directory = opendir(root);
    for (struct dirent *item; (item = readdir(directory));) TEST_MSG(item->d_name[0] == '.', "%s", item->d_name);
    closedir(directory);
}

static void test_bad_headers(void) {
    static const struct {
        const char *header, *part;
    } cases[] = {
        {"", "header"},
        {"[]", "not an object"},
        {"{\"x\":{}", "header"},
        {"{\"x\":3}", "tensor x"},
        {"{\"x\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "tensor x: dtype is nothing"},
        {"{\"x\":{\"dtype\":\"F5\",\"shape\":[4],\"data_offsets\":[0,16]}}", "tensor x: dtype F5"},
        {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "tensor x: shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", "tensor x: a dimension"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}}", "tensor x: a dimension"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,4],\"data_offsets\":[0,16]}}", "6 dimensions"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", "addressed"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4]}}", "tensor x: data_offsets"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", "tensor x: data_offsets"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", "tensor x: data_offsets"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}", "tensor x: data_offsets"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,15]}}", "make 16 bytes"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[49,65]}}", "behind the 64 bytes"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
         "\"y\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[8,17]}}",
            "tensors x and y overlap"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
         "\"x\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[9,18]}}",
            "header"},
        {"{\"x\\u0000y\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", "NUL"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        put_safetensors("model.safetensors", cases[i].header, 64);
        expect_error(cases[i].header, cases[i].part);
    }
    put_file("model.safetensors", "1234567", 7);
    expect_error("seven bytes", "too short");
    put_file("model.safetensors", "\x03\0\0\0\0\0\0\0{}", 10);
    expect_error("a header longer than the file", "header of 3 bytes in a file of 10");
    put_file("model.safetensors", "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10);
    expect_error("a header of 2^64-1 bytes", "in a file of 10");
    put_file("model.safetensors", "", 0);
    expect_error("an empty file", "too short");
}

static void test_odd_but_right(void) {
    /* A gap, an empty tensor, an unaligned start, unknown keys and eight-bit floats. */
    put_safetensors("model.safetensors",
        "{\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[21,24],\"new\":[1]},\"__metadata__\":{\"k\":"
        "\"v\"},"
        "\"a\":{\"dtype\":\"F16\",\"shape\":[2,5],\"data_offsets\":[1,21]},"
        "\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[60,60]}}   ",
        64);
    Checkpoint checkpoint;
    Error error = {0};
    TEST_MSG(checkpoint_open(&checkpoint, root, &error), "%s", error.text);
    TEST(checkpoint.entry_count == 3 && slice_is(checkpoint.entries[0].name, "a"));
    TEST(checkpoint_find(&checkpoint, "b")->tensor.dtype == DTYPE_U8);
    TEST(checkpoint_find(&checkpoint, "z")->tensor.bytes == 0);
    checkpoint_close(&checkpoint);
}

static void put_index(const char *text) { put_file("model.safetensors.index.json", text, strlen(text)); }

static void test_shards(void) {
    put_safetensors(
        "model-00002-of-00002.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
    put_safetensors(
        "model-00001-of-00002.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    Checkpoint checkpoint;
    Error error = {0};
    TEST_MSG(checkpoint_open(&checkpoint, root, &error), "%s", error.text);
    TEST(checkpoint.file_count == 2 && strstr(checkpoint.paths[0], "00001"));
    TEST(checkpoint_find(&checkpoint, "b")->file == 1 && checkpoint_find(&checkpoint, "a")->file == 0);
    checkpoint_close(&checkpoint);

    put_index(
        "{\"weight_map\":{\"b\":\"model-00002-of-00002.safetensors\",\"a\":\"model-00001-of-00002.safetensors\"}}");
    TEST_MSG(checkpoint_open(&checkpoint, root, &error), "%s", error.text);
    TEST(checkpoint.file_count == 2 && checkpoint.entry_count == 2);
    checkpoint_close(&checkpoint);

    put_index("{\"weight_map\":{\"b\":\"model-00002-of-00002.safetensors\"}}");
    TEST_MSG(checkpoint_open(&checkpoint, root, &error), "%s", error.text);
    TEST(checkpoint.file_count == 1);
    checkpoint_close(&checkpoint);

    static const struct {
        const char *index, *part;
    } cases[] = {
        {"{\"weight_map\":{\"b\":\"model-00003-of-00003.safetensors\"}}", "model-00003-of-00003.safetensors"},
        {"{\"weight_map\":{\"c\":\"model-00002-of-00002.safetensors\"}}", "weight_map.c: no shard has this tensor"},
        {"{\"weight_map\":{\"b\":\"../model.safetensors\"}}", "\"../model.safetensors\" is not the name of a shard"},
        {"{\"weight_map\":{\"b\":\"/etc/x.safetensors\"}}", "not the name of a shard"},
        {"{\"weight_map\":{\"b\":\".x.safetensors\"}}", "not the name of a shard"},
        {"{\"weight_map\":{\"b\":\"x\\u0000.safetensors\"}}", "not the name of a shard"},
        {"{\"weight_map\":{\"b\":\"passwd\"}}", "not the name of a shard"},
        {"{\"weight_map\":{\"b\":3}}", "weight_map.b"},
        {"{\"weight_map\":{}}", "names no shard"},
        {"{\"weight_map\":[]}", "weight_map is an array"},
        {"{}", "weight_map is nothing"},
        {"{", "model.safetensors.index.json"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        put_index(cases[i].index);
        expect_error(cases[i].index, cases[i].part);
    }
    unlink(path_of("model.safetensors.index.json"));
    put_safetensors("model.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    expect_error("a tensor in two shards", "tensor a is in ");
}

static unsigned sum_of(const Checkpoint *checkpoint, const char *name) {
    const TensorEntry *entry = checkpoint_find(checkpoint, name);
    unsigned sum = 0;
    TEST(entry);
    if (!entry) return 0;
    const volatile uint8_t *data = entry->tensor.data; /* every byte is read, whatever the compiler thinks */
    for (size_t i = 0; i < entry->tensor.bytes; i++) sum += data[i];
    return sum;
}

/* Two checkpoints of two shards each, one shard of the second truncated: only the second is damaged, and by name. */
static void test_damaged(void) {
    Checkpoint whole, cut;
    Error error = {0};
    put_safetensors(
        "model-1.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1000],\"data_offsets\":[0,1000]}}", 1000);
    put_safetensors(
        "model-2.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[1000],\"data_offsets\":[0,1000]}}", 1000);
    TEST_MSG(checkpoint_open(&whole, root, &error), "%s", error.text);
    unlink(path_of("model-2.safetensors")); /* the first keeps its file, the second gets another */
    put_safetensors(
        "model-2.safetensors", "{\"c\":{\"dtype\":\"U8\",\"shape\":[1000],\"data_offsets\":[0,1000]}}", 1000);
    TEST_MSG(checkpoint_open(&cut, root, &error), "%s", error.text);
    TEST(truncate(path_of("model-2.safetensors"), 0) == 0);
    TEST(sum_of(&whole, "a") == 7000 && sum_of(&whole, "b") == 7000 && sum_of(&cut, "a") == 7000);
    TEST(!checkpoint_damaged(&whole) && !checkpoint_damaged(&cut)); /* nobody has read what is gone */
    TEST(sum_of(&cut, "c") == 0);
    const char *path = checkpoint_damaged(&cut);
    TEST_MSG(path && strcmp(path, path_of("model-2.safetensors")) == 0, "%s", path ? path : "none");
    TEST(!checkpoint_damaged(&whole));
    checkpoint_close(&cut);
    TEST(!checkpoint_damaged(&cut) && !checkpoint_damaged(&whole)); /* a closed one has no files */
    checkpoint_close(&whole);
}

int main(void) {
    TEST(mkdtemp(root));
    void (*const tests[])(void) = {
        test_roundtrip, test_abandon, test_bad_headers, test_odd_but_right, test_shards, test_damaged};
    for (size_t i = 0; i < COUNT_OF(tests); i++) {
        clear_directory();
        tests[i]();
    }
    clear_directory();
    rmdir(root);
    return test_done();
}
