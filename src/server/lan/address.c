#include "server/lan/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The address that packets to other networks leave from; none is sent. */
static bool main_address(char out[ADDRESS_MAX]) {
    struct sockaddr_in other = {.sin_family = AF_INET, .sin_port = htons(9)}, own = {0};
    socklen_t size = sizeof own;
    inet_pton(AF_INET, "192.0.2.1", &other.sin_addr); /* RFC 5737: belongs to no host */
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    const bool ok = fd >= 0 && !connect(fd, (const struct sockaddr *)&other, sizeof other) &&
        !getsockname(fd, (struct sockaddr *)&own, &size) && ntohl(own.sin_addr.s_addr) >> 24 != 127 &&
        inet_ntop(AF_INET, &own.sin_addr, out, ADDRESS_MAX);
    if (fd >= 0) close(fd);
    return ok;
}

int lan_addresses(char out[ADDRESSES_MAX][ADDRESS_MAX]) {
    struct ifaddrs *list = NULL;
    int count = main_address(out[0]);
    if (getifaddrs(&list)) return count;
    for (const struct ifaddrs *at = list; at && count < ADDRESSES_MAX; at = at->ifa_next) {
        if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET) continue;
        if (!(at->ifa_flags & IFF_UP) || at->ifa_flags & IFF_LOOPBACK) continue;
        const struct sockaddr_in *address = (const void *)at->ifa_addr;
        if (!inet_ntop(AF_INET, &address->sin_addr, out[count], ADDRESS_MAX)) continue;
        if (count == 0 || strcmp(out[count], out[0]) != 0) count++;
    }
    freeifaddrs(list);
    return count;
}
