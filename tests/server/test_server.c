/* The server over the fake model, spoken to byte by byte: what clients that vanish, dawdle or come in crowds can do. */
#include "server/server.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "server/exchange.h"
#include "server/http/http.h"
#include "server/server_fixture.h"

/* ---- big allocations that fail on demand; not under sanitizers, which own malloc ---- */

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OWNS_MALLOC 1
static atomic_size_t largest_allocation = SIZE_MAX;
void *__libc_realloc(void *memory, size_t size);
void *realloc(void *memory, size_t size) {
    return size > atomic_load(&largest_allocation) ? NULL : __libc_realloc(memory, size);
}
#else
#define OWNS_MALLOC 0
#endif

/* ---- a server ---- */

static void open_server(int slots, int queue_max) {
    chat_fixture_open(&fixture, true);
    ServerOptions options = {
        .host = "127.0.0.1", .models = {.engine = chat_engine_options(&fixture, slots, queue_max)}};
    serve_fixture(&options);
}

/* A number of /health. */
static int health(const char *name) {
    char field[32];
    get("/health", "");
    snprintf(field, sizeof field, "\"%s\":", name);
    const char *at = strstr(answer.data, field);
    return at ? (int)strtol(at + strlen(field), NULL, 10) : -1;
}

static void wait_health(const char *name, int value) {
    for (int i = 0; i < 500 && health(name) != value; i++) sleep_ms(10);
    TEST_MSG(health(name) == value, "%s is %d, not %d", name, health(name), value);
}

/* ---- clients that vanish ---- */

/* A client that has sent the beginning of its next request, and then goes, is gone. */
static void test_gone_with_a_byte(const char *more) {
    open_server(1, 1);
    fake.gated = true;
    const int client = connect_client();
    client_post(client, CHAT, slice_of(more));
    fake_wait_arrived(1);
    client_send_text(client, "P");
    fake_permit(2); /* with a byte waiting it is not gone yet */
    fake_wait_arrived(3);
    sleep_ms(250);
    TEST(health("running") == 1);
    close(client);
    int steps = 0;
    for (; steps < 300 && health("running") == 1; steps++) {
        fake_permit(1);
        sleep_ms(10);
    }
    TEST_MSG(steps < 300, "%s: it is still being answered", more);
    close_server();
}

/* ---- memory ---- */

static char *make_body(size_t size) { /* that is understood, and mostly a name of the user */
    static const char start[] =
        "{\"model\":\"fake\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
        "\"user\":\"",
                      end[] = "\"}";
    char *body = malloc(size);
    CHECK(body != NULL && size > sizeof start + sizeof end);
    memset(body, 'a', size);
    memcpy(body, start, sizeof start - 1);
    memcpy(body + size - (sizeof end - 1), end, sizeof end - 1);
    return body;
}

static void test_no_memory(void) {
#if OWNS_MALLOC
    open_server(1, 1);
    const size_t size = 20 << 20;
    char *body = make_body(size);
    for (int kind = 0; kind < 2; kind++) {
        const int client = connect_client();
        if (kind == 0) atomic_store(&largest_allocation, 1 << 20);
        client_post(client, CHAT, (Slice){body, size});
        const int status = client_read(client, &answer);
        atomic_store(&largest_allocation, SIZE_MAX);
        TEST_MSG(status == (kind == 0 ? 503 : 200), "%d %s", status, answer.data);
        TEST(kind == 1 || (strstr(answer.data, "out_of_memory") && strstr(answer.data, "Retry-After")));
        close(client);
    }
    free(body);
    close_server();
#endif
}

static void test_large_body(void) {
    open_server(1, 1);
    const size_t size = (32 << 20) + 1;
    char *body = make_body(size);
    const int client = connect_client();
    client_post(client, CHAT, (Slice){body, size});
    TEST(client_read(client, &answer) == 413);
    close(client);
    free(body);
    close_server();
}

/* Bodies that are being sent take no more than 64 MiB together; whoever would be over it is asked to come again. */
static void test_crowd_of_bodies(void) {
    open_server(1, 8);
    const size_t size = 32 << 20, part = 31 << 20, small = 4 << 20;
    char *body = make_body(size);
    int timed_out[2];
    for (int i = 0; i < 2; i++) {
        timed_out[i] = connect_client();
        client_post_head(timed_out[i], CHAT, size);
        client_send(timed_out[i], body, part);
    }
    sleep_ms(300); /* until the server has taken it */
    for (int chunked = 0; chunked < 2; chunked++) {
        const int client = connect_client();
        char *other = make_body(small);
        if (chunked) {
            client_send_text(client,
                "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Transfer-Encoding: chunked\r\n\r\n400000\r\n");
            client_send(client, other, small);
            client_send_text(client, "\r\n0\r\n\r\n");
        } else {
            client_post(client, CHAT, (Slice){other, small});
        }
        const int status = client_read(client, &answer);
        TEST_MSG(status == 503 && strstr(answer.data, "Retry-After"), "%d %s", status, answer.data);
        close(client);
        free(other);
    }
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":1")) == 200);
    for (int i = 0; i < 2; i++) { /* what they began is served */
        client_send(timed_out[i], body + part, size - part);
        TEST(client_read(timed_out[i], &answer) == 200);
        close(timed_out[i]);
    }
    free(body);
    body = make_body(small);
    const int client = connect_client();
    client_post(client, CHAT, (Slice){body, small});
    TEST(client_read(client, &answer) == 200);
    close(client);
    free(body);
    close_server();
}

static size_t resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    size_t all = 0, resident = 0;
    if (file && fscanf(file, "%zu %zu", &all, &resident) != 2) resident = 0;
    if (file) fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* A request that waits for its turn holds its tokens, not the body it came in. */
static void test_waiting_is_small(void) {
    open_server(1, 8);
    fake.gated = true;
    const size_t size = 24 << 20;
    char *body = make_body(size);
    const size_t before = resident_bytes();
    int clients[6];
    for (int i = 0; i < 6; i++) {
        clients[i] = connect_client();
        client_post(clients[i], CHAT, (Slice){body, size});
        wait_health(i == 0 ? "running" : "waiting", i == 0 ? 1 : i);
    }
    const size_t after = resident_bytes();
    TEST_MSG(!OWNS_MALLOC || after < before + size, "6 requests of %zu MiB hold %zu MiB", size >> 20,
        (after - before) >> 20);
    fake_open_gate();
    for (int i = 0; i < 6; i++) {
        TEST(client_read(clients[i], &answer) == 200);
        close(clients[i]);
    }
    free(body);
    close_server();
}

/* Nobody's body is read while the queue is full: what is in it does not matter. */
static void test_full_queue(void) {
    open_server(1, 0);
    fake.gated = true;
    const int client = connect_client();
    client_post(client, CHAT, slice_of(CHAT_BODY(",\"max_tokens\":3")));
    fake_wait_arrived(1);
    static const char *const bodies[] = {CHAT_BODY(""), "{"};
    for (int i = 0; i < 2; i++) {
        const int status = ask_path(i ? "/v1/completions" : CHAT, "", bodies[i]);
        TEST_MSG(status == 429 && strstr(answer.data, "queue_full") && strstr(answer.data, "Retry-After"), "%d %s",
            status, answer.data);
    }
    fake_open_gate();
    TEST(client_read(client, &answer) == 200);
    close(client);
    wait_health("running", 0);
    TEST(ask_path(CHAT, "", "{") == 400 && ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":1")) == 200);
    close_server();
}

/* What an answer may be is said by regular expressions here: of four tokens whose bytes are known. */
static void test_constraints(void) {
    static const struct {
        const char *more, *expected;
        int status;
    } cases[] = {{",\"guided_regex\":\"a{5}\"", "\"content\":\"aaaaa\"", 200},
        {",\"guided_regex\":\"a{5}\",\"max_tokens\":5", "\"finish_reason\":\"stop\"", 200},
        {",\"guided_regex\":\"a{5}\",\"max_tokens\":4", "\"finish_reason\":\"length\"", 200},
        {",\"guided_choice\":[\"yes\",\"yes.\"],\"n\":2,\"min_tokens\":4", "\"content\":\"yes.\"", 200},
        {",\"guided_choice\":[\"yes\",\"yes.\"],\"ignore_eos\":true", "\"content\":\"yes.\"", 200},
        {",\"json_schema\":{\"const\":[1,{\"a\":2}]},\"structured_outputs\":null", "\"content\":\"[",
            200}, /* blanks may follow */
        {",\"grammar\":\"root ::= \\\"x\\\" [0-9] \\\"y\\\"\"", "\"content\":\"x", 200},
        {",\"guided_regex\":\"é\",\"max_tokens\":1,\"logprobs\":true", "\"content\":\"\",", 200},
        {",\"guided_regex\":\"é\",\"max_tokens\":1,\"logprobs\":true", "\"bytes\":[195]", 200},
        {",\"guided_regex\":\"é\"", "\"content\":\"é\"", 200},
        {",\"guided_regex\":\"(?<=a)b\"", "\"param\":\"guided_regex\"", 400},
        {",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"$ref\":\"b."
         "json\"}}}",
            "$ref", 400}};
    open_server(2, 4);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char body[512];
        snprintf(body, sizeof body,
            "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"temperature\":1%s}",
            cases[i].more);
        const int status = ask_path(CHAT, "", body);
        TEST_MSG(status == cases[i].status && strstr(answer.data, cases[i].expected), "%s: %d %s", cases[i].more,
            status, answer.data);
    }
    close_server();
}

/* Scoring a prompt computes a token that is nobody's. */
static void test_only_echo(void) {
    open_server(1, 1);
    TEST(ask_path("/v1/completions", "",
             "{\"model\":\"fake\",\"prompt\":\"Hello\",\"max_tokens\":0,\"echo\":true,\"logprobs\":1}") == 200);
    TEST_MSG(strstr(answer.data, "\"completion_tokens\":0,\"total_tokens\":5") != NULL, "%s", answer.data);
    close_server();
}

/* Events of a stream have one of few sizes when that is asked for. */
static void test_obfuscation(void) {
    open_server(1, 1);
    for (int asked = 0; asked < 2; asked++) {
        const int client = connect_client();
        client_post(client, CHAT,
            asked ? SLICE(CHAT_BODY(
                        ",\"max_tokens\":5,\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}"))
                  : SLICE(CHAT_BODY(",\"max_tokens\":5,\"stream\":true")));
        CHECK(client_read(client, &answer) == 200);
        char block[4096];
        for (ssize_t got = 1; got > 0 && !strstr(answer.data, "[DONE]");)
            if ((got = recv(client, block, sizeof block, 0)) > 0) buffer_append(&answer, block, (size_t)got);
        TEST_MSG((strstr(answer.data, "\"obfuscation\":\"") != NULL) == asked, "%s", answer.data);
        close(client);
    }
    close_server();
}

/* A model whose files cannot be read fails its requests and the server's health, until they can be again. */
static void test_damage(void) {
    char path[128], away[128];
    open_server(1, 1);
    snprintf(path, sizeof path, "%s/tokenizer.json", fixture.directory);
    snprintf(away, sizeof away, "%s/away.json", fixture.directory);
    CHECK(rename(path, away) == 0);
    fake.fail_code = ERROR_IO;
    fake.fail_at = 1;
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":3")) == 500);
    wait_health("running", 0);
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":3")) == 503 && strstr(answer.data, "model_load_failed"));
    TEST(get("/health", "") == 503 && strstr(answer.data, "\"damaged\""));
    CHECK(rename(away, path) == 0);
    for (int i = 0; i < 50 && get("/health", "") != 200; i++) sleep_ms(100);
    TEST_MSG(get("/health", "") == 200 && strstr(answer.data, "\"ok\""), "%s", answer.data);
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":3")) == 200);
    close_server();
}

/* Logits that are not numbers are a fault, and no token is drawn from them. */
static void test_not_numbers(void) {
    open_server(1, 1);
    fake.nan_at = 2;
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":3")) == 500 && strstr(answer.data, "gave no numbers"));
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":3")) == 200);
    close_server();
}

/* A text that cannot fit into the context is not tokenized to find that out. */
static void test_too_long(void) {
    open_server(1, 1);
    const size_t longest = strlen("<|start|>");
    for (size_t over = 0; over < 2; over++) {
        const size_t size = ((size_t)fake.context + over) * longest;
        Buffer body = {0};
        buffer_text(&body, "{\"model\":\"fake\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"");
        for (size_t i = 0; i < size; i++) buffer_byte(&body, 'a');
        buffer_text(&body, "\"}]}");
        TEST(ask_path(CHAT, "", body.data) == 400 && strstr(answer.data, "context_length_exceeded"));
        TEST_MSG((strstr(answer.data, "are at least 4097 tokens") != NULL) == over, "%s", answer.data);
        buffer_free(&body);
    }
    close_server();
}

/* A tokenizer with more tokens than the model: texts without them are answered, others are the client's fault. */
static void test_large_vocabulary(void) {
#define PROMPT(text) "{\"model\":\"fake\",\"max_tokens\":1,\"prompt\":" text "}"
    chat_fixture_open(&fixture, true);
    fake.vocab = CHAT_E1;
    fake.eos = 0;
    serve_fixture(&(ServerOptions){.host = "127.0.0.1", .models = {.engine = chat_engine_options(&fixture, 1, 1)}});
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":1")) == 400);
    TEST_MSG(strstr(answer.data, "\"param\":\"messages\"") && strstr(answer.data, "'<|start|>' is token 98") &&
            strstr(answer.data, "ends with 95"),
        "%s", answer.data);
    TEST(ask_path("/v1/completions", "", PROMPT("[\"fine\",\"caf\u00e9\"]")) == 400);
    TEST_MSG(strstr(answer.data, "\"param\":\"prompt\"") && strstr(answer.data, "is token 96"), "%s", answer.data);
    TEST(ask_path("/v1/completions", "", PROMPT("[\"fine\",\"too\"]")) == 200);
    close_server();
}

/* What is made of bodies together has its limit; one alone is always let in. */
static void test_text_budget(void) {
    open_server(1, 1);
    server->text_bytes_max = 1;
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":1")) == 200);
    __atomic_add_fetch(&server->text_bytes, 1, __ATOMIC_RELAXED); /* somebody else's */
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":1")) == 503 && strstr(answer.data, "Retry-After"));
    __atomic_sub_fetch(&server->text_bytes, 1, __ATOMIC_RELAXED);
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":1")) == 200);
    /* The client may have its answer before what it was made of is gone. */
    for (int i = 0; i < 100 && __atomic_load_n(&server->text_bytes, __ATOMIC_RELAXED); i++) sleep_ms(10);
    TEST(__atomic_load_n(&server->text_bytes, __ATOMIC_RELAXED) == 0);
    close_server();
}

/* The body of a GET means nothing, and /health asks for no key: it takes no room from bodies that are wanted. */
static void test_body_of_get(void) {
    enum { PIECE = 1 << 20 };
    open_server(1, 1);
    char *piece = calloc(PIECE, 1);
    const int client = connect_client();
    char head[128];
    snprintf(head, sizeof head, "GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", 2 * PIECE);
    client_send_text(client, head);
    client_send(client, piece, PIECE);
    sleep_ms(100);
    TEST(__atomic_load_n(&server->body_bytes, __ATOMIC_RELAXED) == 0);
    client_send(client, piece, PIECE);
    TEST(client_read(client, &answer) == 200);
    client_post(client, CHAT, slice_of(CHAT_BODY(",\"max_tokens\":1"))); /* and the next request is found behind it */
    TEST(client_read(client, &answer) == 200);
    close(client);
    free(piece);
    close_server();
}

/* Whoever does not read refusals, which need no key, keeps nobody from being answered. */
static void test_unread_refusals(void) {
    open_server(1, 1);
    __atomic_add_fetch(&server->answering, ANSWERS_MAX, __ATOMIC_RELAXED); /* such are counted, for the end */
    TEST(ask_path(CHAT, "", CHAT_BODY(",\"max_tokens\":1")) == 200);
    __atomic_sub_fetch(&server->answering, ANSWERS_MAX, __ATOMIC_RELAXED);
    close_server();
}

int main(void) {
    log_set_level(LOG_ERROR);
    test_gone_with_a_byte(CHAT_BODY(""));
    test_gone_with_a_byte(CHAT_BODY(",\"stream\":true"));
    test_no_memory();
    test_large_body();
    test_crowd_of_bodies();
    test_waiting_is_small();
    test_full_queue();
    test_constraints();
    test_only_echo();
    test_obfuscation();
    test_damage();
    test_not_numbers();
    test_too_long();
    test_large_vocabulary();
    test_text_budget();
    test_body_of_get();
    test_unread_refusals();
    buffer_free(&answer);
    return test_done();
}
