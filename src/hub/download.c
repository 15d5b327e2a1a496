/* One thread moves everything by libcurl's multi interface: each of TRANSFERS connections fetches the rest of one chunk
 * of one file, in order, so that hashing follows closely behind. Every failure but a refusal is tried again; a
 * transfer fails when no new bytes arrive. */
#include "hub/download.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "hub/fault.h"
#include "hub/partial.h"
#include "hub/speed.h"

enum {
    TRANSFERS = 8,
    FILES_OPEN_MAX = 2 * TRANSFERS, /* files; each has three descriptors */
    POLL_MS = 100,
    BUSY_POLL_MS = 250,        /* another process has the file: how often to look */
    HASH_BYTES = 32 << 20,     /* at a time, between two looks at the connections */
    RECEIVE_BYTES = 256 << 10, /* libcurl's buffer */
    WRONG_MAX = 2,             /* times that a file may have arrived whole with another hash */
};

typedef enum ItemState { ITEM_NEW, ITEM_OPEN, ITEM_DONE } ItemState;

/* A file to download. */
typedef struct Item {
    Partial partial;
    const HubFile *file;
    ItemState state;
    bool *taken; /* [chunks]: a transfer is at it */
    int transfers, failures, wrong;
    bool busy;             /* another process has it */
    bool whole;            /* the server knows no ranges: one connection, from the beginning */
    int64_t best_bytes;    /* most that was ever there: progress is more than this */
    int64_t counted_bytes; /* bytes of this item already counted in client->progress */
    int64_t not_before_ns;
    int64_t failed_ns; /* when the last failure was counted */
    char *direct;      /* where the hub's redirects ended, for the other chunks; NULL: not known */
} Item;

typedef struct Transfer {
    struct Download *download;
    CURL *easy;
    Item *item; /* NULL: idle */
    size_t chunk;
    int64_t started_ns;
    HttpHead head;
    char url[HTTP_URL_MAX];
    int hops;
    bool direct;   /* began at item->direct */
    bool accepted; /* the answer is the bytes that were asked for */
    bool unwanted; /* it is something else, and was cut off */
    char reason[CURL_ERROR_SIZE];
} Transfer;

typedef struct Download {
    HttpClient *client;
    const DownloadJob *job;
    CURLM *multi;
    Transfer *transfers;
    Item *items;
    size_t first; /* all items before it are done */
    Arena arena;
    Speed speed;
    int64_t received_bytes;
    size_t open; /* items that are OPEN */
    char why[96];
    Error fatal; /* set by callbacks */
} Download;

/* --- Bytes that arrive ------------------------------------------------------------------------------------------- */

/* Whether an answer is what was asked for. A server that knows no ranges sends all of it from the beginning. */
static bool accept_answer(Transfer *t) {
    Item *item = t->item;
    Partial *p = &item->partial;
    const int64_t begin = (int64_t)t->chunk * p->chunk_bytes + p->done[t->chunk];
    if (t->head.status == 206) return t->head.range_begin == begin && t->head.range_total == item->file->size;
    if (begin == 0 && p->chunks == 1) return true;
    if (p->chunks == 1) return partial_reset_chunk(p, 0, &t->download->fatal);
    item->whole = true;
    return false;
}

static size_t take_bytes(char *data, size_t one, size_t count, void *context) {
    Transfer *t = context;
    Download *d = t->download;
    const size_t size = one * count;
    Partial *p = &t->item->partial;
    if (t->head.status != 200 && t->head.status != 206) return size; /* the text of an error or a redirect */
    if (!t->accepted) {
        t->accepted = accept_answer(t);
        t->unwanted = !t->accepted;
    }
    if (!t->unwanted && (int64_t)size > partial_chunk_size(p, t->chunk) - p->done[t->chunk]) t->unwanted = true;
    if (t->unwanted) return 0;
    if (!partial_write(p, t->chunk, (Slice){data, size}, &d->fatal)) return 0;
    d->received_bytes += (int64_t)size;
    return size;
}

/* --- Starting ---------------------------------------------------------------------------------------------------- */

static bool set_url(Transfer *t, Error *error) {
    const Item *item = t->item;
    Buffer url = {0};
    t->direct = item->direct != NULL;
    if (t->direct) {
        buffer_text(&url, item->direct);
    } else {
        const DownloadJob *job = t->download->job;
        buffer_printf(&url, "%s/%s/resolve/%s/", t->download->client->settings->endpoint, job->name->repo, job->commit);
        http_escape(&url, item->file->path, true);
    }
    const bool ok = !url.failed && url.size < sizeof t->url;
    if (ok) memcpy(t->url, url.data, url.size + 1);
    buffer_free(&url);
    return ok || fail(error, ERROR_LIMIT, "%s: its address is too long", item->file->path);
}

static bool transfer_send(Transfer *t, Error *error) {
    Download *d = t->download;
    const Partial *p = &t->item->partial;
    const int64_t chunk = (int64_t)t->chunk * p->chunk_bytes, begin = chunk + p->done[t->chunk];
    char range[64];
    if (!http_prepare(d->client, t->easy, t->url, &t->head, error)) return false;
    snprintf(range, sizeof range, "%" PRId64 "-%" PRId64, begin, chunk + partial_chunk_size(p, t->chunk) - 1);
    t->accepted = t->unwanted = false;
    t->reason[0] = '\0';
    bool ok = !curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, take_bytes) &&
        !curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t) && !curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t) &&
        !curl_easy_setopt(t->easy, CURLOPT_BUFFERSIZE, (long)RECEIVE_BYTES) &&
        !curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->reason);
    if (ok && (begin > 0 || p->chunks > 1)) ok = !curl_easy_setopt(t->easy, CURLOPT_RANGE, range);
    ok = ok && !curl_multi_add_handle(d->multi, t->easy);
    return ok || fail(error, ERROR_MEMORY, "no memory for a download");
}

/* The next chunk of an item that no connection fetches; false: none. */
static bool chunk_take(Item *item, size_t *chunk) {
    const Partial *p = &item->partial;
    if (item->whole && item->transfers) return false;
    for (size_t i = 0; i < p->chunks; i++) {
        if (item->taken[i] || p->done[i] == partial_chunk_size(p, i)) continue;
        item->taken[i] = true;
        *chunk = i;
        return true;
    }
    return false;
}

static void item_count(Download *d, Item *item) {
    HubProgress *progress = &d->client->progress;
    const int64_t now = item->state == ITEM_DONE ? item->file->size : item->partial.done_bytes;
    progress->done_bytes += (uint64_t)(now - item->counted_bytes);
    item->counted_bytes = now;
}

static bool item_open(Download *d, Item *item, Error *error) {
    const DownloadJob *job = d->job;
    const PartialState state = partial_open(
        &item->partial, d->client->settings, job->name->repo, job->repo_folder, item->file, &d->arena, error);
    if (state == PARTIAL_FAILED) return false;
    item->busy = state == PARTIAL_BUSY;
    if (state == PARTIAL_BUSY) {
        item->not_before_ns = clock_ns() + BUSY_POLL_MS * 1000000;
    } else if (state == PARTIAL_THERE) {
        item->state = ITEM_DONE;
        d->client->progress.files_done++;
    } else {
        item->taken = calloc(item->partial.chunks + 1, sizeof *item->taken);
        if (!item->taken) return fail(error, ERROR_MEMORY, "no memory for a download");
        item->state = ITEM_OPEN;
        d->open++;
        item->best_bytes = item->partial.done_bytes;
    }
    item_count(d, item);
    return true;
}

/* Files in their order; those that are begun come first by themselves, as they stand before the others. */
static bool start_transfers(Download *d, Error *error) {
    const int64_t now = clock_ns();
    size_t at = d->first;
    for (int i = 0; i < TRANSFERS; i++) {
        Transfer *t = &d->transfers[i];
        if (t->item) continue;
        for (; at < d->job->count; at++) {
            Item *item = &d->items[at];
            if (item->state == ITEM_DONE || now < item->not_before_ns) continue;
            if (item->state == ITEM_NEW && d->open < FILES_OPEN_MAX && !item_open(d, item, error)) return false;
            if (item->state == ITEM_OPEN && chunk_take(item, &t->chunk)) {
                t->item = item;
                break;
            }
        }
        if (!t->item) return true;
        t->item->transfers++;
        t->started_ns = now;
        t->hops = 0;
        if (!set_url(t, error) || !transfer_send(t, error)) return false;
    }
    return true;
}

/* --- Ending ------------------------------------------------------------------------------------------------------ */

static void transfer_release(Transfer *t) {
    Item *item = t->item;
    item->taken[t->chunk] = false;
    item->transfers--;
    t->item = NULL;
}

/* Something did not work. Connections that were begun before the last failure was counted are part of it, however late
 * they end; and progress makes up for all. */
static bool item_failed(Transfer *t, Item *item, const HttpHead *head, const char *why, Error *error) {
    Download *d = t->download;
    const int64_t now = clock_ns();
    if (item->partial.done_bytes > item->best_bytes) {
        item->best_bytes = item->partial.done_bytes;
        item->failures = 0;
    }
    if (t->started_ns < item->failed_ns) return true;
    item->failed_ns = now;
    if (++item->failures >= HTTP_TRIES_MAX)
        return fail(error, ERROR_IO, "%s: %s, %d times in a row; the same command goes on from here", item->file->path,
            why, item->failures);
    const int64_t delay_ms = http_delay_ms(head, item->failures);
    snprintf(d->why, sizeof d->why, "%s", why);
    item->not_before_ns = now + delay_ms * 1000000;
    return head->retry_after_s < 0 || http_wait(d->client, delay_ms, why, error); /* a limit concerns all files */
}

static bool follow(Transfer *t, Error *error) {
    if (++t->hops > HTTP_HOPS_MAX) return fail(error, ERROR_FORMAT, "more than %d redirects", HTTP_HOPS_MAX);
    return http_redirect(t->easy, t->url, error) && transfer_send(t, error);
}

/* An answer that came to its end, or was refused by us or by the server. */
static bool transfer_ended(Transfer *t, CURLcode code, Error *error) {
    Download *d = t->download;
    Item *item = t->item;
    const HttpHead *head = &t->head;
    const bool whole = item->whole && t->unwanted && item->partial.chunks > 1;
    if (d->fatal.code) {
        *error = d->fatal;
        return false;
    }
    if (code == CURLE_OK && head->status >= 300 && head->status < 400)
        return follow(t, error) || fail_while(error, "%s", item->file->path);
    if (t->accepted && t->hops && !item->direct) item->direct = arena_copy(&d->arena, slice_of(t->url));
    const Partial *p = &item->partial;
    const bool complete = p->done[t->chunk] == partial_chunk_size(p, t->chunk);
    const bool accepted = t->accepted, direct = t->direct, unwanted = t->unwanted;
    transfer_release(t);
    if (complete || whole) return true;
    if (unwanted) return item_failed(t, item, head, "the server sends other bytes than were asked for", error);
    if (accepted || (code != CURLE_OK && !head->status))
        return item_failed(t, item, &(HttpHead){0},
            accepted           ? "the connection broke"
                : t->reason[0] ? t->reason
                               : curl_easy_strerror(code),
            error);
    char why[64];
    snprintf(why, sizeof why, "the server says %ld", head->status);
    if (head->status == 416)
        return partial_reset(&item->partial, item->whole, error) && item_failed(t, item, head, why, error);
    if (direct || t->hops) { /* such addresses are good for a while only: ask the hub for another */
        item->direct = NULL;
        return item_failed(t, item, head, why, error);
    }
    if (http_transient(head->status) || head->status < 300) return item_failed(t, item, head, why, error);
    return hub_fault(d->client, d->job->name, item->file->path, head, error);
}

static bool end_transfers(Download *d, Error *error) {
    int left;
    for (CURLMsg *message; (message = curl_multi_info_read(d->multi, &left));) {
        if (message->msg != CURLMSG_DONE) continue;
        Transfer *t = NULL;
        const CURLcode code = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        curl_multi_remove_handle(d->multi, t->easy);
        if (!transfer_ended(t, code, error)) return false;
    }
    return true;
}

/* A server without ranges: all other connections for this file end, and it begins anew as one piece. */
static bool items_begin_whole(Download *d, Error *error) {
    for (int i = 0; i < TRANSFERS; i++) {
        Transfer *t = &d->transfers[i];
        if (!t->item || !t->item->whole || t->item->partial.chunks <= 1) continue;
        curl_multi_remove_handle(d->multi, t->easy);
        transfer_release(t);
    }
    for (size_t i = d->first; i < d->job->count; i++) {
        Item *item = &d->items[i];
        if (item->state == ITEM_OPEN && item->whole && item->partial.chunks > 1 &&
            !partial_reset(&item->partial, true, error))
            return false;
    }
    return true;
}

/* Hashes what is new; a file that is whole gets its name. *busy: there is more to do at once. */
static bool items_advance(Download *d, bool *busy, Error *error) {
    *busy = false;
    for (size_t i = d->first; i < d->job->count; i++) {
        Item *item = &d->items[i];
        Partial *p = &item->partial;
        bool right = false;
        if (item->state == ITEM_DONE && i == d->first) d->first++;
        if (item->state != ITEM_OPEN) continue;
        const int64_t before = p->hashed_bytes;
        if (!partial_hash(p, HASH_BYTES, error)) return false;
        *busy |= p->hashed_bytes > before;
        item_count(d, item);
        if (p->hashed_bytes < item->file->size || item->transfers) continue;
        if (!partial_finish(p, &right, error)) return false;
        if (!right) {
            if (++item->wrong == WRONG_MAX)
                return partial_reset(p, item->whole, error) &&
                    fail(error, ERROR_FORMAT,
                        "%s: what the server sends is not the file (its hash is not %s): nothing is kept",
                        item->file->path, item->file->etag);
            if (!partial_reset(p, item->whole, error)) return false;
            item->best_bytes = 0;
        } else {
            partial_close(p);
            item->state = ITEM_DONE;
            d->open--;
            d->client->progress.files_done++;
        }
        item_count(d, item);
        *busy = true;
    }
    return true;
}

/* --- All of it --------------------------------------------------------------------------------------------------- */

static bool show(Download *d, Error *error) {
    int running = 0;
    bool waiting = false, busy = false;
    for (int i = 0; i < TRANSFERS; i++) running += d->transfers[i].item != NULL;
    for (size_t i = d->first; i < d->job->count; i++) {
        waiting |= d->items[i].not_before_ns > clock_ns();
        busy |= d->items[i].busy && d->items[i].state == ITEM_NEW;
    }
    speed_show(&d->speed, d->received_bytes, &d->client->progress);
    if (running) return http_report(d->client, HUB_DOWNLOADING, NULL, error);
    if (busy) return http_report(d->client, HUB_WAITING, "another process downloads it", error);
    if (waiting) return http_report(d->client, HUB_WAITING, d->why, error);
    return http_report(d->client, HUB_CHECKING, NULL, error);
}

static bool run(Download *d, Error *error) {
    bool busy = false;
    for (;;) {
        int running;
        if (!start_transfers(d, error)) return false;
        if (curl_multi_perform(d->multi, &running) != CURLM_OK)
            return fail(error, ERROR_IO, "libcurl's transfers have failed");
        if (!end_transfers(d, error) || !items_begin_whole(d, error) || !items_advance(d, &busy, error)) return false;
        if (d->first == d->job->count) return true;
        if (!show(d, error)) return false;
        curl_multi_poll(d->multi, NULL, 0, busy ? 0 : POLL_MS, NULL);
    }
}

static bool open_all(Download *d, Error *error) {
    d->multi = curl_multi_init();
    d->transfers = calloc(TRANSFERS, sizeof *d->transfers);
    d->items = calloc(d->job->count + 1, sizeof *d->items);
    bool ok = d->multi && d->transfers && d->items;
    for (int i = 0; ok && i < TRANSFERS; i++) {
        d->transfers[i].download = d;
        d->transfers[i].easy = curl_easy_init();
        ok = d->transfers[i].easy != NULL;
    }
    for (size_t i = 0; ok && i < d->job->count; i++)
        d->items[i] = (Item){.file = d->job->files[i], .partial = {.lock = -1, .data = -1, .ranges = -1}};
    speed_begin(&d->speed);
    return ok || fail(error, ERROR_MEMORY, "no memory for a download");
}

bool download_run(HttpClient *client, const DownloadJob *job, Error *error) {
    Download d = {.client = client, .job = job};
    const bool ok = open_all(&d, error) && run(&d, error);
    for (int i = 0; d.transfers && i < TRANSFERS; i++) {
        if (d.transfers[i].item) curl_multi_remove_handle(d.multi, d.transfers[i].easy);
        curl_easy_cleanup(d.transfers[i].easy);
    }
    for (size_t i = 0; d.items && i < job->count; i++) {
        partial_close(&d.items[i].partial);
        free(d.items[i].taken);
    }
    curl_multi_cleanup(d.multi);
    free(d.transfers);
    free(d.items);
    arena_free(&d.arena);
    return ok;
}
