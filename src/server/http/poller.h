/* Readiness of many sockets: epoll on Linux, kqueue elsewhere, level-triggered. A socket is watched for reading or for
 * writing, not both. Threads: one. */
#pragma once
#include <stdbool.h>

typedef enum PollerWay { POLLER_NONE, POLLER_READ, POLLER_WRITE } PollerWay;

int poller_open(void); /* a descriptor to close, or -1 */
/* Watches a socket for `way` instead of `before`. what: returned when the socket is ready or has ended. */
bool poller_set(int poller, int fd, PollerWay before, PollerWay way, void *what);
/* Returns at most max ready sockets; 0 after timeout_ms (−1: no limit) or a signal. */
int poller_wait(int poller, void **ready, int max, int timeout_ms);
