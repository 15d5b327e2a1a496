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
    const ModelSource source = {.name = "fake", .directory = fixture.directory};
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

static inline void sleep_ms(int ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static inline int get(const char *path, const char *headers) {
    const int client = connect_client();
    char head[256];
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, headers);
    client_send_text(client, head);
    const int status = client_read(client, &answer);
    close(client);
    return status;
}

static inline void post_to(const char *path, int client, const char *headers, const char *body) {
    char head[512];
    snprintf(head, sizeof head,
        "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n", path,
        strlen(body), headers);
    client_send_text(client, head);
    client_send_text(client, body);
}

/* A chat with more headers. */
static inline void post(int client, const char *headers, const char *body) { post_to(CHAT, client, headers, body); }

static inline int ask_path(const char *path, const char *headers, const char *body) {
    const int client = connect_client();
    post_to(path, client, headers, body);
    const int status = client_read(client, &answer);
    close(client);
    return status;
}

static inline int ask(const char *headers, const char *body) { return ask_path(CHAT, headers, body); }
