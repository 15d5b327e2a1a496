/* Files at addresses that clients name: which addresses and hosts are allowed, redirects, limits of size. */
#include "hub/fetch.h"
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- addresses ---- */

static bool is_public(const char *text) {
    struct sockaddr_storage storage = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&storage;
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1)
        storage.ss_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1)
        storage.ss_family = AF_INET6;
    else
        TEST_MSG(false, "%s is no address", text);
    return fetch_is_public((const struct sockaddr *)&storage);
}

static void check_addresses(void) {
    static const char *const others[] = {"0.0.0.0", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1",
        "127.9.9.9", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.168.1.1",
        "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1",
        "2002:7f00:1::", "2002:c0a8:101::1", "fc00::1", "fd12:3456::1", "fe80::1", "fec0::1", "ff02::1", "2001:db8::1",
        "2001::1", "3fff::1", "100::1", "5f00::1"};
    static const char *const open[] = {"1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1",
        "172.32.0.1", "192.167.1.1", "198.17.1.1", "198.20.0.1", "223.255.255.255", "2606:4700:4700::1111",
        "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"};
    for (size_t i = 0; i < COUNT_OF(others); i++) TEST_MSG(!is_public(others[i]), "%s", others[i]);
    for (size_t i = 0; i < COUNT_OF(open); i++) TEST_MSG(is_public(open[i]), "%s", open[i]);
}

static void check_hosts(void) {
    const FetchRule rule = {.hosts = "images.example.com 10.0.0.1:8080 Other.org"};
    TEST(fetch_allows(&rule, "images.example.com", 443) && fetch_allows(&rule, "IMAGES.example.com", 80));
    TEST(fetch_allows(&rule, "other.org", 443) && fetch_allows(&rule, "10.0.0.1", 8080));
    TEST(!fetch_allows(&rule, "images.example.com", 8080) && !fetch_allows(&rule, "10.0.0.1", 80));
    TEST(!fetch_allows(&rule, "example.com", 443) && !fetch_allows(&rule, "images.example.com.evil.net", 443));
    TEST(!fetch_allows(&rule, "images.example.co", 443) && !fetch_allows(&rule, "", 443));
    TEST(!fetch_allows(&(FetchRule){0}, "images.example.com", 443));
}

/* ---- a server on this machine ---- */

enum { BIG = 100000, REQUEST_MAX = 4096 };

static int listener;
static int port;

static void answer(int connection, const char *path) {
    static char body[BIG];
    char head[512], where[128] = "";
    int status = 200;
    size_t size = 5;
    memset(body, 'x', sizeof body);
    memcpy(body, "hello", 5);
    if (!strcmp(path, "/big")) size = sizeof body;
    if (!strcmp(path, "/missing")) status = 404;
    if (!strcmp(path, "/moved")) snprintf(where, sizeof where, "Location: /ok\r\n");
    if (!strcmp(path, "/loop")) snprintf(where, sizeof where, "Location: /loop\r\n");
    if (!strcmp(path, "/away")) snprintf(where, sizeof where, "Location: http://localhost:%d/ok\r\n", port);
    if (!strcmp(path, "/file")) snprintf(where, sizeof where, "Location: file:///etc/passwd\r\n");
    if (where[0]) status = 302;
    const int length = snprintf(
        head, sizeof head, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n", status, size, where);
    (void)!send(connection, head, (size_t)length, 0);
    (void)!send(connection, body, size, 0);
}

static void *serve(void *context) {
    for (int connection; (connection = accept(listener, NULL, NULL)) >= 0; close(connection)) {
        char request[REQUEST_MAX + 1] = "", path[64] = "";
        size_t size = 0;
        while (size < REQUEST_MAX && !strstr(request, "\r\n\r\n")) {
            const ssize_t got = recv(connection, request + size, REQUEST_MAX - size, 0);
            if (got <= 0) break;
            size += (size_t)got;
            request[size] = 0;
        }
        if (sscanf(request, "GET %63s", path) == 1) answer(connection, path);
        shutdown(connection, SHUT_WR);
    }
    return NULL;
}

static bool open_server(pthread_t *thread) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    const bool ok = listener >= 0 && !bind(listener, (struct sockaddr *)&address, sizeof address) &&
        !listen(listener, 16) && !getsockname(listener, (struct sockaddr *)&address, &size);
    port = ntohs(address.sin_port);
    return ok && !pthread_create(thread, NULL, serve, NULL);
}

static bool any(const struct sockaddr *address) { return true; }

/* Expects a body, or an error of this code whose text has `part`. */
static void check_file(const FetchRule *rule, const char *path, size_t most, ErrorCode code, const char *part) {
    char url[256];
    Buffer out = {0};
    Error error = {0};
    if (path[0] == '/')
        snprintf(url, sizeof url, "http://127.0.0.1:%d%s", port, path);
    else
        snprintf(url, sizeof url, "%s", path);
    const bool ok = fetch_file(rule, slice_of(url), most, &out, &error);
    if (code == ERROR_NONE)
        TEST_MSG(ok && slice_is(buffer_view(&out), part), "%s: %s", url, ok ? "another body" : error.text);
    else
        TEST_MSG(!ok && error.code == code && strstr(error.text, part), "%s: %s", url, ok ? "a body" : error.text);
    buffer_free(&out);
}

static void check_requests(void) {
    pthread_t thread;
    char hosts[64];
    if (!open_server(&thread)) {
        TEST_MSG(false, "no server on this machine");
        return;
    }
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d", port);
    const FetchRule here = {.hosts = hosts, .may_connect = any}, strict = {.hosts = hosts};
    check_file(&here, "/ok", 100, ERROR_NONE, "hello");
    check_file(&here, "/moved", 100, ERROR_NONE, "hello");
    check_file(&here, "/big", BIG - 1, ERROR_LIMIT, "more than");
    check_file(&here, "/missing", 100, ERROR_IO, "404");
    check_file(&here, "/loop", 100, ERROR_IO, "redirects");
    check_file(&here, "/away", 100, ERROR_USAGE, "localhost");
    check_file(&here, "/file", 100, ERROR_FORMAT, "no http address");
    check_file(&here, "ftp://127.0.0.1/x", 100, ERROR_USAGE, "not an http");
    check_file(&here, "http://user:word@127.0.0.1/x", 100, ERROR_USAGE, "not an http");
    check_file(&here, "http://127.0.0.2/x", 100, ERROR_USAGE, "not allowed");
    check_file(&strict, "/ok", 100, ERROR_USAGE, "not public");
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listener);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN); /* a client that has enough closes its connection */
    check_addresses();
    check_hosts();
    check_requests();
    return test_done();
}
