/* What happens to a server from outside: signals, and the end of its device. */
#pragma once
#include <signal.h>

#include "base/thread.h"
#include "cli/restart.h"
#include "server/server.h"

typedef struct Events {
    sigset_t set;
    const char *key_file; /* NULL: none */
    Restart restart;
    Thread thread;
    Mutex mutex; /* protects the fields below */
    Condition came;
    Server *server;   /* NULL: it is not there yet */
    bool stop, leave; /* `stop`: shut the server down; `leave`: end this thread */
    bool failed;      /* its device has, */
    char why[RESTART_REASON_MAX];
} Events;

/* Called before any other thread exists, also a driver's: all inherit the mask. Its thread ends with the process.
 * key_file: read anew on SIGHUP. */
NODISCARD bool events_open(Events *events, const char *key_file, Error *error);
void events_concern(Events *events, Server *server); /* now it is there */
/* Blocks until a shutdown is requested. If the device fails, the process re-executes itself meanwhile. */
void events_wait(Events *events);
/* EngineOptions.failed */
void events_device_failed(void *events, const Error *why);
NODISCARD bool events_read_keys(const char *file, Buffer *keys, Error *error);
