/* A server in the place of one whose device has failed. What such a fault leaves behind stays with the process, so the
 * process becomes a new program: the same file, arguments, environment and number, and the socket that listens stays
 * open all the while. Descriptors that it was started with, beside the standard ones, are closed. Linux only, where
 * there are such devices. Threads: the main one. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum {
    RESTARTS_MAX = 3,
    RESTARTS_S = 600, /* in so long a time; what fails more often stays as it is */
    RESTART_REASON_MAX = 256,
};

typedef struct Restart {
    int listener;                    /* the socket, if this is a restart */
    int count;                       /* restarts within the last RESTARTS_S */
    int64_t times_ns[RESTARTS_MAX];  /* clock_ns() of each */
    char reason[RESTART_REASON_MAX]; /* reason of the last restart; "": this process is no restart */
} Restart;

/* What the program before has left for this one. Before there are threads. */
void restart_take(Restart *out);
bool restart_pending(void); /* before that: whether there is something */
bool restart_allowed(Restart *restart);
/* Returns only with an error. Other threads may be anywhere. */
bool restart_now(Restart *restart, int listener, const char *reason, Error *error);
