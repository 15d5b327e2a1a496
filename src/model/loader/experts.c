/* The part of the Loader that fetches the matrices of an MoE block's experts, which lie in one tensor or each in its
 * own.
 */
#include <stdio.h>

#include "model/loader/internal.h"

void loader_stack(Loader *ld, const char *name, int count, int64_t rows, int64_t cols, bool bias, Weight *out) {
    ld->stack = count;
    const Weight all = load_linear(ld, name, count * rows, cols, bias);
    ld->stack = 0;
    for (int i = 0; !ld->failed && i < count; i++) out[i] = weight_rows(&all, i * rows, rows);
}

static void load_each(Loader *ld, const char *single, int count, int64_t rows, int64_t cols, bool bias, Weight *out) {
    for (int e = 0; e < count; e++) {
        char format[PART_SIZE];
        const char *place = strstr(single, "%d");
        CHECK(place);
        snprintf(format, sizeof format, "%.*s%d%s", (int)(place - single), single, e, place + 2);
        out[e] = load_linear(ld, format, rows, cols, bias);
    }
}

static void load_singles(Loader *ld, const char *stacked, const char *single, int experts, int64_t rows, int64_t cols,
    bool bias, Weight *out) {
    const int first = loader_record_count(ld);
    char full[NAME_SIZE];
    load_each(ld, single, experts, rows, cols, bias, out);
    loader_full_name(ld, full, stacked, "");
    loader_record_stack(ld, first, full);
}

Weight *load_experts(Loader *ld, const char *stacked, const char *single, int experts, int extra, int64_t rows,
    int64_t cols, bool bias) {
    load_require(ld, experts <= EXPERTS_MAX, "%d experts, at most %d can be", experts, EXPERTS_MAX);
    Weight *out = loader_alloc(ld, (size_t)experts + (size_t)extra, sizeof *out);
    char name[PART_SIZE];
    if (!out) return NULL;
    snprintf(name, sizeof name, "%s.weight", stacked);
    ld->experts = true;
    if (!single || load_has(ld, name))
        loader_stack(ld, stacked, experts, rows, cols, bias, out);
    else
        load_singles(ld, stacked, single, experts, rows, cols, bias, out);
    ld->experts = false;
    return out;
}

Weight *load_numbered(Loader *ld, const char *single, int count, int64_t rows, int64_t cols) {
    Weight *out = loader_alloc(ld, (size_t)count, sizeof *out);
    if (out) load_each(ld, single, count, rows, cols, false, out);
    return out;
}

Weight *load_split(Loader *ld, const Weight *all, int count) {
    Weight *out = loader_alloc(ld, (size_t)count, sizeof *out);
    for (int e = 0; out && e < count; e++) out[e] = load_part(all, e * (all->rows / count), all->rows / count);
    return out;
}

Weight *load_halves(Loader *ld, Weight *both, int count, int extra) {
    Weight *second = loader_alloc(ld, (size_t)count + (size_t)extra, sizeof *second);
    for (int e = 0; both && second && e < count; e++) {
        second[e] = load_part(&both[e], both[e].rows / 2, both[e].rows / 2);
        both[e] = load_part(&both[e], 0, both[e].rows / 2);
    }
    return second;
}
