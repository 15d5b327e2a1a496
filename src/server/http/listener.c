#include "server/http/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A socket that listens, or -1. The address of a server that just ended can be taken at once; an address with a
 * listening socket cannot. */
static int listen_at(const struct sockaddr *address, socklen_t size, int queue) {
    const int yes = 1, fd = socket(address->sa_family, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) && !bind(fd, address, size) && !listen(fd, queue))
        return fd;
    const int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

int listener_open(Server *server, int given, int queue, Error *error) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {0};
    const char *host = !strcmp(server->options.host, "localhost") ? "127.0.0.1" : server->options.host;
    const in_port_t port = htons((uint16_t)server->port);
    const bool six = strchr(host, ':');
    if (six)
        address.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = port};
    else
        address.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port};
    void *where = six ? (void *)&address.v6.sin6_addr : &address.v4.sin_addr;
    socklen_t size = six ? sizeof address.v6 : sizeof address.v4;
    bool ok = true;
    if (inet_pton(address.any.sa_family, host, where) != 1)
        ok = fail(error, ERROR_USAGE, "--host %s: not an IP address", server->options.host);
    server->loopback =
        six ? IN6_IS_ADDR_LOOPBACK(&address.v6.sin6_addr) : ntohl(address.v4.sin_addr.s_addr) >> 24 == 127;
    if (ok && !server->loopback && !server->keys.count && !server->devices)
        ok = fail(error, ERROR_USAGE, "--host %s can be reached from other machines: set --api-key as well, or --lan",
            server->options.host);
    if (!ok) return -1;
    const int fd = given >= 0 ? given : listen_at(&address.any, size, queue);
    if (fd < 0) {
        const int reason = errno;
        fail(error, ERROR_IO, "cannot listen on %s port %d: %s%s", server->options.host, server->port, strerror(reason),
            reason == EADDRINUSE ? " (another server? --port N takes another port, --port 0 a free one)" : "");
        return -1;
    }
    if (!getsockname(fd, &address.any, &size)) server->port = ntohs(six ? address.v6.sin6_port : address.v4.sin_port);
    return fd;
}
