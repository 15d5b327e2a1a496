/* A server over the fake model, and what its clients send: through all of server/. The first letter
 * says how: C, T, L, U: the rest is the body of a chat or text completion, or says which model to load or unload; G:
 * the target of a GET; R, K: all that a client sends, to a server without or with a key. Every body is answered; an
 * answer of ours is JSON or events of it, and its status is never that of a fault. */
#include <errno.h>
#include <stdint.h>

#include "chat/chat_fixture.h"
#include "server/http/http.h"
#include "server/http_client.h"
#include "server/server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SENT_MAX = 64 << 10, PATIENCE_S = 30, CONTEXT = 256, MEMORY_MAX = 64 << 20 };

static ChatFixture fixture;

static void remove_fixture(void) { chat_fixture_close(&fixture); }

static Server *open_server(void) {
    Error error = {0};
    chat_fixture_open(&fixture, true);
    atexit(remove_fixture);
    fake.context = CONTEXT; /* no answer is long */
    const ModelSource source = {.name = "fake", .directory = fixture.directory};
    const ServerOptions options = {
        .host = "127.0.0.1", .models = {.sources = &source, .count = 1, .engine = chat_engine_options(&fixture, 4, 8)}};
    Server *server = server_open(&options, &error);
    if (!server) fprintf(stderr, "%s\n", error.text);
    CHECK(server != NULL);
    return server;
}

/* A connection without the detour over TCP, whose ports would run out. */
static int connect_to(Server *server) {
    int ends[2];
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    CHECK(http_adopt(server, ends[1]));
    return ends[0];
}

/* All that comes until the server ends the connection. */
static void read_answer(int client, Buffer *answer) {
    char block[16 << 10];
    for (;;) {
        const ssize_t got = recv(client, block, sizeof block, 0);
        if (got < 0 && errno == EINTR) continue;    /* libFuzzer's clock */
        if (got < 0 && errno == ECONNRESET) return; /* it has not read all that was sent */
        CHECK(got >= 0);                            /* or it does not answer */
        if (got == 0) return;
        buffer_append(answer, block, (size_t)got);
    }
}

/* ---- what comes back ---- */

static void check_error(const Json *root) {
    const Json *error = json_get(root, "error");
    const Json *message = json_get(error, "message"), *type = json_get(error, "type");
    CHECK(message && message->type == JSON_STRING && message->size > 0);
    CHECK(type && type->type == JSON_STRING);
    CHECK(json_get(error, "param") && json_get(error, "code"));
}

static void check_json(Slice text, bool failed) {
    Arena arena = {.limit = MEMORY_MAX};
    Error error = {0};
    const Json *root = json_parse(&arena, text, &error);
    if (!root) fprintf(stderr, "%s: %.*s\n", error.text, SLICE_ARGS(text));
    CHECK(root && root->type == JSON_OBJECT);
    if (failed) check_error(root);
    arena_free(&arena);
}

/* The bytes of a chunked body; false: its end is missing. */
static bool join_chunks(const char *at, Buffer *out) {
    for (;;) {
        char *behind;
        const size_t size = strtoul(at, &behind, 16);
        CHECK(behind > at && !strncmp(behind, "\r\n", 2));
        if (size == 0) return true;
        CHECK(strlen(behind + 2) >= size + 2);
        buffer_append(out, behind + 2, size);
        at = behind + 2 + size + 2;
        if (!*at) return false;
    }
}

static void check_events(const char *at) {
    Buffer events = {0};
    const bool whole = join_chunks(at, &events);
    const char *line = events.data, *end;
    bool done = false;
    for (; line && (end = strstr(line, "\n\n")); line = end + 2) {
        CHECK(!done && !strncmp(line, "data: ", 6));
        line += 6;
        done = !strncmp(line, "[DONE]\n", 7);
        if (!done) check_json((Slice){line, (size_t)(end - line)}, !strncmp(line, "{\"error\"", 8));
    }
    CHECK(whole && done && !*line);
    buffer_free(&events);
}

/* Of the first answer; head: to a HEAD. */
static void check_answer(const Buffer *answer, bool head) {
    if (!answer->size) return; /* hung up on */
    const char *start = answer->data, *go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!strncmp(start, go_on, strlen(go_on))) start += strlen(go_on);
    if (!*start) return;
    CHECK(!strncmp(start, "HTTP/1.", 7));
    const int status = (int)strtol(start + strlen("HTTP/1.1 "), NULL, 10);
    const char *body = strstr(start, "\r\n\r\n");
    CHECK(status >= 200 && status < 600 && body);
    CHECK(strstr(start, "x-request-id: "));
    CHECK(status == 200 || status == 503 || status == 505 || (status >= 400 && status < 500));
    if (head) return;
    const char *length = strstr(start, "Content-Length: ");
    if (!length || length > body) {
        check_events(body + 4);
        return;
    }
    const size_t size = strtoul(length + strlen("Content-Length: "), NULL, 10);
    CHECK(size <= answer->size - (size_t)(body + 4 - answer->data));
    check_json((Slice){body + 4, size}, status != 200);
}

/* ---- what goes there ---- */

/* Where a body goes that is sent in this way; NULL: it is none. */
static const char *path_of(char way) {
    switch (way) {
    case 'C': return "/v1/chat/completions";
    case 'T': return "/v1/completions";
    case 'L': return "/v1/models/load";
    case 'U': return "/v1/models/unload";
    default: return NULL;
    }
}

static void send_post(int client, const char *path, Slice body) {
    char head[256];
    snprintf(head, sizeof head,
        "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n",
        path, body.size);
    client_send_text(client, head);
    client_send(client, body.data, body.size);
}

static void send_get(int client, Slice target) {
    client_send_text(client, "GET ");
    client_send(client, target.data, target.size);
    client_send_text(client, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    shutdown(client, SHUT_WR); /* the target may have been more than a target */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Server *server;
    static Keys keys;
    if (!server) {
        log_set_level(LOG_ERROR + 1);
        server = open_server();
        Error error;
        if (!keys_read(slice_of("sesame"), &keys, &error)) abort();
    }
    if (size == 0 || size > SENT_MAX) return 0;
    const char way = (char)data[0], *path = path_of(way);
    const Slice rest = {(const char *)data + 1, size - 1};
    server->keys = way == 'K' ? keys : (Keys){0}; /* nothing is being answered now */
    const int client = connect_to(server);
    Buffer answer = {0};
    if (path) {
        send_post(client, path, rest);
    } else if (way == 'G') {
        send_get(client, rest);
    } else {
        client_send(client, rest.data, rest.size);
        shutdown(client, SHUT_WR);
    }
    read_answer(client, &answer);
    close(client);
    CHECK(answer.size > 0 || !path);
    check_answer(&answer, !path && way != 'G' && slice_starts(rest, SLICE("HEAD ")));
    buffer_free(&answer);
    return 0;
}
