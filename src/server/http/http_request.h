/* HTTP/1.1 requests from bytes that come in any pieces (RFC 9112), strictly: what two readers could understand in two
 * ways is an error, as what stands between us and the client may be the other reader. Bytes are judged one by one, so
 * an error is the same, and found at the same byte, however they were split. */
#pragma once
#include "server/api/api.h"

enum {
    HTTP_LINE_MAX = 8 << 10,  /* request line */
    HTTP_HEAD_MAX = 64 << 10, /* with all headers */
    HTTP_HEADERS_MAX = 100,
    HTTP_CHUNK_LINE_MAX = 256, /* a chunk's size and extensions */
    HTTP_TRAILERS_MAX = 8 << 10,
};

typedef enum HttpEvent {
    HTTP_MORE,  /* all bytes are taken; the request goes on */
    HTTP_HEAD,  /* the headers are whole */
    HTTP_BODY,  /* a piece of the body */
    HTTP_END,   /* the request is whole: http_request_next before the next one */
    HTTP_ERROR, /* there is no telling where the next request would begin: answer, and close */
} HttpEvent;

typedef enum HttpState {
    HTTP_REQUEST_LINE,
    HTTP_HEADER,
    HTTP_BYTES,
    HTTP_CHUNK_LINE,
    HTTP_CHUNK_BYTES,
    HTTP_CHUNK_END,
    HTTP_TRAILER,
    HTTP_DONE,
} HttpState;

typedef struct HttpRequest {
    /* From HTTP_HEAD on, until http_request_next. */
    const char *method, *path; /* without its query, %XX decoded unless one is a NUL */
    const char *query;         /* as it came, without the question mark; "": none */
    bool old;                  /* HTTP/1.0: understands no chunks */
    bool close;                /* the client wants no next request */
    bool awaits;               /* it sends its body when it was told to go on */
    bool has_body;
    uint64_t length; /* of the body, when it is announced; what is too much for the type is UINT64_MAX */

    HttpState state;
    Buffer text; /* "method\0path\0query\0name\0value\0name\0value\0", then the line that is being read */
    size_t path_at, query_at, headers_at, line_at;
    bool return_came;
    bool blank_came; /* an empty line before the request */
    int headers;
    uint64_t left; /* of the body or its chunk */
    size_t trailers;
} HttpRequest;

/* Reads on; *used: how many of the bytes belong to what the event says; *body: of HTTP_BODY, among the bytes. */
HttpEvent http_request_read(
    HttpRequest *request, const char *bytes, size_t size, size_t *used, Slice *body, ApiError *error);
bool http_request_begun(const HttpRequest *request);
/* The value of a header, of the first that has the name; NULL: there is none. */
const char *http_request_header(const HttpRequest *request, const char *name);
void http_request_next(HttpRequest *request); /* forgets it; frees the memory */
