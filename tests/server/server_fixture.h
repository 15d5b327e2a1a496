/* A server over the fake model, for tests that speak to it byte by byte. One at a time. */
#pragma once
#include <time.h>

#include "chat/chat_fixture.h"
#include "server/http_client.h"
#include "server/server.h"

#define CHAT "/v1/chat/completions"
#define CHAT_BODY(more)                                                                                                \
    "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"temperature\":1" more "}"

static ChatFixture fixture;
static Server *server;
static Buffer answer;

/* Over the fixture, which is open: the options lack their model. */
static void serve_fixture(ServerOptions *options) {
    Error error = {0};
    const ModelSource source = {"fake", fixture.directory};
    options->models.sources = &source;
    options->models.count = 1;
    server = server_open(options, &error);
    if (!server) fprintf(stderr, "%s\n", error.text);
    CHECK(server != NULL);
}

static void close_server(void) {
    fake_open_gate();
    server_close(server);
    TEST_MSG(fake.leaked_bytes == 0, "%zu bytes of pages were left in use", fake.leaked_bytes);
    chat_fixture_close(&fixture);
}

static int connect_client(void) { return client_connect(server_port(server)); }

static void sleep_ms(int ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}
