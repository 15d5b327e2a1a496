/* history/: conversations of the web app on the server's disk, for several devices, in one SQLite file. It knows items
 * with a time, not what is inside them. A build without SQLite has no history: history_open() says so.
 *
 * Items are chats and their messages. The last writer wins, item by item; a removed item stays as a tombstone, so that
 * a device that was away does not bring it back. Every accepted change has a number, and devices ask for what came
 * after the number that they have.
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"

enum {
    HISTORY_ID_MAX = 128, /* bytes of an item's id */
    HISTORY_VALUE_BYTES_MAX = 8 << 20,
    HISTORY_PAGE_BYTES_MAX = 8 << 20, /* values in one answer, but for the last of them */
};
#define HISTORY_BYTES_MAX (UINT64_C(8) << 30) /* largest file */

typedef struct History History;

typedef enum HistoryKind { HISTORY_CHAT, HISTORY_MESSAGE, HISTORY_KINDS } HistoryKind;

/* All borrowed. */
typedef struct HistoryItem {
    HistoryKind kind;
    Slice id;           /* unique among items of this kind; 1 … HISTORY_ID_MAX bytes */
    Slice chat;         /* id of the chat, its own for a chat */
    int64_t updated_ms; /* when its device changed it, since 1970; a later time than now counts as now */
    bool removed;       /* the value is empty; of a chat: with all its messages */
    Slice value;        /* JSON; at most HISTORY_VALUE_BYTES_MAX */
} HistoryItem;

/* Opens or creates directory/history.sqlite, mode 0600. bytes_max: largest file. ERROR_UNSUPPORTED: a build without
 * SQLite. */
NODISCARD History *history_open(const char *directory, uint64_t bytes_max, Error *error);
void history_close(History *history); /* NULL is fine */
/* A random name of this history: another one means that numbers of changes are those of another file. */
const char *history_name(const History *history);
/* Stores the items that are newer than what is there, all or none. *latest: number of the last change. ERROR_LIMIT:
 * bytes_max or the disk is full. */
NODISCARD bool history_push(History *history, const HistoryItem *items, int count, int64_t *latest, Error *error);
/* Appends the changes after a number as elements of a JSON array, in their order, at most `limit` of them. *last:
 * number of the last one, or `after`. *more: there are more. */
NODISCARD bool history_changes(
    History *history, int64_t after, int limit, Buffer *out, int64_t *last, bool *more, Error *error);
/* Number of the last change; 0: there is none. */
NODISCARD bool history_latest(History *history, int64_t *latest, Error *error);
