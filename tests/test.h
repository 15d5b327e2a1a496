/* The whole test framework: checks that count and go on, a seeded generator, and one closing line.
 * A test program: int main(void) { …; return test_done(); } */
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sanitizer proves memory and threads at ten to fifty times the cost: tests that compare numbers for every cut, kind
 * and count take a sample of them under one. The sample still goes through all code. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif
/* Whether to take that sample: under a sanitizer, and where APUS_TEST_SAMPLE is set, as ./test.sh does;
 * ./test.sh long and a program started by hand take the whole. */
static inline bool test_sampled(void) { return SANITIZED || getenv("APUS_TEST_SAMPLE"); }

static int test_passed, test_failed, test_skipped;

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
/* A part that this machine or this build cannot run. Each reason is printed and counted once; ./test.sh compares the
 * lines with tests/expected_skips. */
static inline void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline void test_skip(const char *format, ...) {
    static char reasons[16][128];
    char reason[sizeof *reasons];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    const int known = test_skipped < 16 ? test_skipped : 16;
    for (int i = 0; i < known; i++)
        if (!strcmp(reasons[i], reason)) return;
    if (test_skipped < 16) snprintf(reasons[test_skipped], sizeof *reasons, "%s", reason);
    test_skipped++;
    printf("skipped: %s\n", reason);
}
/* The same for a backend, unless it belongs to another architecture: tests/aarch64.sh and builds there run it. */
static inline void test_skip_backend(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "neon")) return;
#else
    if (!strcmp(name, "avx2") || !strcmp(name, "avx512") || !strcmp(name, "amx")) return;
#endif
    test_skip("backend %s: not on this machine", name);
}
static inline int test_done(void) {
    printf("%d passed, %d failed", test_passed, test_failed);
    if (test_skipped) printf(", %d skipped", test_skipped);
    printf("\n");
    return test_failed || !test_passed;
}
/* The program's exit code where nothing of it can run, with the reason. */
static inline int test_skip_all(const char *reason) {
    printf("skipped: %s\n", reason);
    return 77;
}
