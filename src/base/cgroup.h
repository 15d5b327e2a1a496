/* The control groups that this process is in, and texts of /proc and /sys. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"

/* The whole file, in text, which is cleared first; the empty text when it cannot be read. */
Slice system_text(Buffer *text, const char *format, ...) PRINTF_LIKE(2, 3);
/* Takes from text up to the first separator, which goes as well. */
Slice system_take(Slice *text, char separator);
/* The number at the beginning of text, up to a space or the end of the line; SIZE_MAX for anything else, as "max", and
 * for one that is larger. */
size_t system_number(Slice text);

/* directory: of a group's files; version: 1 or 2; own: false for the groups above that of this process. */
typedef void CgroupVisit(void *context, const char *directory, int version, bool own);
/* Calls visit with the group of this process and with each above it, up to where the hierarchy is mounted: in every
 * mounted hierarchy that has the controller ("cpu", "memory"). /proc and the groups are looked for below root: "", or
 * a made-up system of a test. */
void cgroup_visit(const char *root, const char *controller, CgroupVisit *visit, void *context);
