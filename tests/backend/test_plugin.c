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

int main(void) {
    check_names();
    check_device();
    return test_done();
}
