/* What operators ask of the server: deadlines, and what /health says of trouble. Over the fake model, spoken to byte by
 * byte. */

#include "base/clock.h"
#include "server/http/connection.h"
#include "server/server_fixture.h"

#define EMBEDDING_BODY "{\"model\":\"fake\",\"input\":[\"a\",\"b\"]}"

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
    static const char *const wrong[] = {"", "x", "-1", "0", "nan", "inf", "1e99", "5 s", "0x10", "0x1p4"};
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
    const int served = server->http->first->transport.fd;
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
    TEST_MSG(ask_path("/v1/embeddings", "x-request-timeout: 1e-6\r\n", EMBEDDING_BODY) == 504, "%s", answer.data);
    close_server();
}

/* Whoever waits for a model that is being loaded waits no longer than for an answer. */
static void test_load_timeout(void) {
    Error error = {0};
    open_server(1, 0, 0, NULL);
    CHECK(models_unload(server->models, SLICE("fake"), &error));
    fake.load_ms = 1500;
    const int64_t start = clock_ns();
    TEST_MSG(ask("x-request-timeout: 0.2\r\n", CHAT_BODY("")) == 504, "%s", answer.data);
    TEST(ask_path("/v1/embeddings", "x-request-timeout: 0.2\r\n", EMBEDDING_BODY) == 504);
    TEST(ask_path("/v1/models/load", "x-request-timeout: 0.2\r\n", "{\"model\":\"fake\"}") == 504);
    const double seconds = (double)(clock_ns() - start) * 1e-9;
    TEST_MSG(seconds < 1.4, "%.1f s", seconds);
    TEST(ask("x-request-timeout: 60\r\n", CHAT_BODY(",\"max_tokens\":1")) == 200);
    close_server();
}

/* Anthropic's clients know it by this name. */
static void test_messages_timeout(void) {
    open_server(1, 0, 0, NULL);
    fake.gated = true;
    TEST(ask_path("/v1/messages", "x-request-timeout: 0.2\r\n",
             "{\"model\":\"fake\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}") == 504);
    TEST_MSG(strstr(answer.data, "\"type\":\"timeout_error\""), "%s", answer.data);
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
    TEST_MSG(ask_path("/v1/embeddings", "x-request-timeout: 5\r\n", EMBEDDING_BODY) == 503 &&
            strstr(answer.data, "\"queue_timeout\"") && strstr(answer.data, "Retry-After"),
        "%s", answer.data);
    fake_open_gate();
    TEST_MSG(client_read(client, &answer) == 200, "%s", answer.data);
    TEST(ask_path("/v1/embeddings", "", EMBEDDING_BODY) == 200);
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
    server->options.open_metrics = true;
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

int main(void) {
    log_set_level(LOG_ERROR);
    test_request_timeout();
    test_client_timeout();
    test_stream_timeout();
    test_unread_stream_timeout();
    test_slow_head_timeout();
    test_embeddings_timeout();
    test_messages_timeout();
    test_load_timeout();
    test_queue_timeout();
    test_loading();
    test_stalled();
    test_capabilities();
    test_reload();
    buffer_free(&answer);
    return test_done();
}
