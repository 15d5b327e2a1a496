#include "cli/events.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/service.h"
#include "cli/session.h"

enum { KEY_FILE_BYTES_MAX = 1 << 20 };

bool events_read_keys(const char *file, Buffer *keys, Error *error) {
    return file_read(file, KEY_FILE_BYTES_MAX, keys, error) &&
        (keys->size || fail(error, ERROR_USAGE, "--api-key-file %s: it is empty", file));
}

/* Certificate and keys may have been renewed. */
static void reload(const Events *s) {
    Error error = {0};
    Buffer keys = {0};
    const bool read = !s->key_file || events_read_keys(s->key_file, &keys, &error);
    if (read && server_reload(s->server, buffer_view(&keys), &error))
        log_info("the certificate and the API keys were read again");
    else
        log_error("everything stays as it was: %s", error.text);
    buffer_free(&keys);
}

/* Who wants the end a second time, or before there is a server, does not wait for anything. */
static void *take_signals(void *argument) {
    enum { INTERRUPTED = 130 };
    Events *s = argument;
    for (bool leave = false; !leave;) {
        int number;
        sigwait(&s->set, &number);
        mutex_lock(&s->mutex);
        leave = s->leave;
        if (number == SIGHUP) {
            if (s->server && !s->stop) reload(s);
        } else if (number != SIGUSR1) {
            if (!s->server || s->stop) _exit(INTERRUPTED);
            s->stop = true;
            condition_signal(&s->came);
        }
        mutex_unlock(&s->mutex);
    }
    return NULL;
}

bool events_open(Events *s, const char *key_file, Error *error) {
    s->key_file = key_file;
    restart_take(&s->restart);
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGUSR1); /* ends the thread */
    sigaddset(&s->set, SIGINT);
    sigaddset(&s->set, SIGTERM);
    if (!isatty(STDIN_FILENO)) sigaddset(&s->set, SIGHUP); /* on a terminal, SIGHUP means that it was closed */
    pthread_sigmask(SIG_BLOCK, &s->set, NULL);             /* before any thread: all inherit it */
    signal(SIGPIPE, SIG_IGN);
    mutex_init(&s->mutex);
    condition_init(&s->came);
    return thread_start(&s->thread, take_signals, s, "signals", error);
}

/* Signals that come from now on wait for the next program. */
static void leave_signals(Events *s) {
    mutex_lock(&s->mutex);
    s->leave = true;
    mutex_unlock(&s->mutex);
    pthread_kill(s->thread, SIGUSR1);
    thread_join(s->thread);
}

void events_device_failed(void *events, const Error *why) {
    Events *s = events;
    mutex_lock(&s->mutex);
    if (!s->failed) snprintf(s->why, sizeof s->why, "%s", why->text);
    s->failed = true;
    condition_signal(&s->came);
    mutex_unlock(&s->mutex);
}

/* Replaces the server whose device has failed by a new process, unless a shutdown was requested meanwhile. Returns only
 * if the process stays. */
static void start_again(Events *s) {
    Error error = {0};
    char text[sizeof s->why + 64];
    if (!restart_allowed(&s->restart)) {
        snprintf(text, sizeof text, "failed %d times in a short while, and stays so: %s", RESTARTS_MAX + 1, s->why);
        log_error("the device %s", text);
        server_explain(s->server, text);
        return;
    }
    log_error("the device has failed: %s; starting again", s->why);
    service_notify("STATUS=starting again: the device has failed");
    const int listener = server_drain(s->server, s->why);
    leave_signals(s);
    fflush(NULL);
    if (!s->stop && !restart_now(&s->restart, listener, s->why, &error)) {
        report(&error);
        exit(EXIT_FAILURE);
    }
}

void events_concern(Events *s, Server *server) {
    mutex_lock(&s->mutex);
    s->server = server;
    mutex_unlock(&s->mutex);
}

void events_wait(Events *s) {
    mutex_lock(&s->mutex);
    for (bool over = false; !s->stop;) {
        if (s->failed && !over) {
            over = true;
            mutex_unlock(&s->mutex);
            start_again(s);
            mutex_lock(&s->mutex);
        } else {
            condition_wait(&s->came, &s->mutex);
        }
    }
    mutex_unlock(&s->mutex);
}
