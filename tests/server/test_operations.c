/* What operators ask of the server: deadlines, what /health says of trouble, and what is done when clients want more
 * than there is. Over the fake model, spoken to byte by byte. */

#include "base/clock.h"
#include "server/connection.h"
#include "server/crowd.h"
#include "server/server_fixture.h"

static void open_server(int slots, int64_t request_timeout_s, int64_t queue_timeout_s, const char *keys) {
    chat_fixture_open(&fixture, true);
    ServerOptions options = {.host = "127.0.0.1",
        .api_keys = {keys, keys ? strlen(keys) : 0},
        .request_timeout_s = request_timeout_s,
        .queue_timeout_s = queue_timeout_s,
        .models = {.engine = chat_engine_options(&fixture, slots, 8)}};
    options.models.engine.stall_ms = 100;
    options.models.engine.pooling = POOLING_LAST;
    serve_fixture(&options);
}

static int get(const char *path, const char *headers) {
    const int client = connect_client();
    char head[256];
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, headers);
    client_send_text(client, head);
    const int status = client_read(client, &answer);
    close(client);
    return status;
}

/* A chat with more headers. */
static void post(int client, const char *headers, const char *body) {
    char head[512];
    snprintf(head, sizeof head,
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n",
        strlen(body), headers);
    client_send_text(client, head);
    client_send_text(client, body);
}

static int ask(const char *headers, const char *body) {
    const int client = connect_client();
    post(client, headers, body);
    const int status = client_read(client, &answer);
    close(client);
    return status;
}

/* The rest of a stream, until what ends it. */
static void read_on(int client) {
    char block[4096];
    for (ssize_t got = 1; got > 0 && !strstr(answer.data, "\r\n0\r\n\r\n");)
        if ((got = recv(client, block, sizeof block, 0)) > 0) buffer_append(&answer, block, (size_t)got);
}

/* ---- deadlines ---- */

static void test_request_timeout(void) {
    open_server(1, 1, 0, NULL);
    fake.gated = true;
    const int64_t start = clock_ns();
    TEST(ask("", CHAT_BODY("")) == 504 && strstr(answer.data, "\"request_timeout\"") &&
        strstr(answer.data, "x-should-retry: false"));
    const double seconds = (double)(clock_ns() - start) * 1e-9;
    TEST_MSG(seconds > 0.9 && seconds < 3, "%.1f s", seconds);
    fake_open_gate();
    TEST(ask("", CHAT_BODY(",\"max_tokens\":1")) == 200); /* its slot is free */
    close_server();
}

/* The client may wait for less, and never gets more than the server allows. */
static void test_client_timeout(void) {
    open_server(1, 0, 0, NULL);
    fake.gated = true;
    TEST(ask("x-request-timeout: 0.2\r\n", CHAT_BODY("")) == 504);
    TEST(ask("x-request-timeout: 100\r\nx-other: 1\r\n", "{") == 400);
    static const char *const wrong[] = {"", "x", "-1", "0", "nan", "inf", "1e99", "5 s"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        char header[64];
        snprintf(header, sizeof header, "x-request-timeout: %s\r\n", wrong[i]);
        TEST_MSG(ask(header, CHAT_BODY("")) == 400 && strstr(answer.data, "\"param\":\"x-request-timeout\""), "%s: %s",
            wrong[i], answer.data);
    }
    close_server();
    open_server(1, 1, 0, NULL);
    fake.gated = true;
    TEST(ask("x-request-timeout: 1000\r\n", CHAT_BODY("")) == 504);
    close_server();
}

/* A stream is told why it ends. */
static void test_stream_timeout(void) {
    open_server(1, 0, 0, NULL);
    fake.gated = true;
    const int client = connect_client();
    post(client, "x-request-timeout: 0.4\r\n", CHAT_BODY(",\"stream\":true"));
    TEST(client_read(client, &answer) == 200);
    fake_permit(3);
    read_on(client);
    TEST_MSG(strstr(answer.data, "\"code\":\"request_timeout\"") && !strstr(answer.data, "[DONE]"), "%s", answer.data);
    close(client);
    close_server();
}

/* Who reads nothing holds the slot no longer than others, and finds the reason behind what it has not read. */
static void test_unread_stream_timeout(void) {
    open_server(1, 0, 0, NULL);
    fake.gated = true;
    const int client = connect_client(), few = 1, many = 1 << 20;
    post(client, "x-request-timeout: 0.5\r\n",
        CHAT_BODY(",\"stream\":true,\"logprobs\":true,\"top_logprobs\":20,\"max_tokens\":2000"));
    fake_wait_arrived(1);
    const int served = server->http->first->wire.fd;
    CHECK(!setsockopt(served, SOL_SOCKET, SO_SNDBUF, &few, sizeof few));
    fake_permit(600);
    sleep_ms(1000);
    fake_permit(20);
    TEST_MSG(ask("x-request-timeout: 5\r\n", CHAT_BODY(",\"max_tokens\":1")) == 200, "%s", answer.data);
    CHECK(!setsockopt(served, SOL_SOCKET, SO_SNDBUF, &many, sizeof many));
    TEST(client_read(client, &answer) == 200);
    read_on(client);
    TEST(strstr(answer.data, "\"code\":\"request_timeout\"") && !strstr(answer.data, "[DONE]"));
    close(client);
    close_server();
}

/* The time begins with the first byte, not when the headers are whole. */
static void test_slow_head_timeout(void) {
    open_server(1, 0, 0, NULL);
    fake.gated = true;
    const int client = connect_client();
    client_send_text(client, "\r\n"); /* may stand before a request */
    sleep_ms(1000);
    const int64_t start = clock_ns();
    post(client, "x-request-timeout: 1.2\r\n", CHAT_BODY(""));
    TEST(client_read(client, &answer) == 504);
    const double seconds = (double)(clock_ns() - start) * 1e-9;
    TEST_MSG(seconds < 0.9, "%.1f s", seconds);
    close(client);
    close_server();
}

/* Vectors that are computed faster than anybody looks at the clock end in time, too. */
static void test_embeddings_timeout(void) {
    open_server(1, 0, 0, NULL);
    const int client = connect_client();
    const Slice body = SLICE("{\"model\":\"fake\",\"input\":[\"a\",\"b\"]}");
    char head[256];
    snprintf(head, sizeof head,
        "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "x-request-timeout: 1e-6\r\nContent-Length: %zu\r\n\r\n",
        body.size);
    client_send_text(client, head);
    client_send(client, body.data, body.size);
    TEST_MSG(client_read(client, &answer) == 504, "%s", answer.data);
    close(client);
    close_server();
}

/* Who waits for a turn too long is told to come again; who has it is not cut off. */
static void test_queue_timeout(void) {
    open_server(1, 0, 1, NULL);
    fake.gated = true;
    const int client = connect_client();
    post(client, "", CHAT_BODY(",\"max_tokens\":2"));
    fake_wait_arrived(1);
    TEST(ask("", CHAT_BODY("")) == 503 && strstr(answer.data, "\"queue_timeout\"") &&
        strstr(answer.data, "Retry-After"));
    fake_open_gate();
    TEST_MSG(client_read(client, &answer) == 200, "%s", answer.data);
    close(client);
    close_server();
}

/* ---- health ---- */

static void test_loading(void) {
    open_server(1, 0, 0, NULL);
    __atomic_store_n(&server->loaded, false, __ATOMIC_RELEASE);
    TEST(get("/health", "") == 503 && strstr(answer.data, "{\"status\":\"loading\""));
    TEST(get("/v1/models", "") == 503 && strstr(answer.data, "\"code\":\"loading\"") &&
        strstr(answer.data, "Retry-After"));
    TEST(ask("", CHAT_BODY("")) == 503 && strstr(answer.data, "\"code\":\"loading\""));
    TEST(get("/nowhere", "") == 404);
    __atomic_store_n(&server->loaded, true, __ATOMIC_RELEASE);
    TEST(get("/health", "") == 200 && strstr(answer.data, "{\"status\":\"ok\""));
    __atomic_store_n(&server->stopping, 1, __ATOMIC_RELAXED);
    TEST(get("/health", "") == 503 && strstr(answer.data, "{\"status\":\"draining\""));
    __atomic_store_n(&server->stopping, 0, __ATOMIC_RELAXED);
    close_server();
}

/* A step that hangs makes the server unhealthy while it does. The first may take ten times as long: nothing is known of
 * the model's speed yet. */
static void test_stalled(void) {
    open_server(1, 0, 0, NULL);
    fake.gated = true;
    const int client = connect_client();
    post(client, "", CHAT_BODY(",\"max_tokens\":3"));
    fake_wait_arrived(1);
    TEST(get("/health", "") == 200);
    sleep_ms(1200);
    TEST_MSG(get("/health", "") == 503 && strstr(answer.data, "{\"status\":\"stalled\""), "%s", answer.data);
    fake_open_gate();
    TEST(client_read(client, &answer) == 200);
    TEST(get("/health", "") == 200);
    close(client);
    close_server();
}

/* Who has no key hears how busy the server is, and nothing of what it has. */
static void test_capabilities(void) {
    open_server(1, 0, 0, "secret\n");
    TEST(get("/health", "") == 200 && strstr(answer.data, "\"running\":0") && !strstr(answer.data, "fake"));
    TEST(get("/health", "Authorization: Bearer wrong\r\n") == 200 && !strstr(answer.data, "fake"));
    TEST(get("/health", "Authorization: Bearer secret\r\n") == 200 && strstr(answer.data, "\"model\":\"fake\"") &&
        strstr(answer.data, "\"vision\":false") && strstr(answer.data, "\"total_system_mb\":") &&
        strstr(answer.data, "\"avg_tokens_per_sec\":"));
    TEST(get("/metrics", "") == 401);
    server->open_metrics = true;
    TEST(get("/metrics", "") == 200 && strstr(answer.data, "vllm:num_requests_waiting{model_name=\"fake\"} 0"));
    TEST(get("/v1/models", "") == 401);
    close_server();
}

/* Keys can be exchanged; those that cannot be read change nothing. */
static void test_reload(void) {
    Error error = {0};
    open_server(1, 0, 0, "old\n");
    TEST(get("/v1/models", "Authorization: Bearer old\r\n") == 200);
    TEST(!server_reload(server, SLICE("# none\n"), &error) && !server_reload(server, SLICE("a b\n"), &error));
    TEST(get("/v1/models", "Authorization: Bearer old\r\n") == 200);
    TEST(server_reload(server, SLICE("new\n"), &error));
    TEST(get("/v1/models", "Authorization: Bearer old\r\n") == 401);
    TEST(get("/v1/models", "Authorization: Bearer new\r\n") == 200);
    TEST(server_reload(server, (Slice){0}, &error) && get("/v1/models", "Authorization: Bearer new\r\n") == 200);
    close_server();
}

/* ---- crowds ---- */

/* When the heads of all are as large as they may be together, large ones are refused, and small ones are not. */
static void test_crowd_of_heads(void) {
    open_server(1, 0, 0, NULL);
    const int before = connect_client(), after = connect_client();
    char filler[2 * HEAD_BYTES_FREE];
    memset(filler, 'x', sizeof filler);
    client_send_text(before, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
    client_send(before, filler, sizeof filler);
    sleep_ms(100);
    server->http->head_bytes += HEADS_BYTES_MAX; /* others' */
    client_send_text(before, "more");
    TEST(client_read(before, &answer) == 503 && strstr(answer.data, "Retry-After") &&
        strstr(answer.data, "Connection: close"));
    client_send_text(after, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    TEST(client_read(after, &answer) == 200);
    close(before);
    close(after);
    sleep_ms(100);
    TEST_MSG(server->http->head_bytes == HEADS_BYTES_MAX, "%zu", server->http->head_bytes - HEADS_BYTES_MAX);
    server->http->head_bytes = 0;
    close_server();
}

/* What came behind a request is not kept where there is no room for it: the connection ends with the answer. */
static void test_crowd_of_requests(void) {
    static const char first[] = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n",
                      second[] = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX: ";
    open_server(1, 0, 0, NULL);
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
    sleep_ms(100);
    TEST_MSG(server->http->head_bytes == HEADS_BYTES_MAX, "%zu", server->http->head_bytes - HEADS_BYTES_MAX);
    server->http->head_bytes = 0;
    buffer_free(&both);
    close_server();
}

static void wait_connections(int count) {
    while (__atomic_load_n(&server->connections, __ATOMIC_RELAXED) != count) sleep_ms(10);
}

/* When there is no room, who has been between requests for longest gives way to the next: not who has just come. */
static void test_crowd_of_idle(void) {
    static const char request[] = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n";
    open_server(1, 0, 0, NULL);
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
    open_server(1, 0, 0, NULL);
    Buffer body = {0};
    buffer_text(&body, "{\"with_pieces\":true,\"content\":\"");
    for (int i = 0; i < LETTERS; i++) buffer_byte(&body, 'a');
    buffer_text(&body, "\"}");
    server->http->reply_bytes += REPLIES_BYTES_MAX; /* others' */
    int clients[2];
    for (int i = 0; i < 2; i++) {
        clients[i] = connect_client();
        wait_connections(i + 1);
        client_post(clients[i], "/tokenize", buffer_view(&body));
        while (i == 0 && __atomic_load_n(&server->http->reply_bytes, __ATOMIC_RELAXED) == REPLIES_BYTES_MAX)
            sleep_ms(10);
    }
    wait_connections(1);
    TEST(client_read(clients[1], &answer) == 200);
    TEST_MSG(client_read(clients[0], &answer) == 0, "%zu bytes", answer.size);
    for (int i = 0; i < 2; i++) close(clients[i]);
    sleep_ms(100);
    TEST(server->http->reply_bytes == REPLIES_BYTES_MAX);
    server->http->reply_bytes = 0;
    buffer_free(&body);
    close_server();
}

/* When there are no more connections, who sends a byte now and then gives way. */
static void test_slow_gives_way(void) {
    open_server(1, 0, 0, NULL);
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

/* Whoever is told that its time is over is not kept longer than it may read that. */
static void test_dawdler_ends(void) {
    open_server(1, 0, 0, NULL);
    const int client = connect_client();
    client_send_text(client, "GET /he");
    sleep_ms(100);
    server->http->first->deadline_ns = server->http->next_deadline_ns = 1; /* else in 10 s */
    CHECK(write(server->http->wake[1], "", 1) == 1);
    TEST(client_read(client, &answer) == 408);
    sleep_ms(LINGER_S * 1000 + 500);
    TEST(__atomic_load_n(&server->connections, __ATOMIC_RELAXED) == 0);
    close(client);
    close_server();
}

int main(void) {
    log_set_level(LOG_ERROR);
    test_request_timeout();
    test_client_timeout();
    test_stream_timeout();
    test_unread_stream_timeout();
    test_slow_head_timeout();
    test_embeddings_timeout();
    test_queue_timeout();
    test_loading();
    test_stalled();
    test_capabilities();
    test_reload();
    test_crowd_of_heads();
    test_crowd_of_requests();
    test_crowd_of_idle();
    test_unread_answers();
    test_slow_gives_way();
    test_dawdler_ends();
    buffer_free(&answer);
    return test_done();
}
