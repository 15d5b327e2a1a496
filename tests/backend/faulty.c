/* A library between the program and its GPU's (backend/plugin.h), which breaks the device when it is told to: it lies
 * in the place of apus-cuda.so and hands everything to apus-cuda-inner.so beside it. A step that finds the file
 * APUS_FAULTY takes it away and has a kernel write where nothing is. For tests/server/check_restart.py --gpu. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/plugin.h"

static const Plugin *inner;
static const BackendOps *inner_ops;
static BackendOps ops; /* the inner ones, but for submit */

static uint64_t submit(Backend *backend) {
    enum { WIDTH = 64 };
    float *const nowhere = (float *)64;
    const Norm norm = {.kind = NORM_RMS, .width = WIDTH, .eps = 1e-6F};
    const char *path = getenv("APUS_FAULTY");
    if (path && unlink(path) == 0) inner_ops->norm(backend, 1, nowhere, &norm, nowhere);
    return inner_ops->submit(backend);
}

static Backend *open_inner(const BackendOptions *options, int device, Error *error) {
    Backend *backend = inner->open(options, device, error);
    if (!backend) return NULL;
    if (!inner_ops) {
        inner_ops = backend->ops;
        ops = *inner_ops;
        ops.submit = submit;
    }
    backend->ops = &ops;
    return backend;
}

__attribute__((visibility("default"))) const Plugin *apus_plugin(void);
const Plugin *apus_plugin(void) {
    static const char file[] = "apus-cuda-inner.so";
    static Plugin plugin;
    char path[4096];
    const ssize_t size = readlink("/proc/self/exe", path, sizeof path - sizeof file);
    path[size < 0 ? 0 : size] = 0;
    char *slash = strrchr(path, '/');
    memcpy(slash ? slash + 1 : path, file, sizeof file);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    PluginEntry *entry = NULL;
    if (library) *(void **)&entry = dlsym(library, PLUGIN_ENTRY);
    if (!entry) fprintf(stderr, "%s\n", dlerror());
    if (!entry) return &plugin; /* whose numbers are wrong */
    inner = entry();
    plugin = *inner;
    plugin.open = open_inner;
    return &plugin;
}
