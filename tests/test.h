/* The whole test framework: checks that count and go on, a seeded generator, and one closing line.
 * A test program: int main(void) { …; return test_done(); } */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sanitizer proves memory and threads at ten to fifty times the cost: tests that compare numbers for every cut, kind
 * and count take a sample of them under one. The sample still goes through all code. */
#if defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1, SANITIZED_THREADS = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1, SANITIZED_THREADS = 0 };
#else
enum { SANITIZED = 0, SANITIZED_THREADS = 0 };
#endif
/* Whether to take that sample: under a sanitizer, and where APUS_TEST_SAMPLE is set, as ./test.sh does;
 * ./test.sh long and a program started by hand take the whole. */
static inline bool test_sampled(void) { return SANITIZED || getenv("APUS_TEST_SAMPLE"); }
/* Whether it is ./test.sh that runs the test: a sanitizer's sample is then smaller than that of ./test.sh long. */
static inline bool test_usual(void) { return getenv("APUS_TEST_SAMPLE") != NULL; }
/* Whether tests that go through the backends take this one: APUS_TEST_BACKEND names the only one, as for a device whose
 * machine has run the others already. */
static inline bool test_takes_backend(const char *name) {
    const char *only = getenv("APUS_TEST_BACKEND");
    return !only || !strcmp(only, name);
}

extern int test_passed, test_failed, test_skipped; /* of the program, helpers included (tests/test.c) */

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
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for a backend, unless it belongs to another architecture: tests/aarch64.sh and builds there run it. */
void test_skip_backend(const char *name);
int test_done(void); /* prints the counts; the program's exit code */
/* The program's exit code where nothing of it can run, with the reason. */
int test_skip_all(const char *reason);
