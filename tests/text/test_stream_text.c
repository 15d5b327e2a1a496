/* Stop strings in a stream: whatever the pieces, the text up to the first stop string comes out and nothing more. */
#include "test.h"
#include "text/stream/stream_text.h"

/* text in pieces of `step` bytes (0: all at once) gives want and the stop string `matched`. */
static void check(const char *text, const char *const *stops, int count, size_t step, const char *want, int matched) {
    StreamText stream;
    stream_text_init(&stream);
    for (int i = 0; i < count; i++) stream.stops[i] = slice_of(stops[i]);
    stream.stop_count = count;
    Buffer out = {0};
    size_t size = strlen(text);
    bool stopped = false;
    for (size_t at = 0; at < size && !stopped;) {
        size_t end = step && at + step < size ? at + step : size;
        stopped = stream_text_push(&stream, (Slice){text + at, end - at}, &out);
        at = end;
    }
    if (!stopped) stream_text_finish(&stream, &out);
    TEST_MSG(
        slice_is(buffer_view(&out), want), "\"%s\" by %zu gave \"%.*s\"", text, step, SLICE_ARGS(buffer_view(&out)));
    TEST(stream.matched == matched && stopped == (matched >= 0));
    buffer_free(&out);
    stream_text_free(&stream);
}

static void test_all_steps(void) {
    const char *const end[] = {"END"}, *const two[] = {"\n\n", "aab"}, *const nested[] = {"ab", "abc"},
                      *const none[] = {""};
    for (size_t step = 0; step < 6; step++) {
        check("hello END world", end, 1, step, "hello ", 0);
        check("hello EN", end, 1, step, "hello EN", -1);
        check("EEENEND", end, 1, step, "EEEN", 0);
        check("aaaab", two, 2, step, "aa", 1);
        check("a\nb\n\nc", two, 2, step, "a\nb", 0);
        check("nothing", two, 2, step, "nothing", -1);
        check("x", two, 0, step, "x", -1);
        check("", two, 2, step, "", -1);
        check("text", none, 1, step, "text", -1); /* an empty stop string stops nothing */
    }
    check("xabc", nested, 2, 0, "x", 1); /* of two that begin at one place, the longer when both are there */
    check("xabc", nested, 2, 1, "x", 0); /* but the first to be complete ends the text */
}

static void test_no_delay(void) {
    StreamText stream;
    stream_text_init(&stream);
    stream.stops[0] = SLICE("STOP");
    stream.stop_count = 1;
    Buffer out = {0};
    TEST(!stream_text_push(&stream, SLICE("abc"), &out) && slice_is(buffer_view(&out), "abc"));
    TEST(!stream_text_push(&stream, SLICE("dST"), &out) && slice_is(buffer_view(&out), "abcd"));
    TEST(!stream_text_push(&stream, SLICE("x"), &out) && slice_is(buffer_view(&out), "abcdSTx"));
    TEST(!stream_text_push(&stream, (Slice){NULL, 0}, &out));
    TEST(stream_text_push(&stream, SLICE("STOP!"), &out) && slice_is(buffer_view(&out), "abcdSTx"));
    TEST(stream_text_push(&stream, SLICE("more"), &out)); /* stays ended */
    stream_text_finish(&stream, &out);
    TEST(slice_is(buffer_view(&out), "abcdSTx"));
    buffer_free(&out);
    stream_text_free(&stream);
}

static void test_no_memory(void) {
    StreamText stream;
    stream_text_init(&stream);
    stream.held.limit = 4;
    Buffer out = {0};
    TEST(!stream_text_push(&stream, SLICE("four"), &out) && !out.failed && out.size == 4);
    TEST(!stream_text_push(&stream, SLICE("fives"), &out) && out.failed);
    stream_text_free(&stream);
    buffer_free(&out);
}

int main(void) {
    test_all_steps();
    test_no_delay();
    test_no_memory();
    return test_done();
}
