/* Files at addresses that clients name, from hosts that the operator allows and from public addresses alone: after the
 * name is resolved, and for each redirect, so that no request reaches this machine's network. Threads: any. */
#pragma once
#include <sys/socket.h>

#include "base/buffer.h"

enum {
    FETCH_URL_MAX = 8192,
    FETCH_REDIRECTS_MAX = 3,
    FETCH_CONNECT_S = 5, /* until a connection is there */
    FETCH_SECONDS = 20,  /* for one address, redirects included */
};

typedef struct FetchRule {
    const char *hosts; /* names separated by spaces, each "host" (ports 80 and 443) or "host:port" */
    /* Whether an address may be connected to; NULL: fetch_is_public. Tests have another one. */
    bool (*may_connect)(const struct sockaddr *address);
} FetchRule;

/* Not loopback, private, link-local, shared, documentation, multicast or reserved, nor one of those within an IPv6
 * address that stands for an IPv4 one. */
bool fetch_is_public(const struct sockaddr *address);
/* Whether the rule allows this host and port. */
bool fetch_allows(const FetchRule *rule, const char *host, int port);
/* The file at an http or https address, of at most bytes_max bytes. Errors: ERROR_USAGE for an address or a host that
 * is not allowed, ERROR_LIMIT for more bytes, ERROR_IO for what the network or the server refuses. */
NODISCARD bool fetch_file(const FetchRule *rule, Slice url, size_t bytes_max, Buffer *out, Error *error);
