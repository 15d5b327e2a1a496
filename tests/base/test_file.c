/* Files: reading with limits, atomic writing, and mappings whose file is truncated under them. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/slice.h"
#include "base/thread.h"
#include "test.h"

static char directory[] = "/tmp/apus-test-XXXXXX";

static const char *path_of(const char *name) {
    static char path[4][256];
    static int turn;
    char *out = path[turn++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", directory, name);
    return out;
}

static void test_read_write(void) {
    Error error = {0};
    const char *path = path_of("text");
    TEST(file_write_atomic(path, SLICE("first\n"), &error));
    TEST(file_write_atomic(path, SLICE("second, and longer\n"), &error));
    Buffer out = {0};
    buffer_text(&out, ">");
    TEST(file_read(path, 0, &out, &error));
    TEST_MSG(strcmp(out.data, ">second, and longer\n") == 0, "%s", out.data);
    struct stat status;
    TEST(stat(path, &status) == 0 && (status.st_mode & 0444) != 0 && S_ISREG(status.st_mode));

    Buffer exact = {.limit = 19};
    TEST(file_read(path, 19, &exact, &error) && exact.size == 19);
    Buffer small = {0};
    TEST(!file_read(path, 18, &small, &error) && error.code == ERROR_LIMIT);
    Buffer tight = {.limit = 18};
    TEST(!file_read(path, 0, &tight, &error) && error.code == ERROR_MEMORY);

    TEST(!file_read(path_of("absent"), 0, &small, &error) && error.code == ERROR_NOT_FOUND);
    TEST(!file_read(directory, 0, &small, &error) && error.code == ERROR_IO);
    TEST(!file_write_atomic(path_of("no/such/folder"), SLICE("x"), &error) && error.code == ERROR_NOT_FOUND);
    buffer_free(&out);
    buffer_free(&exact);
    buffer_free(&small);
    buffer_free(&tight);
}

static void test_read_large(void) {
    Error error = {0};
    Buffer text = {0}, back = {0};
    for (int i = 0; i < 50000; i++) buffer_printf(&text, "line %d\n", i);
    const char *path = path_of("large");
    TEST(file_write_atomic(path, buffer_view(&text), &error) && file_read(path, 0, &back, &error));
    TEST(slice_equal(buffer_view(&text), buffer_view(&back)));
#ifdef __linux__ /* no size is known before the end */
    buffer_clear(&back);
    TEST(file_read("/proc/self/status", 0, &back, &error) && slice_starts(buffer_view(&back), SLICE("Name:")));
    TEST(back.size > 100 && strstr(back.data, "Threads:"));
    buffer_clear(&back);
    TEST(!file_read("/proc/self/status", 10, &back, &error) && error.code == ERROR_LIMIT);
#endif
    buffer_free(&text);
    buffer_free(&back);
}

static void test_directories(void) {
    Error error = {0};
    const char *path = path_of("a/b//c/");
    TEST(!file_exists(path) && file_make_directories(path, &error) && file_is_directory(path));
    TEST(file_make_directories(path, &error)); /* there already */
    TEST(file_write_atomic(path_of("a/plain"), SLICE(""), &error));
    TEST(file_exists(path_of("a/plain")) && !file_is_directory(path_of("a/plain")));
    TEST(!file_make_directories(path_of("a/plain/b"), &error) && error.code != ERROR_NONE);
    TEST(!file_make_directories("", &error));
}

static void test_map(void) {
    Error error = {0};
    FileMap map;
    TEST(file_map(&map, path_of("text"), &error));
    TEST(map.size == 19 && memcmp(map.data, "second, and longer\n", 19) == 0 && !file_damaged(&map));
    file_unmap(&map);
    TEST(map.data == NULL);
    file_unmap(&map);
    TEST(file_map(&map, path_of("a/plain"), &error) && map.data == NULL && map.size == 0 && !file_damaged(&map));
    file_unmap(&map);
    TEST(!file_map(&map, path_of("absent"), &error) && error.code == ERROR_NOT_FOUND && map.data == NULL);
}

/* Refused by file_read and file_map, in words, and without waiting for anybody. */
static void check_refused(const char *path, const char *says) {
    Error error = {0};
    Buffer out = {0};
    FileMap map;
    alarm(10); /* an open that waits ends the test */
    TEST_MSG(!file_read(path, 0, &out, &error) && error.code == ERROR_IO, "%s was read", path);
    TEST_MSG(strstr(error.text, path) && strstr(error.text, says), "%s", error.text);
    error = (Error){0};
    TEST_MSG(!file_map(&map, path, &error) && error.code == ERROR_IO && !map.data, "%s was mapped", path);
    TEST_MSG(strstr(error.text, path) && strstr(error.text, says), "%s", error.text);
    alarm(0);
    buffer_free(&out);
}

static void test_irregular(void) {
    TEST(mkfifo(path_of("pipe"), 0600) == 0 && symlink("pipe", path_of("link")) == 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of("socket"));
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    TEST(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    check_refused(path_of("pipe"), "a pipe");
    check_refused(path_of("link"), "a pipe");
    check_refused(path_of("socket"), "a socket");
    check_refused("/dev/zero", "a device");
    check_refused(directory, "a directory");
    close(listener);
}

/* Volatile: every page is touched, whatever the compiler thinks. */
static unsigned sum_of(const volatile uint8_t *data, size_t size) {
    unsigned sum = 0;
    for (size_t i = 0; i < size; i += 512) sum += data[i];
    return sum;
}

static void *read_damaged(void *argument) {
    const FileMap *map = argument;
    return (void *)(uintptr_t)sum_of(map->data, map->size);
}

static void test_truncated(void) {
    Error error = {0};
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = 16 * page + 100;
    Buffer ones = {0};
    TEST(buffer_reserve(&ones, size));
    memset(ones.data, 1, size);
    ones.size = size;
    FileMap map, other;
    TEST(file_write_atomic(path_of("ones"), buffer_view(&ones), &error));
    TEST(file_write_atomic(path_of("other"), buffer_view(&ones), &error));
    TEST(file_map(&map, path_of("ones"), &error) && file_map(&other, path_of("other"), &error));
    TEST(sum_of(map.data, map.size) == (size + 511) / 512);
    TEST(truncate(path_of("ones"), (off_t)(4 * page)) == 0);
    TEST(!file_damaged(&map) && !file_damaged(&other));

    errno = 77;
    unsigned sum = sum_of(map.data, map.size);
    TEST(errno == 77); /* the handler leaves no trace */
    TEST_MSG(sum == 4 * page / 512, "%u", sum);
    TEST(file_damaged(&map) && !file_damaged(&other));
    TEST(sum_of(other.data, other.size) == (size + 511) / 512);
    Thread thread;
    TEST(truncate(path_of("other"), 0) == 0);
    TEST(thread_start(&thread, read_damaged, &other, "reader", &error));
    thread_join(thread);
    TEST(file_damaged(&other));
    TEST(sum_of(other.data, other.size) == 0);
    file_unmap(&map);
    TEST(!file_damaged(&map) && file_damaged(&other));
    file_unmap(&other);
    TEST(file_map(&map, path_of("text"), &error) && !file_damaged(&map)); /* a slot used again is clean */
    file_unmap(&map);
    buffer_free(&ones);
}

/* A mapping of somebody else, made too short. */
static const volatile uint8_t *foreign_mapping(void) {
    int fd = open(path_of("foreign"), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 65536) != 0) return NULL;
    void *data = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE, fd, 0);
    if (ftruncate(fd, 0) != 0 || data == MAP_FAILED) return NULL;
    close(fd);
    return data;
}

static void exit_three(int number) { _exit(number == SIGBUS ? 3 : 4); }
static void exit_five(int number, siginfo_t *info, void *context) {
    _exit(number == SIGBUS && info && context ? 5 : 4);
}

/* In a process of its own: a handler set before the first mapping still gets the faults that are not ours. */
static int foreign_fault(int kind) {
    pid_t child = fork();
    if (child == 0) {
        struct sigaction action = {0};
        action.sa_handler = kind == 0 ? SIG_DFL : kind == 1 ? exit_three : SIG_IGN;
        if (kind == 2) {
            action.sa_flags = SA_SIGINFO;
            action.sa_sigaction = exit_five;
        }
        sigaction(SIGBUS, &action, NULL);
        Error error;
        FileMap map;
        if (!file_map(&map, path_of("text"), &error)) _exit(6);
        const volatile uint8_t *foreign = foreign_mapping();
        if (!foreign) _exit(6);
        if (kind == 3) {
            kill(getpid(), SIGBUS); /* ends the process as without us, though there is no fault */
        } else {
            (void)foreign[100];
        }
        _exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_chain(void) {
    TEST(foreign_fault(0) == -SIGBUS);
    TEST(foreign_fault(1) == 3);
    TEST(foreign_fault(2) == 5);
    TEST(foreign_fault(3) == -SIGBUS);
}

int main(void) {
    if (!mkdtemp(directory)) return 1;
    test_read_write();
    test_chain(); /* before this process maps anything: its children install the handler anew */
    test_read_large();
    test_directories();
    test_map();
    test_irregular();
    test_truncated();
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", directory);
    TEST(system(command) == 0);
    return test_done();
}
