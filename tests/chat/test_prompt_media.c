/* RoPE positions of prompts with images: those of the fixture of Qwen3-VL, as transformers computes them, of two
 * adjacent images, and of text. */
#include "base/file.h"
#include "base/json.h"
#include "chat/prompt_media.h"
#include "test.h"

enum { TOKENS_MAX = 256 };

static void check_fixture(void) {
    Buffer text = {0};
    Arena arena = {0};
    Error error = {0};
    const bool ok = file_read("tests/family/vision/qwen3-vl.json", 1 << 20, &text, &error);
    const Json *root = ok ? json_parse(&arena, buffer_view(&text), &error) : NULL;
    TEST_MSG(root, "%s", error.text);
    if (!root) return;
    const Json *image = json_first(json_get(root, "image")), *size = json_get(json_get(root, "processor"), "size");
    const ImageRule rule = {.sizing = SIZING_AREA,
        .patch = 16,
        .merge = 2,
        .pixels_min = json_get(size, "shortest_edge")->integer,
        .pixels_max = json_get(size, "longest_edge")->integer};
    MediaItem item = {0};
    TEST(image_layout(&rule, (int)image->integer, (int)json_next(image)->integer, &item.layout, &error));
    MediaSpan span = {.item = &item};
    const int64_t token = json_get(root, "image_token")->integer;
    for (JSON_EACH(id, json_get(root, "tokens"))) {
        if (id->integer == token) break;
        span.begin++;
    }
    const Json *lists = json_get(root, "positions");
    const int tokens = (int)json_first(lists)->size;
    int32_t positions[POSITION_DIMS_MAX * TOKENS_MAX];
    int i = 0, most = 0;
    const int offset = prompt_media_positions(&span, 1, tokens, positions);
    for (JSON_EACH(list, lists))
        for (JSON_EACH(item_, list)) {
            TEST_MSG(
                positions[i] == item_->integer, "dimension %d, token %d: %d", i / tokens, i % tokens, positions[i]);
            most = item_->integer > most ? (int)item_->integer : most;
            i++;
        }
    TEST(i == POSITION_DIMS_MAX * tokens && offset == most + 1 - tokens);
    arena_free(&arena);
    buffer_free(&text);
}

/* Two images of 2 × 3 tokens behind one token, then two more: the second image begins behind the first one's width. */
static void check_adjacent(void) {
    static const int32_t expected[POSITION_DIMS_MAX][15] = {
        {0, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 7, 8},
        {0, 1, 1, 1, 2, 2, 2, 4, 4, 4, 5, 5, 5, 7, 8},
        {0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8},
    };
    MediaItem item = {.layout = {.grid_rows = 2, .grid_columns = 3, .tokens = 6}};
    const MediaSpan spans[] = {{.begin = 1, .rows = 6, .item = &item}, {.begin = 7, .rows = 6, .item = &item}};
    int32_t positions[POSITION_DIMS_MAX * 15];
    TEST(prompt_media_positions(spans, 2, 15, positions) == 9 - 15);
    TEST(!memcmp(positions, expected, sizeof expected));
    TEST(prompt_media_positions(NULL, 0, 15, positions) == 0);
    for (int i = 0; i < POSITION_DIMS_MAX * 15; i++) TEST(positions[i] == i % 15);
}

/* Rows of audio count on in all dimensions, as text does; an image behind them begins where they end. */
static void check_audio(void) {
    MediaItem clip = {.tokens = 3, .audio = {.count = 1}},
              image = {.tokens = 6, .layout = {.grid_rows = 2, .grid_columns = 3, .tokens = 6}};
    const MediaSpan spans[] = {{.begin = 1, .rows = 3, .item = &clip}, {.begin = 5, .rows = 6, .item = &image}};
    int32_t positions[POSITION_DIMS_MAX * 12];
    TEST(prompt_media_positions(spans, 2, 12, positions) == 9 - 12);
    for (int dim = 0; dim < POSITION_DIMS_MAX; dim++) {
        for (int i = 0; i <= 5; i++) TEST(positions[dim * 12 + i] == i);
        TEST(positions[dim * 12 + 11] == 8);
    }
    TEST(media_item_is_audio(&clip) && !media_item_is_audio(&image));
}

/* Three groups of a video's frames share one grid, two positions of time apart; text goes on behind the largest. */
static void check_video(void) {
    static const int32_t expected[POSITION_DIMS_MAX][15] = {
        {0, 1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 6, 7},
        {0, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 6, 7},
        {0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 6, 7},
    };
    MediaItem item = {.tokens = 4, .layout = {.grid_rows = 2, .grid_columns = 2, .tokens = 4}};
    const MediaSpan spans[] = {{.begin = 1, .rows = 4, .item = &item},
        {.begin = 5, .rows = 4, .item = &item, .continues = true, .time = 2},
        {.begin = 9, .rows = 4, .item = &item, .continues = true, .time = 4}};
    int32_t positions[POSITION_DIMS_MAX * 15];
    TEST(prompt_media_positions(spans, 3, 15, positions) == 8 - 15);
    TEST(!memcmp(positions, expected, sizeof expected));
}

/* What the processors of transformers 5.23 write, without the tokens around their placeholders. */
static void check_video_text(void) {
    static const struct {
        VideoSpec spec;
        int groups;
        double seconds, times[2];
        const char *text;
    } cases[] = {
        {{.token = "<p>"}, 2, 1, {0, 0.5}, "<p><p><p><p>"},
        {{.before = "<%s seconds>[", .token = "<p>", .after = "]", .time = VIDEO_TENTHS}, 2, 3, {0.25, 1.75},
            "<0.2 seconds>[<p><p>]<1.8 seconds>[<p><p>]"},
        {{.before = "[", .token = "<p>", .after = "]%s", .time = VIDEO_SECONDS}, 2, 3, {0, 61.9},
            "[<p><p>]0[<p><p>]61"},
        {{.before = "%s [", .token = "<p>", .after = "]", .between = " ", .time = VIDEO_CLOCK}, 2, 99, {0, 98.5},
            "00:00 [<p><p>] 01:38 [<p><p>]"},
        {{.opening = "%s in %s.", .before = "\nFrom %s:", .token = "<p>", .closing = "\n\n", .time = VIDEO_CLOCK}, 1,
            3725, {3600}, "twenty-one in 1:02:05.\nFrom 60:00:<p><p>\n\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Arena arena = {0};
        Error error = {0};
        Slice text;
        double times[2] = {cases[i].times[0], cases[i].times[1]};
        const PromptPart part = {.kind = CONTENT_VIDEO,
            .division.layout.tokens = 2,
            .frames = 21,
            .groups = cases[i].groups,
            .seconds = cases[i].seconds,
            .times = times};
        TEST(prompt_media_video_text(&cases[i].spec, &part, &arena, &text, &error));
        TEST_MSG(slice_is(text, cases[i].text), "%.*s", SLICE_SHOWN(text));
        arena_free(&arena);
    }
}

/* Rows of one image have different content ids, so have equal rows of different images; no id is a token's. */
static void check_content(void) {
    MediaItem one = {.digest = {1}}, other = {.digest = {2}};
    for (int i = 0; i < 100; i++) {
        const uint64_t id = media_item_content(&one, i, -1);
        TEST(id >> 32 != 0 && id != media_item_content(&other, i, -1) && id == media_item_content(&one, i, -1));
        TEST(id != media_item_content(&one, i, 0) && id != media_item_content(&one, i, 1)); /* of other positions */
        for (int k = 0; k < i; k++) TEST(id != media_item_content(&one, k, -1));
    }
}

int main(void) {
    check_fixture();
    check_adjacent();
    check_audio();
    check_video();
    check_video_text();
    check_content();
    return test_done();
}
