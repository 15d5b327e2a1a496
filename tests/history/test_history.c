/* The history: the last writer wins, tombstones, changes after a number, limits and damaged files. */
#include "history/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "test.h"

static char folder[64];
static Error error;
static Buffer out;
static int64_t latest, last;
static bool more;

static History *must_open(uint64_t bytes_max) {
    History *h = history_open(folder, bytes_max, &error);
    TEST_MSG(h != NULL, "%s", error.text);
    return h;
}

static HistoryItem chat_of(const char *id, int64_t updated, const char *value) {
    return (HistoryItem){.id = slice_of(id),
        .chat = slice_of(id),
        .updated_ms = updated,
        .removed = value == NULL,
        .value = slice_of(value ? value : "")};
}

static HistoryItem message_of(const char *id, const char *chat, int64_t updated, const char *value) {
    HistoryItem item = chat_of(id, updated, value);
    item.kind = HISTORY_MESSAGE;
    item.chat = slice_of(chat);
    return item;
}

static void push(History *h, HistoryItem item) { TEST(history_push(h, &item, 1, &latest, &error)); }

/* The changes after a number, as text. */
static const char *changes(History *h, int64_t after, int limit) {
    buffer_clear(&out);
    buffer_text(&out, "");
    TEST(history_changes(h, after, limit, &out, &last, &more, &error));
    return out.data;
}

static void test_last_writer(History *h) {
    push(h, chat_of("a", 10, "{\"n\":1}"));
    TEST(latest == 1);
    push(h, chat_of("a", 9, "{\"n\":2}"));
    push(h, chat_of("a", 10, "{\"n\":3}"));
    TEST(latest == 1 && strstr(changes(h, 0, 10), "\"n\":1") && last == 1 && !more);
    push(h, chat_of("a", 11, "{\"n\":4}"));
    TEST(latest == 2 && strstr(changes(h, 1, 10), "\"n\":4") && !strstr(out.data, "\"n\":1"));
    TEST(!strcmp(changes(h, 2, 10), "") && last == 2);
    const HistoryItem both[] = {message_of("m", "a", 5, "{\"t\":\"x\"}"), message_of("n", "a", 6, "{\"t\":\"y\"}")};
    TEST(history_push(h, both, 2, &latest, &error) && latest == 4);
    TEST(strstr(changes(h, 0, 2), "\"m\"") && !strstr(out.data, "\"t\":\"y\"") && more && last == 3);
    TEST(strstr(changes(h, last, 2), "\"t\":\"y\"") && !more);
}

/* A removed chat takes its messages along; what is older does not come back, what is newer does. */
static void test_removal(History *h) {
    push(h, message_of("m", "a", 7, NULL));
    TEST(strstr(changes(h, 4, 10), "\"removed\":true,\"value\":null"));
    push(h, message_of("m", "a", 6, "{}"));
    TEST(latest == 5);
    push(h, chat_of("a", 20, NULL));
    TEST(latest == 6 && !strstr(changes(h, 0, 10), "\"message\"") && strstr(out.data, "\"removed\":true"));
    push(h, message_of("n", "a", 19, "{}"));
    TEST(latest == 6);
    const HistoryItem again[] = {chat_of("a", 30, "{}"), message_of("n", "a", 30, "{}")};
    TEST(history_push(h, again, 2, &latest, &error) && latest == 8);
    TEST(strstr(changes(h, 6, 10), "\"message\""));
}

/* A clock that is ahead does not win forever. */
static void test_future(History *h) {
    push(h, chat_of("f", INT64_MAX, "{\"n\":1}"));
    usleep(2000);
    push(h, chat_of("f", INT64_MAX, "{\"n\":2}"));
    TEST(strstr(changes(h, latest - 1, 1), "\"n\":2") != NULL);
}

static void test_file(History *h) {
    char path[128], name[64];
    struct stat info;
    snprintf(path, sizeof path, "%s/history.sqlite", folder);
    TEST(!stat(path, &info) && (info.st_mode & 0777) == 0600);
    snprintf(name, sizeof name, "%s", history_name(h));
    TEST(strlen(name) == 16);
    History *other = must_open(HISTORY_BYTES_MAX); /* of another process */
    TEST(!strcmp(history_name(other), name));
    push(other, chat_of("z", 1, "{}"));
    TEST(strstr(changes(h, 0, 100), "\"z\"") != NULL);
    history_close(other);
}

/* A full file refuses all of a push, keeps what it has, and takes removals again. */
static void test_full(void) {
    History *h = must_open(256 << 10);
    char *large = calloc(1, (64 << 10) + 1);
    CHECK(large);
    memset(large, ' ', 64 << 10);
    large[0] = '{';
    large[(64 << 10) - 1] = '}';
    bool full = false;
    char id[16];
    int64_t before = 0;
    CHECK(history_latest(h, &before, &error));
    for (int i = 0; i < 16 && !full; i++) {
        snprintf(id, sizeof id, "full-%d", i);
        const HistoryItem item = chat_of(id, 1, large);
        full = !history_push(h, &item, 1, &latest, &error);
        if (!full) before = latest;
    }
    TEST(full && error.code == ERROR_LIMIT && strstr(error.text, "full"));
    TEST(history_latest(h, &latest, &error) && latest == before);
    const HistoryItem removal = chat_of("full-0", 2, NULL);
    TEST_MSG(history_push(h, &removal, 1, &latest, &error), "%s", error.text);
    TEST(latest == before + 1);
    free(large);
    history_close(h);
}

static void test_damaged(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/damaged", folder);
    CHECK(file_make_directories(path, &error));
    snprintf(path, sizeof path, "%s/damaged/history.sqlite", folder);
    CHECK(file_write_atomic(path, SLICE("this is no database, but a text of some length, so that it is read"), &error));
    snprintf(path, sizeof path, "%s/damaged", folder);
    TEST(!history_open(path, HISTORY_BYTES_MAX, &error) && strstr(error.text, path));
    TEST(!history_open("/proc/none", HISTORY_BYTES_MAX, &error));
}

int main(void) {
    snprintf(folder, sizeof folder, "/tmp/apus-history-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    History *h = history_open(folder, HISTORY_BYTES_MAX, &error);
    if (!h && error.code == ERROR_UNSUPPORTED) return test_skip_all("a build without SQLite");
    TEST_MSG(h != NULL, "%s", error.text);
    test_last_writer(h);
    test_removal(h);
    test_future(h);
    test_file(h);
    history_close(h);
    h = must_open(HISTORY_BYTES_MAX);
    TEST(strstr(changes(h, 0, 100), "\"n\":2") != NULL);
    history_close(h);
    test_full();
    test_damaged();
    buffer_free(&out);
    return test_done();
}
