/* GGUF files in several parts: the same checkpoint as the whole file, from any part; wrong sets are refused by name. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/part_name.h"
#include "import/gguf_builder.h"
#include "test.h"

enum { F32 = 0, Q8_0 = 8, HIDDEN = 64, HEAD = 16, FFN = 96, VOCAB = 40, PARTS = 3 };

static const struct {
    const char *name;
    uint32_t type;
    int64_t cols, rows;
    int part;
} tensors[] = {
    {"token_embd.weight", Q8_0, HIDDEN, VOCAB, 1},
    {"output_norm.weight", F32, HIDDEN, 0, 1},
    {"blk.0.attn_norm.weight", F32, HIDDEN, 0, 2},
    {"blk.0.attn_q.weight", F32, HIDDEN, 4 * HEAD, 2},
    {"blk.0.attn_k.weight", Q8_0, HIDDEN, 2 * HEAD, 2},
    {"blk.0.attn_v.weight", Q8_0, HIDDEN, 2 * HEAD, 3},
    {"blk.0.ffn_norm.weight", F32, HIDDEN, 0, 3},
};
enum { TENSORS = (int)(sizeof tensors / sizeof tensors[0]) };

static char root[] = "/tmp/apus-gguf-parts-XXXXXX";
static char target[80], whole_target[80];

static void keys_build(Builder *b) {
    build_string(b, "general.architecture", "llama");
    build_u32(b, "llama.block_count", 1);
    build_u32(b, "llama.context_length", 4096);
    build_u32(b, "llama.embedding_length", HIDDEN);
    build_u32(b, "llama.feed_forward_length", FFN);
    build_u32(b, "llama.attention.head_count", 4);
    build_u32(b, "llama.attention.head_count_kv", 2);
    build_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

/* A tensor's numbers differ from those of the others. */
static void tensor_build(Builder *b, int i) {
    uint8_t bytes[HIDDEN * HEAD * 4 * sizeof(float)];
    for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)((k * 7 + (size_t)i * 31) % 60);
    build_tensor(b, tensors[i].name, tensors[i].type, tensors[i].cols, tensors[i].rows, bytes);
}

static void path_of(char *path, int part) { snprintf(path, 128, "%s/m-%05d-of-%05d.gguf", root, part, PARTS); }

static void write_built(Builder *b, const char *path) {
    Buffer bytes = {0};
    Error error = {0};
    build_file(b, &bytes);
    TEST_MSG(file_write_atomic(path, buffer_view(&bytes), &error), "%s", error.text);
    buffer_free(&bytes);
}

/* split.no is a u16 and split.tensors.count an i32, as llama-gguf-split writes them. */
static void split_keys(Builder *b, int no, int count, int all) {
    build_key(b, "split.no", GGUF_U16);
    buffer_append(&b->values, &(uint16_t){(uint16_t)no}, 2);
    build_key(b, "split.count", GGUF_U16);
    buffer_append(&b->values, &(uint16_t){(uint16_t)count}, 2);
    if (all < 0) return;
    build_key(b, "split.tensors.count", GGUF_I32);
    put_u32(&b->values, (uint32_t)all);
}

static void part_write(int part) {
    char path[128];
    Builder b = {0};
    if (part == 1) keys_build(&b);
    split_keys(&b, part - 1, PARTS, TENSORS);
    for (int i = 0; i < TENSORS; i++)
        if (tensors[i].part == part) tensor_build(&b, i);
    path_of(path, part);
    write_built(&b, path);
}

static void directory_remove(const char *path) {
    DIR *directory = opendir(path);
    for (struct dirent *item; directory && (item = readdir(directory));) {
        char file[400];
        snprintf(file, sizeof file, "%s/%s", path, item->d_name);
        if (item->d_name[0] != '.') unlink(file);
    }
    if (directory) closedir(directory);
    rmdir(path);
}

static void expect_equal(const char *name) {
    char path[2][128];
    Buffer text[2] = {{0}, {0}};
    Error error = {0};
    snprintf(path[0], sizeof path[0], "%s/%s", whole_target, name);
    snprintf(path[1], sizeof path[1], "%s/%s", target, name);
    for (int i = 0; i < 2; i++) TEST_MSG(file_read(path[i], 0, &text[i], &error), "%s", error.text);
    TEST_MSG(slice_equal(buffer_view(&text[0]), buffer_view(&text[1])), "%s differs", name);
    buffer_free(&text[0]);
    buffer_free(&text[1]);
}

static int calls;
static bool count_calls(void *context, uint64_t done, uint64_t total, const char *tensor) {
    calls++;
    return done <= total;
}
static const GgufOptions watched = {.progress = count_calls, .replace = true};

/* Every part leads to the whole model, and to one conversion, which a change of any part makes anew. */
static void test_parts(void) {
    char path[128];
    Builder b = {0};
    Error error = {0};
    keys_build(&b);
    for (int i = 0; i < TENSORS; i++) tensor_build(&b, i);
    snprintf(path, sizeof path, "%s/whole.gguf", root);
    write_built(&b, path);
    TEST_MSG(gguf_convert(path, whole_target, &watched, &error), "%s", error.text);
    unlink(path);
    for (int part = 1; part <= PARTS; part++) part_write(part);
    for (int part = PARTS; part > 0; part--) {
        directory_remove(target);
        path_of(path, part);
        TEST_MSG(gguf_convert(path, target, &watched, &error), "part %d: %s", part, error.text);
        expect_equal("model.safetensors");
        expect_equal("config.json");
    }
    calls = 0;
    path_of(path, 2);
    TEST(gguf_convert(path, target, &watched, &error) && calls == 0);
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    path_of(path, 3);
    TEST(utimensat(AT_FDCWD, path, times, 0) == 0);
    path_of(path, 1);
    TEST(gguf_convert(path, target, &watched, &error) && calls > 0);
}

static void part_copy(int from, int to) {
    char path[128];
    Buffer bytes = {0};
    Error error = {0};
    path_of(path, from);
    TEST(file_read(path, 0, &bytes, &error));
    path_of(path, to);
    TEST(file_write_atomic(path, buffer_view(&bytes), &error));
    buffer_free(&bytes);
}

/* A part with given keys, and tensors `from` to `to`. */
static void part_wrong(int part, int no, int count, int all, int from, int to) {
    char path[128];
    Builder b = {0};
    if (part == 1) keys_build(&b);
    if (count > 0) split_keys(&b, no, count, all);
    for (int i = from; i < to; i++) tensor_build(&b, i);
    path_of(path, part);
    write_built(&b, path);
}

enum {
    MISSING_2,
    MISSING_1,
    TWICE,
    SWAPPED,
    OF_ANOTHER,
    TENSOR_MORE,
    TENSOR_TWICE,
    NO_COUNT,
    NO_KEYS,
    NO_KEYS_LATER,
    CUT_HEADER,
    CUT_DATA,
    EMPTY,
    FOLDER,
    TEXT,
    RENAMED,
    FAULTS
};
static const char *const says[FAULTS] = {"m-00002-of-00003.gguf: part 2 of 3 is missing", "m-00001-of-00003.gguf",
    "called part 2 of 3, but split.no and split.count say 1 of 3", "called part 2 of 3", "say 3 of 4",
    "8 tensors, which is not split.tensors.count", "blk.0.attn_q.weight is in two parts", "split.tensors.count",
    "called part 1 of 3, but", "called part 3 of 3, but", "m-00002-of-00003.gguf", "the file ends before its data does",
    "m-00003-of-00003.gguf", "m-00003-of-00003.gguf", "not a GGUF file", "one of 3 parts, whose names must end in"};

static void break_parts(int fault, char *path) {
    char at[128], other[128];
    struct stat status;
    Error error = {0};
    path_of(at, fault == MISSING_1 ? 1 : fault == EMPTY || fault == FOLDER || fault == TEXT ? 3 : 2);
    switch (fault) {
    case MISSING_2:
    case MISSING_1: unlink(at); break;
    case TWICE: part_copy(1, 2); break;
    case SWAPPED:
        part_copy(3, 2);
        part_wrong(3, 1, PARTS, TENSORS, 2, 5);
        break;
    case OF_ANOTHER: part_wrong(3, 2, 4, TENSORS, 5, 7); break;
    case TENSOR_MORE: part_wrong(3, 2, PARTS, TENSORS, 4, 7); break;
    case TENSOR_TWICE: part_wrong(3, 2, PARTS, TENSORS, 3, 5); break;
    case NO_COUNT: part_wrong(1, 0, PARTS, -1, 0, 2); break;
    case NO_KEYS: part_wrong(1, 0, 0, -1, 0, 2); break;
    case NO_KEYS_LATER: part_wrong(3, 0, 0, -1, 5, 7); break;
    case CUT_HEADER: TEST(truncate(at, 40) == 0); break;
    case CUT_DATA: TEST(stat(at, &status) == 0 && truncate(at, status.st_size - 64) == 0); break;
    case EMPTY: TEST(truncate(at, 0) == 0); break;
    case FOLDER: TEST(unlink(at) == 0 && mkdir(at, 0700) == 0); break;
    case TEXT: TEST(file_write_atomic(at, SLICE("not a model"), &error)); break;
    case RENAMED:
        path_of(at, 1);
        snprintf(other, sizeof other, "%s/renamed.gguf", root);
        TEST(rename(at, other) == 0);
        memcpy(path, other, sizeof other);
        break;
    default: break;
    }
}

static void test_refused(void) {
    for (int fault = 0; fault < FAULTS; fault++) {
        char path[128];
        Error error = {0};
        directory_remove(target);
        for (int part = 1; part <= PARTS; part++) part_write(part);
        path_of(path, fault == MISSING_1 ? 2 : 1);
        break_parts(fault, path);
        TEST_MSG(!gguf_convert(path, target, &watched, &error), "fault %d is not seen", fault);
        TEST_MSG(strstr(error.text, says[fault]), "fault %d: %s", fault, error.text);
        TEST(!file_exists(target));
        unlink(path);
        path_of(path, 3);
        rmdir(path);
    }
}

static void test_names(void) {
    static const char *const wrong[] = {"m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-00000.gguf",
        "m-0001-of-00003.gguf", "-00001-of-00003.gguf", "m-00001-of-00003.safetensors", "m-0000x-of-00003.gguf",
        "m.gguf", ""};
    PartName name;
    Buffer path = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        TEST_MSG(!part_name_parse(wrong[i], &name), "%s", wrong[i]);
    TEST(part_name_parse("a/m-00002-of-00013.gguf", &name) && name.part == 2 && name.count == 13 && name.stem == 3);
    part_name_write(&path, "a/m-00002-of-00013.gguf", &name, 12);
    TEST(slice_is(buffer_view(&path), "a/m-00012-of-00013.gguf"));
    buffer_clear(&path);
    part_name_first(&path, "m.gguf");
    TEST(slice_is(buffer_view(&path), "m.gguf"));
    buffer_free(&path);
}

int main(void) {
    char path[128];
    TEST(mkdtemp(root));
    snprintf(target, sizeof target, "%s/model", root);
    snprintf(whole_target, sizeof whole_target, "%s/whole", root);
    test_names();
    test_parts();
    test_refused();
    directory_remove(target);
    directory_remove(whole_target);
    for (int part = 1; part <= PARTS; part++) {
        path_of(path, part);
        unlink(path);
    }
    TEST_MSG(rmdir(root) == 0, "something was left in %s", root);
    return test_done();
}
