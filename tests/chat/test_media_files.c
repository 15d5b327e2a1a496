/* Files on their way to the encoder: equal ones are decoded once, few at a time, on threads of low priority; what is
 * kept has a limit, and another detail is another file. */
#include "chat/media_files.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/thread.h"
#include "test.h"

#ifdef __linux__
#include <sys/resource.h>
#endif

enum { THREADS = 24, FILES = 6, SIDE = 16 };

static atomic_int made, active, most_active, lowered;
#ifdef __linux__
static int niceness; /* that of this process */
#endif

/* An image of `side` pixels; a side of 0 cannot be decoded. */
static bool make_image(void *context, MediaItem **items, Error *error) {
    const int side = *(const int *)context, now = atomic_fetch_add(&active, 1) + 1;
    for (int most = most_active; most < now && !atomic_compare_exchange_weak(&most_active, &most, now);) continue;
    made++;
#ifdef __linux__
    lowered += getpriority(PRIO_PROCESS, 0) > niceness || getpriority(PRIO_PROCESS, 0) == 19;
#endif
    Image image = {0};
    const ImageLayout layout = {.width = side, .height = side, .patches = 1, .tokens = 1};
    bool ok = side > 0 ? image_alloc(&image, side, side, error) : fail(error, ERROR_FORMAT, "no image");
    if (ok) memset(image.rgb, 0, (size_t)side * (size_t)side * 3);
    if (ok) *items = media_item_new(&image, &layout, error);
    ok = ok && *items;
    active--;
    return ok;
}

static MediaItem *take(MediaFiles *files, int number, int variant, int side) {
    Error error = {0};
    MediaItem *item = NULL;
    const Slice bytes = {(const char *)&number, sizeof number};
    const bool ok = media_files_take(files, bytes, variant, 1, make_image, &side, &item, &error);
    CHECK(ok == (item != NULL) && ok == (error.code == ERROR_NONE));
    return item;
}

typedef struct Taker {
    MediaFiles *files;
    int number;
    MediaItem *item;
} Taker;

static void *take_one(void *context) {
    Taker *taker = context;
    taker->item = take(taker->files, taker->number % FILES, 0, SIDE);
    return NULL;
}

/* Many requests at once with few files. */
static void test_many(void) {
    Error error = {0};
    MediaFiles *files = media_files_open(&error);
    Thread threads[THREADS];
    Taker takers[THREADS];
    made = most_active = lowered = 0;
    for (int i = 0; i < THREADS; i++) {
        takers[i] = (Taker){files, i, NULL};
        CHECK(thread_start(&threads[i], take_one, &takers[i], "taker", &error));
    }
    for (int i = 0; i < THREADS; i++) thread_join(threads[i]);
    TEST_MSG(made >= FILES && made <= FILES * MEDIA_DECODERS_MAX, "%d files decoded", made);
    TEST_MSG(most_active <= MEDIA_DECODERS_MAX, "%d at once", most_active);
#ifdef __linux__
    TEST_MSG(lowered == made, "%d of %d with low priority", lowered, made);
#endif
    /* They are kept: nothing is decoded any more. */
    made = 0;
    MediaItem *again = take(files, 1, 0, SIDE);
    TEST(made == 0 && again &&
        (again == takers[1].item || !memcmp(again->digest, takers[1].item->digest, SHA256_BYTES)));
    media_item_release(again);
    for (int i = 0; i < THREADS; i++) media_item_release(takers[i].item);
    media_files_close(files);
}

static void test_kept(void) {
    Error error = {0};
    MediaFiles *files = media_files_open(&error);
    made = 0;
    MediaItem *one = take(files, 1, 0, SIDE), *same = take(files, 1, 0, SIDE), *low = take(files, 1, 1, SIDE / 2);
    TEST(made == 2 && one == same && low != one && low->image.width == SIDE / 2);
    TEST(media_item_bytes(one) == SIDE * SIDE * 3);
    media_item_release(one);
    media_item_release(same);
    media_item_release(low);
    /* A file that cannot be decoded is tried again. */
    made = 0;
    TEST(!take(files, 2, 0, 0) && !take(files, 2, 0, 0) && made == 2);
    /* Two of these fit the limit, not three: the one that was used last stays. */
    enum { LARGE = 3000 };
    _Static_assert(2 * LARGE * LARGE * 3 <= MEDIA_FILES_BYTES && 3 * LARGE * LARGE * 3 > MEDIA_FILES_BYTES, "");
    static const int numbers[] = {10, 11, 10, 12, 10, 11};
    made = 0;
    for (size_t i = 0; i < COUNT_OF(numbers); i++) media_item_release(take(files, numbers[i], 0, LARGE));
    TEST_MSG(made == 4, "%d files decoded", made); /* 10, 11, 12, and 11 again */
    /* An image that is larger than the limit is decoded each time, and takes nothing's place. */
    enum { LARGEST = 5000 };
    made = 0;
    for (int i = 0; i < 2; i++) media_item_release(take(files, 20, 0, LARGEST));
    media_item_release(take(files, 11, 0, LARGE));
    TEST_MSG(made == 2, "%d files decoded", made);
    /* Many small files. */
    made = 0;
    for (int i = 0; i <= MEDIA_FILES_MAX; i++) media_item_release(take(files, 100 + i, 0, 1));
    media_item_release(take(files, 100 + MEDIA_FILES_MAX, 0, 1));
    TEST(made == MEDIA_FILES_MAX + 1);
    media_item_release(take(files, 100, 0, 1));
    TEST(made == MEDIA_FILES_MAX + 2);
    media_files_close(files);
}

int main(void) {
#ifdef __linux__
    niceness = getpriority(PRIO_PROCESS, 0);
#endif
    test_many();
    test_kept();
    media_files_close(NULL);
    return test_done();
}
