/* Prefixes and suffixes among texts, by sorting. */
#include <stdlib.h>
#include <string.h>

#include "import/gguf/internal.h"

typedef struct Entry {
    Slice text;
    uint32_t index, in; /* in: an entry */
} Entry;

static int entry_order(const void *a, const void *b) {
    const Slice x = ((const Entry *)a)->text, y = ((const Entry *)b)->text;
    const int order = memcmp(x.data, y.data, x.size < y.size ? x.size : y.size);
    return order ? order : (x.size > y.size) - (x.size < y.size);
}

/* In sorted order the prefixes of a text precede it, with only texts of the same prefix between. */
static void nest(Entry *entries, uint32_t count) {
    if (count) qsort(entries, count, sizeof *entries, entry_order);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i ? i - 1 : GGUF_NESTS_IN_NONE;
        while (at != GGUF_NESTS_IN_NONE && !slice_starts(entries[i].text, entries[at].text)) at = entries[at].in;
        entries[i].in = at;
    }
}

static Slice turned(Slice text, char *to) {
    for (size_t i = 0; i < text.size; i++) to[i] = text.data[text.size - 1 - i];
    return (Slice){to, text.size};
}

bool gguf_nest(const Slice *texts, uint32_t count, bool ends, uint32_t *out) {
    size_t bytes = 1;
    uint32_t used = 0;
    for (uint32_t i = 0; ends && i < count; i++) bytes += texts[i].size;
    Entry *entries = malloc((count ? count : 1) * sizeof *entries);
    char *room = malloc(bytes), *to = room;
    const bool ok = entries && room;
    for (uint32_t i = 0; ok && i < count; i++) {
        out[i] = GGUF_NESTS_IN_NONE;
        if (texts[i].size == 0) continue;
        entries[used++] = (Entry){.text = ends ? turned(texts[i], to) : texts[i], .index = i};
        to += ends ? texts[i].size : 0;
    }
    if (ok) nest(entries, used);
    for (uint32_t i = 0; i < used; i++)
        if (entries[i].in != GGUF_NESTS_IN_NONE) out[entries[i].index] = entries[entries[i].in].index;
    free(entries);
    free(room);
    return ok;
}
