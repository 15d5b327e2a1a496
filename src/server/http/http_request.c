#include "server/http/http_request.h"

#include <strings.h>

#define malformed(error, ...) api_fail(error, 400, NULL, NULL, __VA_ARGS__)

/* RFC 9110, 5.6.2: token characters, of methods and header names. */
static bool is_token(Slice text) {
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < text.size; i++) {
        const char c = text.data[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && !memchr(marks, c, sizeof marks - 1)) return false;
    }
    return text.size > 0;
}

static int hex_value(char c) {
    return c >= '0' && c <= '9' ? c - '0'
        : c >= 'a' && c <= 'f'  ? c - 'a' + 10
        : c >= 'A' && c <= 'F'  ? c - 'A' + 10
                                : -1;
}

/* ---- lines ---- */

static size_t line_max(const HttpRequest *r) {
    switch (r->state) {
    case HTTP_REQUEST_LINE: return HTTP_LINE_MAX;
    case HTTP_HEADER: return HTTP_HEAD_MAX - r->line_at;
    case HTTP_CHUNK_LINE: return HTTP_CHUNK_LINE_MAX;
    case HTTP_TRAILER: return HTTP_TRAILERS_MAX - r->trailers;
    default: return 0; /* behind a chunk */
    }
}

static void start_line(HttpRequest *r, HttpState state) {
    r->state = state;
    r->return_came = false;
    r->text.size = r->line_at; /* the part that was read stays because line_at moves */
}

static bool line_too_long(const HttpRequest *r, ApiError *error) {
    switch (r->state) {
    case HTTP_REQUEST_LINE:
        return api_fail(error, 414, NULL, NULL, "The request line is longer than %d bytes.", HTTP_LINE_MAX);
    case HTTP_HEADER: return api_fail(error, 431, NULL, NULL, "The headers are larger than %d bytes.", HTTP_HEAD_MAX);
    case HTTP_CHUNK_LINE:
        return malformed(error, "The line before a chunk is longer than %d bytes.", HTTP_CHUNK_LINE_MAX);
    case HTTP_CHUNK_END: return malformed(error, "A chunk of the body is longer than it says.");
    default: return malformed(error, "The trailers are larger than %d bytes.", HTTP_TRAILERS_MAX);
    }
}

/* True: this byte ends the line, which is there without its end and with a NUL. */
static bool take_line_byte(HttpRequest *r, char c, ApiError *error) {
    if (c == '\n') {
        if (!r->return_came) return malformed(error, "A line of the request ends without a carriage return.");
        r->return_came = false;
        buffer_byte(&r->text, '\0');
        return r->text.failed ? api_out_of_memory(error) : true;
    }
    if (r->return_came) return malformed(error, "The request has a carriage return that ends no line.");
    if (c == '\r') {
        r->return_came = true;
        return false;
    }
    if (((unsigned char)c < ' ' && c != '\t') || c == 127)
        return malformed(error, "The request has a control character.");
    if (r->text.size - r->line_at >= line_max(r)) return line_too_long(r, error);
    buffer_byte(&r->text, c);
    return r->text.failed ? api_out_of_memory(error) : false;
}

/* ---- the head ---- */

static void decode_path(char *path) {
    char *out = path;
    if (strstr(path, "%00")) return; /* then it names nothing */
    for (const char *in = path; *in; out++) {
        const int high = in[0] == '%' ? hex_value(in[1]) : -1, low = high >= 0 ? hex_value(in[2]) : -1;
        *out = low >= 0 ? (char)(high * 16 + low) : *in;
        in += low >= 0 ? 3 : 1;
    }
    *out = '\0';
}

/* RFC 9112, 3.2.2: a target that is a whole URL. Its host is kept in front of the path, which is returned. */
static char *take_authority(HttpRequest *r, char *target) {
    const size_t scheme = !strncasecmp(target, "http://", 7) ? 7 : !strncasecmp(target, "https://", 8) ? 8 : 0;
    const size_t size = scheme ? strcspn(target + scheme, "/?") : 0;
    char *path = target + scheme + size;
    if (size == 0 || *path == '?' || memchr(target + scheme, '@', size)) return target;
    const bool bare = !*path; /* the two slashes of the scheme leave room for a path, and for a NUL */
    char *authority = target + scheme - 1 - bare;
    memmove(authority, target + scheme, size);
    authority[size] = '\0';
    if (bare) *--path = '/';
    r->authority_at = (size_t)(authority - r->text.data);
    return path;
}

static bool read_request_line(HttpRequest *r, ApiError *error) {
    char *method = r->text.data + r->line_at, *path = strchr(method, ' ');
    char *version = path ? strchr(path + 1, ' ') : NULL;
    if (!*method && !r->blank_came) { /* RFC 9112, 2.2: there are clients that send one behind a body */
        r->blank_came = true;
        start_line(r, HTTP_REQUEST_LINE);
        return true;
    }
    if (!version || !is_token((Slice){method, (size_t)(path - method)}))
        return malformed(error, "The request does not begin with a request line of HTTP/1.1.");
    *path++ = *version++ = '\0';
    path = take_authority(r, path);
    if (path[0] != '/' && strcmp(path, "*") != 0) return malformed(error, "The target of the request must be a path.");
    for (const char *c = path; *c; c++)
        if (*c <= ' ' || *c > '~' || *c == '#')
            return malformed(error, "The path has a character that must be escaped.");
    r->old = !strcmp(version, "HTTP/1.0");
    if (!r->old && strcmp(version, "HTTP/1.1") != 0) {
        const bool other = strlen(version) == 8 && !strncmp(version, "HTTP/", 5) && version[5] > '1';
        api_fail(
            error, other ? 505 : 400, NULL, NULL, "This server speaks HTTP/1.1; the request is of another version.");
        error->type = "invalid_request_error";
        return false;
    }
    r->path_at = (size_t)(path - r->text.data);
    char *query = path + strcspn(path, "?");
    const bool has_query = *query == '?';
    if (has_query) *query++ = '\0';
    decode_path(path);
    char *end = path + strlen(path); /* a decoded path is shorter */
    if (has_query) end = memmove(end + 1, query, strlen(query) + 1);
    r->query_at = (size_t)(end - r->text.data); /* without one, the path's own end */
    r->headers_at = r->line_at = r->query_at + strlen(end) + 1;
    start_line(r, HTTP_HEADER);
    return true;
}

/* "Name: value" becomes "Name\0value\0". */
static bool check_field(char *line, size_t *size, ApiError *error) {
    char *colon = strchr(line, ':');
    if (line[0] == ' ' || line[0] == '\t') return malformed(error, "A header goes on in the next line.");
    if (!colon) return malformed(error, "A header has no colon.");
    if (!is_token((Slice){line, (size_t)(colon - line)})) return malformed(error, "The name of a header is malformed.");
    char *value = colon + 1 + strspn(colon + 1, " \t");
    size_t length = strlen(value);
    while (length > 0 && (value[length - 1] == ' ' || value[length - 1] == '\t')) length--;
    *colon = '\0';
    memmove(colon + 1, value, length);
    colon[1 + length] = '\0';
    *size = (size_t)(colon + 2 + length - line);
    return true;
}

/* The next header behind *at; false: there is none. */
static bool next_header(const HttpRequest *r, size_t *at, const char **name, const char **value) {
    if (*at >= r->line_at) return false;
    *name = r->text.data + *at;
    *value = *name + strlen(*name) + 1;
    *at = (size_t)(*value + strlen(*value) + 1 - r->text.data);
    return true;
}

static bool has_word(const char *list, const char *word) {
    for (const char *at = list; *at; at += strspn(at, ", \t")) {
        const size_t size = strcspn(at, ", \t");
        if (size == strlen(word) && !strncasecmp(at, word, size)) return true;
        at += size;
    }
    return false;
}

static bool read_length(HttpRequest *r, const char *text, ApiError *error) {
    r->length = 0;
    for (const char *c = text; *c || c == text; c++) {
        if (*c < '0' || *c > '9') return malformed(error, "The Content-Length is not a number.");
        const uint64_t digit = (uint64_t)(*c - '0');
        r->length = r->length > (UINT64_MAX - digit) / 10 ? UINT64_MAX : r->length * 10 + digit;
    }
    return true;
}

static bool end_head(HttpRequest *r, ApiError *error) {
    const char *name, *value, *length = NULL, *coding = NULL;
    int hosts = 0, lengths = 0;
    for (size_t at = r->headers_at; next_header(r, &at, &name, &value);) {
        if (!strcasecmp(name, "Host")) hosts++;
        if (!strcasecmp(name, "Content-Length")) lengths++, length = value;
        if (!strcasecmp(name, "Transfer-Encoding")) lengths++, coding = value;
        if (!strcasecmp(name, "Connection")) r->close |= has_word(value, "close");
        if (strcasecmp(name, "Expect") != 0) continue;
        if (strcasecmp(value, "100-continue") != 0)
            return api_fail(error, 417, NULL, NULL, "The only expectation that can be met is 100-continue.");
        r->awaits = !r->old;
    }
    r->close |= r->old;
    if (hosts > 1 || (hosts == 0 && !r->old)) /* HTTP/1.0 has no such header */
        return malformed(error, "The request must have exactly one Host header.");
    if (lengths > 1) return malformed(error, "The length of the request body is given in more than one way.");
    if (coding && (r->old || strcasecmp(coding, "chunked") != 0))
        return malformed(error, "The only transfer coding of a request is \"chunked\".");
    if (length && !read_length(r, length, error)) return false;
    /* The lines between chunks are read behind the headers, which stay where they are. */
    if (coding && !buffer_reserve(&r->text, HTTP_TRAILERS_MAX + 1)) return api_out_of_memory(error);
    r->method = r->text.data;
    r->host = r->authority_at ? r->text.data + r->authority_at : NULL;
    for (size_t at = r->headers_at; !r->host && next_header(r, &at, &name, &value);)
        if (!strcasecmp(name, "Host")) r->host = value;
    r->path = r->text.data + r->path_at;
    r->query = r->text.data + r->query_at;
    r->left = r->length;
    r->has_body = coding || r->left > 0;
    if (coding)
        start_line(r, HTTP_CHUNK_LINE);
    else
        r->state = r->left > 0 ? HTTP_BYTES : HTTP_DONE;
    return true;
}

/* ---- the body ---- */

static bool read_chunk_line(HttpRequest *r, ApiError *error) {
    const char *at = r->text.data + r->line_at;
    uint64_t size = 0;
    int digits = 0;
    for (; hex_value(*at) >= 0; at++, digits++) {
        if (size > UINT64_MAX >> 4) return malformed(error, "The size of a chunk is too large.");
        size = size << 4 | (uint64_t)hex_value(*at);
    }
    if (!digits || (*at && *at != ';')) return malformed(error, "The size of a chunk is malformed.");
    r->left = size;
    if (size > 0)
        r->state = HTTP_CHUNK_BYTES;
    else
        start_line(r, HTTP_TRAILER);
    return true;
}

/* Trailers are checked and then forgotten: nothing here asks for one. */
static bool read_trailer(HttpRequest *r, ApiError *error) {
    char *line = r->text.data + r->line_at;
    const size_t length = strlen(line);
    size_t size;
    if (!length) {
        r->state = HTTP_DONE;
        return true;
    }
    r->trailers += length;
    if (!check_field(line, &size, error)) return false;
    if (r->trailers >= HTTP_TRAILERS_MAX) return line_too_long(r, error);
    start_line(r, HTTP_TRAILER);
    return true;
}

static bool read_header(HttpRequest *r, ApiError *error) {
    size_t size;
    if (!r->text.data[r->line_at]) return end_head(r, error);
    if (++r->headers > HTTP_HEADERS_MAX)
        return api_fail(error, 431, NULL, NULL, "Too many headers: at most %d.", HTTP_HEADERS_MAX);
    if (!check_field(r->text.data + r->line_at, &size, error)) return false;
    r->line_at += size;
    if (r->line_at >= HTTP_HEAD_MAX) return line_too_long(r, error);
    start_line(r, HTTP_HEADER);
    return true;
}

static bool read_line(HttpRequest *r, ApiError *error) {
    switch (r->state) {
    case HTTP_REQUEST_LINE: return read_request_line(r, error);
    case HTTP_HEADER: return read_header(r, error);
    case HTTP_CHUNK_LINE: return read_chunk_line(r, error);
    case HTTP_CHUNK_END: start_line(r, HTTP_CHUNK_LINE); return true;
    default: return read_trailer(r, error);
    }
}

static void take_bytes(HttpRequest *r, const char *bytes, size_t size, size_t *used, Slice *body) {
    const size_t some = size < r->left ? size : (size_t)r->left;
    *body = (Slice){bytes, some};
    *used += some;
    r->left -= some;
    if (r->left > 0) return;
    if (r->state == HTTP_BYTES)
        r->state = HTTP_DONE;
    else
        start_line(r, HTTP_CHUNK_END);
}

HttpEvent http_request_read(
    HttpRequest *r, const char *bytes, size_t size, size_t *used, Slice *body, ApiError *error) {
    const bool in_head = r->state <= HTTP_HEADER;
    *error = (ApiError){0};
    for (*used = 0; r->state != HTTP_DONE;) {
        if (*used == size) return HTTP_MORE;
        if (r->state == HTTP_BYTES || r->state == HTTP_CHUNK_BYTES) {
            take_bytes(r, bytes + *used, size - *used, used, body);
            return HTTP_BODY;
        }
        const bool whole = take_line_byte(r, bytes[(*used)++], error);
        if (error->status || (whole && !read_line(r, error))) return HTTP_ERROR;
        if (in_head && r->state > HTTP_HEADER) return HTTP_HEAD;
    }
    return HTTP_END;
}

bool http_request_begun(const HttpRequest *r) { return r->text.size > 0 || r->blank_came || r->return_came; }

const char *http_request_header(const HttpRequest *r, const char *name) {
    const char *given, *value;
    for (size_t at = r->headers_at; next_header(r, &at, &given, &value);)
        if (!strcasecmp(given, name)) return value;
    return NULL;
}

void http_request_next(HttpRequest *r) {
    buffer_free(&r->text);
    *r = (HttpRequest){0};
}
