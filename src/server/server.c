#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "history/history.h"
#include "server/http/body.h"
#include "server/http/http.h"
#include "server/admin/jobs.h"
#include "server/admin/metrics.h"
#include "server/lan/devices.h"
#include "server/lan/devices_api.h"
#include "server/api/resumable.h"
#include "server/api/stream.h"

enum {
    FAREWELL_S = 1,
    DRAIN_STEP_MS = 20,
    RETIRE_S = 5,
    LET_IN_MS = 100, /* for connections that were just accepted to send their request and get its refusal */
};

/* What answers from the first connection on. */
static bool listen_first(Server *server, const ServerOptions *options, Error *error) {
    server->metrics = metrics_open(error);
    if (!server->metrics) return false;
    if (options->history && !(server->history = history_open(options->history, HISTORY_BYTES_MAX, error))) return false;
    if (options->lan_directory && !(server->devices = devices_open(options->lan_directory, error))) return false;
    return http_start(server, options->restarted ? options->listener : -1, error);
}

static bool load(Server *server, const ServerOptions *options, Error *error) {
    ModelsOptions models = options->models;
    server->streams = stream_writer_open(error);
    if (!server->streams) return false;
    server->resumables = resumables_open(error);
    if (!server->resumables) return false;
    server->jobs = jobs_open(server, error);
    if (!server->jobs) return false;
    server->starts_empty = options->models.count == 0;
    models.engine.notify = stream_writer_wake;
    models.engine.notify_context = server->streams;
    server->models = models_open(&models, error);
    mutex_lock(&server->lock);
    __atomic_store_n(&server->loaded, server->models != NULL, __ATOMIC_RELEASE);
    server->reason[0] = 0; /* reason of the restart */
    mutex_unlock(&server->lock);
    condition_broadcast(&server->woken);
    return server->models;
}

/* Large bodies go back to the system when they are freed. Left alone, glibc keeps up to 64 MiB per arena for the next.
 */
static void return_large_memory(void) {
#ifdef __GLIBC__
    enum { LARGE_BYTES = 1 << 20 };
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
#endif
}

Server *server_open(const ServerOptions *options, Error *error) {
    return_large_memory();
    Server *server = calloc(1, sizeof *server);
    if (server) {
        server->options = *options;
        server->port = options->port;
        server->started = (int64_t)time(NULL);
        mutex_init(&server->lock);
        mutex_init(&server->fit_lock);
        condition_init(&server->woken);
        server->restarted = options->restarted != NULL;
        if (server->restarted) server_explain(server, options->restarted);
        server->text_bytes_max = body_text_max();
    }
    if (!server) {
        fail(error, ERROR_MEMORY, "no memory for a server");
    } else if ((!options->api_keys.data || keys_read(options->api_keys, &server->keys, error)) &&
        listen_first(server, options, error) && load(server, options, error)) {
        return server;
    }
    server_close(server);
    return NULL;
}

bool server_invite(Server *server, Buffer *url, Error *error) {
    char secret[DEVICE_SECRET_MAX];
    if (!devices_invite(server->devices, secret, error)) return false;
    device_pairing_url(server, secret, url);
    return !url->failed || fail(error, ERROR_MEMORY, "no memory for an address");
}

int server_port(const Server *server) { return server->port; }

bool server_model(const Server *server, int index, ModelStatus *status) {
    return models_status(server->models, index, status);
}

bool server_reload(Server *server, Slice api_keys, Error *error) {
    Keys keys = {0};
    if (api_keys.data && !keys_read(api_keys, &keys, error)) {
        keys_free(&keys);
        return false;
    }
    if (!http_reload(server, error)) {
        keys_free(&keys);
        return false;
    }
    if (!api_keys.data) return true;
    mutex_lock(&server->lock);
    const Keys before = server->keys;
    server->keys = keys;
    mutex_unlock(&server->lock);
    keys_free(&(Keys){.digests = before.digests});
    return true;
}

static void sleep_ms(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

/* Until everything is answered, or the time is over. */
static void drain(const Server *server, int seconds) {
    const int64_t deadline = clock_ns() + seconds * INT64_C(1000000000);
    while (__atomic_load_n(&server->answering, __ATOMIC_RELAXED) > 0 && clock_ns() < deadline) sleep_ms(DRAIN_STEP_MS);
}

/* Lets running requests finish for a limited time; the others get an error before their connections are closed. */
static void stop_answering(Server *server, int seconds) {
    mutex_lock(&server->lock);
    __atomic_store_n(&server->stopping, 1, __ATOMIC_RELAXED);
    mutex_unlock(&server->lock);
    condition_broadcast(&server->woken);
    drain(server, seconds);
    __atomic_store_n(&server->stopping, 2, __ATOMIC_RELAXED);
    drain(server, FAREWELL_S);
}

void server_explain(Server *server, const char *reason) {
    mutex_lock(&server->lock);
    snprintf(server->reason, sizeof server->reason, "%s", reason);
    mutex_unlock(&server->lock);
}

int server_drain(Server *server, const char *reason) {
    server_explain(server, reason);
    __atomic_store_n(&server->draining, true, __ATOMIC_RELAXED);
    http_drain(server);
    sleep_ms(LET_IN_MS);
    stop_answering(server, server->options.drain_s < RETIRE_S ? server->options.drain_s : RETIRE_S);
    return http_listener(server);
}

void server_close(Server *server) {
    if (!server) return;
    stop_answering(server, server->options.drain_s);
    http_stop(server);
    jobs_close(server->jobs);
    models_close(server->models);
    stream_writer_close(server->streams);
    resumables_close(server->resumables);
    history_close(server->history);
    devices_close(server->devices);
    metrics_close(server->metrics);
    keys_free(&server->keys);
    condition_destroy(&server->woken);
    mutex_destroy(&server->lock);
    mutex_destroy(&server->fit_lock);
    free(server);
}
