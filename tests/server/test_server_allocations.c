/* The life of a server of two models with every allocation of ours failing once, also while one is loaded again: it
 * starts or says why not; every request is answered, with what it would have been without the failure or with an error,
 * or its connection ends; nothing is left behind, and the next requests are answered. The client takes no memory of its
 * own. */
#include <time.h>

#include "allocations.h"
#include "chat/chat_fixture.h"
#include "server/http_client.h"
#include "server/server.h"

enum { ANSWER_MAX = 1 << 16, TEXT_MAX = 4096 };

typedef struct Question {
    const char *method, *path, *body;
} Question;

static const Question questions[] = {
    {"POST", "/v1/chat/completions",
        "{\"model\":\"fake\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\","
        "\"content\":[{\"type\":\"text\",\"text\":\"Hel\"},{\"type\":\"text\",\"text\":\"lo \\u00e9\"}]}],"
        "\"max_tokens\":12,\"n\":2,\"seed\":5,\"logprobs\":true,\"top_logprobs\":2,\"stop\":[\"zzz\",\"yyy\"],"
        "\"logit_bias\":{\"3\":1,\"4\":-1},\"frequency_penalty\":0.1,"
        "\"chat_template_kwargs\":{\"mood\":{\"kind\":\"good\",\"words\":[\"a\",\"b\"]}}}"},
    {"POST", "/v1/chat/completions",
        "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":20,\"seed\":5,"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true}}"},
    {"POST", "/v1/completions",
        "{\"model\":\"fake\",\"prompt\":[\"Hello\",\"you\"],\"max_tokens\":9,\"seed\":5,\"echo\":true,\"logprobs\":1}"},
    {"POST", "/v1/chat/completions",
        "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"tool_"
        "calls\":[{\"id\":\"a\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_"
        "id\":\"a\",\"content\":"
        "\"5\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\","
        "\"seed\":5}"},
    {"POST", "/v1/responses",
        "{\"model\":\"fake\",\"input\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_output_tokens\":5,"
        "\"temperature\":0}"},
    {"POST", "/tokenize", "{\"model\":\"fake\",\"content\":\"Hi\"}"},
    {"POST", "/v1/chat/completions",
        "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":9,\"seed\":5,"
        "\"n\":2,"
        "\"guided_choice\":[\"yes\",\"no!\"]}"},
    {"GET", "/v1/models", ""},
    {"POST", "/v1/models/unload", "{\"model\":\"fake\"}"},
    {"POST", "/v1/completions", "{\"model\":\"fake\",\"prompt\":\"loaded again\",\"max_tokens\":3,\"seed\":5}"},
    {"POST", "/v1/completions", "{\"model\":\"other\",\"prompt\":\"beside it\",\"max_tokens\":3,\"seed\":5}"},
};

/* Of a run without failures; the first run fills it. */
static char expected[COUNT_OF(questions)][TEXT_MAX];

static ChatFixture fixture;
static char answer[ANSWER_MAX];

/* The whole answer, until the server ends the connection. */
static void ask(int port, const Question *question) {
    char head[512];
    snprintf(head, sizeof head,
        "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n",
        question->method, question->path, strlen(question->body));
    const int client = client_connect(port);
    client_send_text(client, head);
    client_send_text(client, question->body);
    size_t size = 0;
    for (ssize_t got = 1; got > 0 && size<sizeof answer - 1; size += got> 0 ? (size_t)got : 0)
        got = recv(client, answer + size, sizeof answer - 1 - size, 0);
    answer[size] = '\0';
    close(client);
}

/* The same until the model is at rest: an answer is out a moment before its model is released. */
static void ask_patiently(int port, const Question *question) {
    for (int i = 0; i < 2000; i++) {
        ask(port, question);
        if (strncmp(answer, "HTTP/1.1 409", 12) != 0) return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* What of an answer is the same every time: the values of its texts and numbers of tokens, one behind the other; not
 * how many were cached. */
static void texts_of(char out[TEXT_MAX]) {
    static const char *const keys[] = {
        "\"content\":\"", "\"text\":\"", "\"id\":\"fake", "\"prompt_tokens\":", "\"completion_tokens\":"};
    size_t size = 0;
    for (const char *at = answer; *at; at++) {
        for (size_t k = 0; k < COUNT_OF(keys); k++) {
            const size_t length = strlen(keys[k]);
            if (strncmp(at, keys[k], length) != 0) continue;
            for (const char *text = at + length; *text && !strchr("\",}", *text) && size < TEXT_MAX - 1; text++)
                out[size++] = *text;
        }
    }
    out[size] = '\0';
}

/* False: it was not answered, or with an error, as *error says then. */
static bool judge(size_t number, Error *error) {
    char texts[TEXT_MAX];
    const char *body = strstr(answer, "\r\n\r\n"), *failure = strstr(answer, "\"error\":{\"message\":\"");
    const bool chunked = strstr(answer, "Transfer-Encoding: chunked") != NULL;
    const size_t size = strlen(answer);
    if (!body) return fail(error, ERROR_MEMORY, "question %zu: the connection ended", number);
    if (failure) {
        TEST_MSG(strstr(answer, "\"out_of_memory\"") || strstr(answer, "\"model_load_failed\""), "question %zu: %s",
            number, answer);
        const ErrorCode code = allocations.failed_thread ? ERROR_LIMIT : ERROR_MEMORY; /* as is not on the wire */
        return fail(error, code, "question %zu: %.60s", number, failure + strlen("\"error\":{\"message\":\""));
    }
    if (chunked && (size < 7 || strcmp(answer + size - 7, "\r\n0\r\n\r\n") != 0))
        return fail(error, ERROR_MEMORY, "question %zu: the stream ended early", number);
    TEST_MSG(strncmp(answer, "HTTP/1.1 200", 12) == 0, "question %zu: %s", number, answer);
    TEST_MSG(!chunked || strstr(answer, "data: [DONE]"), "question %zu: %s", number, answer);
    texts_of(texts);
    if (!expected[number][0]) snprintf(expected[number], TEXT_MAX, "%s", texts);
    TEST_MSG(strcmp(texts, expected[number]) == 0, "question %zu: \"%s\", not \"%s\"", number, texts, expected[number]);
    return true;
}

static bool live(Error *error) {
    fake_reset();
    fake.vocab = CHAT_VOCAB;
    fake.eos_logit = -1000;
    const ModelSource sources[] = {
        {.name = "fake", .directory = fixture.directory}, {.name = "other", .directory = fixture.directory}};
    const ServerOptions options = {.host = "127.0.0.1",
        .models = {.sources = sources,
            .count = COUNT_OF(sources),
            .engine = chat_engine_options(&fixture, 2, 4),
            .idle_unload_ms = 3600000}};
    Server *server = server_open(&options, error);
    if (!server) return false;
    bool ok = true;
    for (size_t i = 0; i < COUNT_OF(questions); i++) {
        ask_patiently(server_port(server), &questions[i]);
        ok = judge(i, error) && ok;
    }
    if (allocations_recover()) {
        for (size_t i = 0; i < COUNT_OF(questions); i++) {
            Error second = {0};
            ask_patiently(server_port(server), &questions[i]);
            TEST_MSG(judge(i, &second), "afterwards: %s", second.text);
        }
    }
    server_close(server);
    TEST_MSG(fake.leaked_bytes == 0, "%zu bytes of pages were left in use", fake.leaked_bytes);
    return ok;
}

int main(int argc, char **argv) {
    Error error = {0};
    allocations_verbose = argc > 1;
    log_set_level(LOG_ERROR + 1);
    chat_fixture_open(&fixture, true);
    TEST_MSG(live(&error), "%s", error.text);
    for (int mode = ALLOCATIONS_ONE; mode <= ALLOCATIONS_ALL; mode++)
        printf("server: %ld allocations\n", allocations_sweep("server", live, mode));
    chat_fixture_close(&fixture);
    return test_done();
}
