/* What the server does when clients want more than there is: heads, bodies, connections, threads. Over the fake model,
 * spoken to byte by byte. */

#include "base/clock.h"
#include "server/http/connection.h"
#include "server/http/load_shedding.h"
#include "server/server_fixture.h"

static void open_server(void) {
    chat_fixture_open(&fixture, true);
    serve_fixture(&(ServerOptions){.host = "127.0.0.1", .models = {.engine = chat_engine_options(&fixture, 1, 8)}});
}

/* Bytes that the thread of connections holds for all. */
static size_t held(const size_t *bytes) { return __atomic_load_n(bytes, __ATOMIC_RELAXED); }

static void wait_connections(int count) {
    while (__atomic_load_n(&server->connections, __ATOMIC_RELAXED) != count) sleep_ms(10);
}

/* When the heads of all are as large as they may be together, large ones are refused, and small ones are not. */
static void test_crowd_of_heads(void) {
    open_server();
    const int before = connect_client(), after = connect_client();
    char filler[2 * HEAD_BYTES_FREE];
    memset(filler, 'x', sizeof filler);
    client_send_text(before, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
    client_send(before, filler, sizeof filler);
    while (held(&server->http->head_bytes) < sizeof filler) sleep_ms(10);
    sleep_ms(100);                               /* for the rest of it */
    server->http->head_bytes += HEADS_BYTES_MAX; /* others' */
    client_send_text(before, "more");
    TEST(client_read(before, &answer) == 503 && strstr(answer.data, "Retry-After") &&
        strstr(answer.data, "Connection: close"));
    client_send_text(after, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    TEST(client_read(after, &answer) == 200);
    close(before);
    close(after);
    while (held(&server->http->head_bytes) != HEADS_BYTES_MAX) sleep_ms(10);
    server->http->head_bytes = 0;
    close_server();
}

/* What came behind a request is not kept where there is no room for it: the connection ends with the answer. */
static void test_crowd_of_requests(void) {
    static const char first[] = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n",
                      second[] = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX: ";
    open_server();
    const int client = connect_client();
    Buffer both = {0};
    buffer_text(&both, first);
    buffer_text(&both, second);
    for (int i = 0; i < 2 * HEAD_BYTES_FREE; i++) buffer_byte(&both, 'x');
    buffer_text(&both, "\r\n\r\n");
    server->http->head_bytes += HEADS_BYTES_MAX; /* others' */
    client_send(client, both.data, both.size);
    TEST(client_read(client, &answer) == 404);
    char byte;
    TEST(!strstr(answer.data + 1, "HTTP/1.1 ") && recv(client, &byte, 1, 0) == 0); /* one answer */
    close(client);
    while (held(&server->http->head_bytes) != HEADS_BYTES_MAX) sleep_ms(10);
    server->http->head_bytes = 0;
    buffer_free(&both);
    close_server();
}

/* When there is no room, who has been between requests for longest gives way to the next: not who has just come. */
static void test_crowd_of_idle(void) {
    static const char request[] = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n";
    open_server();
    server->http->max = 2;
    const int first = connect_client();
    client_send_text(first, request);
    TEST(client_read(first, &answer) == 404);
    sleep_ms(50);
    const int second = connect_client();
    wait_connections(2);
    const int third = connect_client();
    client_send_text(third, request);
    TEST(client_read(third, &answer) == 404);
    client_send_text(second, request);
    TEST(client_read(second, &answer) == 404);
    char byte;
    TEST(recv(first, &byte, 1, 0) == 0);
    close(first);
    close(second);
    close(third);
    close_server();
}

/* Of answers that clients do not take, the one goes first of which nothing was taken for longest; the last one stays.
 */
static void test_unread_answers(void) {
    enum { LETTERS = 400000 };
    open_server();
    Buffer body = {0};
    buffer_text(&body, "{\"with_pieces\":true,\"content\":\"");
    for (int i = 0; i < LETTERS; i++) buffer_byte(&body, 'a');
    buffer_text(&body, "\"}");
    server->http->response_bytes += RESPONSES_BYTES_MAX; /* others' */
    int clients[2];
    for (int i = 0; i < 2; i++) {
        clients[i] = connect_client();
        wait_connections(i + 1);
        client_post(clients[i], "/tokenize", buffer_view(&body));
        while (i == 0 && held(&server->http->response_bytes) == RESPONSES_BYTES_MAX) sleep_ms(10);
    }
    wait_connections(1);
    TEST(client_read(clients[1], &answer) == 200);
    TEST_MSG(client_read(clients[0], &answer) == 0, "%zu bytes", answer.size);
    for (int i = 0; i < 2; i++) close(clients[i]);
    while (held(&server->http->response_bytes) != RESPONSES_BYTES_MAX) sleep_ms(10);
    server->http->response_bytes = 0;
    buffer_free(&body);
    close_server();
}

/* When there are no more connections, who sends a byte now and then gives way. */
static void test_slow_gives_way(void) {
    open_server();
    server->http->max = 2;
    const int slow = connect_client(), faster = connect_client();
    client_send_text(slow, "GET /he");
    client_send_text(faster, "GET /health HTTP/1.1\r\nHost: local");
    sleep_ms(1200);
    client_send_text(slow, "a");
    TEST(get("/health", "") == 200);
    TEST(client_read(slow, &answer) == 0);
    client_send_text(faster, "host\r\n\r\n");
    TEST(client_read(faster, &answer) == 200);
    close(slow);
    close(faster);
    close_server();
}

typedef struct Gate {
    Mutex mutex;
    Condition opened;
    bool open;
} Gate;

static void wait_for_gate(void *context) {
    Gate *gate = context;
    mutex_lock(&gate->mutex);
    while (!gate->open) condition_wait(&gate->opened, &gate->mutex);
    mutex_unlock(&gate->mutex);
}

/* While all threads that answer have something to do, probes still hear how the server is. */
static void test_all_work(void) {
    open_server();
    Gate gate = {0};
    Error error = {0};
    int given = 0;
    mutex_init(&gate.mutex);
    condition_init(&gate.opened);
    while (workers_give(server->http->workers, PROBE_ANSWERS, wait_for_gate, &gate, &error)) given++;
    TEST_MSG(given == ANSWERS_MAX + OTHER_ANSWERS && error.code == ERROR_BUSY, "%d, %s", given, error.text);
    TEST(get("/v1/models", "") == 503 && strstr(answer.data, "\"overloaded\""));
    TEST(ask("", CHAT_BODY(",\"max_tokens\":1")) == 503);
    TEST_MSG(get("/health", "") == 200 && get("/metrics", "") == 200, "%s", answer.data);
    mutex_lock(&gate.mutex);
    gate.open = true;
    mutex_unlock(&gate.mutex);
    condition_broadcast(&gate.opened);
    for (int i = 0; i < 500 && get("/v1/models", "") != 200; i++) sleep_ms(10);
    TEST(ask("", CHAT_BODY(",\"max_tokens\":1")) == 200);
    close_server();
    condition_destroy(&gate.opened);
    mutex_destroy(&gate.mutex);
}

/* Whoever is told that its time is over is not kept longer than it may read that. */
static void test_dawdler_ends(void) {
    open_server();
    const int client = connect_client();
    client_send_text(client, "GET /he");
    while (held(&server->http->head_bytes) == 0) sleep_ms(10);
    server->http->first->deadline_ns = server->http->next_deadline_ns = 1; /* else in 10 s */
    CHECK(write(server->http->wake[1], "", 1) == 1);
    TEST(client_read(client, &answer) == 408);
    wait_connections(0); /* without the limit it would last as long as the client */
    close(client);
    close_server();
}

int main(void) {
    log_set_level(LOG_ERROR);
    test_crowd_of_heads();
    test_crowd_of_requests();
    test_crowd_of_idle();
    test_unread_answers();
    test_slow_gives_way();
    test_all_work();
    test_dawdler_ends();
    buffer_free(&answer);
    return test_done();
}
