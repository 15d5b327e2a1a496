/* The reader of requests: what it takes, and every way of writing a request that two readers could understand in two
 * ways. */
#include "server/http/http_request.h"
#include "test.h"

static HttpRequest request;
static Buffer body;

/* Reads one request out of the text, piece by piece of so many bytes; gives its status, 200 when it is whole, 0 when it
 * is not. */
static int read_request(Slice text, size_t piece, ApiError *error) {
    Slice some;
    size_t used;
    http_request_next(&request);
    buffer_clear(&body);
    while (text.size > 0 || request.state == HTTP_DONE) {
        const size_t size = text.size < piece ? text.size : piece;
        const HttpEvent event = http_request_read(&request, text.data, size, &used, &some, error);
        text.data += used;
        text.size -= used;
        if (event == HTTP_BODY) buffer_slice(&body, some);
        if (event > HTTP_MORE && event != HTTP_ERROR) TEST(request.method == request.text.data); /* headers stay */
        if (event == HTTP_ERROR) return error->status;
        if (event == HTTP_END) return 200;
    }
    return 0;
}

static void expect(int status, Slice text) {
    ApiError error = {0};
    for (size_t piece = 1; piece <= text.size; piece = piece < 4 ? piece + 1 : piece * 3) {
        const int got = read_request(text, piece, &error);
        TEST_MSG(got == status, "%d, not %d (%s): %.100s", got, status, error.message, text.data);
    }
}

#define HOST "Host: localhost\r\n"
#define POST "POST / HTTP/1.1\r\n" HOST
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

static void test_taken(void) {
    static const struct {
        const char *text, *body;
    } cases[] = {{"GET / HTTP/1.1\r\n" HOST "\r\n", ""}, {"\r\nGET / HTTP/1.1\r\n" HOST "\r\n", ""},
        {"GET / HTTP/1.0\r\n" HOST "\r\n", ""}, {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", ""},
        {"get /a?b=c HTTP/1.1\r\nhOST:localhost\r\nX:\r\n\r\n", ""}, {POST "Content-Length: 005\r\n\r\nhello", "hello"},
        {POST "Content-Length:5 \t\r\n\r\nhello", "hello"}, {POST "Content-Length: 0\r\n\r\n", ""},
        {POST "Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", ""},
        {CHUNKED "5\r\nhello\r\n00;a=\"b\"\r\nA: b\r\n\r\n", "hello"},
        {CHUNKED "1;x\r\nh\r\n3\r\nell\r\n001\r\no\r\n0\r\n\r\n", "hello"}, {POST "X: \xc3\xa9\r\n\r\n", ""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        expect(200, slice_of(cases[i].text));
        TEST_MSG(
            slice_is(buffer_view(&body), cases[i].body), "%s: %.*s", cases[i].text, SLICE_ARGS(buffer_view(&body)));
    }
    ApiError error;
    TEST(read_request(SLICE("GET /a%2Fb%zz%?c HTTP/1.1\r\nConnection: x, CLOSE\r\n" HOST "x: 1 2 \r\nX: 3\r\n\r\n"), 7,
             &error) == 200);
    TEST(!strcmp(request.method, "GET") && !strcmp(request.path, "/a/b%zz%") && request.close && !request.old);
    TEST(!strcmp(request.query, "c"));
    TEST(!strcmp(http_request_header(&request, "X"), "1 2") && !http_request_header(&request, "y"));
    TEST(read_request(SLICE("GET /a%00b HTTP/1.1\r\n" HOST "Expect: 100-Continue\r\n\r\n"), 7, &error) == 200);
    TEST(!strcmp(request.query, ""));
    TEST(read_request(SLICE("GET /?a=%20b?&c HTTP/1.1\r\n" HOST "X: y\r\n\r\n"), 1, &error) == 200);
    TEST(!strcmp(request.path, "/") && !strcmp(request.query, "a=%20b?&c"));
    TEST(!strcmp(http_request_header(&request, "X"), "y"));
    TEST(read_request(SLICE("GET /a%00b HTTP/1.1\r\n" HOST "Expect: 100-Continue\r\n\r\n"), 7, &error) == 200);
    TEST(!strcmp(request.path, "/a%00b") && request.awaits && !request.close && !request.has_body);
    TEST(read_request(SLICE("GET http://a:1/b?c HTTP/1.1\r\n" HOST "\r\n"), 5, &error) == 200);
    TEST(!strcmp(request.host, "a:1") && !strcmp(request.path, "/b") && !strcmp(request.query, "c"));
    TEST(read_request(SLICE("GET HTTPS://a HTTP/1.1\r\n" HOST "\r\n"), 5, &error) == 200);
    TEST(!strcmp(request.host, "a") && !strcmp(request.path, "/"));
    TEST(read_request(SLICE("GET / HTTP/1.0\r\n\r\n"), 5, &error) == 200 && !request.host);
    TEST(read_request(SLICE("GET / HTTP/1.0\r\n" HOST "\r\n"), 5, &error) == 200 && !strcmp(request.host, "localhost"));
    TEST(read_request(SLICE(POST "Content-Length: 99999999999999999999999\r\n\r\nx"), 99, &error) == 0);
    TEST(request.length == UINT64_MAX);
}

static void test_refused(void) {
    const struct {
        int status;
        Slice text;
    } cases[] = {
        /* lengths */
        {400, SLICE(POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n")},
        {400, SLICE(POST "Content-Length: 4\r\nContent-Length: 4\r\n\r\n")},
        {400, SLICE(POST "Content-Length: 4\r\nContent-Length: 5\r\n\r\n")},
        {400, SLICE(POST "Content-Length: 4, 4\r\n\r\n")},
        {400, SLICE(POST "Content-Length: -4\r\n\r\n")},
        {400, SLICE(POST "Content-Length: +4\r\n\r\n")},
        {400, SLICE(POST "Content-Length: 0x4\r\n\r\n")},
        {400, SLICE(POST "Content-Length: 4 4\r\n\r\n")},
        {400, SLICE(POST "Content-Length: 4.0\r\n\r\n")},
        {400, SLICE(POST "Content-Length:\r\n\r\n")},
        {400, SLICE(POST "Content-Length : 4\r\n\r\n")},
        /* codings */
        {400, SLICE(POST "Transfer-Encoding : chunked\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding\t: chunked\r\n\r\n")},
        {400, SLICE(POST " Transfer-Encoding: chunked\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: chunked, chunked\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: gzip, chunked\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: chunked, identity\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: identity\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: xchunked\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: \"chunked\"\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: chunked;q=1\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding: \vchunked\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding:\r\n\r\n")},
        {400, SLICE(POST "Transfer-Encoding:\r\n chunked\r\n\r\n")},
        {400, SLICE("POST / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n")},
        /* lines */
        {400, SLICE("GET / HTTP/1.1\n" HOST "\n")},
        {400, SLICE("GET / HTTP/1.1\r\nHost: localhost\n\r\n")},
        {400, SLICE(POST "X: a\rContent-Length: 4\r\n\r\n")},
        {400, SLICE(POST "X: a\r\r\n\r\n")},
        {400, SLICE(POST "X: a\r\n b\r\n\r\n")},
        {400, SLICE(POST "X: a\r\n\tb\r\n\r\n")},
        {400, SLICE(POST "X: a\0b\r\n\r\n")},
        {400, SLICE(POST "X\0Y: b\r\n\r\n")},
        {400, SLICE(POST "X: \x7f\r\n\r\n")},
        {400, SLICE(POST "X Y: b\r\n\r\n")},
        {400, SLICE(POST "X(Y): b\r\n\r\n")},
        {400, SLICE(POST "X\xc3\xa9: b\r\n\r\n")},
        {400, SLICE(POST ": b\r\n\r\n")},
        {400, SLICE(POST "no colon\r\n\r\n")},
        /* request lines */
        {400, SLICE("GET  / HTTP/1.1\r\n")},
        {400, SLICE("GET / HTTP/1.1 \r\n")},
        {400, SLICE(" GET / HTTP/1.1\r\n")},
        {400, SLICE("GET /a b HTTP/1.1\r\n")},
        {400, SLICE("GET / http/1.1\r\n")},
        {400, SLICE("GET / HTTP/1.10\r\n")},
        {505, SLICE("GET / HTTP/2.0\r\n")},
        {400, SLICE("GET /\r\n")},
        {400, SLICE("G@T / HTTP/1.1\r\n")},
        {400, SLICE("GET ftp://localhost/ HTTP/1.1\r\n")},
        {400, SLICE("GET http:///a HTTP/1.1\r\n")},
        {400, SLICE("GET http://a@localhost/ HTTP/1.1\r\n")},
        {400, SLICE("GET http://localhost?a HTTP/1.1\r\n")},
        {400, SLICE("GET /#a HTTP/1.1\r\n")},
        {400, SLICE("GET /\xc3\xa9 HTTP/1.1\r\n")},
        {400, SLICE("\r\n\r\nGET / HTTP/1.1\r\n")},
        {400, SLICE("\x16\x03\x01")},
        /* hosts and expectations */
        {400, SLICE("GET / HTTP/1.1\r\n\r\n")},
        {400, SLICE("GET / HTTP/1.1\r\n" HOST HOST "\r\n")},
        {417, SLICE(POST "Expect: 200-ok\r\n\r\n")},
        /* chunks */
        {400, SLICE(CHUNKED "\r\n")},
        {400, SLICE(CHUNKED "zz\r\n")},
        {400, SLICE(CHUNKED "-1\r\n")},
        {400, SLICE(CHUNKED "0x5\r\n")},
        {400, SLICE(CHUNKED " 5\r\n")},
        {400, SLICE(CHUNKED "5 \r\n")},
        {400, SLICE(CHUNKED "5\nhello")},
        {400, SLICE(CHUNKED "5;a\nb\r\nhello")},
        {400, SLICE(CHUNKED "10000000000000000\r\n")},
        {400, SLICE(CHUNKED "5\r\nhelloo\r\n")},
        {400, SLICE(CHUNKED "5\r\nhello\n0\r\n\r\n")},
        {400, SLICE(CHUNKED "0\r\nno colon\r\n\r\n")},
        {400, SLICE(CHUNKED "0\r\nA: b\r\n c\r\n\r\n")},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) expect(cases[i].status, cases[i].text);
}

/* Lines that are a byte too long, and those that just fit. */
static void test_limits(void) {
    static const struct {
        const char *before, *after;
        size_t most;
        int status;
    } cases[] = {{"GET /", " HTTP/1.1\r\n" HOST "\r\n", HTTP_LINE_MAX - 14, 414},
        {"GET / HTTP/1.1\r\n" HOST "x:", "\r\n\r\n", HTTP_HEAD_MAX - 6 - 15 - 4, 431},
        {CHUNKED "1;", "\r\nh\r\n0\r\n\r\n", HTTP_CHUNK_LINE_MAX - 2, 400},
        {CHUNKED "0\r\nx:", "\r\n\r\n", HTTP_TRAILERS_MAX - 3, 400}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t over = 0; over < 2; over++) {
            ApiError error = {0};
            Buffer text = {0};
            buffer_text(&text, cases[i].before);
            for (size_t k = 0; k < cases[i].most + over; k++) buffer_byte(&text, 'a');
            buffer_text(&text, cases[i].after);
            const int status = read_request(buffer_view(&text), 1000, &error);
            TEST_MSG(status == (over ? cases[i].status : 200), "limit %zu+%zu: %d %s", i, over, status, error.message);
            buffer_free(&text);
        }
    }
    for (int over = 0; over < 2; over++) {
        ApiError error = {0};
        Buffer text = {0};
        buffer_text(&text, POST);
        for (int k = 1; k < HTTP_HEADERS_MAX + over; k++) buffer_text(&text, "x: y\r\n");
        buffer_text(&text, "\r\n");
        TEST(read_request(buffer_view(&text), 1000, &error) == (over ? 431 : 200));
        buffer_free(&text);
    }
}

int main(void) {
    test_taken();
    test_refused();
    test_limits();
    http_request_next(&request);
    buffer_free(&body);
    return test_done();
}
