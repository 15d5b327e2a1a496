#include "test.h"

#include <stdarg.h>

int test_passed, test_failed, test_skipped;

void test_skip(const char *format, ...) {
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

void test_skip_backend(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "neon")) return;
#else
    if (!strcmp(name, "avx2") || !strcmp(name, "avx512") || !strcmp(name, "amx")) return;
#endif
    test_skip("backend %s: not on this machine", name);
}

int test_done(void) {
    printf("%d passed, %d failed", test_passed, test_failed);
    if (test_skipped) printf(", %d skipped", test_skipped);
    printf("\n");
    return test_failed || !test_passed;
}

int test_skip_all(const char *reason) {
    printf("skipped: %s\n", reason);
    return 77;
}
