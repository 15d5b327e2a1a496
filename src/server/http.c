/* libmicrohttpd: the daemon and its callbacks. A request is refused from its headers, answered only after its body was
 * read (so that the connection lives on), and every answer is JSON. */
#include "server/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/body.h"
#include "server/completion.h"
#include "server/guard.h"
#include "server/head.h"
#include "server/pull.h"
#include "server/reply.h"
#include "server/routes.h"

enum {
    HEADER_BYTES_MAX = 64 << 10, /* request line and headers of a connection */
    CONNECTIONS_MAX = 512,
    THREAD_STACK_BYTES = 4 << 20, /* templates recurse */
};

/* ---- libmicrohttpd's callbacks ---- */

static enum MHD_Result begin(Server *server, struct MHD_Connection *connection, const char *url, const char *method,
    const char *version, void **state) {
    Exchange *x = calloc(1, sizeof *x);
    if (!x) return MHD_NO;
    x->server = server;
    x->connection = connection;
    x->started_ns = clock_ns();
    x->chunked = strcmp(version, "HTTP/1.0") > 0;
    *state = x;
    guard_deadline(server->guard, reply_guard(x), BODY_DEADLINE_S);
    head_take_request_id(x);
    if (!head_check(x, url, method, &x->refusal) && x->refusal.status == 413 &&
        head_content_length(x) > BODY_DISCARD_MAX)
        return reply_error(x, &x->refusal); /* before the body: an honest client waits for "100 Continue" */
    return MHD_YES;
}

static enum MHD_Result take_body(Exchange *x, const char *data, size_t *size) {
    const bool go_on = body_take(x, data, *size);
    *size = 0;
    return go_on ? MHD_YES : MHD_NO;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
    const char *version, const char *data, size_t *size, void **state) {
    Exchange *x = *state;
    if (!x) return begin(cls, connection, url, method, version, state);
    if (*size > 0) return take_body(x, data, size);
    if (x->answered) return MHD_YES;
    reply_touch(x);
    guard_deadline(x->server->guard, reply_guard(x), 0); /* the wait is ours now */
    if (x->refusal.status) return reply_error(x, &x->refusal);
    return x->route->answer(x, slice_of(url + strlen(x->route->path)));
}

static void completed(
    void *cls, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode code) {
    Exchange *x = *state;
    if (!x) return;
    guard_deadline(x->server->guard, reply_guard(x), IDLE_DEADLINE_S);
    log_debug("done id=%s ms=%lld", x->request_id, (long long)((clock_ns() - x->started_ns) / 1000000));
    completion_close(x);
    pull_close(x);
    body_free(x);
    free(x);
    *state = NULL;
}

static void connection_event(
    void *cls, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code) {
    Server *server = cls;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = info ? guard_add(server->guard, info->connect_fd) : NULL;
    } else {
        guard_remove(server->guard, *context);
        *context = NULL;
    }
}

/* A path with an encoded NUL stays as it is, and so names nothing. */
static size_t unescape(void *cls, struct MHD_Connection *connection, char *text) {
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

/* A socket that listens, or -1. The address of a server that just ended can be taken at once; one that somebody listens
 * at cannot (MHD's own option for the first also allows the second: two servers would share the port in silence). */
static int listen_at(const struct sockaddr *address, socklen_t size) {
    const int yes = 1, fd = socket(address->sa_family, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) && !bind(fd, address, size) &&
        !listen(fd, CONNECTIONS_MAX))
        return fd;
    const int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

bool http_start(Server *server, Error *error) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)server->port)};
    const char *host = !strcmp(server->host, "localhost") ? "127.0.0.1" : server->host;
    const bool six = inet_pton(AF_INET6, host, &v6.sin6_addr) == 1;
    if (!six && inet_pton(AF_INET, host, &v4.sin_addr) != 1)
        return fail(error, ERROR_USAGE, "--host %s: not an IP address", server->host);
    server->loopback = six ? IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) : (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
    if (!server->loopback && !server->keys.count)
        return fail(
            error, ERROR_USAGE, "--host %s can be reached from other machines: set --api-key as well", server->host);
    server->guard = guard_open(error);
    if (!server->guard) return false;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC;
    if (six) flags |= MHD_USE_IPv6;
    const int fd = listen_at(six ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4, six ? sizeof v6 : sizeof v4);
    if (fd >= 0)
        server->daemon = MHD_start_daemon(flags, (uint16_t)server->port, NULL, NULL, handle, server,
            MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_NOTIFY_COMPLETED,
            completed, server, MHD_OPTION_NOTIFY_CONNECTION, connection_event, server, MHD_OPTION_CONNECTION_LIMIT,
            (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES_MAX,
            MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!server->daemon) {
        const int reason = errno; /* MHD may have closed the socket or not */
        return fail(error, ERROR_IO, "cannot listen on %s port %d: %s%s", server->host, server->port, strerror(reason),
            reason == EADDRINUSE ? " (another server? --port N takes another port, --port 0 a free one)" : "");
    }
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound;
    socklen_t size = sizeof bound;
    if (!getsockname(fd, &bound.any, &size)) server->port = ntohs(six ? bound.v6.sin6_port : bound.v4.sin_port);
    return true;
}

void http_stop(Server *server) {
    if (server->daemon) MHD_stop_daemon(server->daemon);
    server->daemon = NULL;
    guard_close(server->guard);
    server->guard = NULL;
}
