/* The disk tier: what was put is found again, also by the next who opens the directory; whatever is torn, foreign or
 * damaged costs what it held and nothing else; a disk that refuses ends the writing; two do not share a directory. */
#include "cache/spill.h"

#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT = 4 << 20, BUFFERS = 64, RECORD = 50000, RECORD_MAX = 2 * SPILL_BYTES_LEAST };

static char directory[64], store[96];
static int warnings;
static char warned[1200];

static void note(void *context, const char *line) {
    warnings++;
    snprintf(warned, sizeof warned, "%s", line);
}

static void new_directory(void) {
    snprintf(directory, sizeof directory, "/tmp/apus-spill-XXXXXX");
    TEST(mkdtemp(directory));
    snprintf(store, sizeof store, "%s/cache/model", directory);
    warnings = 0;
}

static void remove_directory(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    TEST(system(command) == 0);
}

static Spill *open_store(uint64_t limit) {
    Error error = {0};
    const SpillOptions options = {
        .directory = store, .bytes = limit, .record_bytes = RECORD_MAX, .buffers = BUFFERS, .warn = note};
    Spill *spill = spill_open(&options, &error);
    TEST_MSG(spill, "%s", error.text);
    return spill;
}

static SpillKey key_of(int number) { return spill_key((SpillKey){{7, 8}}, &number, sizeof number); }

static size_t size_of(int number) { return RECORD + (size_t)number % 97; }

static uint8_t *bytes_of(int number) {
    uint8_t *bytes = malloc(size_of(number));
    uint64_t state = (uint64_t)number;
    for (size_t i = 0; i < size_of(number); i++) bytes[i] = (uint8_t)test_random(&state);
    return bytes;
}

static void put(Spill *spill, int first, int end) {
    for (int i = first; i < end; i++) {
        void *buffer = spill_buffer(spill);
        if (!buffer) continue;
        uint8_t *bytes = bytes_of(i);
        memcpy(buffer, bytes, size_of(i));
        free(bytes);
        spill_put(spill, key_of(i), buffer, size_of(i));
    }
}

/* Whether it is there; what is there must be right. */
static bool holds(Spill *spill, int number) {
    if (!spill_find(spill, key_of(number))) return false;
    uint8_t *out = malloc(size_of(number)), *wanted = bytes_of(number);
    const bool got =
        spill_find(spill, key_of(number)) == size_of(number) && spill_get(spill, key_of(number), out, size_of(number));
    TEST(!got || !memcmp(out, wanted, size_of(number)));
    free(out);
    free(wanted);
    return got;
}

static int held(Spill *spill, int count) {
    int total = 0;
    for (int i = 0; i < count; i++) total += holds(spill, i);
    return total;
}

/* Calls with each file of the store. */
static int each_file(void (*act)(const char *path)) {
    int count = 0;
    DIR *list = opendir(store);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char path[512];
        if (strncmp(entry->d_name, "pages-", 6) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", store, entry->d_name);
        count++;
        if (act) act(path);
    }
    closedir(list);
    return count;
}

static void check_private(const char *path) {
    struct stat status;
    TEST(!stat(path, &status) && (status.st_mode & 0777) == 0600);
}

static void test_keys(void) {
    const SpillKey none = {{0, 0}};
    const SpillKey a = spill_key(none, "abc", 3), b = spill_key(none, "abd", 3), c = spill_key(a, "abc", 3);
    const SpillKey again = spill_key(none, "abc", 3);
    TEST(!memcmp(&a, &again, sizeof a));
    TEST(memcmp(&a, &b, sizeof a) && memcmp(&a, &c, sizeof a));
}

static void test_life(void) {
    new_directory();
    umask(0);
    Spill *spill = open_store(LIMIT);
    TEST(!spill_find(spill, key_of(0)));
    put(spill, 0, 20);
    TEST(held(spill, 20) == 20); /* from the queue or from the disk */
    spill_flush(spill);
    TEST(held(spill, 20) == 20);
    put(spill, 0, 20); /* known: nothing happens */
    spill_flush(spill);
    SpillStats stats = spill_stats(spill);
    TEST(stats.written == 20 && stats.records == 20 && stats.dropped == 0 && stats.writes);
    TEST(stats.read == 40 && stats.read_bytes > 40 * RECORD);
    uint8_t byte;
    TEST(!spill_get(spill, key_of(1), &byte, 1)); /* not its size */
    spill_close(spill);

    struct stat status;
    TEST(!stat(store, &status) && (status.st_mode & 0777) == 0700);
    TEST(each_file(check_private) >= 2);
    spill = open_store(LIMIT);
    TEST(held(spill, 20) == 20);
    put(spill, 20, 25);
    spill_close(spill);
    spill = open_store(LIMIT);
    TEST(held(spill, 25) == 25 && warnings == 0);
    spill_close(spill);
    remove_directory();
}

/* The files stay within the limit; the oldest records go. */
static void test_bound(void) {
    new_directory();
    Spill *spill = open_store(SPILL_BYTES_LEAST);
    for (int i = 0; i < 60; i++) {
        put(spill, i, i + 1);
        spill_flush(spill);
        TEST(spill_stats(spill).bytes <= SPILL_BYTES_LEAST);
        TEST(holds(spill, i));
    }
    TEST(!holds(spill, 0) && held(spill, 60) >= 15);
    const int before = held(spill, 60);
    spill_close(spill);
    spill = open_store(SPILL_BYTES_LEAST);
    TEST(held(spill, 60) == before);
    put(spill, 60, 80);
    spill_flush(spill);
    TEST(holds(spill, 79) && spill_stats(spill).bytes <= SPILL_BYTES_LEAST);
    void *large = spill_buffer(spill);
    TEST(large);
    memset(large, 0, RECORD_MAX);
    spill_put(spill, key_of(999), large, RECORD_MAX);
    spill_flush(spill);
    TEST(!spill_find(spill, key_of(999)));
    spill_close(spill);
    remove_directory();
}

/* With no buffer free a record is dropped at once: the caller does not wait. A cancelled buffer, and one whose record
 * is known or written, is free again. */
static void test_buffers(void) {
    new_directory();
    const SpillOptions options = {
        .directory = store, .bytes = LIMIT, .record_bytes = size_of(0), .buffers = 2, .warn = note};
    Spill *spill = spill_open(&options, NULL);
    void *a = spill_buffer(spill), *b = spill_buffer(spill);
    TEST(a && b && a != b && !spill_buffer(spill) && spill_stats(spill).dropped == 1);
    spill_cancel(spill, a);
    TEST(spill_buffer(spill) == a);
    spill_cancel(spill, a);
    spill_cancel(spill, b);
    for (int i = 0; i < 50; i++) {
        put(spill, 0, 1);
        spill_flush(spill);
    }
    TEST(holds(spill, 0) && spill_stats(spill).written == 1 && spill_stats(spill).dropped == 1);
    spill_close(spill);
    remove_directory();
}

static void cut_a_third(const char *path) {
    struct stat status;
    TEST(!stat(path, &status) && !truncate(path, status.st_size * 2 / 3));
}

static void damage(const char *path) {
    const int file = open(path, O_RDWR);
    const char byte = 0x5A;
    TEST(file >= 0 && pwrite(file, &byte, 1, 30000) == 1 && pwrite(file, "?", 1, 30001) == 1);
    close(file);
}

static void damage_head(const char *path) {
    const int file = open(path, O_RDWR);
    TEST(file >= 0 && pwrite(file, "?", 1, 20) == 1);
    close(file);
}

static void enlarge(const char *path) {
    const int file = open(path, O_WRONLY | O_APPEND);
    TEST(file >= 0 && write(file, path, 40) == 40);
    close(file);
}

/* Fills a store, does something to its files, and says how many of the records are still there afterwards. */
static int after(void (*act)(const char *path), int count) {
    new_directory();
    Spill *spill = open_store(LIMIT);
    put(spill, 0, count);
    spill_close(spill);
    each_file(act);
    spill = open_store(LIMIT);
    const int left = held(spill, count);
    TEST_MSG(warnings == 1, "%d: %s", warnings, warned); /* one line, however many */
    put(spill, 0, count);                                /* and what is missing can be put again */
    spill_flush(spill);
    TEST(held(spill, count) == count);
    spill_close(spill);
    remove_directory();
    return left;
}

static void test_bad_files(void) {
    enum { COUNT = 20 }; /* 10 to a file */
    int left = after(cut_a_third, COUNT);
    TEST_MSG(left > 5 && left < COUNT, "%d", left);
    left = after(damage, COUNT); /* one record of each file */
    TEST_MSG(left == COUNT - 2, "%d", left);
    left = after(damage_head, COUNT);
    TEST_MSG(left == 0, "%d", left);
    left = after(enlarge, COUNT);
    TEST_MSG(left == COUNT, "%d", left);
}

static void write_file(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", store, name);
    FILE *file = fopen(path, "w");
    TEST(file && fputs(text, file) >= 0);
    fclose(file);
}

static void test_foreign(void) {
    new_directory();
    Spill *spill = open_store(LIMIT);
    put(spill, 0, 5);
    spill_close(spill);
    char path[256], target[128];
    write_file("notes.txt", "not ours");
    write_file(
        "pages-0000ffff", "a text that calls itself pages, longer than a head of a record would be, and more of it");
    write_file("pages-0000fff0", "");
    snprintf(path, sizeof path, "%s/pages-0000fff1", store);
    TEST(mkdir(path, 0700) == 0);
    snprintf(path, sizeof path, "%s/pages-0000fff2", store);
    TEST(mkfifo(path, 0600) == 0);
    snprintf(target, sizeof target, "%s/elsewhere", directory);
    snprintf(path, sizeof path, "%s/pages-0000fff3", store);
    TEST(symlink(target, path) == 0);
    spill = open_store(LIMIT);
    TEST(held(spill, 5) == 5 && warnings == 1);
    put(spill, 5, 12);
    spill_flush(spill);
    TEST(held(spill, 12) == 12 && spill_stats(spill).writes);
    spill_close(spill);
    snprintf(path, sizeof path, "%s/notes.txt", store);
    TEST(access(path, F_OK) == 0 && access(target, F_OK) != 0);
    snprintf(path, sizeof path, "%s/pages-0000fff0", store);
    TEST(access(path, F_OK) != 0);
    remove_directory();
}

/* A disk that takes no more, as a limit on the size of files: one line, no more writing, and all else goes on. */
static void test_full(void) {
    new_directory();
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 120000; /* two records and a part of the third */
    Spill *spill = open_store(LIMIT);
    setrlimit(RLIMIT_FSIZE, &small);
    put(spill, 0, 8);
    spill_flush(spill);
    setrlimit(RLIMIT_FSIZE, &before);
    SpillStats stats = spill_stats(spill);
    TEST_MSG(warnings == 1 && strstr(warned, "nothing more is written"), "%d %s", warnings, warned);
    TEST(!stats.writes && stats.written == 2 && stats.dropped == 6);
    TEST(!spill_buffer(spill));
    put(spill, 8, 9);
    TEST(held(spill, 9) == 2 && warnings == 1);
    spill_close(spill);
    spill = open_store(LIMIT); /* what was begun was taken back */
    TEST(held(spill, 9) == 2 && warnings == 1);
    spill_close(spill);
    remove_directory();
}

static void test_shared(void) {
    new_directory();
    Spill *spill = open_store(LIMIT);
    const SpillOptions options = {.directory = store, .bytes = LIMIT, .record_bytes = RECORD_MAX, .buffers = BUFFERS};
    const pid_t child = fork();
    if (child == 0) {
        Error error = {0};
        _exit(spill_open(&options, &error) || error.code != ERROR_BUSY);
    }
    int status = -1;
    waitpid(child, &status, 0);
    TEST(status == 0);
    Error error = {0};
    TEST(!spill_open(&options, &error) && error.code == ERROR_BUSY);
    put(spill, 0, 3);
    spill_close(spill);
    spill = open_store(LIMIT);
    TEST(held(spill, 3) == 3);
    spill_close(spill);
    remove_directory();
}

static void test_refused(void) {
    Error error = {0};
    SpillOptions options = {
        .directory = "/proc/apus/cache", .bytes = LIMIT, .record_bytes = RECORD_MAX, .buffers = BUFFERS};
    TEST(!spill_open(&options, &error) && error.text[0]);
    new_directory();
    options.directory = store;
    options.bytes = SPILL_BYTES_LEAST - 1;
    TEST(!spill_open(&options, &error) && error.code == ERROR_USAGE);
    remove_directory();
    spill_close(NULL);
}

int main(void) {
    test_keys();
    test_life();
    test_bound();
    test_buffers();
    test_bad_files();
    test_foreign();
    test_full();
    test_shared();
    test_refused();
    return test_done();
}
