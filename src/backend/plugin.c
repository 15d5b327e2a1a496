#include "backend/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

static const char cuda_name[] = "cuda";

/* The library lies beside the program. */
static bool library_path(char path[PATH_MAX], Error *error) {
    static const char file[] = "/apus-cuda.so";
    const ssize_t size = readlink("/proc/self/exe", path, PATH_MAX - sizeof file);
    if (size <= 0) return fail(error, ERROR_UNSUPPORTED, "this system does not tell where the program lies");
    path[size] = 0;
    char *slash = strrchr(path, '/');
    memcpy(slash ? slash : path, file, sizeof file);
    return true;
}

/* ELF, 64 bits: the file's header, and a segment of it. */
typedef struct ElfHeader {
    uint8_t identity[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, segments_at, sections_at;
    uint32_t flags;
    uint16_t header_bytes, segment_bytes, segment_count, section_bytes, section_count, names;
} ElfHeader;
typedef struct ElfSegment {
    uint32_t type, flags;
    uint64_t offset, address, physical, file_bytes, memory_bytes, align;
} ElfSegment;

/* The file size that its ELF headers imply. 0: not an ELF file, which dlopen() reports itself. */
static uint64_t library_bytes(FILE *file) {
    static const uint8_t elf64[] = {0x7f, 'E', 'L', 'F', 2};
    ElfHeader header;
    if (fread(&header, sizeof header, 1, file) != 1 || memcmp(header.identity, elf64, sizeof elf64)) return 0;
    uint64_t end = header.sections_at + (uint64_t)header.section_bytes * header.section_count;
    const bool segments = header.segment_bytes == sizeof(ElfSegment) && header.segments_at < INT64_MAX &&
        !fseeko(file, (off_t)header.segments_at, SEEK_SET);
    for (int i = 0; segments && i < header.segment_count; i++) {
        ElfSegment segment;
        if (fread(&segment, sizeof segment, 1, file) != 1) return end;
        const uint64_t segment_end = segment.offset + segment.file_bytes;
        end = segment_end > end ? segment_end : end;
    }
    return end;
}

/* Refuses a truncated library: the loader maps it, and touching a missing page is SIGBUS. */
static bool library_whole(const char *path, Error *error) {
    FILE *file = fopen(path, "rb");
    if (!file) return fail(error, ERROR_IO, "%s: %s", path, strerror(errno));
    const uint64_t wanted = library_bytes(file);
    const bool known = !fseeko(file, 0, SEEK_END);
    const off_t size = ftello(file);
    fclose(file);
    return !known || size < 0 || (uint64_t)size >= wanted ||
        fail(error, ERROR_FORMAT, "%s is incomplete: %lld of %llu bytes; copy it again", path, (long long)size,
            (unsigned long long)wanted);
}

static const Plugin *load_first(Error *error) {
    char path[PATH_MAX];
    if (!library_path(path, error)) return NULL;
    if (access(path, R_OK)) {
        fail(error, ERROR_UNSUPPORTED, "this build has no apus-cuda.so beside it");
        return NULL;
    }
    if (!library_whole(path, error)) return NULL;
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

/* Loaded once and never unloaded: the driver's threads run in it. */
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

bool plugin_kernels(const char *name, char *text, size_t size, Error *error) {
    int device;
    const Plugin *plugin = plugin_find(name, &device, error);
    if (plugin) plugin->kernels(device, text, size);
    return plugin != NULL;
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
