/* Log lines: a line each whatever is in them, and JSON that parsers take. */
#include "base/log.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/json.h"
#include "test.h"

static char text[1 << 16];

/* What is logged in between goes to a file. */
static int begin(char path[32]) {
    snprintf(path, 32, "/tmp/apus-log-XXXXXX");
    const int file = mkstemp(path), before = dup(STDERR_FILENO);
    CHECK(file >= 0 && before >= 0 && dup2(file, STDERR_FILENO) >= 0);
    close(file);
    return before;
}

static void end(const char *path, int before) {
    dup2(before, STDERR_FILENO);
    close(before);
    FILE *file = fopen(path, "r");
    CHECK(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    unlink(path);
}

static int lines(void) {
    int count = 0;
    for (const char *c = text; *c; c++) count += *c == '\n';
    return count;
}

static const LogField fields[] = {{"id", "req_1", 0}, {NULL, "hidden", 0}, {"path", "/a b\n\"\xff", 0},
    {"ms", NULL, 1.23456}, {"empty", "", 0}, {"tokens", NULL, 123456789}};
/* Codes that terminals obey: CSI as one character, and as a byte. */
static const LogField codes[] = {{"path",
                                     "/\xc2\x9b"
                                     "31m",
                                     0},
    {"byte",
        "\x9b"
        "31m",
        0},
    {"word", "\xc3\xa9", 0}};

static void test_text(void) {
    char path[32];
    const int before = begin(path);
    log_debug("not at this level");
    log_info("two\nlines\x1b[0m");
    log_info("a\xc2\x9b"
             "31mb\xc3\xa9");
    log_fields(LOG_INFO, "codes", codes, COUNT_OF(codes));
    log_fields(LOG_INFO, "request", fields, COUNT_OF(fields));
    end(path, before);
    TEST_MSG(lines() == 4 && strstr(text, " info  two lines [0m\n"), "%s", text);
    TEST_MSG(strstr(text, " info  a  31mb\xc3\xa9\n"), "%s", text);
    TEST_MSG(strstr(text, " codes path=\"/\\u009b31m\" byte=\"\\u009b31m\" word=\"\xc3\xa9\"\n"), "%s", text);
    TEST_MSG(
        strstr(text, " info  request id=req_1 path=\"/a b\\u000a\\\"\\u00ff\" ms=1.235 empty=\"\" tokens=123456789\n"),
        "%s", text);
}

static void test_json(void) {
    char path[32], longest[10000];
    memset(longest, '"', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    const int before = begin(path);
    log_set_format(LOG_JSON);
    log_warn("%s", "a \"quote\", a \\ and a\nline");
    log_fields(LOG_INFO, "request", fields, COUNT_OF(fields));
    log_error("%s", longest);
    log_fields(LOG_INFO, longest, fields, COUNT_OF(fields));
    log_fields(LOG_INFO, "request", &(LogField){"path", longest, 0}, 1);
    memset(longest, 1, 600); /* six bytes each: where the line is cut depends on what follows */
    for (size_t i = 600; i < 2000; i += 2) memcpy(longest + i, "\xc3\xa9", 2);
    for (size_t i = 0; i < 4; i++) {
        longest[2000] = '\0';
        log_error("%.*s%s", (int)i, "abc", longest);
    }
    log_set_format(LOG_TEXT);
    end(path, before);
    TEST(lines() == 9);
    int number = 0;
    for (char *line = text; *line; number++) {
        char *stop = strchr(line, '\n');
        Arena arena = {0};
        Error error = {0};
        const Json *json = json_parse(&arena, (Slice){line, (size_t)(stop - line)}, &error);
        TEST_MSG(json && json_get(json, "time") && json_get(json, "level") && json_get(json, "message"), "%s: %.100s",
            error.text, line);
        if (json && number == 1) {
            TEST(json_number(json_get(json, "ms")) == 1.235 && json_get(json, "tokens")->integer == 123456789);
            TEST(slice_is(json_slice(json_get(json, "path")), "/a b\n\"\xc3\xbf"));
        }
        arena_free(&arena);
        line = stop + 1;
    }
}

/* Who reads the log has stopped: lines are lost, nobody waits for him, and later he hears how many they were. */
static void test_full_pipe(void) {
    enum { LINES = 2000 };
    int ends[2];
    const int before = dup(STDERR_FILENO);
    CHECK(before >= 0 && !pipe(ends) && dup2(ends[1], STDERR_FILENO) >= 0);
    const int64_t start = clock_ns();
    alarm(20); /* a line that waits for ever ends the test */
    for (int i = 0; i < LINES; i++) log_info("%0100d", i);
    alarm(0);
    const double seconds = (double)(clock_ns() - start) * 1e-9;
    const ssize_t got = read(ends[0], text, sizeof text - 1);
    CHECK(got > 0);
    text[got] = '\0';
    const int written = lines();
    log_info("read again");
    char rest[512] = "", said[80];
    CHECK(read(ends[0], rest, sizeof rest - 1) > 0);
    snprintf(said, sizeof said, "warn  %d lines were not read in time and are lost\n", LINES - written);
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[0]);
    close(ends[1]);
    TEST_MSG(written > 100 && written < LINES && text[got - 1] == '\n', "%d lines", written);
    TEST_MSG(seconds < 2, "%.1f s", seconds);
    TEST_MSG(strstr(rest, said) && strstr(rest, "info  read again\n"), "%s", rest);
}

int main(void) {
    test_text();
    test_full_pipe();
    test_json();
    return test_done();
}
