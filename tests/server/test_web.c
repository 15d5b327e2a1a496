/* The web app on the wire: who gets the page, how long files may be kept, and what pages are protected by. */
#include "server/server_fixture.h"

static void open_server(const char *keys, const char *mcp_origins) {
    chat_fixture_open(&fixture, true);
    ServerOptions options = {.host = "127.0.0.1",
        .api_keys = {keys, keys ? strlen(keys) : 0},
        .mcp_origins = mcp_origins,
        .models = {.engine = chat_engine_options(&fixture, 1, 8)}};
    serve_fixture(&options);
}

static bool has(const char *text) { return strstr(answer.data, text) != NULL; }

/* Browsers get the page at /, also without a key; clients of the API get JSON, with one. */
static void test_page_and_json(void) {
    open_server("secret", NULL);
    TEST(get("/", "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n") == 200);
    TEST(has("Content-Type: text/html; charset=utf-8\r\n") && has("Content-Encoding: gzip\r\n"));
    TEST(get("/", "Accept: */*\r\n") == 401);
    TEST(get("/", "Accept: */*\r\nAuthorization: Bearer secret\r\n") == 200 && has("\"models\":[\"fake\"]"));
    TEST(get("/", "Authorization: Bearer secret\r\n") == 200 && has("Content-Type: application/json"));
    TEST(get("/v1/models", "Accept: text/html\r\n") == 401);
    const int client = connect_client();
    client_send_text(client, "HEAD / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n");
    char head[4096] = "";
    TEST(recv(client, head, sizeof head - 1, 0) > 0 && strstr(head, "HTTP/1.1 200"));
    const char *end = strstr(head, "\r\n\r\n");
    TEST(end && !end[4]);
    close(client);
    TEST(get("/", "Accept: text/html\r\nOrigin: http://evil.example\r\n") == 403);
    close_server();
}

/* Scripts and styles come from this server, but for one each that is in the page, by its hash. */
static const char sources[] =
#define ASSET(number, path, file, type, hash, immutable)
#define SOURCES(text) text
#include "../../app/dist/assets.inc"
#undef ASSET
#undef SOURCES
    ;

static void test_protections(void) {
    char script[64], style[64], wanted[256];
    open_server(NULL, NULL);
    TEST(get("/", "Accept: text/html\r\n") == 200);
    TEST(sscanf(sources, "script-src 'self' 'sha256-%63[^']'; style-src 'self' 'sha256-%63[^']'", script, style) == 2);
    snprintf(wanted, sizeof wanted,
        "default-src 'none'; script-src 'self' 'sha256-%s'; style-src 'self' 'sha256-%s'; img-src", script, style);
    TEST(has(wanted) && strlen(script) == 44 && strlen(style) == 44 && has("frame-ancestors 'none'"));
    TEST(has("connect-src 'self'\r\n") && has("X-Content-Type-Options: nosniff\r\n"));
    TEST(has("X-Frame-Options: DENY\r\n") && has("Referrer-Policy: no-referrer\r\n"));
    TEST(!has("unsafe"));
    close_server();
    open_server(NULL, "http://127.0.0.1:9000 https://tools.example");
    TEST(get("/", "Accept: text/html\r\n") == 200);
    TEST(has("connect-src 'self' http://127.0.0.1:9000 https://tools.example\r\n"));
    close_server();
}

/* The value of a header of the last answer. */
static void take_header(const char *name, char *value, size_t size) {
    const char *at = strstr(answer.data, name);
    TEST(at != NULL);
    at = at ? at + strlen(name) : "";
    snprintf(value, size, "%.*s", (int)strcspn(at, "\r"), at);
}

static void test_caching(void) {
    char tag[64], header[128];
    open_server(NULL, NULL);
    TEST(get("/", "Accept: text/html\r\n") == 200 && has("Cache-Control: no-cache\r\n"));
    take_header("ETag: ", tag, sizeof tag);
    snprintf(header, sizeof header, "Accept: text/html\r\nIf-None-Match: W/\"x\", %s\r\n", tag);
    TEST(get("/", header) == 304 && !has("Content-Length") && has(tag));
    TEST(get("/", "Accept: text/html\r\nIf-None-Match: \"other\"\r\n") == 200);
    TEST(get("/assets/icon.svg", "") == 200 && has("Content-Type: image/svg+xml\r\n"));
    TEST(get("/sw.js", "") == 200 && has("Content-Type: text/javascript") && has("Cache-Control: no-cache\r\n"));
    close_server();
}

/* Only what is embedded is there, whatever the path looks like. */
static void test_unknown_assets(void) {
    open_server(NULL, NULL);
    static const char *const paths[] = {"/assets/none.js", "/assets/../etc/passwd", "/assets/%2e%2e/sw.js", "/assets//",
        "/assets/icon.svg/", "/index.html"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) TEST_MSG(get(paths[i], "") == 404, "%s: %s", paths[i], answer.data);
    TEST(ask_path("/assets/icon.svg", "", "{}") == 405);
    close_server();
}

/* A path that names its content's hash may be kept for ever. */
static void test_immutable_names(void) {
    static const struct {
        const char *path;
        bool immutable;
    } list[] = {
#define ASSET(number, path, file, type, hash, immutable) {path, immutable},
#define SOURCES(text)
#include "../../app/dist/assets.inc"
#undef ASSET
#undef SOURCES
    };
    int checked = 0;
    open_server(NULL, NULL);
    for (size_t i = 0; i < COUNT_OF(list); i++) {
        if (!strcmp(list[i].path, "/")) continue;
        TEST_MSG(get(list[i].path, "") == 200, "%s", list[i].path);
        TEST_MSG(has("max-age=31536000, immutable") == list[i].immutable, "%s", list[i].path);
        checked += list[i].immutable;
    }
    TEST(checked > 2);
    close_server();
}

int main(void) {
    test_page_and_json();
    test_protections();
    test_caching();
    test_unknown_assets();
    test_immutable_names();
    buffer_free(&answer);
    return test_done();
}
