/* Devices by name: what is refused, and that each refusal says why. Where there is a GPU it opens, and opens again. */
#include "backend/plugin.h"
#include "backend/steps.h"
#include "ops.h"

static Backend *open_device(const char *device, Error *error) {
    const BackendOptions options = {
        .device = device, .cpu = "auto", .threads = 1, .rows_max = 1, .scratch_bytes = 1 << 10};
    *error = (Error){0};
    return backend_open(&options, error);
}

static void check_names(void) {
    static const char *const wrong[] = {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda1", "CUDA", ""};
    Error error;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        TEST_MSG(!open_device(wrong[i], &error) && error.code == ERROR_USAGE && strstr(error.text, "cuda:N"),
            "'%s': %s", wrong[i], error.text);
    }
    static const char *const cpus[] = {NULL, "cpu"};
    for (size_t i = 0; i < COUNT_OF(cpus); i++) {
        Backend *backend = open_device(cpus[i], &error);
        TEST(backend && strcmp(backend->ops->name, "cuda"));
        backend_close(backend);
    }
}

static void check_device(void) {
    char text[1024];
    Error error;
    plugin_describe(text, sizeof text);
    Backend *any = open_device("auto", &error);
    TEST(any != NULL);
    TEST((strcmp(any->ops->name, "cuda") == 0) == plugin_usable());
    backend_close(any);
    if (plugin_usable()) {
        TEST_MSG(!strncmp(text, "cuda:0 ", 7), "%s", text);
        for (int i = 0; i < 2; i++) {
            Backend *backend = open_device("cuda:0", &error);
            TEST_MSG(backend && !strcmp(backend->ops->name, "cuda"), "%s", error.text);
            backend_close(backend);
        }
        TEST(!open_device("cuda:1000", &error) && error.code == ERROR_USAGE && strstr(error.text, "no such device"));
    } else {
        TEST_MSG(!strncmp(text, "none: ", 6) && strlen(text) > 10, "%s", text);
        TEST_MSG(
            !open_device("cuda", &error) && error.code == ERROR_UNSUPPORTED && strstr(error.text, "--device cuda: "),
            "%s", error.text);
    }
}

/* A kernel that writes where nothing is: the step fails, and this process cannot use the device again. */
static void check_fault(void) {
    Error error = {0};
    int device;
    DeviceMemory memory = {0};
    const Plugin *plugin = plugin_find("cuda", &device, &error);
    TEST(plugin && device == 0 && plugin->device_memory(device, &memory, &error));
    TEST(memory.free > 0 && memory.free <= memory.total);
    Backend *one = open_device("cuda", &error), *other = open_device("cuda", &error);
    if (!one || !other) return;
    const Step *step = step_of_rows(1, 0);
    const Norm norm = {.kind = NORM_RMS, .width = 64, .eps = 1e-6F};
    for (int i = 0; i < 2; i++) { /* it stays so */
        error = (Error){0};
        if (one->ops->begin(one, step)) one->ops->norm(one, 1, (const float *)64, &norm, (float *)64);
        const uint64_t ticket = one->ops->submit(one);
        TEST(!one->ops->wait(one, ticket, &error));
        TEST_MSG(error.code == ERROR_DEVICE, "%s", error.text);
    }
    backend_close(one);
    for (int i = 0; i < 2; i++) {
        TEST_MSG(!open_device("cuda", &error) && error.code == ERROR_DEVICE && strstr(error.text, "has failed"), "%s",
            error.text);
        backend_close(i == 0 ? other : NULL);
    }
}

static void check_read_speed(void) {
    Error error = {0};
    int device;
    DeviceMemory before, after;
    const Plugin *plugin = plugin_find("cuda", &device, &error);
    TEST(plugin && plugin->device_memory(device, &before, &error));
    const double speed = plugin_read_speed(&(BackendOptions){.device = "cuda"});
    TEST_MSG(speed > 1e6 && speed < 1e14, "%g bytes/s", speed);
    TEST(plugin->device_memory(device, &after, &error) && after.free == before.free);
    TEST(plugin_read_speed(&(BackendOptions){.device = "cuda:1000"}) == 0);
}

/* ---- memory ---- */

enum { HOGS_MAX = 256, HOG_LEAST = 1 << 20, WIDTH = 64 };

/* All that the device has left, in pieces. */
static int fill_device(Backend *backend, void *hogs[HOGS_MAX]) {
    Error error;
    int count = 0;
    for (size_t bytes = (size_t)1 << 40; bytes >= HOG_LEAST && count < HOGS_MAX;) {
        hogs[count] = backend->ops->alloc(backend, bytes, MEMORY_STEP, &error);
        if (hogs[count])
            count++;
        else
            bytes /= 2;
    }
    return count;
}

/* A step of two rows that takes one of them out; at a position so far that its page tables are large, or not. */
static bool take_row(Backend *backend, int32_t row, int position, const float *x, float *out, Error *error) {
    const int32_t zeros[2] = {0, 0};
    const StepSequence sequence = {
        .rows = 2, .position = position, .tokens = zeros, .output_count = 1, .outputs = &row};
    if (backend->ops->begin(backend, step_of(1, &sequence))) backend->ops->gather(backend, 1, &row, x, WIDTH, out);
    return backend->ops->wait(backend, backend->ops->submit(backend), error);
}

/* A step that finds no memory for its numbers fails alone: those after it have their own, not those before it. */
static void check_full(void) {
    Error error = {0};
    Backend *backend = backend_open(
        &(BackendOptions){.device = "cuda", .threads = 1, .rows_max = 2, .scratch_bytes = 1 << 10}, &error);
    TEST_MSG(backend != NULL, "%s", error.text);
    if (!backend) return;
    float rows[2][WIDTH], got[WIDTH];
    for (int i = 0; i < 2 * WIDTH; i++) rows[i / WIDTH][i % WIDTH] = (float)i;
    float *x = backend->ops->alloc(backend, sizeof rows, MEMORY_STEP, &error),
          *out = backend->ops->alloc(backend, sizeof got, MEMORY_STEP, &error);
    backend->ops->upload(backend, x, rows, sizeof rows);
    void *hogs[HOGS_MAX];
    for (int i = 0; i < 6; i++) {
        const bool full = i % 3 == 1;
        const int count = full ? fill_device(backend, hogs) : 0;
        const bool ok = take_row(backend, i % 2, full ? 1 << 26 : 0, x, out, &error);
        TEST_MSG(full ? !ok && error.code == ERROR_MEMORY : ok, "step %d: %s", i, error.text);
        for (int h = 0; h < count; h++) backend->ops->release(backend, hogs[h]);
        if (full) continue;
        backend->ops->download(backend, got, out, sizeof got);
        TEST_MSG(!memcmp(got, rows[i % 2], sizeof got), "step %d has the numbers of another", i);
    }
    backend->ops->release(backend, x);
    backend->ops->release(backend, out);
    backend_close(backend);
}

int main(void) {
    check_names();
    check_device();
    if (plugin_usable()) {
        check_read_speed();
        check_full();
        check_fault();
    }
    return test_done();
}
