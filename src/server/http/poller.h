/* Which of many sockets are ready: epoll on Linux, kqueue elsewhere. A socket is waited for in one way at a time, and
 * is told again as long as it is ready. Threads: one. */
#pragma once
#include <stdbool.h>

typedef enum PollerWay { POLLER_NONE, POLLER_READ, POLLER_WRITE } PollerWay;

int poller_open(void); /* a descriptor to close, or -1 */
/* Waits for a socket in this way instead of `before`; what: told when it is ready, or at its end. */
bool poller_set(int poller, int fd, PollerWay before, PollerWay way, void *what);
/* Of those that are ready, at most max; 0 when the time is over, or a signal came. −1 ms: no limit. */
int poller_wait(int poller, void **ready, int max, int timeout_ms);
