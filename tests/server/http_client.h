/* The least of an HTTP client: bytes out, an answer in. */
#pragma once
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/error.h"

static inline int client_connect(int port) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    const struct timeval patience = {.tv_sec = 60};
    CHECK(client >= 0 && connect(client, (const struct sockaddr *)&address, sizeof address) == 0);
    CHECK(setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    return client;
}

static inline void client_send(int client, const void *bytes, size_t size) {
    for (size_t sent = 0; sent < size;) {
        const ssize_t now = send(client, (const char *)bytes + sent, size - sent, MSG_NOSIGNAL);
        if (now <= 0) return; /* the server has hung up: the answer tells */
        sent += (size_t)now;
    }
}

static inline void client_send_text(int client, const char *text) { client_send(client, text, strlen(text)); }

/* Request line and headers of a POST that announces so many bytes. */
static inline void client_post_head(int client, const char *path, size_t size) {
    char head[256];
    snprintf(head, sizeof head,
        "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path,
        size);
    client_send_text(client, head);
}

static inline void client_post(int client, const char *path, Slice body) {
    client_post_head(client, path, body.size);
    client_send(client, body.data, body.size);
}

/* The status of the next answer, 0 when the connection ends without one. *text: status line, headers and as much of the
 * body as Content-Length says; of a stream what came with its headers. */
static inline int client_read(int client, Buffer *text) {
    char block[4096];
    buffer_clear(text);
    for (;;) {
        const char *end = text->size ? strstr(text->data, "\r\n\r\n") : NULL;
        if (end && !strncmp(text->data, "HTTP/1.1 100", 12)) {
            const size_t rest = text->size - (size_t)(end + 4 - text->data);
            memmove(text->data, end + 4, rest + 1);
            text->size = rest;
            continue;
        }
        const char *length = end ? strstr(text->data, "Content-Length: ") : NULL;
        if (end && (!length || text->size >= (size_t)(end + 4 - text->data) + strtoul(length + 16, NULL, 10))) break;
        const ssize_t got = recv(client, block, sizeof block, 0);
        if (got <= 0) return 0;
        buffer_append(text, block, (size_t)got);
    }
    return (int)strtol(text->data + strlen("HTTP/1.1 "), NULL, 10);
}
