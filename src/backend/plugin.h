/* Backends that are libraries of their own, found beside the binary and loaded when asked for: what they need (a
 * driver) must not be needed by anybody else. apus-NAME.so exports one function, `apus_plugin`. */
#pragma once
#include <stdint.h>

#include "backend/backend.h"

enum { PLUGIN_ABI = 3 }; /* grows with every change of backend.h */

typedef struct Plugin {
    uint32_t abi, table_bytes, options_bytes; /* PLUGIN_ABI, sizeof(BackendOps), sizeof(BackendOptions) */
    int (*device_count)(Error *error);        /* that can be used; 0 with the reason */
    /* One line for people: "NVIDIA H200, 141 GB, 140 GB free". Empty for a device that there is not. */
    void (*device_describe)(int device, char *text, size_t size);
    Backend *(*open)(const BackendOptions *options, int device, Error *error);
} Plugin;
typedef const Plugin *PluginEntry(void);
#define PLUGIN_ENTRY "apus_plugin"

/* What options->device names ("cuda", "cuda:1"), opened. */
NODISCARD Backend *plugin_open(const BackendOptions *options, Error *error);
/* Whether "auto" finds a device to use. */
bool plugin_usable(void);
/* One line: the devices, or why there are none. */
void plugin_describe(char *text, size_t size);
