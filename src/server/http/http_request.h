/* Incremental, strict parser of HTTP/1.1 requests (RFC 9112): a request that two parsers could read differently is an
 * error, because a proxy in front may be the other parser. The result does not depend on how the bytes are split. */
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
    HTTP_MORE,  /* all bytes are consumed; the request continues */
    HTTP_HEAD,  /* the headers are complete */
    HTTP_BODY,  /* a piece of the body */
    HTTP_END,   /* the request is complete; call http_request_next before the next one */
    HTTP_ERROR, /* the beginning of the next request is unknown: respond and close */
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
    const char *host; /* host of the target where that is a whole URL, else of the header; NULL: HTTP/1.0 without one */
    bool old;         /* HTTP/1.0: no chunked responses */
    bool close;       /* the client wants the connection to end */
    bool awaits;      /* the client waits for 100 Continue before it sends the body */
    bool has_body;
    uint64_t length; /* announced size of the body; UINT64_MAX if it does not fit the type */

    HttpState state;
    Buffer text;         /* "method\0path\0query\0name\0value\0name\0value\0", then the current line */
    size_t authority_at; /* 0: the target is a path */
    size_t path_at, query_at, headers_at, line_at;
    bool return_came;
    bool blank_came; /* an empty line before the request */
    int headers;
    uint64_t left; /* bytes left of the body or its chunk */
    size_t trailers;
} HttpRequest;

/* Parses more bytes. *used: bytes consumed up to the event; *body: for HTTP_BODY, a part of the bytes. */
HttpEvent http_request_read(
    HttpRequest *request, const char *bytes, size_t size, size_t *used, Slice *body, ApiError *error);
bool http_request_begun(const HttpRequest *request);
/* The value of the first header with this name; NULL: none. */
const char *http_request_header(const HttpRequest *request, const char *name);
void http_request_next(HttpRequest *request); /* resets the parser; frees the memory */
