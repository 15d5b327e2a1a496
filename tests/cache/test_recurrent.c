/* Recurrent states as page groups: every cut, acceptance, truncation, fork, preemption, prefix and file continues with
 * the bits of a run that had nothing of it. */
#include "cache/recurrent.h"

#include <unistd.h>

enum { TEXT = 200, ROUNDS = 10000, SLOTS = 5, LOOKAHEAD = 2 };

static Recurrent x, y;

static size_t plenty(const KvPlan *plan) { return 20 * kv_bytes_for(plan, NULL, R_CONTEXT); }

/* Every size of steps; what is held never exceeds kv_bytes_for(). */
static void test_cuts(int rewind) {
    KvPlan plan = r_plan(rewind);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    for (int rows = 1; rows <= R_STEP_MAX; rows++) {
        r_open(cache, &x, 1);
        while (x.s.length < 600) {
            Error error;
            TEST(kv_reserve(cache, &x.s, rows, &error));
            const size_t most = kv_bytes_for(&plan, NULL, x.s.length + rows);
            TEST_MSG(kv_bytes_used(cache) <= most, "%zu of %zu", kv_bytes_used(cache), most);
            r_append(cache, &x, rows);
        }
        r_close(cache, &x);
        TEST(kv_bytes_used(cache) == 0);
    }
    kv_close(cache);
    kv_plan_free(&plan);
}

/* Pages inside a long step are not stored: two sets of pages are enough, however long the text. */
static void test_bytes(void) {
    KvPlan plan = r_plan(0), wide = r_plan(R_TOKENS);
    const size_t state = plan.group[1].page_bytes, attention = kv_bytes_for(&plan, NULL, 1) - state;
    TEST(kv_bytes_for(&plan, NULL, R_TOKENS) == attention + state);
    TEST(kv_bytes_for(&plan, NULL, R_TOKENS + 1) == attention + 2 * state);
    TEST(kv_bytes_for(&wide, NULL, R_CONTEXT) - kv_bytes_for(&plan, NULL, R_CONTEXT) == 2 * state);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    r_open(cache, &x, 1);
    r_append(cache, &x, R_STEP_MAX);
    int held = 0;
    for (int page = 0; page <= R_STEP_MAX / R_TOKENS; page++) held += x.s.tables[1][page] >= 0;
    TEST(held == 1);
    KvUse use = {0};
    kv_sequence_use(cache, &x.s, &use);
    TEST(use.pages[KV_FULL] == 3 + 3 + 1);
    r_close(cache, &x);
    kv_close(cache);
    kv_plan_free(&plan);
    kv_plan_free(&wide);
}

/* Steps of which only some rows are accepted, as of a draft; the text then goes on otherwise. */
static void test_acceptance(int rewind) {
    KvPlan plan = r_plan(rewind);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    for (int length = 1; length <= 2 * R_TOKENS + 1; length++)
        for (int rows = 1; rows <= R_TOKENS; rows += rows < 8 ? 1 : 7)
            for (int accepted = 0; accepted <= rows; accepted += rows < 8 ? 1 : 9) {
                r_open(cache, &x, 1);
                r_append(cache, &x, length);
                TEST(r_step(cache, &x, rows, accepted));
                r_set_text(&x, x.s.length, 2);
                r_append(cache, &x, R_TOKENS + 3);
                r_close(cache, &x);
            }
    kv_close(cache);
    kv_plan_free(&plan);
}

/* A step is submitted before the one before it has ended; its token may turn out to be another. */
static void test_lookahead(void) {
    KvPlan plan = r_plan(0);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    r_open(cache, &x, 1);
    r_append(cache, &x, 3);
    while (x.s.length + LOOKAHEAD < 500) {
        TEST(kv_reserve(cache, &x.s, LOOKAHEAD, NULL));
        for (int ahead = 0; ahead < LOOKAHEAD; ahead++) {
            SequenceChunk chunk = {.rows = 1};
            kv_run(&x.s, &chunk);
            chunk.position += ahead;
            TEST(r_compute(cache, &x, &chunk) == 0);
        }
        kv_advance(cache, &x.s, 1); /* the second token is computed again or replaced */
        if (x.s.length % 3 == 0) r_set_text(&x, x.s.length, (uint64_t)x.s.length);
    }
    r_close(cache, &x);
    kv_close(cache);
    kv_plan_free(&plan);
}

/* Back by 0 to 63 tokens from every length: always with `rewind`, without it only within a page. */
static void test_truncate(int rewind) {
    KvPlan plan = r_plan(rewind);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    for (int length = 1; length <= TEXT; length++)
        for (int back = 0; back < R_TOKENS && back <= length; back++) {
            const int to = length - back;
            const bool same_page = to == 0 || (to - 1) / R_TOKENS == (length - 1) / R_TOKENS;
            r_open(cache, &x, 1);
            r_append(cache, &x, length / 2 + 1);
            if (length > length / 2 + 1) r_append(cache, &x, length - length / 2 - 1);
            const bool ok = kv_truncate(cache, &x.s, x.s.length < to ? x.s.length : to);
            TEST_MSG(ok || (rewind == 0 && !same_page), "%d to %d", length, to);
            TEST_MSG(rewind > 0 || ok == same_page || length < 2, "%d to %d", length, to);
            TEST(ok || x.s.length == length);
            if (ok) r_set_text(&x, x.s.length, 3);
            r_append(cache, &x, R_TOKENS + 1);
            r_close(cache, &x);
        }
    /* Further back than is kept: refused, and nothing has changed; to the beginning: always. */
    r_open(cache, &x, 1);
    for (int i = 0; i < 3; i++) r_append(cache, &x, R_TOKENS);
    TEST(!kv_truncate(cache, &x.s, R_TOKENS - 1) && x.s.length == 3 * R_TOKENS);
    r_append(cache, &x, 5);
    TEST(kv_truncate(cache, &x.s, 0));
    r_append(cache, &x, R_TOKENS);
    r_close(cache, &x);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    kv_plan_free(&plan);
}

/* Forks share pages until either goes on; both then continue with texts of their own. */
static void test_fork(void) {
    KvPlan plan = r_plan(0);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    for (int length = 1; length <= TEXT; length++)
        for (int rows = 1; rows <= 130; rows += 43) {
            r_open(cache, &x, 1);
            r_open(cache, &y, 1);
            r_append(cache, &x, length);
            const size_t used = kv_bytes_used(cache);
            kv_fork(cache, &x.s, &y.s);
            TEST(kv_bytes_used(cache) == used);
            r_set_text(&y, length, 9);
            r_append(cache, &y, rows);
            r_append(cache, &x, 1);
            r_append(cache, &y, rows);
            r_append(cache, &x, rows);
            r_close(cache, &x);
            r_close(cache, &y);
            TEST(kv_bytes_used(cache) == 0);
        }
    kv_close(cache);
    kv_plan_free(&plan);
}

/* What a sequence of this text begins with; it then goes on to the text's end. */
static int resumed(PrefixCache *prefix, KvCache *cache, Recurrent *z, int count) {
    KvSequence fresh;
    TEST(kv_sequence_open(cache, NULL, &fresh, NULL));
    z->s = fresh;
    const int length = prefix_find(prefix, 0, z->text, count, &z->s);
    r_append(cache, z, 150);
    kv_sequence_close(cache, &z->s);
    return length;
}

static int first_window_page(int length) { return (length < R_WINDOW ? 0 : length - R_WINDOW + 1) / KV_PAGE_TOKENS; }

/* Preempted at every length and resumed: the whole of it is there, and each beginning within the last page of the
 * state. A text that parts from it earlier begins where it was published before. */
static void test_prefix(void) {
    KvPlan plan = r_plan(0);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    for (int length = 1; length <= 3 * KV_PAGE_TOKENS + 2; length++) {
        PrefixCache *prefix = prefix_open(cache, NULL);
        r_open(cache, &x, 1);
        r_append(cache, &x, length);
        TEST(prefix_forgets(prefix, &x.s));
        prefix_insert(prefix, 0, x.text, &x.s);
        kv_sequence_close(cache, &x.s);
        TEST_MSG(resumed(prefix, cache, &x, R_CONTEXT) == length, "%d", length);
        for (int back = 1; back < R_TOKENS; back += 5) {
            const int to = length - back;
            if (to <= 0) break;
            const bool same_page = (to - 1) / R_TOKENS == (length - 1) / R_TOKENS;
            const bool same_window = first_window_page(to) == first_window_page(length);
            const bool there = same_page && same_window;
            const int found = resumed(prefix, cache, &x, to);
            TEST_MSG(there ? found == to : found == 0 || found < to, "%d of %d: %d", to, length, found);
        }
        prefix_close(prefix);
        TEST(kv_bytes_used(cache) == 0);
    }
    kv_close(cache);
    kv_plan_free(&plan);
}

/* Published on the way at borders of the state's pages, then at the end: each of them can be continued, also by a text
 * that parts between them. */
static void test_prefix_borders(void) {
    enum { END = 5 * R_TOKENS };
    KvPlan plan = r_plan(0);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    PrefixCache *prefix = prefix_open(cache, NULL);
    r_open(cache, &x, 1);
    for (int length = R_TOKENS; length <= END; length += R_TOKENS) {
        r_append(cache, &x, R_TOKENS);
        prefix_insert(prefix, 0, x.text, &x.s);
    }
    kv_sequence_close(cache, &x.s);
    for (int length = R_TOKENS; length <= END; length += R_TOKENS)
        TEST_MSG(resumed(prefix, cache, &x, length) == length, "%d", length);
    for (int parting = 1; parting <= END; parting++) {
        r_open(cache, &y, 1);
        kv_sequence_close(cache, &y.s);
        r_set_text(&y, parting, 5);
        const int found = resumed(prefix, cache, &y, R_CONTEXT), border = parting / R_TOKENS * R_TOKENS;
        TEST_MSG(found >= border && found <= parting, "parts at %d: %d", parting, found);
    }
    /* Full-precision pages without a window are found in any case, states only where they were kept. */
    TEST(prefix_common(prefix, 0, x.text, END, &x.s) == END);
    prefix_close(prefix);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    kv_plan_free(&plan);
}

/* Published at the first row of each page of the state: the tree has the anchor and this row alone, in memory of its
 * own, and texts that part later go on from there. */
static void test_snapshots(void) {
    enum { END = 5 * R_TOKENS + 1 };
    KvPlan plan = r_plan(0);
    KvCache *cache = kv_open(&plan, plenty(&plan), NULL);
    PrefixCache *prefix = prefix_open(cache, NULL);
    TEST(plan.group[1].snapshot_bytes == 64 && plan.group[0].snapshot_bytes == 0);
    r_open(cache, &x, 1);
    for (int again = 0; again < 2; again++)
        for (int length = R_TOKENS + 1; length <= END; length += R_TOKENS) {
            if (length > x.s.length) r_append(cache, &x, length - x.s.length);
            if (length == x.s.length) prefix_insert(prefix, 0, x.text, &x.s);
            const size_t count = (size_t)(x.s.length / R_TOKENS), held = prefix_stats(prefix).state_bytes;
            TEST_MSG(held == count * plan.group[1].snapshot_bytes, "%zu bytes for %zu snapshots", held, count);
        }
    kv_sequence_close(cache, &x.s);
    for (int length = R_TOKENS + 1; length <= END; length++) {
        const int border = (length - 1) / R_TOKENS * R_TOKENS + 1;
        TEST(resumed(prefix, cache, &x, length) == border);
        r_open(cache, &y, 1);
        kv_sequence_close(cache, &y.s);
        r_set_text(&y, length, 5);
        TEST(resumed(prefix, cache, &y, R_CONTEXT) == border);
    }
    /* A further row takes the whole page. */
    r_open(cache, &y, 1);
    TEST(prefix_find(prefix, 0, y.text, END, &y.s) == END);
    r_append(cache, &y, 3);
    prefix_insert(prefix, 0, y.text, &y.s);
    TEST(prefix_stats(prefix).state_bytes == 4 * plan.group[1].snapshot_bytes + plan.group[1].page_bytes);
    r_close(cache, &y);
    for (int length = END; length <= END + 3; length++) TEST(resumed(prefix, cache, &y, length) == length);
    prefix_close(prefix);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    kv_plan_free(&plan);
}

/* Another sequence leaves room for nothing, for a snapshot, for a page too, …: what is found is right, and a page that
 * cannot be taken is none. */
static void test_snapshots_without_room(void) {
    enum { LENGTH = 3 * R_TOKENS + 1 };
    KvPlan plan = r_plan(0);
    int found_some = 0, found_none = 0;
    const size_t most = kv_bytes_for(&plan, NULL, LENGTH) + plan.group[1].page_bytes;
    for (size_t room = 0; room < most; room += plan.group[1].snapshot_bytes) {
        KvCache *cache = kv_open(&plan, kv_bytes_for(&plan, NULL, R_CONTEXT) + room, NULL);
        PrefixCache *prefix = prefix_open(cache, NULL);
        r_open(cache, &x, 1);
        r_append(cache, &x, LENGTH);
        r_open(cache, &y, 7);
        while (y.s.length < R_CONTEXT && r_step(cache, &y, 1, 1)) continue;
        prefix_insert(prefix, 0, x.text, &x.s);
        r_close(cache, &x);
        while (y.s.length < R_CONTEXT && r_step(cache, &y, 1, 1)) continue;
        r_open(cache, &x, 1);
        const int found = prefix_find(prefix, 0, x.text, R_CONTEXT, &x.s);
        TEST_MSG(found == 0 || found == LENGTH, "%d", found);
        found_some += found > 0;
        found_none += found == 0;
        while (x.s.length < LENGTH + 20 && r_step(cache, &x, 1, 1)) continue;
        r_close(cache, &x);
        r_close(cache, &y);
        prefix_close(prefix);
        TEST(kv_bytes_used(cache) == 0);
        kv_close(cache);
    }
    TEST_MSG(found_some > 0 && found_none > 0, "%d, %d", found_some, found_none);
    kv_plan_free(&plan);
}

/* Sequences that live, fork, go back, are preempted and found again, in a pool that is too small for all. */
static void test_random_life(int rewind) {
    static Recurrent slots[SLOTS];
    KvPlan plan = r_plan(rewind);
    KvCache *cache = kv_open(&plan, 3 * kv_bytes_for(&plan, NULL, R_CONTEXT), NULL);
    PrefixCache *prefix = prefix_open(cache, NULL);
    uint64_t random = 1;
    int refused = 0, found = 0, back = 0;
    for (int round = 0; round < ROUNDS; round++) {
        Recurrent *a = &slots[test_random(&random) % SLOTS], *b = &slots[test_random(&random) % SLOTS];
        const uint64_t what = test_random(&random) % 16;
        const int length = a->s.length;
        if (!a->open) {
            r_open(cache, a, 1 + test_random(&random) % 3);
            r_set_text(a, (int)(test_random(&random) % R_CONTEXT), test_random(&random) % 4);
            found += prefix_find(prefix, 0, a->text, R_CONTEXT - 1, &a->s) > 0;
        } else if (what < 9) {
            const int rows = 1 + (int)(test_random(&random) % (what < 5 ? 20 : R_STEP_MAX));
            if (length + rows > R_CONTEXT || !r_step(cache, a, rows, rows)) {
                refused += length + rows <= R_CONTEXT;
                prefix_insert(prefix, 0, a->text, &a->s);
                r_close(cache, a);
            }
        } else if (what < 11 && !b->open) {
            memcpy(b->text, a->text, sizeof a->text);
            memcpy(b->state, a->state, sizeof a->state);
            TEST(kv_sequence_open(cache, NULL, &b->s, NULL));
            kv_fork(cache, &a->s, &b->s);
            b->open = true;
            r_set_text(b, b->s.length, test_random(&random) % 4);
        } else if (what < 13 && length > 0) {
            const int to = length - (int)(test_random(&random) % (uint64_t)(length < 80 ? length : 80));
            const bool ok = kv_truncate(cache, &a->s, to);
            if (ok) r_set_text(a, to, test_random(&random) % 4);
            back += ok;
        } else if (what < 15) {
            const int more = (R_TOKENS + 1 - length % R_TOKENS) % R_TOKENS; /* to a first row, which is a snapshot */
            if (what == 14 && more > 0 && length + more <= R_CONTEXT) (void)r_step(cache, a, more, more);
            prefix_insert(prefix, 0, a->text, &a->s);
        } else {
            r_close(cache, a);
        }
    }
    TEST_MSG(refused > 5 && found > 20 && back > 50, "%d refused, %d found, %d back", refused, found, back);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].open) r_close(cache, &slots[i]);
    prefix_close(prefix);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    kv_plan_free(&plan);
}

/* ---- disk ---- */

static const KvFormat full = {.k = KV_FULL};

static DiskTier *open_tier(const char *directory, KvCache *cache) {
    Error error = {0};
    const DiskTierOptions options = {.directory = directory, .bytes = 64 << 20, .identity = {"fake", 4}};
    DiskTier *tier = disk_tier_open(&options, cache, &error);
    TEST_MSG(tier, "%s", error.text);
    return tier;
}

/* Writes a text in steps of `rows`, its state at the multiples of `every`. */
static void write_text(const char *directory, const KvPlan *plan, int rows, int every) {
    KvCache *cache = kv_open(plan, plenty(plan), NULL);
    DiskTier *tier = open_tier(directory, cache);
    r_open(cache, &x, 1);
    while (x.s.length + rows <= 900) {
        TEST(kv_reserve(cache, &x.s, rows, NULL));
        SequenceChunk chunk = {.rows = rows};
        kv_run(&x.s, &chunk);
        TEST(r_compute(cache, &x, &chunk) == 0);
        const int first = disk_tier_position(&x.s);
        const SequenceText text = {.format = &full, .first = first, .ids = x.text + first};
        disk_tier_put(tier, &text, &x.s, x.s.length + rows);
        kv_advance(cache, &x.s, rows);
        if (x.s.length % every == 0) disk_tier_put_state(tier, &text, &x.s);
    }
    r_close(cache, &x);
    disk_tier_close(tier);
    kv_close(cache);
}

/* What another process finds of the text, which parts from what was written behind `same` tokens, in a pool of so many
 * bytes, after a beginning that it has computed itself. It then goes on. */
static int read_text(const char *directory, const KvPlan *plan, size_t bytes, int begun, int same) {
    KvCache *cache = kv_open(plan, bytes, NULL);
    DiskTier *tier = open_tier(directory, cache);
    r_open(cache, &x, 1);
    r_set_text(&x, same, 2);
    if (begun) r_append(cache, &x, begun);
    SequenceText text = {.format = &full, .ids = x.text};
    int calls = 0;
    while (disk_tier_find(tier, &text, R_CONTEXT, 0, &x.s)) { /* no time: one page after the other, then the state */
        calls = x.s.length ? calls + 1 : 0;                   /* again from the beginning, where a record was lost */
        TEST(x.s.length == disk_tier_position(&x.s) && x.s.length <= x.s.restoring);
    }
    const int found = x.s.length;
    TEST(x.s.restoring == 0);
    if (bytes == plenty(plan)) TEST_MSG(calls <= found / KV_PAGE_TOKENS, "%d calls for %d tokens", calls, found);
    if (bytes == plenty(plan)) r_append(cache, &x, R_CONTEXT - 900);
    r_close(cache, &x);
    disk_tier_close(tier);
    kv_close(cache);
    return found;
}

static void test_disk(int rows, int every) {
    char directory[] = "/tmp/apus-recurrent-XXXXXX", command[64];
    TEST(mkdtemp(directory));
    KvPlan plan = r_plan(0);
    const int last = 900 / rows * rows / every * every;
    write_text(directory, &plan, rows, every);
    for (int begun = 0; begun <= 300; begun += 100) {
        const int found = read_text(directory, &plan, plenty(&plan), begun, R_CONTEXT);
        const int wanted = last > begun ? last : begun;
        TEST_MSG(found == wanted, "steps of %d, states each %d, %d begun: %d of %d", rows, every, begun, found, wanted);
    }
    /* A text that parts from it goes on from the last state before that, within a page or at its end. */
    for (int same = 1; same < last; same += 37) {
        const int found = read_text(directory, &plan, plenty(&plan), 0, same);
        TEST_MSG(found == same / every * every, "states each %d, %d alike: %d", every, same, found);
    }
    /* Pages that have no state behind them are not used. */
    const int small = read_text(directory, &plan, kv_bytes_for(&plan, NULL, 500), 0, R_CONTEXT);
    TEST_MSG(small % every == 0 && small < 900, "%d", small);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    TEST(system(command) == 0);
    kv_plan_free(&plan);
}

/* Every record that is written is damaged in turn: what is found ends with an earlier state, or is nothing. */
static void test_disk_damage(void) {
    enum { ROWS = 50, EVERY = 150, LAST = 900 };
    char directory[] = "/tmp/apus-recurrent-XXXXXX", command[192];
    TEST(mkdtemp(directory));
    KvPlan plan = r_plan(0);
    write_text(directory, &plan, ROWS, EVERY);
    long bytes = 0;
    snprintf(command, sizeof command, "cat %s/*/pages-00000001 | wc -c", directory);
    FILE *size = popen(command, "r");
    TEST(size && fscanf(size, "%ld", &bytes) == 1 && bytes > 0);
    if (size) pclose(size);
    int fewer = 0;
    for (long at = SPILL_HEAD_BYTES + 8; at < bytes; at += 997) {
        snprintf(command, sizeof command,
            "cp -r %s %s-2 && for f in %s-2/*/pages-00000001; do printf x | dd of=$f bs=1 seek=%ld conv=notrunc "
            "2>/dev/null; done",
            directory, directory, directory, at);
        TEST(system(command) == 0);
        snprintf(command, sizeof command, "%s-2", directory);
        const int found = read_text(command, &plan, plenty(&plan), 0, R_CONTEXT);
        TEST_MSG(found % EVERY == 0 && found <= LAST, "byte %ld: %d", at, found);
        fewer += found < LAST;
        snprintf(command, sizeof command, "rm -rf %s-2", directory);
        TEST(system(command) == 0);
    }
    TEST_MSG(fewer > 0, "no damage was noticed");
    snprintf(command, sizeof command, "rm -rf %s", directory);
    TEST(system(command) == 0);
    kv_plan_free(&plan);
}

int main(void) {
    fake_token_bytes = R_ATTENTION_BYTES;
    test_bytes();
    for (int rewind = 0; rewind <= R_TOKENS; rewind += R_TOKENS) {
        test_cuts(rewind);
        test_acceptance(rewind);
        test_truncate(rewind);
        test_random_life(rewind);
    }
    test_lookahead();
    test_fork();
    test_prefix();
    test_prefix_borders();
    test_snapshots();
    test_snapshots_without_room();
    test_disk(64, KV_PAGE_TOKENS);
    test_disk(64, 3 * KV_PAGE_TOKENS);
    test_disk(300, 300 * 4);
    test_disk(1, 2 * KV_PAGE_TOKENS);
    test_disk(1, 33);
    test_disk(50, 150);
    test_disk(1, 895);
    test_disk_damage();
    return test_done();
}
