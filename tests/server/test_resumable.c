/* Streams that a client takes up again after its connection was lost. */
#include "base/clock.h"
#include "server/api/resumable.h"
#include "server/server_fixture.h"

static char id[64];

static void open_server(bool gated) {
    chat_fixture_open(&fixture, true);
    fake.gated = gated;
    ServerOptions options = {.host = "127.0.0.1", .models = {.engine = chat_engine_options(&fixture, 2, 8)}};
    serve_fixture(&options);
}

static bool has(const char *text) { return strstr(answer.data, text) != NULL; }

/* All of a stream up to its end, or to the connection's. */
static void read_all(int client) {
    char block[4096];
    for (ssize_t got = 1; got > 0 && !strstr(answer.data, "\r\n0\r\n\r\n");)
        if ((got = recv(client, block, sizeof block, 0)) > 0) buffer_append(&answer, block, (size_t)got);
}

/* Begins a stream that is kept, and reads its head and first events. */
static int begin(const char *keep, const char *more) {
    char body[512], header[128];
    snprintf(body, sizeof body, CHAT_BODY(",\"seed\":7,\"stream\":true%s"), more);
    snprintf(header, sizeof header, "x-stream-keep: %s\r\n", keep);
    const int client = connect_client();
    post(client, header, body);
    TEST(client_read(client, &answer) == 200);
    const char *at = strstr(answer.data, "x-stream-id: ");
    TEST(at != NULL);
    snprintf(id, sizeof id, "%.*s", at ? (int)strcspn(at + 13, "\r") : 0, at ? at + 13 : "");
    return client;
}

/* The rest of the stream of `id`; its status. */
static int resume(const char *query, const char *headers) {
    char path[256];
    snprintf(path, sizeof path, "/v1/streams/%s%s", id, query);
    const int client = connect_client();
    char head[512];
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, headers);
    client_send_text(client, head);
    const int status = client_read(client, &answer);
    if (status == 200) read_all(client);
    close(client);
    return status;
}

static int cancel_with(const char *headers) {
    char head[256];
    const int client = connect_client();
    snprintf(head, sizeof head, "DELETE /v1/streams/%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", id, headers);
    client_send_text(client, head);
    const int status = client_read(client, &answer);
    close(client);
    return status;
}

static int cancel(void) { return cancel_with(""); }

/* The answer's text: how many tokens an event has depends on how fast they come. */
static void take_text(Buffer *out) {
    static const char key[] = "\"content\":\"";
    buffer_clear(out);
    for (const char *at = answer.data; (at = strstr(at, key)) != NULL;) {
        at += sizeof key - 1;
        size_t size = 0;
        while (at[size] && at[size] != '"') size += at[size] == '\\' ? 2 : 1;
        buffer_append(out, at, size);
    }
}

/* The whole answer again, and its end from any event on. */
static void test_again(void) {
    Buffer first = {0}, second = {0};
    open_server(false);
    const int client = begin("60", ",\"max_tokens\":6");
    read_all(client);
    close(client);
    take_text(&first);
    TEST(has("id: 1\ndata: ") && has("data: [DONE]"));
    TEST(resume("", "") == 200);
    take_text(&second);
    TEST(first.size > 0 && slice_equal(buffer_view(&first), buffer_view(&second)));
    TEST(resume("?after=1", "") == 200 && !has("id: 1\n") && has("id: 2\n") && has("data: [DONE]"));
    TEST(resume("?x=1&after=2", "") == 200 && !has("id: 2\n") && has("id: 3\n"));
    TEST(resume("", "Last-Event-ID: 2\r\n") == 200 && !has("id: 2\n") && has("id: 3\n"));
    TEST(resume("?after=99", "") == 200 && !has("data: "));
    TEST(resume("?after=-1", "") == 400 && resume("?after=x", "") == 400 && has("\"param\":\"after\""));
    snprintf(id, sizeof id, "chatcmpl-none");
    TEST(resume("", "") == 404 && has("stream_not_found"));
    buffer_free(&first);
    buffer_free(&second);
    close_server();
}

/* A client goes in the middle: the generation goes on without it, and the answer is that of a client that stayed. */
static void test_goes_on(void) {
    Buffer whole = {0}, resumed = {0};
    open_server(false);
    int client = begin("60", ",\"max_tokens\":40");
    read_all(client);
    close(client);
    take_text(&whole);
    close_server();
    open_server(true);
    fake_permit(3);
    client = begin("60", ",\"max_tokens\":40");
    close(client);
    sleep_ms(300); /* the server has seen that it is gone */
    fake_open_gate();
    TEST(resume("", "") == 200 && has("data: [DONE]"));
    take_text(&resumed);
    TEST_MSG(slice_equal(buffer_view(&whole), buffer_view(&resumed)), "%.*s\n%.*s", SLICE_ARGS(buffer_view(&whole)),
        SLICE_ARGS(buffer_view(&resumed)));
    buffer_free(&whole);
    buffer_free(&resumed);
    close_server();
}

/* What it counts among the running requests, waited for. */
static bool ends_within(int ms) {
    for (int waited = 0; waited < ms; waited += 50) {
        TEST(get("/health", "") == 200);
        if (has("\"running\":0")) return true;
        sleep_ms(50);
    }
    return false;
}

/* Without the header a client that goes ends its generation; with it, after its time, or when it is cancelled. */
static void test_bounded(void) {
    open_server(false);
    fake.gated = true;
    fake_permit(3);
    int client = begin("1", "");
    close(client);
    const int64_t start = clock_ns();
    sleep_ms(400);
    TEST(get("/health", "") == 200 && has("\"running\":1"));
    fake_open_gate();
    close_server();
    TEST((double)(clock_ns() - start) * 1e-9 < 8);

    open_server(true);
    fake_permit(3);
    client = begin("1", ",\"max_tokens\":2000");
    close(client);
    for (int i = 0; i < 40; i++) {
        fake_permit(1);
        sleep_ms(50);
    }
    fake_open_gate(); /* a step that waits at the gate cannot be cancelled */
    TEST(ends_within(3000) && fake_steps() < 100);
    TEST(resume("", "") == 404 || !has("[DONE]"));
    close_server();

    open_server(true);
    fake_permit(3);
    client = begin("60", ",\"max_tokens\":2000");
    close(client);
    sleep_ms(200);
    TEST(cancel() == 200 && cancel() == 404);
    sleep_ms(300);
    fake_open_gate();
    TEST(ends_within(3000) && fake_steps() < 100);
    TEST(resume("", "") == 404);
    close_server();
}

/* A stream belongs to the key that began it. */
static void test_keys(void) {
    static const char alpha[] = "Authorization: Bearer alpha\r\n", beta[] = "Authorization: Bearer beta\r\n";
    chat_fixture_open(&fixture, true);
    ServerOptions options = {.host = "127.0.0.1",
        .api_keys = SLICE("alpha\nbeta\n"),
        .models = {.engine = chat_engine_options(&fixture, 2, 8)}};
    serve_fixture(&options);
    char keep[96];
    snprintf(keep, sizeof keep, "60\r\n%.*s", (int)strlen(alpha) - 2, alpha);
    const int client = begin(keep, ",\"max_tokens\":4");
    read_all(client);
    close(client);
    TEST(resume("", "") == 401 && cancel_with("") == 401);
    TEST(resume("", beta) == 404 && cancel_with(beta) == 404);
    TEST(resume("", alpha) == 200 && has("data: [DONE]"));
    TEST(cancel_with(alpha) == 200 && resume("", alpha) == 404);
    close_server();
}

static void test_header(void) {
    open_server(false);
    static const char *const wrong[] = {"0", "-1", "x", "1.5", "99999999", ""};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        char header[64];
        snprintf(header, sizeof header, "x-stream-keep: %s\r\n", wrong[i]);
        TEST_MSG(ask(header, CHAT_BODY(",\"stream\":true,\"max_tokens\":2")) == 400 && has("x-stream-keep"), "%s: %s",
            wrong[i], answer.data);
    }
    TEST(ask("x-stream-keep: 5\r\n", CHAT_BODY(",\"max_tokens\":2")) == 200 && !has("x-stream-id"));
    TEST(ask("", CHAT_BODY(",\"stream\":true,\"max_tokens\":2")) == 200 && !has("x-stream-id") && !has("id: 1\n"));
    close_server();
}

int main(void) {
    test_again();
    test_goes_on();
    test_bounded();
    test_keys();
    test_header();
    buffer_free(&answer);
    return test_done();
}
