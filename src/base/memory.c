/* Free memory of the machine and of the control groups (cgroup-v2.rst and cgroup-v1/memory.rst of the kernel). */
#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach/mach.h>
#endif

#include "base/cgroup.h"
#include "base/checked.h"
#include "base/math.h"

/* How a version of the groups names what we ask for. */
typedef struct GroupFiles {
    const char *limits[2], *usage, *cache; /* cache: a key of memory.stat */
} GroupFiles;

static const GroupFiles files_v1 = {{"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", "total_inactive_file"};
static const GroupFiles files_v2 = {{"memory.max", "memory.high"}, "memory.current", "inactive_file"};

/* The number behind "key " at the beginning of a line. */
static size_t find_number(Slice text, const char *key) {
    while (text.size) {
        Slice line = system_take(&text, '\n');
        if (slice_is(system_take(&line, ' '), key)) return system_number(line);
    }
    return SIZE_MAX;
}

/* What the group of that directory alone lets us have; SIZE_MAX: no limit. */
static size_t group_room(const char *directory, const GroupFiles *files, Buffer *text) {
    size_t limit = SIZE_MAX;
    for (int i = 0; i < 2 && files->limits[i]; i++)
        limit = min_size(limit, system_number(system_text(text, "%s/%s", directory, files->limits[i])));
    if (limit == SIZE_MAX) return SIZE_MAX;
    size_t used = system_number(system_text(text, "%s/%s", directory, files->usage));
    size_t cache = find_number(system_text(text, "%s/memory.stat", directory), files->cache);
    if (used == SIZE_MAX) used = 0;
    if (cache == SIZE_MAX) cache = 0;
    used -= min_size(used, cache);
    return limit - min_size(limit, used);
}

typedef struct Room {
    size_t bytes;
    Buffer text;
} Room;

/* In the first version a group need not count what is below it. */
static void visit_group(void *context, const char *directory, int version, bool own) {
    Room *room = context;
    if (!own && system_number(system_text(&room->text, "%s/memory.use_hierarchy", directory)) == 0) return;
    room->bytes = min_size(room->bytes, group_room(directory, version == 1 ? &files_v1 : &files_v2, &room->text));
}

static size_t half_of_machine(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (size_t)pages * (size_t)page_bytes / 2 : SIZE_MAX;
}

#ifdef __APPLE__
static size_t machine_available(const char *root, Buffer *text) {
    const mach_port_t host = mach_host_self();
    vm_statistics64_data_t pages;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    const bool known = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&pages, &count) == KERN_SUCCESS;
    mach_port_deallocate(mach_task_self(), host);
    if (!known) return half_of_machine();
    return ((size_t)pages.free_count + pages.inactive_count) * (size_t)sysconf(_SC_PAGESIZE);
}
#else
static size_t machine_available(const char *root, Buffer *text) {
    size_t bytes = find_number(system_text(text, "%s/proc/meminfo", root), "MemAvailable:");
    return size_mul(bytes, 1024, &bytes) ? bytes : half_of_machine();
}
#endif

size_t memory_available_below(const char *root) {
    Room room = {0};
    room.bytes = machine_available(root, &room.text);
    cgroup_visit(root, "memory", visit_group, &room);
    buffer_free(&room.text);
    return room.bytes;
}

size_t memory_available(void) { return memory_available_below(""); }
