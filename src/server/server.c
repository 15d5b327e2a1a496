#include "server/server.h"

#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "server/body.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/stream.h"

enum { DRAIN_S = 10, FAREWELL_S = 1, DRAIN_STEP_MS = 20 };

static bool load(Server *server, const ServerOptions *options, Error *error) {
    ModelsOptions models = options->models;
    server->metrics = metrics_open(models.count, error);
    if (!server->metrics) return false;
    server->streams = stream_writer_open(error);
    if (!server->streams) return false;
    models.engine.notify = stream_writer_wake;
    models.engine.notify_context = server->streams;
    server->models = models_open(&models, error);
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
        server->host = strdup(options->host);
        server->port = options->port;
        server->tls_certificate = options->tls_certificate;
        server->tls_key = options->tls_key;
        server->allow_pull = options->allow_pull;
        server->text_bytes_max = body_text_max();
        server->defaults = options->defaults;
    }
    if (!server || !server->host) {
        fail(error, ERROR_MEMORY, "no memory for a server");
    } else if ((!options->api_keys.data || keys_read(options->api_keys, &server->keys, error)) &&
        load(server, options, error) && http_start(server, error)) {
        return server;
    }
    server_close(server);
    return NULL;
}

int server_port(const Server *server) { return server->port; }

static void sleep_ms(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

/* Until everything is answered, or the time is over. */
static void drain(const Server *server, int seconds) {
    const int64_t deadline = clock_ns() + seconds * INT64_C(1000000000);
    while (__atomic_load_n(&server->answering, __ATOMIC_RELAXED) > 0 && clock_ns() < deadline) sleep_ms(DRAIN_STEP_MS);
}

void server_close(Server *server) {
    if (!server) return;
    __atomic_store_n(&server->stopping, 1, __ATOMIC_RELAXED);
    drain(server, DRAIN_S); /* what runs may finish, for a while */
    __atomic_store_n(&server->stopping, 2, __ATOMIC_RELAXED);
    drain(server, FAREWELL_S); /* and the rest is told why it ends, before connections are cut */
    http_stop(server);
    models_close(server->models);
    stream_writer_close(server->streams);
    metrics_close(server->metrics);
    free(server->host);
    keys_free(&server->keys);
    free(server);
}
