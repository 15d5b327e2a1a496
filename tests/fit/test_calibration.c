/* What is kept of a machine: it comes back, and what is foreign, old or damaged does not. */
#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "fit/fit.h"
#include "test.h"

static char directory[] = "/tmp/apus-calibration-XXXXXX";

static FitModel model_of(void) {
    return (FitModel){.weight_bytes = 123456789,
        .experts = 64,
        .kind_count = 2,
        .kind = {
            {.like = {.rows = 100, .cols = 64, .quant = QUANT_AFFINE, .bits = 4, .group = 64, .dtype = DTYPE_BF16}},
            {.like = {.rows = 10, .cols = 64, .dtype = DTYPE_F16}, .routed = true}}};
}

static FitMachine machine_of(void) {
    return (FitMachine){.threads = 3,
        .memory = 77,
        .read = 41.5e9,
        .rows = {30e9, 20e9},
        .prompts = {9e11, 8e11},
        .disk = {.direct = true,
            .depth = 8,
            .block_bytes = 65536,
            .rate = {1e9, 2e9, 3e9, 3.5e9, 3.25e9},
            .buffered = 1e8,
            .large_bytes = 1 << 20,
            .large = 4e9},
        .measured_decode = 33.5,
        .measured_prompt = 440};
}

/* The only file there. */
static void file_path(char *out, size_t size) {
    DIR *dir = opendir(directory);
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.') snprintf(out, size, "%s/%s", directory, entry->d_name);
    if (dir) closedir(dir);
}

static void test_kept(const CalibrationKey *key) {
    const FitModel model = model_of();
    const FitMachine machine = machine_of();
    FitMachine back;
    Error error;
    TEST(!calibration_load(key, &model, &back, &error) && error.code == ERROR_NONE); /* there is none: nothing to say */
    TEST(calibration_save(key, &model, &machine, &error));
    TEST_MSG(calibration_load(key, &model, &back, &error), "%s", error.text);
    TEST(back.memory == 0); /* that is what is free at a time */
    back.memory = machine.memory;
    TEST(!memcmp(&back, &machine, sizeof back));
}

/* Other weights, another backend or checkpoint have files of their own. */
static void test_others(const CalibrationKey *key) {
    FitModel model = model_of();
    FitMachine back;
    Error error;
    CalibrationKey other = *key;
    other.backend = "ref";
    TEST(!calibration_load(&other, &model, &back, &error) && error.code == ERROR_NONE);
    model.weight_bytes++;
    TEST(!calibration_load(key, &model, &back, &error) && error.code == ERROR_NONE);
}

static void damage(const char *path, const char *find, const char *put, const CalibrationKey *key) {
    const FitModel model = model_of();
    FitMachine back;
    Error error = {0};
    Buffer whole = {0}, text = {0};
    TEST(file_read(path, 0, &whole, &error));
    char *at = strstr(whole.data, find);
    TEST_MSG(at, "%s", find);
    if (at) {
        buffer_append(&text, whole.data, (size_t)(at - whole.data));
        buffer_text(&text, put);
        buffer_text(&text, at + strlen(find));
        TEST(file_write_atomic(path, buffer_view(&text), &error));
        TEST_MSG(!calibration_load(key, &model, &back, &error) && error.code != ERROR_NONE, "%s → %s", find, put);
        TEST(strstr(error.text, path) && back.read == 0);
        TEST(file_write_atomic(path, buffer_view(&whole), &error) && calibration_load(key, &model, &back, &error));
    }
    buffer_free(&whole);
    buffer_free(&text);
}

int main(void) {
    const CalibrationKey key = {directory, "/models/some", "avx2, 2 threads"};
    char path[512] = "";
    TEST(mkdtemp(directory) != NULL);
    test_kept(&key);
    test_others(&key);
    file_path(path, sizeof path);
    damage(path, "\"apus_calibration\":1", "\"apus_calibration\":2", &key);
    damage(path, "\"of\":\"", "\"of\":\"another ", &key);
    damage(path, "{", "", &key);
    damage(path, "\"threads\":3", "\"threads\":0", &key);
    damage(path, "[3e+10,", "[0,", &key);
    damage(path, "[3e+10,2e+10]", "[3e+10]", &key);
    damage(path, "[1e+09,", "[-1,", &key);
    damage(path, "[1e+09,", "[1e400,", &key);
    damage(path, "\"disk_direct\":true", "\"disk_direct\":1", &key);
    damage(path, "\"memory_read_bytes_per_s\"", "\"x\"", &key);
    unlink(path);
    rmdir(directory);
    return test_done();
}
