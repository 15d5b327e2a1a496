#include "base/part_name.h"

#include <string.h>

enum { DIGITS = 5 };

/* Exactly DIGITS digits; −1: other characters are there. */
static int read_number(const char *at) {
    int number = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (at[i] < '0' || at[i] > '9') return -1;
        number = 10 * number + (at[i] - '0');
    }
    return number;
}

bool part_name_parse(const char *path, PartName *name) {
    static const char pattern[] = "-00000-of-00000.gguf";
    const size_t size = strlen(path), tail = sizeof pattern - 1, of = 1 + DIGITS, end = of + 4 + DIGITS;
    if (size <= tail) return false;
    const char *at = path + size - tail;
    if (at[0] != '-' || memcmp(at + of, "-of-", 4) != 0 || strcmp(at + end, ".gguf") != 0) return false;
    *name = (PartName){size - tail, read_number(at + 1), read_number(at + of + 4)};
    return name->part >= 1 && name->part <= name->count;
}

void part_name_write(Buffer *out, const char *path, const PartName *name, int part) {
    buffer_append(out, path, name->stem);
    buffer_printf(out, "-%05d-of-%05d.gguf", part, name->count);
}

void part_name_first(Buffer *out, const char *path) {
    PartName name;
    if (part_name_parse(path, &name))
        part_name_write(out, path, &name, 1);
    else
        buffer_text(out, path);
}
