/* Where prompts are left in the prefix cache. */
#include "engine/resume_points.h"

#include <limits.h>

#include "backend/backend.h"
#include "test.h"

enum { TEXT_MAX = 200000, END = 7, FIRST_ROWS = 32 /* positions of a page of states */ };

static int32_t tokens[TEXT_MAX];

static MessageText text_of(int count, int every) {
    static const int32_t ends[] = {3, END};
    for (int i = 0; i < count; i++) tokens[i] = every && i % every == every - 1 ? END : 100 + i % 50;
    return (MessageText){tokens, count, ends, 2};
}

static void check_order(const ResumePoints *points, int begin, int count) {
    for (int i = 0; i < points->count; i++) {
        TEST(points->at[i] % points->every == points->behind && points->at[i] > points->behind);
        TEST(points->at[i] <= count);
        TEST(i == 0 || points->at[i] > points->at[i - 1]);
        TEST(resume_points_have(points, points->at[i]));
    }
    TEST(points->count == 0 || resume_points_left(points, 0) == points->at[0]);
    TEST(points->count == 0 || resume_points_left(points, points->at[points->count - 1]) == INT_MAX);
}

/* From every place of a text it is not far back to a point: a message and RESUME_SPACING, or RESUME_SPACING_MOST. */
static void check_snapshots(int count, int every, int begin, ResumePoints points) {
    const MessageText text = text_of(count, every);
    resume_points_add_snapshots(&points, &text, begin);
    check_order(&points, begin, count);
    int spacing = RESUME_SPACING, last = begin;
    while ((count - begin) / spacing > RESUME_POINTS_MAX / 2) spacing *= 2;
    const int longest = every && every < RESUME_SPACING_MOST ? every : RESUME_SPACING_MOST;
    const int most = (longest > spacing ? longest : spacing) + spacing + points.every;
    for (int i = 0; i < points.count; i++) {
        TEST_MSG(points.at[i] - last <= most, "%d tokens, messages of %d: %d to %d", count, every, last, points.at[i]);
        last = points.at[i];
    }
    TEST_MSG(count - last <= points.every || count <= begin, "%d of %d", last, count);
    /* The end of the last message is there: a generation prompt behind it is not a part of the next turn. */
    const int message = every ? count / every * every - points.behind : 0;
    const int end = message / points.every * points.every + points.behind;
    TEST(message < points.every || end <= begin || resume_points_have(&points, end));
}

int main(void) {
    static const int counts[] = {1, 127, 128, 129, 700, 5000, 20000, 200000}, lengths[] = {0, 10, 100, 511, 513, 9000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
            for (int begin = 0; begin < counts[i]; begin += 1 + counts[i] / 3) {
                const int page = begin / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
                check_snapshots(counts[i], lengths[n], page, (ResumePoints){.every = KV_PAGE_TOKENS});
                check_snapshots(counts[i], lengths[n], page, (ResumePoints){.every = FIRST_ROWS, .behind = 1});
            }
    ResumePoints points = {.every = KV_PAGE_TOKENS};
    MessageText text = text_of(1000, 300);
    resume_points_add_first(&points, &text);
    TEST(points.count == 1 && points.at[0] == 256);
    resume_points_add(&points, 100);
    resume_points_add(&points, 257);
    resume_points_add(&points, 900);
    resume_points_add(&points, 130);
    TEST(points.count == 3 && points.at[0] == 128 && points.at[1] == 256 && points.at[2] == 896);
    TEST(resume_points_left(&points, 130) == 126 && resume_points_left(&points, 896) == INT_MAX);
    for (int i = 0; i < 2 * RESUME_POINTS_MAX; i++) resume_points_add(&points, i * KV_PAGE_TOKENS);
    TEST(points.count == RESUME_POINTS_MAX);
    check_order(&points, 0, 2 * RESUME_POINTS_MAX * KV_PAGE_TOKENS);
    return test_done();
}
