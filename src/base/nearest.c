#include "base/nearest.h"

#include <string.h>

/* Letters to add, drop or replace to make one of the other; at least NEAR_NONE where that is much. */
enum { NEAR_LETTERS = 31, NEAR_NONE = 4 };
static int letters_apart(const char *a, size_t a_size, const char *b, size_t b_size) {
    if (a_size > NEAR_LETTERS || b_size > NEAR_LETTERS) return NEAR_NONE;
    int row[NEAR_LETTERS + 1];
    for (size_t j = 0; j <= b_size; j++) row[j] = (int)j;
    for (size_t i = 1; i <= a_size; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_size; j++) {
            const int replaced = diagonal + (a[i - 1] != b[j - 1]);
            const int other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replaced < other ? replaced : other;
        }
    }
    return row[b_size];
}

const char *nearest_name(Slice wrong, const char *(*name_at)(const void *names, int i), const void *names) {
    const char *nearest = NULL;
    int least = (int)wrong.size / 2 < NEAR_NONE ? (int)wrong.size / 2 : NEAR_NONE; /* half of it has to be right */
    for (int i = 0; name_at(names, i); i++) {
        const char *name = name_at(names, i);
        const size_t size = strlen(name);
        const int apart = size > wrong.size && !strncmp(name, wrong.data, wrong.size)
            ? 1 /* the beginning of a name */
            : letters_apart(wrong.data, wrong.size, name, size);
        if (apart < least) {
            least = apart;
            nearest = name;
        }
    }
    return nearest;
}
