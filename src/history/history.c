#include "history/history.h"

#include <stdlib.h>

#if APUS_SQLITE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/thread.h"

enum { FORMAT = 1, PAGE_BYTES = 4096, BUSY_MS = 5000, NAME_BYTES = 8, NAME_MAX_BYTES = 2 * NAME_BYTES + 1 };

typedef enum Query { BEGIN, COMMIT, ROLLBACK, FIND, STORE, REMOVE_MESSAGES, CHANGES, LATEST, QUERIES } Query;

struct History {
    Mutex mutex; /* guards the connection and its statements */
    sqlite3 *db;
    sqlite3_stmt *query[QUERIES];
    char name[NAME_MAX_BYTES];
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS items(kind INTEGER NOT NULL, id TEXT NOT NULL, chat TEXT NOT NULL,"
    " updated INTEGER NOT NULL, number INTEGER NOT NULL, removed INTEGER NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY(kind, id));"
    "CREATE UNIQUE INDEX IF NOT EXISTS by_number ON items(number);"
    "CREATE INDEX IF NOT EXISTS by_chat ON items(chat, kind);"
    "CREATE TABLE IF NOT EXISTS names(name TEXT NOT NULL);";

static const char *const queries[QUERIES] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
    /* A message is as old as the removal of its chat, at least. */
    [FIND] = "SELECT updated FROM items WHERE kind = ?1 AND id = ?2"
             " UNION ALL SELECT updated FROM items WHERE ?1 = 1 AND kind = 0 AND id = ?3 AND removed = 1"
             " ORDER BY updated DESC LIMIT 1",
    [STORE] = "INSERT INTO items(kind, id, chat, updated, number, removed, value)"
              " VALUES(?1, ?2, ?3, ?4, (SELECT ifnull(max(number), 0) + 1 FROM items), ?5, ?6)"
              " ON CONFLICT(kind, id) DO UPDATE SET chat = excluded.chat, updated = excluded.updated,"
              " number = excluded.number, removed = excluded.removed, value = excluded.value",
    [REMOVE_MESSAGES] = "DELETE FROM items WHERE chat = ?1 AND kind = 1 AND updated <= ?2",
    [CHANGES] = "SELECT kind, id, chat, updated, number, removed, value FROM items WHERE number > ?1 ORDER BY number",
    [LATEST] = "SELECT ifnull(max(number), 0) FROM items",
};

/* ---- SQLite ---- */

static bool broken(const History *h, const char *what, Error *error) {
    const int code = sqlite3_extended_errcode(h->db) & 0xff;
    if (code == SQLITE_FULL)
        return fail(error, ERROR_LIMIT, "the history is full: its limit is reached, or its disk has no room");
    return fail(error, code == SQLITE_NOMEM ? ERROR_MEMORY : ERROR_IO, "the history cannot be %s: %s", what,
        sqlite3_errmsg(h->db));
}

/* Runs a statement that gives no rows. */
static bool run(History *h, Query query, Error *error) {
    const int code = sqlite3_step(h->query[query]);
    const bool ok = code == SQLITE_DONE || broken(h, "written", error);
    sqlite3_reset(h->query[query]);
    return ok;
}

static void bind_text(sqlite3_stmt *statement, int place, Slice text) {
    sqlite3_bind_text64(statement, place, text.size ? text.data : "", text.size, SQLITE_STATIC, SQLITE_UTF8);
}

static Slice column(sqlite3_stmt *statement, int place) {
    const char *text = (const char *)sqlite3_column_text(statement, place);
    return (Slice){text ? text : "", text ? (size_t)sqlite3_column_bytes(statement, place) : 0};
}

static bool set_up(History *h, uint64_t bytes_max, Error *error) {
    char pragmas[256];
    snprintf(pragmas, sizeof pragmas,
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA max_page_count = %" PRIu64
        "; PRAGMA user_version",
        bytes_max / PAGE_BYTES);
    sqlite3_busy_timeout(h->db, BUSY_MS);
    if (sqlite3_exec(h->db, pragmas, NULL, NULL, NULL)) return broken(h, "opened", error);
    sqlite3_stmt *version = NULL;
    int found = -1;
    if (!sqlite3_prepare_v2(h->db, "PRAGMA user_version", -1, &version, NULL) && sqlite3_step(version) == SQLITE_ROW)
        found = sqlite3_column_int(version, 0);
    sqlite3_finalize(version);
    if (found < 0) return broken(h, "opened", error);
    if (found > FORMAT) return fail(error, ERROR_UNSUPPORTED, "the history was written by a later version of apus");
    char last[64];
    snprintf(last, sizeof last, "PRAGMA user_version = %d", FORMAT);
    return (!sqlite3_exec(h->db, schema, NULL, NULL, NULL) && !sqlite3_exec(h->db, last, NULL, NULL, NULL)) ||
        broken(h, "opened", error);
}

static bool name_it(History *h, Error *error) {
    unsigned char random[NAME_BYTES];
    char text[NAME_MAX_BYTES], insert[128];
    if (getentropy(random, sizeof random)) return fail(error, ERROR_IO, "no random bytes for the name of a history");
    for (int i = 0; i < NAME_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", random[i]);
    snprintf(insert, sizeof insert, "INSERT INTO names SELECT '%s' WHERE NOT EXISTS(SELECT 1 FROM names)", text);
    sqlite3_stmt *read = NULL;
    bool ok = !sqlite3_exec(h->db, insert, NULL, NULL, NULL) &&
        !sqlite3_prepare_v2(h->db, "SELECT name FROM names", -1, &read, NULL) && sqlite3_step(read) == SQLITE_ROW;
    if (ok) snprintf(h->name, sizeof h->name, "%s", (const char *)sqlite3_column_text(read, 0));
    sqlite3_finalize(read);
    return ok || broken(h, "opened", error);
}

static bool open_file(History *h, const char *path, uint64_t bytes_max, Error *error) {
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* SQLite's other files take its mode */
    if (fd < 0) return fail(error, ERROR_IO, "cannot open %s: %s", path, strerror(errno));
    close(fd);
    if (sqlite3_open_v2(path, &h->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL))
        return broken(h, "opened", error);
    bool ok = set_up(h, bytes_max, error) && name_it(h, error);
    for (int i = 0; ok && i < QUERIES; i++)
        ok = !sqlite3_prepare_v3(h->db, queries[i], -1, SQLITE_PREPARE_PERSISTENT, &h->query[i], NULL) ||
            broken(h, "opened", error);
    return ok;
}

History *history_open(const char *directory, uint64_t bytes_max, Error *error) {
    Buffer path = {0};
    if (!file_make_directories(directory, error)) return NULL;
    History *h = calloc(1, sizeof *h);
    buffer_printf(&path, "%s/history.sqlite", directory);
    bool ok = (h && !path.failed) || fail(error, ERROR_MEMORY, "no memory for a history");
    if (h) mutex_init(&h->mutex);
    ok = ok && (open_file(h, path.data, bytes_max, error) || fail_while(error, "--history %s", directory));
    buffer_free(&path);
    if (ok) return h;
    history_close(h);
    return NULL;
}

void history_close(History *h) {
    if (!h) return;
    for (int i = 0; i < QUERIES; i++) sqlite3_finalize(h->query[i]);
    sqlite3_close(h->db);
    mutex_destroy(&h->mutex);
    free(h);
}

const char *history_name(const History *h) { return h->name; }

/* ---- changes ---- */

/* Whether it is newer than what is there. */
static bool find_newer(History *h, const HistoryItem *item, int64_t updated, bool *newer, Error *error) {
    sqlite3_stmt *find = h->query[FIND];
    sqlite3_bind_int(find, 1, (int)item->kind);
    bind_text(find, 2, item->id);
    bind_text(find, 3, item->chat);
    const int code = sqlite3_step(find);
    *newer = code != SQLITE_ROW || sqlite3_column_int64(find, 0) < updated;
    const bool ok = code == SQLITE_ROW || code == SQLITE_DONE || broken(h, "read", error);
    sqlite3_reset(find);
    return ok;
}

static bool store(History *h, const HistoryItem *item, int64_t updated, Error *error) {
    sqlite3_stmt *to = h->query[STORE];
    sqlite3_bind_int(to, 1, (int)item->kind);
    bind_text(to, 2, item->id);
    bind_text(to, 3, item->chat);
    sqlite3_bind_int64(to, 4, updated);
    sqlite3_bind_int(to, 5, item->removed);
    bind_text(to, 6, item->removed ? SLICE("") : item->value);
    bool ok = run(h, STORE, error);
    if (ok && item->removed && item->kind == HISTORY_CHAT) {
        bind_text(h->query[REMOVE_MESSAGES], 1, item->id);
        sqlite3_bind_int64(h->query[REMOVE_MESSAGES], 2, updated);
        ok = run(h, REMOVE_MESSAGES, error);
    }
    return ok;
}

static bool read_latest(History *h, int64_t *latest, Error *error) {
    sqlite3_stmt *read = h->query[LATEST];
    const bool ok = sqlite3_step(read) == SQLITE_ROW || broken(h, "read", error);
    *latest = ok ? sqlite3_column_int64(read, 0) : 0;
    sqlite3_reset(read);
    return ok;
}

bool history_push(History *h, const HistoryItem *items, int count, int64_t *latest, Error *error) {
    struct timespec now;
    Error ignored;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    mutex_lock(&h->mutex);
    bool ok = run(h, BEGIN, error);
    const bool began = ok;
    for (int i = 0; ok && i < count; i++) {
        const int64_t updated = items[i].updated_ms < now_ms ? items[i].updated_ms : now_ms;
        bool newer;
        ok = find_newer(h, &items[i], updated, &newer, error) && (!newer || store(h, &items[i], updated, error));
    }
    ok = ok && read_latest(h, latest, error) && run(h, COMMIT, error);
    if (began && !ok && !sqlite3_get_autocommit(h->db)) (void)!run(h, ROLLBACK, &ignored);
    mutex_unlock(&h->mutex);
    return ok;
}

static void write_change(sqlite3_stmt *row, Buffer *out) {
    static const char *const kinds[HISTORY_KINDS] = {"chat", "message"};
    const bool removed = sqlite3_column_int(row, 5);
    buffer_printf(out, "{\"kind\":\"%s\",\"id\":", kinds[sqlite3_column_int(row, 0) == HISTORY_MESSAGE]);
    json_write_string(out, column(row, 1));
    buffer_text(out, ",\"chat\":");
    json_write_string(out, column(row, 2));
    buffer_printf(out, ",\"updated\":%lld,\"number\":%lld,\"removed\":%s,\"value\":", sqlite3_column_int64(row, 3),
        sqlite3_column_int64(row, 4), removed ? "true" : "false");
    if (removed)
        buffer_text(out, "null");
    else
        buffer_slice(out, column(row, 6));
    buffer_byte(out, '}');
}

bool history_changes(History *h, int64_t after, int limit, Buffer *out, int64_t *last, bool *more, Error *error) {
    const size_t begin = out->size;
    int code = SQLITE_DONE;
    *last = after;
    *more = false;
    mutex_lock(&h->mutex);
    sqlite3_stmt *row = h->query[CHANGES];
    sqlite3_bind_int64(row, 1, after);
    for (int i = 0; (code = sqlite3_step(row)) == SQLITE_ROW; i++) {
        *more = i == limit || out->size - begin > HISTORY_PAGE_BYTES_MAX;
        if (*more) break;
        if (i) buffer_byte(out, ',');
        write_change(row, out);
        *last = sqlite3_column_int64(row, 4);
    }
    bool ok = code == SQLITE_ROW || code == SQLITE_DONE || broken(h, "read", error);
    sqlite3_reset(row);
    mutex_unlock(&h->mutex);
    return ok && (!out->failed || fail(error, ERROR_MEMORY, "no memory for the changes of a history"));
}

bool history_latest(History *h, int64_t *latest, Error *error) {
    mutex_lock(&h->mutex);
    const bool ok = read_latest(h, latest, error);
    mutex_unlock(&h->mutex);
    return ok;
}

#else

History *history_open(const char *directory, uint64_t bytes_max, Error *error) {
    fail(error, ERROR_UNSUPPORTED, "--history: this build of apus has no SQLite (libsqlite3-dev)");
    return NULL;
}
void history_close(History *history) {}
const char *history_name(const History *history) { return ""; }
bool history_push(History *history, const HistoryItem *items, int count, int64_t *latest, Error *error) {
    return fail(error, ERROR_UNSUPPORTED, "no SQLite");
}
bool history_changes(History *history, int64_t after, int limit, Buffer *out, int64_t *last, bool *more, Error *error) {
    return fail(error, ERROR_UNSUPPORTED, "no SQLite");
}
bool history_latest(History *history, int64_t *latest, Error *error) {
    return fail(error, ERROR_UNSUPPORTED, "no SQLite");
}

#endif
