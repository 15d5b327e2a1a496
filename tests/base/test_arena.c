/* Arena: alignment, zeroes, limits, reservations. */
#include "base/arena.h"

#include "test.h"

static bool all_zero(const void *data, size_t size) {
    const char *bytes = data;
    for (size_t i = 0; i < size; i++) {
        if (bytes[i]) return false;
    }
    return true;
}

static void test_blocks(void) {
    Arena arena = {0};
    uint64_t seed = 1;
    unsigned char *block[300];
    size_t size[300];
    for (int i = 0; i < 300; i++) {
        size[i] = test_random(&seed) % (i % 50 == 49 ? 300000 : 200);
        block[i] = arena_alloc(&arena, size[i], 1);
        TEST(block[i] && (uintptr_t)block[i] % (size[i] >= 64 ? 64 : 16) == 0);
        TEST(all_zero(block[i], size[i]));
        memset(block[i], i, size[i]);
    }
    for (int i = 0; i < 300; i++) { /* nothing overlaps */
        bool own = true;
        for (size_t j = 0; j < size[i]; j++) own = own && block[i][j] == (unsigned char)i;
        TEST(own);
    }
    arena_free(&arena);
    TEST(arena.used == 0 && arena.chunk == NULL);
    TEST(arena_alloc(&arena, 0, 8) != NULL);
    arena_free(&arena);
}

static void test_limits(void) {
    Arena arena = {.limit = 1000};
    TEST(arena_alloc(&arena, SIZE_MAX, 2) == NULL);
    TEST(arena_alloc(&arena, SIZE_MAX, 1) == NULL);
    TEST(arena_alloc(&arena, 600, 1) != NULL);
    TEST(arena_alloc(&arena, 401, 1) == NULL);
    TEST(arena_alloc(&arena, 400, 1) != NULL);
    TEST(arena_alloc(&arena, 1, 1) == NULL);
    TEST(arena.used == 1000);
    arena_free(&arena);
    TEST(arena.limit == 1000 && arena_alloc(&arena, 1000, 1) != NULL);
    TEST(!arena_alloc(&arena, 1, 1) && arena_failure(&arena) == ERROR_LIMIT);
    TEST(!arena_alloc(&arena, SIZE_MAX, SIZE_MAX) && arena_failure(&arena) == ERROR_LIMIT);
    Arena open = {0};
    TEST(!arena_alloc(&open, SIZE_MAX, SIZE_MAX) && arena_failure(&open) == ERROR_MEMORY);
#ifndef __SANITIZE_ADDRESS__ /* which ends the program over it */
    TEST(!arena_alloc(&open, SIZE_MAX / 4, 1) && arena_failure(&open) == ERROR_MEMORY);
#endif
    arena_free(&arena);
}

static void test_text(void) {
    Arena arena = {0};
    char *copy = arena_copy(&arena, (Slice){"abcdef", 3});
    TEST(copy && strcmp(copy, "abc") == 0);
    char *empty = arena_copy(&arena, (Slice){NULL, 0});
    TEST(empty && *empty == '\0');
    char *printed = arena_printf(&arena, "%d-%s", 7, "seven");
    TEST(printed && strcmp(printed, "7-seven") == 0);
    arena_free(&arena);
}

static void test_reserve(void) {
    static const size_t sizes[] = {100, 5000, 1 << 20, (size_t)1 << 34}; /* the last is more than a small machine has */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        Arena arena = {.limit = 100000};
        TEST(arena_alloc(&arena, 10, 1) != NULL);
        char *reserved = arena_reserve(&arena, sizes[i]);
        TEST(reserved != NULL);
        if (!reserved) continue;
        memset(reserved, 1, 50);
        TEST(arena_keep(&arena, reserved, 50));
        TEST(arena.used == 60);
        char *next = arena_alloc(&arena, 30, 1); /* behind what was kept, and zero */
        TEST(next && (next >= reserved + 50 || next + 30 <= reserved));
        TEST(next && all_zero(next, 30));
        TEST(reserved[0] == 1 && reserved[49] == 1);
        arena_free(&arena);
    }
}

static void test_reserve_nothing(void) {
    Arena arena = {.limit = 1000};
    for (int i = 0; i < 2; i++) {
        size_t size = i ? 1 << 20 : 2000;
        char *reserved = arena_reserve(&arena, size);
        TEST(reserved != NULL);
        if (reserved) TEST(!arena_keep(&arena, reserved, 1001));
        TEST(arena.used == 0);
        reserved = arena_reserve(&arena, size);
        if (reserved) TEST(arena_keep(&arena, reserved, 0));
        TEST(arena.used == 0);
    }
    TEST(arena_alloc(&arena, 1000, 1) != NULL);
    arena_free(&arena);
}

int main(void) {
    test_blocks();
    test_limits();
    test_text();
    test_reserve();
    test_reserve_nothing();
    return test_done();
}
