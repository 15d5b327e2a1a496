#include "cli/service.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void service_notify(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t size = path ? strlen(path) : 0;
    if (size < 2 || size > sizeof address.sun_path) return;
    memcpy(address.sun_path, path, size);
    if (path[0] == '@') address.sun_path[0] = 0; /* Linux abstract socket */
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (fd < 0) return;
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
    (void)sendto(fd, state, strlen(state), 0, (const struct sockaddr *)&address, length);
    close(fd);
}
