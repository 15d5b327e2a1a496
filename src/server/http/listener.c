#include "server/http/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server.h"

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

typedef struct Address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } is;
    socklen_t size;
    bool six;
} Address;

static bool read_address(const char *host, int port, Address *a, Error *error) {
    *a = (Address){.six = strchr(host, ':')};
    const in_port_t number = htons((uint16_t)port);
    if (a->six)
        a->is.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = number};
    else
        a->is.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = number};
    a->size = a->six ? sizeof a->is.v6 : sizeof a->is.v4;
    void *where = a->six ? (void *)&a->is.v6.sin6_addr : &a->is.v4.sin_addr;
    return inet_pton(a->is.any.sa_family, strcmp(host, "localhost") ? host : "127.0.0.1", where) == 1 ||
        fail(error, ERROR_USAGE, "--host %s: not an IP address", host);
}

static bool cannot_listen(const char *host, int port, int reason, Error *error) {
    const char *advice = reason == EADDRINUSE ? " (another server? --port N takes another port, --port 0 a free one)"
        : reason == EACCES                    ? " (ports below 1024 are the system's: --port N takes another)"
        : reason == EADDRNOTAVAIL             ? " (this machine has no such address)"
                                              : "";
    return fail(error, ERROR_IO, "cannot listen on %s port %d: %s%s", host, port, strerror(reason), advice);
}

bool server_check_address(const char *host, int port, Error *error) {
    Address address;
    if (!read_address(host, port, &address, error)) return false;
    const int fd = listen_at(&address.is.any, address.size, 1);
    if (fd < 0) return cannot_listen(host, port, errno, error);
    close(fd);
    return true;
}

int listener_open(Server *server, int given, int queue, Error *error) {
    const char *host = server->options.host;
    Address address;
    if (!read_address(host, server->port, &address, error)) return -1;
    server->loopback = address.six ? IN6_IS_ADDR_LOOPBACK(&address.is.v6.sin6_addr)
                                   : ntohl(address.is.v4.sin_addr.s_addr) >> 24 == 127;
    if (!server->loopback && !server->keys.count && !server->devices) {
        fail(error, ERROR_USAGE, "--host %s can be reached from other machines: set --api-key as well, or --lan", host);
        return -1;
    }
    const int fd = given >= 0 ? given : listen_at(&address.is.any, address.size, queue);
    if (fd < 0) {
        (void)cannot_listen(host, server->port, errno, error);
        return -1;
    }
    if (!getsockname(fd, &address.is.any, &address.size))
        server->port = ntohs(address.six ? address.is.v6.sin6_port : address.is.v4.sin_port);
    return fd;
}
