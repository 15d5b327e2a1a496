/* Requests to the hub by libcurl. Redirects are followed here, one by one: only http and https, never from https to
 * http, and the token goes to the endpoint's own host, port and scheme alone. */
#pragma once
#include <curl/curl.h>

#include "hub/hub.h"

enum { HTTP_URL_MAX = 8192, HTTP_HOPS_MAX = 5, HTTP_TRIES_MAX = 5 };

/* What the headers of an answer say; filled by libcurl line by line. */
typedef struct HttpHead {
    long status;
    char code[48];                    /* X-Error-Code: "RepoNotFound", "GatedRepo" … */
    char message[240];                /* X-Error-Message */
    char next[HTTP_URL_MAX];          /* Link: <…>; rel="next" */
    int64_t range_begin, range_total; /* Content-Range; -1: absent or unknown */
    int64_t retry_after_s;            /* Retry-After, or when RateLimit's window ends; -1: absent */
} HttpHead;

typedef struct HttpClient {
    const HubSettings *settings;
    const HubWatch *watch;
    HubProgress progress;
    struct curl_slist *plain, *with_token; /* request headers */
} HttpClient;

/* Starts libcurl, once. */
NODISCARD bool http_start_curl(Error *error);
NODISCARD bool http_open(HttpClient *client, const HubSettings *settings, const HubWatch *watch, Error *error);
void http_close(HttpClient *client);

/* A line of an answer's head: "HTTP/…" begins a new one. */
void http_head_line(HttpHead *head, Slice line);

/* Options of every request: the URL, HTTP and HTTPS alone, no redirects followed. False: no memory. */
NODISCARD bool http_reset(CURL *easy, const char *url);
/* Prepares a transfer of url, whose head will be filled; reset first, so that an old handle (and its connections) can
 * be used again. false: no memory, or the url is nothing to ask. */
NODISCARD bool http_prepare(const HttpClient *client, CURL *easy, const char *url, HttpHead *head, Error *error);
/* Where an answer of status 3xx sends: the checked address in url (HTTP_URL_MAX). */
NODISCARD bool http_redirect(CURL *easy, char *url, Error *error);

/* A whole answer of at most limit bytes, redirects followed, failures of the network and the statuses 408, 429 and 5xx
 * tried again for some seconds. True with any status: head says which. */
NODISCARD bool http_get(HttpClient *client, const char *url, Buffer *body, HttpHead *head, Error *error);
/* The same for `size` bytes of a file from `begin` on: status 206. ERROR_LIMIT where the server ignores ranges and the
 * file is longer. */
NODISCARD bool http_get_part(
    HttpClient *client, const char *url, uint64_t begin, uint64_t size, Buffer *body, HttpHead *head, Error *error);
/* An answer that would be another one later: 408, 429, 5xx. */
bool http_transient(long status);
/* How long to wait before try number `failures` (from 1 on), as the server or the custom has it. */
int64_t http_delay_ms(const HttpHead *head, int failures);
/* A wait that the watcher may end: false with ERROR_CANCELLED. why: shown meanwhile. */
NODISCARD bool http_wait(HttpClient *client, int64_t ms, const char *why, Error *error);
/* Reports progress; false with ERROR_CANCELLED when the watcher wants to stop. */
NODISCARD bool http_report(HttpClient *client, HubPhase phase, const char *why, Error *error);
/* Appends text as part of an address: all but letters, digits and "-._~" (and "/" if asked for) as %XX. */
void http_escape(Buffer *url, const char *text, bool slashes);
