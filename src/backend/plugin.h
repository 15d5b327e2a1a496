/* Backends that are libraries of their own, found beside the binary and loaded on demand, so that the binary itself
 * does not depend on their dependencies (a driver). apus-NAME.so exports one function, `apus_plugin`. */
#pragma once
#include <stdint.h>

#include "backend/backend.h"

enum { PLUGIN_ABI = 16 }; /* grows with every change of backend.h */

typedef struct DeviceMemory {
    uint64_t free, total; /* bytes */
} DeviceMemory;

typedef struct Plugin {
    uint32_t abi, table_bytes, options_bytes; /* PLUGIN_ABI, sizeof(BackendOps), sizeof(BackendOptions) */
    int (*device_count)(Error *error);        /* usable devices; 0 with the reason */
    /* One line for people: "NVIDIA H200, 141 GB, 140 GB free". Empty if there is no such device. */
    void (*device_describe)(int device, char *text, size_t size);
    Backend *(*open)(const BackendOptions *options, int device, Error *error);
    bool (*device_memory)(int device, DeviceMemory *out, Error *error);
    uint64_t (*weight_bytes)(const Weight *weight); /* bytes of a bound weight on the device */
    /* kv_quant_bytes() of any backend there. */
    size_t (*code_bytes)(const KvLayout *layout, KvForm form, bool values);
    /* Bytes that a backend takes there besides weights, scratch and what its callers alloc(). */
    uint64_t (*work_bytes)(int rows_max, int64_t cols_max);
    /* Highest read speed of device memory in bytes per second, measured by the call, which takes some hundredths of a
     * second and allocates its own memory; 0: not measurable. Between steps only. */
    double (*read_speed)(int device);
    /* The kernel table as lines of text: each kernel, its use, and whether this device has it. Empty: no such device.
     */
    void (*kernels)(int device, char *text, size_t size);
} Plugin;
typedef const Plugin *PluginEntry(void);
#define PLUGIN_ENTRY "apus_plugin"

/* The library of a device name, and the device's number; "auto" is device 0. */
NODISCARD const Plugin *plugin_find(const char *name, int *device, Error *error);
/* The library, and the free bytes on the devices of these options: with several ranks, their number times the smallest
 * free memory. */
NODISCARD const Plugin *plugin_memory(const BackendOptions *options, uint64_t *free_bytes, Error *error);
/* Sum of read_speed over the devices of these options; 0: a device could not be measured. */
double plugin_read_speed(const BackendOptions *options);
/* Opens the device that options->device names ("cuda", "cuda:1"), or the one `behind` numbers after it. */
NODISCARD Backend *plugin_open(const BackendOptions *options, int behind, Error *error);
/* True if "auto" finds a usable device. */
bool plugin_usable(void);
/* The kernel table of a named device. */
NODISCARD bool plugin_kernels(const char *name, char *text, size_t size, Error *error);
/* One line: the devices, or why there are none. */
void plugin_describe(char *text, size_t size);
