/* Backends that are libraries of their own, found beside the binary and loaded when asked for: what they need (a
 * driver) must not be needed by anybody else. apus-NAME.so exports one function, `apus_plugin`. */
#pragma once
#include <stdint.h>

#include "backend/backend.h"

enum { PLUGIN_ABI = 12 }; /* grows with every change of backend.h */

typedef struct DeviceMemory {
    uint64_t free, total; /* bytes */
} DeviceMemory;

typedef struct Plugin {
    uint32_t abi, table_bytes, options_bytes; /* PLUGIN_ABI, sizeof(BackendOps), sizeof(BackendOptions) */
    int (*device_count)(Error *error);        /* that can be used; 0 with the reason */
    /* One line for people: "NVIDIA H200, 141 GB, 140 GB free". Empty for a device that there is not. */
    void (*device_describe)(int device, char *text, size_t size);
    Backend *(*open)(const BackendOptions *options, int device, Error *error);
    bool (*device_memory)(int device, DeviceMemory *out, Error *error);
    uint64_t (*weight_bytes)(const Weight *weight); /* that it takes on the device once it is bound */
    /* kv_quant_bytes() of any backend there. */
    size_t (*code_bytes)(const KvLayout *layout, KvForm form, bool values);
    /* What a backend takes there besides weights, scratch and what is asked of alloc(). */
    uint64_t (*work_bytes)(int rows_max, int64_t cols_max);
    /* Bytes a second that its memory is read with at best, measured now, in some hundredths of a second and memory of
     * its own; 0: it could not be. Between steps. */
    double (*read_speed)(int device);
    /* A table of kernels as lines of text: which runs what, and whether this device has it. Empty: no such device. */
    void (*kernels)(int device, char *text, size_t size);
} Plugin;
typedef const Plugin *PluginEntry(void);
#define PLUGIN_ENTRY "apus_plugin"

/* The library, and which of its devices a name says; "auto" is the first. */
NODISCARD const Plugin *plugin_find(const char *name, int *device, Error *error);
/* The library, and what is free on the devices of these options: of several, as often what the fullest has. */
NODISCARD const Plugin *plugin_memory(const BackendOptions *options, uint64_t *free_bytes, Error *error);
/* read_speed of the devices of these options together; 0: not all could be measured. */
double plugin_read_speed(const BackendOptions *options);
/* What options->device names ("cuda", "cuda:1"), or so many devices behind it, opened. */
NODISCARD Backend *plugin_open(const BackendOptions *options, int behind, Error *error);
/* Whether "auto" finds a device to use. */
bool plugin_usable(void);
/* The table of kernels of the device that a name says. */
NODISCARD bool plugin_kernels(const char *name, char *text, size_t size, Error *error);
/* One line: the devices, or why there are none. */
void plugin_describe(char *text, size_t size);
