/* Free memory of the machine and of the control groups (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst).
 * A group's files lie below where its hierarchy is mounted (/proc/self/mountinfo), at the path that /proc/self/cgroup
 * names. Either may show less than the whole: a container sees its own part of the tree. */
#include "base/memory.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach/mach.h>
#endif

#include "base/checked.h"
#include "base/file.h"
#include "base/math.h"

enum { PATH_BYTES_MAX = 4096, TEXT_BYTES_MAX = 16 << 20 };

/* How a version of the groups names what we ask for. */
typedef struct GroupFiles {
    const char *limits[2], *usage, *cache; /* cache: a key of memory.stat */
} GroupFiles;

static const GroupFiles files_v1 = {{"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", "total_inactive_file"};
static const GroupFiles files_v2 = {{"memory.max", "memory.high"}, "memory.current", "inactive_file"};

/* --- Texts of the system ------------------------------------------------------------------------------------------ */

/* The empty text when there is no such file. */
static Slice read_text(Buffer *text, const char *format, ...) PRINTF_LIKE(2, 3);
static Slice read_text(Buffer *text, const char *format, ...) {
    char path[PATH_BYTES_MAX];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    buffer_clear(text);
    if (length >= (int)sizeof path || !file_read(path, TEXT_BYTES_MAX, text, NULL)) return SLICE("");
    return buffer_view(text);
}

/* Takes from text up to the first separator, which goes as well. */
static Slice take(Slice *text, char separator) {
    const char *at = text->size ? memchr(text->data, separator, text->size) : NULL;
    const Slice taken = {text->data, at ? (size_t)(at - text->data) : text->size};
    const size_t gone = taken.size + (at != NULL);
    *text = (Slice){text->data + gone, text->size - gone};
    return taken;
}

/* One name of a comma-separated list. */
static bool list_has(Slice list, const char *word) {
    while (list.size) {
        if (slice_is(take(&list, ','), word)) return true;
    }
    return false;
}

/* SIZE_MAX for anything but a number, as "max", and for one that is larger. */
static size_t parse_number(Slice text) {
    while (text.size && *text.data == ' ') text = (Slice){text.data + 1, text.size - 1};
    size_t number = 0, digits = 0;
    for (; digits < text.size && text.data[digits] >= '0' && text.data[digits] <= '9'; digits++) {
        if (!size_mul(number, 10, &number) || !size_add(number, (size_t)(text.data[digits] - '0'), &number))
            return SIZE_MAX;
    }
    const bool ended = digits == text.size || text.data[digits] == '\n' || text.data[digits] == ' ';
    return digits && ended ? number : SIZE_MAX;
}

/* The number behind "key " at the beginning of a line. */
static size_t find_number(Slice text, const char *key) {
    while (text.size) {
        Slice line = take(&text, '\n');
        if (slice_is(take(&line, ' '), key)) return parse_number(line);
    }
    return SIZE_MAX;
}

/* --- Control groups ----------------------------------------------------------------------------------------------- */

/* What the group of that directory alone lets us have; SIZE_MAX: no limit. */
static size_t group_room(const char *directory, const GroupFiles *files, Buffer *text) {
    size_t limit = SIZE_MAX;
    for (int i = 0; i < 2 && files->limits[i]; i++)
        limit = min_size(limit, parse_number(read_text(text, "%s/%s", directory, files->limits[i])));
    if (limit == SIZE_MAX) return SIZE_MAX;
    size_t used = parse_number(read_text(text, "%s/%s", directory, files->usage));
    size_t cache = find_number(read_text(text, "%s/memory.stat", directory), files->cache);
    if (used == SIZE_MAX) used = 0;
    if (cache == SIZE_MAX) cache = 0;
    used -= min_size(used, cache);
    return limit - min_size(limit, used);
}

/* path: the own group's directory. The groups above it count up to where the hierarchy is mounted. In the first version
 * a group need not count what is below it. */
static size_t groups_room(char *path, size_t mounted_size, const GroupFiles *files, Buffer *text) {
    size_t room = group_room(path, files, text);
    for (char *slash; strlen(path) > mounted_size && (slash = strrchr(path, '/')) >= path + mounted_size;) {
        *slash = '\0';
        if (parse_number(read_text(text, "%s/memory.use_hierarchy", path)) != 0)
            room = min_size(room, group_room(path, files, text));
    }
    return room;
}

/* Lines "id:controllers:path": that of the second version is the one without controllers. */
static bool own_path(Slice groups, const GroupFiles *files, Slice *path) {
    while (groups.size) {
        Slice line = take(&groups, '\n');
        const Slice id = take(&line, ':'), controllers = take(&line, ':');
        *path = line;
        if (files == &files_v1 ? list_has(controllers, "memory") : slice_is(id, "0") && !controllers.size) return true;
    }
    return false;
}

/* "\040" is how a space stands in mountinfo. */
static bool unescape(Slice field, char out[PATH_BYTES_MAX]) {
    size_t size = 0;
    for (size_t i = 0; i < field.size; i++) {
        if (size + 1 >= PATH_BYTES_MAX) return false;
        const char *at = field.data + i;
        const bool octal = *at == '\\' && field.size - i > 3;
        out[size++] = octal ? (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0')) : *at;
        i += octal ? 3 : 0;
    }
    out[size] = '\0';
    return true;
}

/* What of path lies below root, "" for root itself; NULL: it lies elsewhere. A root above what this process may see
 * ("/..") is above its group as well, though by which names is not to be seen: then the mount itself is looked at. */
static const char *below(const char *root, const char *path) {
    size_t size = strlen(root);
    if (strncmp(root, "/..", 3) == 0) return "";
    if (strncmp(path, "/..", 3) == 0) return NULL;
    if (size == 1) size = 0; /* "/" */
    if (strncmp(path, root, size) != 0 || (path[size] != '/' && path[size] != '\0')) return NULL;
    return strcmp(path + size, "/") == 0 ? "" : path + size;
}

/* A line of mountinfo: id, parent, device, root, mount point, options, more…, "-", type, source, options. */
static size_t mount_room(const char *system, Slice line, Slice groups, Buffer *text) {
    Slice field[5];
    for (int i = 0; i < 5; i++) field[i] = take(&line, ' ');
    while (line.size && !slice_is(take(&line, ' '), "-")) {}
    const Slice type = take(&line, ' ');
    take(&line, ' ');
    const GroupFiles *files = slice_is(type, "cgroup2")        ? &files_v2
        : slice_is(type, "cgroup") && list_has(line, "memory") ? &files_v1
                                                               : NULL;
    char root[PATH_BYTES_MAX], mount[PATH_BYTES_MAX], own[PATH_BYTES_MAX], path[PATH_BYTES_MAX];
    Slice group;
    if (!files || !own_path(groups, files, &group) || group.size >= sizeof own || !unescape(field[3], root) ||
        !unescape(field[4], mount))
        return SIZE_MAX;
    snprintf(own, sizeof own, "%.*s", SLICE_ARGS(group));
    const char *rest = below(root, own);
    if (!rest || snprintf(path, sizeof path, "%s%s%s", system, mount, rest) >= (int)sizeof path) return SIZE_MAX;
    return groups_room(path, strlen(system) + strlen(mount), files, text);
}

/* --- All together ------------------------------------------------------------------------------------------------- */

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
    size_t bytes = find_number(read_text(text, "%s/proc/meminfo", root), "MemAvailable:");
    return size_mul(bytes, 1024, &bytes) ? bytes : half_of_machine();
}
#endif

size_t memory_available_below(const char *root) {
    Buffer text = {0}, groups_text = {0}, mounts_text = {0};
    size_t bytes = machine_available(root, &text);
    const Slice groups = read_text(&groups_text, "%s/proc/self/cgroup", root);
    Slice mounts = read_text(&mounts_text, "%s/proc/self/mountinfo", root);
    while (mounts.size) bytes = min_size(bytes, mount_room(root, take(&mounts, '\n'), groups, &text));
    buffer_free(&text);
    buffer_free(&groups_text);
    buffer_free(&mounts_text);
    return bytes;
}

size_t memory_available(void) { return memory_available_below(""); }
