#include "cli/client.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { ANSWER_S = 60, RESPONSE_BYTES_MAX = 16 << 20 };

static int connect_to(int port) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const struct timeval patience = {.tv_sec = ANSWER_S};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    if (!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) &&
        !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) &&
        !connect(fd, (const struct sockaddr *)&address, sizeof address))
        return fd;
    close(fd);
    return -1;
}

static bool send_all(int fd, Slice bytes) {
    for (size_t at = 0; at < bytes.size;) {
        const ssize_t sent = send(fd, bytes.data + at, bytes.size - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += (size_t)sent;
    }
    return true;
}

/* Reads to the end of the connection. */
static bool receive_all(int fd, Buffer *out) {
    char block[1 << 14];
    out->limit = RESPONSE_BYTES_MAX;
    for (;;) {
        const ssize_t got = recv(fd, block, sizeof block, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got == 0 && !out->failed;
        buffer_append(out, block, (size_t)got);
    }
}

bool client_ask(int port, const char *key, const char *method, const char *path, Slice body, int *status,
    Buffer *response, Error *error) {
    Buffer request = {0}, raw = {0};
    const int fd = connect_to(port);
    if (fd < 0)
        return fail(error, ERROR_NOT_FOUND, "no server listens on port %d; start one with `apus serve MODEL`", port);
    /* HTTP/1.0: the body is neither chunked nor followed by another response. */
    buffer_printf(
        &request, "%s %s HTTP/1.0\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n", method, path, port);
    if (key) buffer_printf(&request, "Authorization: Bearer %s\r\n", key);
    if (body.data) buffer_printf(&request, "Content-Length: %zu\r\n", body.size);
    buffer_text(&request, "\r\n");
    buffer_slice(&request, body);
    const bool came = !request.failed && send_all(fd, buffer_view(&request)) && receive_all(fd, &raw);
    close(fd);
    const char *end = came && raw.size > 12 ? memmem(raw.data, raw.size, "\r\n\r\n", 4) : NULL;
    const bool ok = end && !strncmp(raw.data, "HTTP/1.", 7);
    if (ok) {
        *status = (int)strtol(raw.data + 9, NULL, 10);
        buffer_append(response, end + 4, raw.size - (size_t)(end + 4 - raw.data));
    }
    buffer_free(&request);
    buffer_free(&raw);
    if (ok && *status == 401)
        return fail(error, ERROR_USAGE,
            key ? "the server on port %d does not take this key (--api-key or APUS_API_KEY)"
                : "the server on port %d wants a key: --api-key or APUS_API_KEY",
            port);
    return (ok && !response->failed) || fail(error, ERROR_IO, "the server on port %d did not answer (HTTPS?)", port);
}
