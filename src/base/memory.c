#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"

/* The number behind key in a small file of the system; SIZE_MAX when there is none. */
static size_t read_number(const char *path, const char *key) {
    Buffer text = {.limit = 1 << 20};
    size_t number = SIZE_MAX;
    if (file_read(path, 0, &text, NULL) && text.size > 0) {
        const char *found = strstr(text.data, key);
        char *end = NULL;
        const unsigned long long value = found ? strtoull(found + strlen(key), &end, 10) : 0;
        if (found && end > found + strlen(key)) number = (size_t)value;
    }
    buffer_free(&text);
    return number;
}

size_t memory_available(void) {
    const size_t group = read_number("/sys/fs/cgroup/memory.max", ""); /* "max" when there is no limit */
    size_t bytes = 0;
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (!size_mul(read_number("/proc/meminfo", "MemAvailable:"), 1024, &bytes))
        bytes = pages > 0 && page_bytes > 0 ? (size_t)pages * (size_t)page_bytes / 2 : SIZE_MAX;
    return bytes < group ? bytes : group;
}
