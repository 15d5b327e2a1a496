/* The probe on a small file, by both ways of reading: figures for every depth, nothing written, and clean answers where
 * there is nothing to read. */
#include "weights/disk_probe.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "test.h"

enum { FILE_BYTES = 24 << 20, BLOCK = 300000, LARGE = 1 << 20 };

static void test_figures(const char *path, ExpertCacheIoKind kind) {
    DiskProbe probe;
    Error error = {0};
    struct stat before, after;
    TEST(!stat(path, &before));
    TEST_MSG(disk_probe(path, kind, BLOCK, LARGE, &probe, &error), "%s", error.text);
    TEST(!stat(path, &after) && before.st_mtim.tv_sec == after.st_mtim.tv_sec && before.st_size == after.st_size);
    TEST(probe.block_bytes % EXPERT_CACHE_ALIGN == 0 && probe.block_bytes >= BLOCK && probe.large_bytes == LARGE);
    double best = 0;
    for (int i = 0; i < DISK_DEPTHS; i++) {
        TEST(probe.rate[i] > 0);
        best = probe.rate[i] > best ? probe.rate[i] : best;
    }
    TEST(probe.large > 0 && disk_rate(&probe, probe.depth) > 0.9 * best);
    bool listed = false;
    for (int i = 0; i < DISK_DEPTHS; i++) listed = listed || probe.depth == disk_depths[i];
    TEST(listed);
}

int main(void) {
    char path[] = "apus-probe-XXXXXX"; /* here, not in /tmp, which may be memory */
    const int fd = mkstemp(path);
    char *bytes = malloc(FILE_BYTES);
    TEST(fd >= 0 && bytes);
    for (int i = 0; i < FILE_BYTES; i++) bytes[i] = (char)(i * 7 + i / 251);
    TEST(write(fd, bytes, FILE_BYTES) == FILE_BYTES && !fsync(fd));
    test_figures(path, EXPERT_CACHE_IO_AUTO);
    test_figures(path, EXPERT_CACHE_IO_THREADS);
    DiskProbe probe;
    Error error = {0};
    TEST(!disk_probe("/nonexistent", EXPERT_CACHE_IO_AUTO, BLOCK, LARGE, &probe, &error) && error.code == ERROR_IO);
    TEST(!ftruncate(fd, BLOCK / 2)); /* smaller than a block: nothing can be said, and nothing is */
    TEST(disk_probe(path, EXPERT_CACHE_IO_AUTO, BLOCK, LARGE, &probe, &error));
    for (int i = 0; i < DISK_DEPTHS; i++) TEST(probe.rate[i] == 0);
    free(bytes);
    close(fd);
    unlink(path);
    return test_done();
}
