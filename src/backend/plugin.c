#include "backend/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

static const char cuda_name[] = "cuda";

/* Beside the program. */
static bool library_path(char path[PATH_MAX], Error *error) {
    static const char file[] = "/apus-cuda.so";
    const ssize_t size = readlink("/proc/self/exe", path, PATH_MAX - sizeof file);
    if (size <= 0) return fail(error, ERROR_UNSUPPORTED, "this system does not tell where the program lies");
    path[size] = 0;
    char *slash = strrchr(path, '/');
    memcpy(slash ? slash : path, file, sizeof file);
    return true;
}

static const Plugin *load_first(Error *error) {
    char path[PATH_MAX];
    if (!library_path(path, error)) return NULL;
    if (access(path, R_OK)) {
        fail(error, ERROR_UNSUPPORTED, "this build has no apus-cuda.so beside it");
        return NULL;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    PluginEntry *entry = NULL;
    if (library) *(void **)&entry = dlsym(library, PLUGIN_ENTRY);
    if (!entry) {
        fail(error, ERROR_UNSUPPORTED, "%s", dlerror());
        return NULL;
    }
    const Plugin *plugin = entry();
    if (plugin->abi != PLUGIN_ABI || plugin->table_bytes != sizeof(BackendOps) ||
        plugin->options_bytes != sizeof(BackendOptions)) {
        fail(error, ERROR_UNSUPPORTED, "%s belongs to another version of apus", path);
        return NULL;
    }
    return plugin;
}

/* Loaded once and never let go: the driver's threads run in it. */
static const Plugin *load(Error *error) {
    static Mutex lock = PTHREAD_MUTEX_INITIALIZER;
    static const Plugin *loaded;
    mutex_lock(&lock);
    if (!loaded) loaded = load_first(error);
    const Plugin *plugin = loaded;
    mutex_unlock(&lock);
    return plugin;
}

/* "cuda" and "cuda:3". */
static bool parse_device(const char *name, int *device) {
    const size_t size = sizeof cuda_name - 1;
    *device = 0;
    if (strncmp(name, cuda_name, size)) return false;
    if (!name[size]) return true;
    char *end;
    const long number = strtol(name + size + 1, &end, 10);
    *device = (int)number;
    return name[size] == ':' && end != name + size + 1 && !*end && number >= 0 && number < 1024;
}

const Plugin *plugin_find(const char *name, int *device, Error *error) {
    if (!parse_device(strcmp(name, "auto") ? name : cuda_name, device)) {
        fail(error, ERROR_USAGE, "--device %s: there are cpu, cuda, cuda:N and auto", name);
        return NULL;
    }
    const Plugin *plugin = load(error);
    const int count = plugin ? plugin->device_count(error) : 0;
    if (count && *device >= count) fail(error, ERROR_USAGE, "no such device, there are %d", count);
    if (*device < count) return plugin;
    fail_while(error, "--device %s", name);
    return NULL;
}

static int parts_of(const BackendOptions *options) {
    return options->tensor_parallel > 1 ? options->tensor_parallel : 1;
}

const Plugin *plugin_memory(const BackendOptions *options, uint64_t *free_bytes, Error *error) {
    int device;
    const int parts = parts_of(options);
    const Plugin *plugin = plugin_find(options->device, &device, error);
    if (!plugin) return NULL;
    uint64_t least = UINT64_MAX;
    for (int p = 0; p < parts; p++) {
        DeviceMemory memory;
        if (!plugin->device_memory(device + p, &memory, error)) return NULL;
        least = memory.free < least ? memory.free : least;
    }
    *free_bytes = least * (uint64_t)parts;
    return plugin;
}

double plugin_read_speed(const BackendOptions *options) {
    int device;
    Error error;
    const Plugin *plugin = plugin_find(options->device, &device, &error);
    double all = 0;
    for (int p = 0; plugin && p < parts_of(options); p++) {
        const double speed = plugin->read_speed(device + p);
        if (speed <= 0) return 0;
        all += speed;
    }
    return all;
}

Backend *plugin_open(const BackendOptions *options, int behind, Error *error) {
    int device;
    const Plugin *plugin = plugin_find(options->device, &device, error);
    if (!plugin) return NULL;
    const int count = plugin->device_count(error);
    if (device + behind >= count) {
        fail(error, ERROR_USAGE, "--tensor-parallel %d needs as many GPUs from %s on, there are %d in all",
            options->tensor_parallel, options->device, count);
        return NULL;
    }
    Backend *backend = plugin->open(options, device + behind, error);
    if (!backend) fail_while(error, "--device %s", options->device);
    return backend;
}

bool plugin_usable(void) {
    Error error;
    const Plugin *plugin = load(&error);
    return plugin && plugin->device_count(&error) > 0;
}

void plugin_describe(char *text, size_t size) {
    Error error = {0};
    const Plugin *plugin = load(&error);
    const int count = plugin ? plugin->device_count(&error) : 0;
    if (count == 0) snprintf(text, size, "none: %s", error.text);
    size_t used = 0;
    for (int i = 0; i < count && used < size; i++) {
        char device[BACKEND_DESCRIPTION_MAX];
        plugin->device_describe(i, device, sizeof device);
        used += (size_t)snprintf(text + used, size - used, "%scuda:%d %s", i ? "; " : "", i, device);
    }
}
