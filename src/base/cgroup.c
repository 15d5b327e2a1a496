/* Documentation/admin-guide/cgroup-v2.rst, cgroup-v1. A group's files lie below where its hierarchy is mounted
 * (/proc/self/mountinfo), at the path that /proc/self/cgroup names. Either may show less than the whole: a container
 * sees its own part of the tree. */
#include "base/cgroup.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"

enum { PATH_BYTES_MAX = 4096, TEXT_BYTES_MAX = 16 << 20 };

/* --- Texts of the system ------------------------------------------------------------------------------------------ */

Slice system_text(Buffer *text, const char *format, ...) {
    char path[PATH_BYTES_MAX];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    buffer_clear(text);
    if (length >= (int)sizeof path || !file_read(path, TEXT_BYTES_MAX, text, NULL)) return SLICE("");
    return buffer_view(text);
}

Slice system_take(Slice *text, char separator) {
    const char *at = text->size ? memchr(text->data, separator, text->size) : NULL;
    const Slice taken = {text->data, at ? (size_t)(at - text->data) : text->size};
    const size_t gone = taken.size + (at != NULL);
    *text = (Slice){text->data + gone, text->size - gone};
    return taken;
}

size_t system_number(Slice text) {
    while (text.size && *text.data == ' ') text = (Slice){text.data + 1, text.size - 1};
    size_t number = 0, digits = 0;
    for (; digits < text.size && text.data[digits] >= '0' && text.data[digits] <= '9'; digits++) {
        if (!size_mul(number, 10, &number) || !size_add(number, (size_t)(text.data[digits] - '0'), &number))
            return SIZE_MAX;
    }
    const bool ended = digits == text.size || text.data[digits] == '\n' || text.data[digits] == ' ';
    return digits && ended ? number : SIZE_MAX;
}

/* One name of a comma-separated list. */
static bool list_has(Slice list, const char *word) {
    while (list.size) {
        if (slice_is(system_take(&list, ','), word)) return true;
    }
    return false;
}

/* --- Groups ------------------------------------------------------------------------------------------------------- */

/* Lines "id:controllers:path": that of the second version is the one without controllers. */
static bool own_path(Slice groups, const char *controller, int version, Slice *path) {
    while (groups.size) {
        Slice line = system_take(&groups, '\n');
        const Slice id = system_take(&line, ':'), controllers = system_take(&line, ':');
        *path = line;
        if (version == 1 ? list_has(controllers, controller) : slice_is(id, "0") && !controllers.size) return true;
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

typedef struct Visit {
    const char *root, *controller;
    Slice groups; /* /proc/self/cgroup */
    CgroupVisit *visit;
    void *context;
} Visit;

/* A line of mountinfo: id, parent, device, root, mount point, options, more…, "-", type, source, options. */
static void visit_mount(const Visit *v, Slice line) {
    Slice field[5];
    for (int i = 0; i < 5; i++) field[i] = system_take(&line, ' ');
    while (line.size && !slice_is(system_take(&line, ' '), "-")) {}
    const Slice type = system_take(&line, ' ');
    system_take(&line, ' ');
    const int version = slice_is(type, "cgroup2")                   ? 2
        : slice_is(type, "cgroup") && list_has(line, v->controller) ? 1
                                                                    : 0;
    char root[PATH_BYTES_MAX], mount[PATH_BYTES_MAX], own[PATH_BYTES_MAX], path[PATH_BYTES_MAX];
    Slice group;
    if (!version || !own_path(v->groups, v->controller, version, &group) || group.size >= sizeof own ||
        !unescape(field[3], root) || !unescape(field[4], mount))
        return;
    snprintf(own, sizeof own, "%.*s", SLICE_ARGS(group));
    const char *rest = below(root, own);
    if (!rest || snprintf(path, sizeof path, "%s%s%s", v->root, mount, rest) >= (int)sizeof path) return;
    v->visit(v->context, path, version, true);
    const size_t mounted_size = strlen(v->root) + strlen(mount);
    for (char *slash; strlen(path) > mounted_size && (slash = strrchr(path, '/')) >= path + mounted_size;) {
        *slash = '\0';
        v->visit(v->context, path, version, false);
    }
}

void cgroup_visit(const char *root, const char *controller, CgroupVisit *visit, void *context) {
    Buffer groups = {0}, mounts_text = {0};
    const Visit v = {root, controller, system_text(&groups, "%s/proc/self/cgroup", root), visit, context};
    Slice mounts = system_text(&mounts_text, "%s/proc/self/mountinfo", root);
    while (mounts.size) visit_mount(&v, system_take(&mounts, '\n'));
    buffer_free(&groups);
    buffer_free(&mounts_text);
}
