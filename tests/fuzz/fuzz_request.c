/* What clients send to the reader of requests, in one piece, in two at every place, and byte by byte: it must find the
 * same requests and the same error. */
#include <stdint.h>
#include <stdlib.h>

#include "server/http/http_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SENT_MAX = 128 << 10, SPLITS_MAX = 512 };

static void note_head(const HttpRequest *r, Buffer *out) {
    static const char *const names[] = {"Host", "Content-Type", "x", ""};
    CHECK(r->method[0] && (r->path[0] == '/' || !strcmp(r->path, "*")));
    buffer_printf(out, "[%s %s %d%d%d%d %llu", r->method, r->path, r->old, r->close, r->awaits, r->has_body,
        (unsigned long long)r->length);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = http_request_header(r, names[i]);
        buffer_printf(out, " %s=%s", names[i], value ? value : "-");
    }
    CHECK(http_request_header(r, "Host") && !http_request_header(r, ""));
    buffer_byte(out, ']');
}

/* False: there was an error. */
static bool read_piece(HttpRequest *r, const char *bytes, size_t size, Buffer *out) {
    for (;;) {
        Slice body;
        size_t used;
        ApiError error;
        /* A copy of its own size: reading behind it is seen. */
        char *copy = malloc(size ? size : 1);
        CHECK(copy);
        if (size) memcpy(copy, bytes, size);
        const HttpEvent event = http_request_read(r, copy, size, &used, &body, &error);
        CHECK(used <= size && r->text.size <= HTTP_HEAD_MAX + HTTP_LINE_MAX + 2);
        if (event == HTTP_HEAD) note_head(r, out);
        if (event == HTTP_BODY) buffer_slice(out, body);
        if (r->state > HTTP_HEADER) CHECK(!r->method || r->method == r->text.data); /* it is where it was */
        if (event == HTTP_ERROR) buffer_printf(out, "{%d %s}", error.status, error.message);
        free(copy);
        bytes += used;
        size -= used;
        if (event == HTTP_END) {
            buffer_text(out, "[end]");
            http_request_next(r);
        } else {
            CHECK(event != HTTP_MORE || size == 0);
            if (event == HTTP_MORE || event == HTTP_ERROR) return event == HTTP_MORE;
        }
        if (size == 0 && r->state == HTTP_REQUEST_LINE) return true;
    }
}

static void check_same(const Buffer *expected, HttpRequest *r, Buffer *got) {
    CHECK(!got->failed && slice_equal(buffer_view(expected), buffer_view(got)));
    http_request_next(r);
    buffer_clear(got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *bytes = (const char *)data;
    if (size == 0 || size > SENT_MAX) return 0;
    HttpRequest r = {0};
    Buffer expected = {0}, got = {0};
    read_piece(&r, bytes, size, &expected);
    http_request_next(&r);
    const size_t step = size / SPLITS_MAX + 1;
    for (size_t at = 1; at < size; at += step) {
        if (read_piece(&r, bytes, at, &got)) read_piece(&r, bytes + at, size - at, &got);
        check_same(&expected, &r, &got);
    }
    for (size_t at = 0; at < size && read_piece(&r, bytes + at, 1, &got); at++) {}
    check_same(&expected, &r, &got);
    buffer_free(&expected);
    buffer_free(&got);
    return 0;
}
