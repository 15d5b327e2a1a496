#include "server/http/poller.h"

#include <stddef.h>
#include <unistd.h>

enum { EVENTS_MAX = 256 };

#ifdef __linux__
#include <sys/epoll.h>

int poller_open(void) { return epoll_create1(EPOLL_CLOEXEC); }

bool poller_set(int poller, int fd, PollerWay before, PollerWay way, void *what) {
    if (before == way) return true;
    struct epoll_event event = {.events = way == POLLER_WRITE ? EPOLLOUT : EPOLLIN, .data.ptr = what};
    const int change = way == POLLER_NONE ? EPOLL_CTL_DEL : before == POLLER_NONE ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    return epoll_ctl(poller, change, fd, &event) == 0;
}

int poller_wait(int poller, void **ready, int max, int timeout_ms) {
    struct epoll_event events[EVENTS_MAX];
    const int count = epoll_wait(poller, events, max < EVENTS_MAX ? max : EVENTS_MAX, timeout_ms);
    for (int i = 0; i < count; i++) ready[i] = events[i].data.ptr;
    return count < 0 ? 0 : count;
}
#else
#include <fcntl.h>
#include <sys/event.h>

int poller_open(void) {
    const int poller = kqueue();
    if (poller >= 0) fcntl(poller, F_SETFD, FD_CLOEXEC);
    return poller;
}

static short filter_of(PollerWay way) { return way == POLLER_WRITE ? EVFILT_WRITE : EVFILT_READ; }

bool poller_set(int poller, int fd, PollerWay before, PollerWay way, void *what) {
    struct kevent changes[2];
    int count = 0;
    if (before == way) return true;
    if (before != POLLER_NONE) {
        EV_SET(&changes[count], (unsigned)fd, filter_of(before), EV_DELETE, 0, 0, NULL);
        count++;
    }
    if (way != POLLER_NONE) {
        EV_SET(&changes[count], (unsigned)fd, filter_of(way), EV_ADD, 0, 0, what);
        count++;
    }
    return kevent(poller, changes, count, NULL, 0, NULL) == 0;
}

int poller_wait(int poller, void **ready, int max, int timeout_ms) {
    struct kevent events[EVENTS_MAX];
    const struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};
    const int count =
        kevent(poller, NULL, 0, events, max < EVENTS_MAX ? max : EVENTS_MAX, timeout_ms < 0 ? NULL : &timeout);
    for (int i = 0; i < count; i++) ready[i] = events[i].udata;
    return count < 0 ? 0 : count;
}
#endif
