/* Lexemes: expressions, each stored once. */
#include "text/grammar/lex.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"

enum { BUCKETS_FIRST = 1024 };

/* --- Storing once ------------------------------------------------------------------------------------------------- */

static uint32_t hash_node(const LexNode *n, const Lex *list, uint32_t count) {
    uint64_t h = n->kind;
    const uint32_t parts[] = {list ? 0 : n->a, list ? 0 : n->b, n->min, n->max};
    for (size_t i = 0; i < COUNT_OF(parts); i++) h = (h ^ parts[i]) * 0x9E3779B97F4A7C15u;
    for (uint32_t i = 0; i < count; i++) h = (h ^ list[i]) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h ^ h >> 32);
}

static const Lex *list_of(const Lexicon *x, const LexNode *n, uint32_t *count) {
    const bool has = n->kind == LEX_IS_OR || n->kind == LEX_IS_AND;
    *count = has ? n->b : 0;
    return has ? x->children.data + n->a : NULL;
}

static bool rehash(Lexicon *x) {
    const uint32_t want = x->bucket_count ? x->bucket_count * 2 : BUCKETS_FIRST;
    uint32_t *buckets = budget_alloc(x->budget, want * sizeof *buckets);
    if (!buckets) return false;
    memset(buckets, 0, want * sizeof *buckets);
    for (Lex i = 1; i < x->count; i++) {
        uint32_t count;
        const Lex *list = list_of(x, &x->nodes[i], &count);
        uint32_t *bucket = &buckets[hash_node(&x->nodes[i], list, count) & (want - 1)];
        x->nodes[i].next = *bucket;
        *bucket = i;
    }
    budget_free(x->budget, x->buckets, x->bucket_count * sizeof *buckets);
    x->buckets = buckets;
    x->bucket_count = want;
    return true;
}

static bool same(const Lexicon *x, const LexNode *a, const LexNode *b, const Lex *list, uint32_t count) {
    if (a->kind != b->kind || a->min != b->min || a->max != b->max) return false;
    if (!list) return a->a == b->a && a->b == b->b;
    return a->b == count && !memcmp(x->children.data + a->a, list, count * sizeof *list);
}

static bool add_children(Lexicon *x, LexNode *n, const Lex *list, uint32_t count) {
    LexList *c = &x->children;
    c->data = budget_grow(x->budget, c->data, &c->capacity, (uint64_t)c->count + count, sizeof *c->data);
    if (x->budget->failed) return false;
    n->a = c->count;
    n->b = count;
    memcpy(c->data + c->count, list, count * sizeof *list);
    c->count += count;
    return true;
}

/* list: of OR and AND, not within x->children. */
static Lex intern(Lexicon *x, LexNode n, const Lex *list, uint32_t count) {
    if (!budget_step(x->budget, 1)) return LEX_NONE;
    if (x->count >= x->bucket_count && !rehash(x)) return LEX_NONE;
    const uint32_t hash = hash_node(&n, list, count);
    for (Lex i = x->buckets[hash & (x->bucket_count - 1)]; i; i = x->nodes[i].next)
        if (same(x, &x->nodes[i], &n, list, count)) return i;
    if (n.depth > LEX_DEPTH_MAX) {
        budget_fail(x->budget, ERROR_LIMIT, "an expression is nested too deeply");
        return LEX_NONE;
    }
    x->nodes = budget_grow(x->budget, x->nodes, &x->capacity, (uint64_t)x->count + 1, sizeof *x->nodes);
    if (x->budget->failed || (list && !add_children(x, &n, list, count))) return LEX_NONE;
    for (int i = 0; i < ALPHABET_COUNT; i++) n.behind[i] = LEX_MIXED - 1;
    uint32_t *bucket = &x->buckets[hash & (x->bucket_count - 1)];
    n.next = *bucket;
    *bucket = x->count;
    x->nodes[x->count] = n;
    return x->count++;
}

bool lexicon_open(Lexicon *x, Budget *budget) {
    *x = (Lexicon){.budget = budget};
    x->nodes = budget_grow(budget, NULL, &x->capacity, 1, sizeof *x->nodes);
    if (budget->failed) return false;
    x->nodes[x->count++] = (LexNode){.kind = LEX_IS_NONE};
    const Lex empty = intern(x, (LexNode){.kind = LEX_IS_EMPTY, .nullable = true}, NULL, 0);
    const Lex all = intern(x, (LexNode){.kind = LEX_IS_NOT, .nullable = true, .depth = 1}, NULL, 0);
    return !budget->failed && empty == LEX_EMPTY && all == LEX_ALL;
}

void lexicon_forget_rows(Lexicon *x) {
    for (Lex i = 0; i < x->count; i++) {
        LexNode *n = &x->nodes[i];
        if (n->row) budget_free(x->budget, n->row, 256 * sizeof *n->row);
        n->row = NULL;
        n->filtered = false;
    }
}

void lexicon_close(Lexicon *x) {
    for (Lex i = 0; i < x->count; i++) free(x->nodes[i].row);
    free(x->nodes);
    free(x->sets);
    free(x->children.data);
    free(x->buckets);
    free(x->work.data);
    free(x->queue.data);
}

void lex_push(Lexicon *x, Lex a) {
    LexList *w = &x->work;
    w->data = budget_grow(x->budget, w->data, &w->capacity, (uint64_t)w->count + 1, sizeof *w->data);
    if (w->count < w->capacity) w->data[w->count++] = a;
}

/* --- Bytes -------------------------------------------------------------------------------------------------------- */

Lex lex_bytes(Lexicon *x, const ByteSet *set) {
    if (!(set->bits[0] | set->bits[1] | set->bits[2] | set->bits[3])) return LEX_NONE;
    const uint64_t h = set->bits[0] ^ set->bits[1] * 3 ^ set->bits[2] * 5 ^ set->bits[3] * 7;
    uint32_t *bucket = &x->set_buckets[(h * 0x9E3779B97F4A7C15u) >> 55];
    for (uint32_t i = *bucket; i; i = x->sets[i - 1].next)
        if (!memcmp(&x->sets[i - 1].set, set, sizeof *set)) return x->sets[i - 1].lex;
    x->sets = budget_grow(x->budget, x->sets, &x->set_capacity, (uint64_t)x->set_count + 1, sizeof *x->sets);
    if (x->budget->failed) return LEX_NONE;
    const Lex id = intern(x, (LexNode){.kind = LEX_IS_BYTES, .a = x->set_count, .depth = 1, .size = 1}, NULL, 0);
    if (!id) return LEX_NONE;
    x->sets[x->set_count++] = (SetNode){*set, id, *bucket};
    *bucket = x->set_count;
    return id;
}

Lex lex_range(Lexicon *x, uint8_t first, uint8_t last) {
    ByteSet set = {{0}};
    for (unsigned b = first; b <= last; b++) byteset_add(&set, (uint8_t)b);
    return lex_bytes(x, &set);
}

Lex lex_literal(Lexicon *x, Slice bytes) {
    Lex all = LEX_EMPTY;
    for (size_t i = bytes.size; i-- > 0;)
        all = lex_cat(x, lex_range(x, (uint8_t)bytes.data[i], (uint8_t)bytes.data[i]), all);
    return all;
}

static int compare_slices(const void *a, const void *b) {
    const Slice *one = a, *other = b;
    const size_t size = one->size < other->size ? one->size : other->size;
    const int order = size ? memcmp(one->data, other->data, size) : 0;
    return order ? order : (one->size > other->size) - (one->size < other->size);
}

/* Sorted texts that are equal in their first `skip` bytes. Goes down once per branching, not per byte. */
static Lex literal_trie(Lexicon *x, const Slice *texts, uint32_t count, size_t skip, int depth) {
    if (depth > LEX_DEPTH_MAX / 4) {
        budget_fail(x->budget, ERROR_LIMIT, "too many texts begin alike");
        return LEX_NONE;
    }
    size_t same_to = skip;
    while (same_to < texts[0].size && same_to < texts[count - 1].size &&
        texts[0].data[same_to] == texts[count - 1].data[same_to])
        same_to++;
    const Slice head = {texts[0].data + skip, same_to - skip};
    const uint32_t start = x->work.count;
    uint32_t i = 0;
    while (i < count && texts[i].size == same_to) i++;
    if (i) lex_push(x, LEX_EMPTY);
    while (i < count && budget_step(x->budget, 1)) {
        uint32_t end = i + 1;
        while (end < count && texts[end].data[same_to] == texts[i].data[same_to]) end++;
        lex_push(x, literal_trie(x, texts + i, end - i, same_to, depth + 1));
        i = end;
    }
    const Lex rest = lex_combine(x, start, LEX_IS_OR);
    Lex all = rest;
    for (size_t k = head.size; k-- > 0;)
        all = lex_cat(x, lex_range(x, (uint8_t)head.data[k], (uint8_t)head.data[k]), all);
    return all;
}

Lex lex_literals(Lexicon *x, Slice *texts, uint32_t count) {
    if (!count) return LEX_NONE;
    qsort(texts, count, sizeof *texts, compare_slices);
    return literal_trie(x, texts, count, 0, 0);
}

/* --- Sequences and repeats ---------------------------------------------------------------------------------------- */

static uint32_t add_sizes(uint32_t a, uint32_t b) { return a + b < a ? UINT32_MAX : a + b; }

static Lex cat_pair(Lexicon *x, Lex head, Lex tail) {
    const LexNode *h = &x->nodes[head], *t = &x->nodes[tail];
    const uint16_t depth = h->depth + 1 > t->depth ? (uint16_t)(h->depth + 1) : t->depth;
    return intern(x,
        (LexNode){.kind = LEX_IS_CAT,
            .a = head,
            .b = tail,
            .nullable = h->nullable && t->nullable,
            .hard = h->hard || t->hard,
            .depth = depth,
            .size = add_sizes(h->size, t->size)},
        NULL, 0);
}

Lex lex_cat(Lexicon *x, Lex first, Lex second) {
    if (first == LEX_NONE || second == LEX_NONE) return LEX_NONE;
    if (first == LEX_EMPTY) return second;
    if (second == LEX_EMPTY) return first;
    const uint32_t start = x->work.count;
    for (; x->nodes[first].kind == LEX_IS_CAT; first = x->nodes[first].b) lex_push(x, x->nodes[first].a);
    Lex all = cat_pair(x, first, second);
    while (x->work.count > start && all) all = cat_pair(x, x->work.data[--x->work.count], all);
    x->work.count = start;
    return x->budget->failed ? LEX_NONE : all;
}

static uint32_t times(uint32_t a, uint32_t b) {
    const uint64_t product = (uint64_t)a * b;
    if (!a || !b) return 0;
    return a == LEX_FOREVER || b == LEX_FOREVER || product >= LEX_FOREVER ? LEX_FOREVER : (uint32_t)product;
}

Lex lex_repeat(Lexicon *x, Lex a, uint32_t min, uint32_t max) {
    if (min > max) return LEX_NONE;
    if (max == 0 || a == LEX_EMPTY) return LEX_EMPTY;
    if (a == LEX_NONE) return min ? LEX_NONE : LEX_EMPTY;
    if (a == LEX_ALL || (min == 1 && max == 1)) return a;
    if (x->nodes[a].nullable) min = 0;
    const LexNode *n = &x->nodes[a];
    if (n->kind == LEX_IS_REPEAT && n->min <= 1 && (n->max > 1 || n->min == n->max)) {
        /* (a{0,n}){i,k} = a{0,nk}, (a{1,n}){i,k} = a{i,nk} */
        const uint32_t inner_min = n->min, inner_max = n->max;
        if (inner_max != 1 || inner_min == 0) return lex_repeat(x, n->a, times(inner_min, min), times(inner_max, max));
    }
    return intern(x,
        (LexNode){.kind = LEX_IS_REPEAT,
            .a = a,
            .min = min,
            .max = max,
            .nullable = min == 0,
            .hard = n->hard,
            .depth = (uint16_t)(n->depth + 1),
            .size = add_sizes(n->size, 1)},
        NULL, 0);
}

Lex lex_multiple(Lexicon *x, uint32_t modulus, uint32_t scale, uint32_t rest, bool fraction) {
    uint64_t whole = rest;
    for (uint32_t i = 0; i < scale && whole; i++) whole = whole * 10 % modulus;
    if (fraction && !scale && rest) return LEX_NONE;
    return intern(x,
        (LexNode){.kind = LEX_IS_MULTIPLE,
            .a = modulus,
            .b = rest,
            .min = scale,
            .max = fraction,
            .nullable = whole == 0,
            .hard = true,
            .depth = 1,
            .size = 1},
        NULL, 0);
}

/* --- Alternatives and intersections ------------------------------------------------------------------------------- */

static void flatten(Lexicon *x, uint32_t start, LexKind kind) {
    for (uint32_t i = start; i < x->work.count && !x->budget->failed; i++) {
        const LexNode *n = &x->nodes[x->work.data[i]];
        if (n->kind != kind) continue;
        const uint32_t first = n->a, count = n->b;
        x->work.data[i] = x->children.data[first];
        for (uint32_t k = 1; k < count; k++) lex_push(x, x->children.data[first + k]);
    }
}

static int compare_lex(const void *a, const void *b) {
    const Lex one = *(const Lex *)a, other = *(const Lex *)b;
    return (one > other) - (one < other);
}

static void sort_unique(LexList *list, uint32_t start) {
    const uint32_t count = list->count - start;
    if (count < 2) return;
    Lex *data = list->data + start;
    bool sorted = true;
    for (uint32_t i = 1; i < count && sorted; i++) sorted = data[i - 1] < data[i];
    if (sorted) return;
    qsort(data, count, sizeof *data, compare_lex);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!kept || data[i] != data[kept - 1]) data[kept++] = data[i];
    list->count = start + kept;
}

/* Merges all byte sets into one: their union or intersection. False: the result is the empty language. */
static bool merge_sets(Lexicon *x, uint32_t start, LexKind kind) {
    LexList *w = &x->work;
    ByteSet set = {{0}};
    uint32_t kept = start, sets = 0;
    for (uint32_t i = start; i < w->count; i++) {
        const LexNode *n = &x->nodes[w->data[i]];
        if (n->kind != LEX_IS_BYTES) {
            w->data[kept++] = w->data[i];
            continue;
        }
        const ByteSet *more = &x->sets[n->a].set;
        for (int k = 0; k < 4; k++) {
            if (!sets || kind == LEX_IS_OR) {
                set.bits[k] |= more->bits[k];
            } else {
                set.bits[k] &= more->bits[k];
            }
        }
        sets++;
    }
    w->count = kept;
    if (!sets) return true;
    const Lex merged = lex_bytes(x, &set);
    if (!merged) return false;
    lex_push(x, merged);
    return true;
}

/* Drops neutral operands; returns a lexeme that alone decides the result, otherwise LEX_MIXED. */
static Lex simplify(Lexicon *x, uint32_t start, LexKind kind) {
    LexList *w = &x->work;
    const Lex neutral = kind == LEX_IS_OR ? LEX_NONE : LEX_ALL, absorbing = kind == LEX_IS_OR ? LEX_ALL : LEX_NONE;
    uint32_t kept = start, empties = 0;
    bool all_nullable = true, some_nullable = false;
    for (uint32_t i = start; i < w->count; i++) {
        const Lex a = w->data[i];
        if (a == absorbing) return absorbing;
        if (a == neutral) continue;
        all_nullable = all_nullable && x->nodes[a].nullable;
        if (a == LEX_EMPTY) {
            empties++;
            continue;
        }
        some_nullable = some_nullable || x->nodes[a].nullable;
        w->data[kept++] = a;
    }
    w->count = kept;
    if (empties && kind == LEX_IS_AND) return all_nullable ? LEX_EMPTY : LEX_NONE;
    if (empties && !some_nullable) lex_push(x, LEX_EMPTY);
    return LEX_MIXED;
}

Lex lex_combine(Lexicon *x, uint32_t start, LexKind kind) {
    LexList *w = &x->work;
    flatten(x, start, kind);
    Lex result = simplify(x, start, kind);
    if (result == LEX_MIXED && w->count - start > 1 && !merge_sets(x, start, kind)) result = LEX_NONE;
    if (result == LEX_MIXED) {
        sort_unique(w, start);
        const uint32_t count = w->count - start;
        budget_step(x->budget, count);
        if (count > LEX_CHOICES_MAX)
            budget_fail(x->budget, ERROR_LIMIT, "an expression has more than %d alternatives", LEX_CHOICES_MAX);
        if (count == 0) result = kind == LEX_IS_OR ? LEX_NONE : LEX_ALL;
        if (count == 1) result = w->data[start];
    }
    if (result == LEX_MIXED && !x->budget->failed) {
        LexNode n = {.kind = (uint8_t)kind, .nullable = kind == LEX_IS_AND, .hard = kind == LEX_IS_AND};
        for (uint32_t i = start; i < w->count; i++) {
            const LexNode *child = &x->nodes[w->data[i]];
            n.nullable = kind == LEX_IS_OR ? n.nullable || child->nullable : n.nullable && child->nullable;
            n.hard = n.hard || child->hard;
            if (child->depth >= n.depth) n.depth = (uint16_t)(child->depth + 1);
            n.size = add_sizes(n.size, child->size);
        }
        result = intern(x, n, w->data + start, w->count - start);
    }
    w->count = start;
    return x->budget->failed ? LEX_NONE : result;
}

static Lex combine_list(Lexicon *x, const Lex *list, uint32_t count, LexKind kind) {
    const uint32_t start = x->work.count;
    for (uint32_t i = 0; i < count; i++) lex_push(x, list[i]);
    return lex_combine(x, start, kind);
}

Lex lex_or(Lexicon *x, const Lex *list, uint32_t count) { return combine_list(x, list, count, LEX_IS_OR); }
Lex lex_and(Lexicon *x, const Lex *list, uint32_t count) { return combine_list(x, list, count, LEX_IS_AND); }
Lex lex_or2(Lexicon *x, Lex a, Lex b) { return lex_or(x, (const Lex[]){a, b}, 2); }
Lex lex_and2(Lexicon *x, Lex a, Lex b) { return lex_and(x, (const Lex[]){a, b}, 2); }

Lex lex_not(Lexicon *x, Lex a) {
    const LexNode *n = &x->nodes[a];
    if (a == LEX_NONE) return x->budget->failed ? LEX_NONE : LEX_ALL;
    if (n->kind == LEX_IS_NOT) return n->a;
    return intern(x,
        (LexNode){.kind = LEX_IS_NOT,
            .a = a,
            .nullable = !n->nullable,
            .hard = true,
            .depth = (uint16_t)(n->depth + 1),
            .size = add_sizes(n->size, 1)},
        NULL, 0);
}
