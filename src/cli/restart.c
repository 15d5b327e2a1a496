#include "cli/restart.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"

/* "FD COUNT TIME… REASON" */
static const char variable[] = "APUS_RESTARTED";

static char program[PATH_MAX]; /* by its own name: that of a link in /proc would be the process's from then on */

extern char **environ;

/* ---- which restarts there were ---- */

static void forget_old(Restart *r) {
    const int64_t since = clock_ns() - RESTARTS_S * INT64_C(1000000000);
    int kept = 0;
    for (int i = 0; i < r->count; i++)
        if (r->times_ns[i] > since) r->times_ns[kept++] = r->times_ns[i];
    r->count = kept;
}

bool restart_allowed(Restart *r) {
    forget_old(r);
    return r->count < RESTARTS_MAX && program[0];
}

/* ---- from one program to the next ---- */

static bool listens(int fd) {
    int yes = 0;
    socklen_t size = sizeof yes;
    return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) && yes;
}

static bool parse(const char *text, Restart *out) {
    int used = 0;
    Restart r = {0};
    if (sscanf(text, "%d %d%n", &r.listener, &r.count, &used) != 2 || r.count < 1 || r.count > RESTARTS_MAX)
        return false;
    for (int i = 0; i < r.count; i++) {
        int more = 0;
        if (sscanf(text + used, " %" SCNd64 "%n", &r.times_ns[i], &more) != 1) return false;
        used += more;
    }
    if (text[used] != ' ' || !listens(r.listener)) return false;
    snprintf(r.reason, sizeof r.reason, "%s", text + used + 1);
    *out = r;
    return r.reason[0];
}

bool restart_pending(void) { return getenv(variable) != NULL; }

void restart_take(Restart *out) {
    *out = (Restart){.listener = -1};
    const char *text = getenv(variable);
    if (text && !parse(text, out)) *out = (Restart){.listener = -1};
    unsetenv(variable);
    if (out->reason[0]) fcntl(out->listener, F_SETFD, FD_CLOEXEC);
    const ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
    program[size < 0 ? 0 : size] = 0;
}

static void describe(Restart *r, Buffer *out) {
    r->times_ns[r->count++] = clock_ns();
    buffer_printf(out, "%s=%d %d", variable, r->listener, r->count);
    for (int i = 0; i < r->count; i++) buffer_printf(out, " %" PRId64, r->times_ns[i]);
    buffer_printf(out, " %s", r->reason);
}

/* All but the standard ones and the socket end with this program: a driver's, too, which keeps what is on the device as
 * long as one is open. */
static void close_others(int listener) {
    DIR *list = opendir("/proc/self/fd");
    for (const struct dirent *entry; list && (entry = readdir(list));) {
        const int fd = (int)strtol(entry->d_name, NULL, 10);
        if (fd > STDERR_FILENO) fcntl(fd, F_SETFD, fd == listener ? 0 : FD_CLOEXEC);
    }
    if (list) closedir(list);
}

/* What this one was called with: texts that end with a NUL each, behind each other. */
static bool read_arguments(Buffer *texts, Error *error) {
    char piece[4096];
    FILE *file = fopen("/proc/self/cmdline", "re");
    if (!file) return fail(error, ERROR_IO, "cannot read how this program was called: %s", strerror(errno));
    for (size_t size; (size = fread(piece, 1, sizeof piece, file)) > 0;) buffer_append(texts, piece, size);
    fclose(file);
    return !texts->failed || fail(error, ERROR_MEMORY, "no memory to start again");
}

static char **pointers_to(Buffer *texts) {
    size_t count = 0;
    for (size_t i = 0; i < texts->size; i++) count += !texts->data[i];
    char **list = calloc(count + 1, sizeof *list), *at = texts->data;
    for (size_t i = 0; list && i < count; i++, at += strlen(at) + 1) list[i] = at;
    return list;
}

/* The environment is copied by hand: other threads may be reading it. */
static bool become(char **arguments, char *ours, Error *error) {
    size_t count = 0;
    while (environ[count]) count++;
    char **environment = calloc(count + 2, sizeof *environment);
    if (!environment) return fail(error, ERROR_MEMORY, "no memory to start again");
    memcpy(environment, environ, count * sizeof *environment);
    environment[count] = ours;
    execve(program, arguments, environment);
    const int reason = errno;
    free(environment);
    return fail(error, ERROR_IO, "cannot start %s again: %s", program, strerror(reason));
}

bool restart_now(Restart *r, int listener, const char *reason, Error *error) {
    Buffer texts = {0}, ours = {0};
    r->listener = listener;
    snprintf(r->reason, sizeof r->reason, "%s", reason);
    describe(r, &ours);
    char **arguments = read_arguments(&texts, error) ? pointers_to(&texts) : NULL;
    if (arguments && !ours.failed) {
        close_others(listener);
        (void)become(arguments, ours.data, error);
    }
    free(arguments);
    buffer_free(&texts);
    buffer_free(&ours);
    return false;
}
