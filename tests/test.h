/* The whole test framework: checks that count and go on, a seeded generator, and one closing line.
 * A test program: int main(void) { …; return test_done(); } */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What a sanitizer proves is memory and threads, and it takes ten to fifty times as long: tests that compare numbers of
 * every cut, every kind and every count take a sample of them there, which still goes through all code. The whole set
 * runs without. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static int test_passed, test_failed;

#define TEST(condition)                                                                                                \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            test_passed++;                                                                                             \
        } else {                                                                                                       \
            test_failed++;                                                                                             \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                                    \
        }                                                                                                              \
    } while (0)
/* With a message that shows the values. */
#define TEST_MSG(condition, ...)                                                                                       \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            test_passed++;                                                                                             \
        } else {                                                                                                       \
            test_failed++;                                                                                             \
            fprintf(stderr, "%s:%d: failed: %s: ", __FILE__, __LINE__, #condition);                                    \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
        }                                                                                                              \
    } while (0)

static inline uint64_t test_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline float test_uniform(uint64_t *state) { /* [-1, 1) */
    return (float)((double)(test_random(state) >> 11) * 0x1p-52 - 1.0);
}
static inline int test_done(void) {
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed || !test_passed;
}
