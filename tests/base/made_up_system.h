/* A folder with the files of /proc and /sys of a machine that does not exist. */
#pragma once
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "test.h"

static char root[] = "/tmp/apus-system-XXXXXX";

static void put(const char *name, const char *text) {
    char path[512];
    Error error = {0};
    snprintf(path, sizeof path, "%s/%s", root, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    TEST_MSG(file_make_directories(path, &error), "%s", error.text);
    *slash = '/';
    FILE *file = fopen(path, "wb");
    TEST(file && fputs(text, file) >= 0);
    if (file) fclose(file);
}

/* An empty machine whose process is in the given groups. */
static void begin_system(const char *groups, const char *mounts) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s/*", root);
    TEST(system(command) == 0);
    put("proc/self/cgroup", groups);
    put("proc/self/mountinfo", mounts);
}
