/* Requests with images beside running answers, on the fake's clock: what stands between two steps of the answers is
 * counted, not timed, as it takes the same on any machine. */
#include "base/clock.h"

#include "engine/engine_fixture.h"
#include "engine/scheduler.h"

int64_t clock_ns(void) { return fake.clock_ns; }

enum {
    STREAMS = 8,
    SLOTS = 16,
    IMAGES = 64,
    STREAM_TOKENS = 780, /* as long as the images last */
    TEXT = 5,            /* tokens in front of an image and behind it */
    MS = 1000000,
};

/* A prompt: text, an image, text. */
typedef struct ImageCase {
    Case text;
    MediaSpan span;
} ImageCase;

static void make_image_case(ImageCase *c, int number, int tokens, int patches) {
    Error error = {0};
    Image image;
    CHECK(image_alloc(&image, 8, 8, &error));
    memset(image.rgb, number, 8 * 8 * 3);
    const ImageLayout layout = {.width = 8, .height = 8, .patches = patches, .tokens = tokens};
    make_prompt(&c->text, TEXT + tokens + TEXT, (uint64_t)number);
    c->span = (MediaSpan){.begin = TEXT, .rows = tokens, .item = media_item_new(&image, &layout, &error)};
    CHECK(c->span.item);
    c->text.options.media = &c->span;
    c->text.options.media_count = 1;
    c->text.options.cache_off = true; /* their tokens may be equal */
    c->text.options.max_tokens = 1;
}

static void begin_streams(Engine *engine, int count, Request **streams) {
    Case c;
    for (int i = 0; i < count; i++) {
        make_prompt(&c, 3, 100 + (uint64_t)i);
        c.options.max_tokens = STREAM_TOKENS;
        c.options.sampling.ignore_eos = true;
        streams[i] = submit(engine, &c.options);
    }
}

static void end_request(Request *request) {
    Seen seen;
    read_all(request, 1, &seen);
    TEST(seen.count > 0 && seen.finish != FINISH_ERROR);
    request_free(request);
}

/* What lies between steps. */
typedef struct Gaps {
    double alone_ms, worst_ms; /* time between two steps, of streams alone and at most */
    int encoded, sliced_most;  /* gaps in which rows of slices were computed, and the most rows of one */
    int prompt_rows_most;      /* the most rows of a step that are not those of streams */
    int rounds;                /* steps until the last one with rows of images */
} Gaps;

/* Streams run alone for so many steps, then beside images. */
static Gaps measure(const VisionSpec *vision, int streams, int alone, int images, int tokens, int patches) {
    enum { BEGIN = 4 }; /* steps until all streams run, and their time is known */
    Gaps gaps = {.alone_ms = (double)(fake.step_ns + streams * fake.row_ns) / MS};
    static ImageCase cases[IMAGES];
    Request *running[STREAMS], *asked[IMAGES];
    fake.gated = true;
    fake.spec.vision = vision;
    Engine *engine = open_engine(SLOTS, IMAGES, 512, 0);
    begin_streams(engine, streams, running);
    fake_permit(alone);
    fake_wait_arrived(alone + 1);
    for (int i = 0; i < images; i++) {
        make_image_case(&cases[i], i, tokens, patches);
        asked[i] = submit(engine, &cases[i].text.options);
    }
    fake_open_gate();
    for (int i = 0; i < images; i++) end_request(asked[i]);
    for (int i = 0; i < streams; i++) end_request(running[i]);
    close_engine(engine);
    for (int i = 0; i < images; i++) media_item_release(cases[i].span.item);
    /* All streams run until the first of them has its last token. */
    for (int i = alone > BEGIN ? alone : BEGIN; i < STREAM_TOKENS; i++) {
        const FakeStep *before = &fake.log[i - 1], *step = &fake.log[i];
        const double ms = (double)(step->ended_ns - before->ended_ns) / MS;
        const int sliced = step->sliced_rows - before->sliced_rows;
        gaps.worst_ms = fmax(gaps.worst_ms, ms);
        gaps.encoded += sliced > 0;
        gaps.sliced_most = sliced > gaps.sliced_most ? sliced : gaps.sliced_most;
        if (step->rows > streams) gaps.rounds = i + 1 - alone;
        if (step->rows - streams > gaps.prompt_rows_most) gaps.prompt_rows_most = step->rows - streams;
    }
    return gaps;
}

static void tell(const char *what, const Gaps *g) {
    printf("%s: %.1f ms alone, %.1f ms at most; %d rounds; slices in %d gaps, of %d rows at most; %d prompt rows\n",
        what, g->alone_ms, g->worst_ms, g->rounds, g->encoded, g->sliced_most, g->prompt_rows_most);
}

/* A slow machine: a step of eight answers takes 50 ms, a row of a prompt 5 ms, rows of the encoder 0.02 and 0.2 ms. */
static void test_slow(bool bidirectional, int alone) {
    const VisionSpec vision = {.bidirectional = bidirectional};
    fake_reset();
    fake.step_ns = 10 * MS;
    fake.row_ns = 5 * MS;
    fake.slice_row_ns = MS / 50;
    const Gaps gaps = measure(&vision, STREAMS, alone, IMAGES, 16, 256);
    tell(bidirectional ? "spans in slices" : "images", &gaps);
    TEST_MSG(gaps.worst_ms <= 2 * gaps.alone_ms, "%.1f ms, alone %.1f ms", gaps.worst_ms, gaps.alone_ms);
    TEST(gaps.encoded > IMAGES && gaps.prompt_rows_most >= MEDIA_PREFILL_LEAST);
    /* Neither is starved: an image's slices take half of a budget in each round, its prompt four rows at least. */
    TEST_MSG(gaps.rounds < STREAM_TOKENS - 20, "%d rounds", gaps.rounds);
}

/* A fast one: a step takes 10 ms, a prompt row next to nothing. A prompt of an image has large parts soon. */
static void test_fast(void) {
    const VisionSpec vision = {0};
    fake_reset();
    fake.step_ns = 10 * MS;
    fake.row_ns = MS / 100;
    fake.slice_row_ns = MS / 1000;
    const Gaps gaps = measure(&vision, 1, 12, 1, 600, 600);
    tell("a fast machine", &gaps);
    TEST_MSG(gaps.worst_ms <= 2 * gaps.alone_ms + 1, "%.1f ms, alone %.1f ms", gaps.worst_ms, gaps.alone_ms);
    TEST_MSG(gaps.rounds < 24 && gaps.prompt_rows_most > 100, "%d rounds, %d rows", gaps.rounds, gaps.prompt_rows_most);
}

/* Where no answer is under way, nothing is divided: the text in front of an image waits for it. */
static void test_alone(void) {
    const VisionSpec vision = {0};
    fake_reset();
    fake.step_ns = 10 * MS;
    fake.row_ns = 5 * MS;
    fake.slice_row_ns = MS / 50;
    fake.spec.vision = &vision;
    Engine *engine = open_engine(SLOTS, IMAGES, 512, 0);
    ImageCase c;
    make_image_case(&c, 1, 400, 1024);
    end_request(submit(engine, &c.text.options));
    close_engine(engine);
    media_item_release(c.span.item);
    TEST_MSG(fake_steps() == 1, "%d steps", fake_steps());
}

int main(void) {
    test_slow(false, 12);
    test_slow(true, 12);
    test_slow(false, 0); /* images from the first step on */
    test_slow(true, 0);
    test_fast();
    test_alone();
    return test_done();
}
