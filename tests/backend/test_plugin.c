/* Devices by name: what is refused, and that each refusal says why. Where there is a GPU it opens, and opens again. */
#include "backend/plugin.h"
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

/* A kernel that writes where nothing is: the step fails, nothing is opened beside what that left, and when all of it is
 * closed the device is as new. */
static void check_fault(void) {
    Error error = {0};
    int device;
    DeviceMemory memory = {0};
    const Plugin *plugin = plugin_find("cuda", &device, &error);
    TEST(plugin && device == 0 && plugin->device_memory(device, &memory, &error));
    TEST(memory.free > 0 && memory.free <= memory.total);
    Backend *one = open_device("cuda", &error), *other = open_device("cuda", &error);
    if (!one || !other) return;
    const int32_t zero = 0;
    const Run run = {.rows = 1};
    const Step step = {.rows = 1, .tokens = &zero, .positions = &zero, .run_count = 1, .runs = &run, .axes = 1};
    const Norm norm = {.kind = NORM_RMS, .width = 64, .eps = 1e-6F};
    for (int i = 0; i < 2; i++) { /* it stays so */
        error = (Error){0};
        if (one->ops->begin(one, &step)) one->ops->norm(one, 1, (const float *)64, &norm, (float *)64);
        const uint64_t ticket = one->ops->submit(one);
        TEST(!one->ops->wait(one, ticket, &error));
        TEST_MSG(error.code == ERROR_DEVICE, "%s", error.text);
    }
    backend_close(one);
    TEST_MSG(!open_device("cuda", &error) && error.code == ERROR_DEVICE && strstr(error.text, "has failed"), "%s",
        error.text);
    backend_close(other);
    one = open_device("cuda", &error);
    TEST_MSG(one || strstr(error.text, "must be started again"), "%s", error.text); /* as the driver is */
    printf("%s\n", one ? "the device can be used again" : error.text);
    if (!one) return;
    (void)one->ops->begin(one, &step);
    TEST_MSG(one->ops->wait(one, one->ops->submit(one), &error), "%s", error.text);
    backend_close(one);
}

int main(void) {
    check_names();
    check_device();
    if (plugin_usable()) check_fault();
    return test_done();
}
