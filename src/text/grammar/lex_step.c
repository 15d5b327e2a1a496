/* Lexemes: derivatives, their rows, and emptiness. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/lex.h"

enum { LIFE_UNKNOWN, LIFE_YES, LIFE_NO };
#define BEHIND_UNKNOWN (LEX_MIXED - 1)

/* --- Derivatives -------------------------------------------------------------------------------------------------- */

static Lex derive(Lexicon *x, Lex a, uint8_t byte);

/* Along a sequence while its parts are nullable. */
static Lex derive_cat(Lexicon *x, Lex a, uint8_t byte) {
    const uint32_t start = x->work.count;
    for (;;) {
        if (x->nodes[a].kind != LEX_IS_CAT) {
            lex_push(x, derive(x, a, byte));
            break;
        }
        const Lex head = x->nodes[a].a, tail = x->nodes[a].b;
        lex_push(x, lex_cat(x, derive(x, head, byte), tail));
        if (!x->nodes[head].nullable || x->budget->failed) break;
        a = tail;
    }
    return lex_combine(x, start, LEX_IS_OR);
}

static Lex derive_list(Lexicon *x, Lex a, uint8_t byte) {
    const LexKind kind = x->nodes[a].kind;
    const uint32_t start = x->work.count, first = x->nodes[a].a, count = x->nodes[a].b;
    for (uint32_t i = 0; i < count && !x->budget->failed; i++) {
        const Lex d = derive(x, x->children.data[first + i], byte);
        lex_push(x, d);
        if (d == LEX_NONE && kind == LEX_IS_AND) break;
    }
    return lex_combine(x, start, kind);
}

static Lex derive_multiple(Lexicon *x, Lex a, uint8_t byte) {
    const LexNode n = x->nodes[a];
    if (byte == '-' || byte == '.') return lex_multiple(x, n.a, n.min, n.b, n.max || byte == '.');
    if (byte < '0' || byte > '9') return LEX_NONE;
    const uint32_t digit = (uint32_t)(byte - '0');
    if (n.max && n.min == 0) return digit == 0 ? a : LEX_NONE;
    const uint32_t rest = (uint32_t)(((uint64_t)n.b * 10 + digit) % n.a);
    return lex_multiple(x, n.a, n.max ? n.min - 1 : n.min, rest, n.max);
}

static Lex derive(Lexicon *x, Lex a, uint8_t byte) {
    if (!budget_step(x->budget, 1)) return LEX_NONE;
    const LexNode n = x->nodes[a];
    Lex d = LEX_NONE;
    if (n.kind == LEX_IS_BYTES) return byteset_has(&x->sets[n.a].set, byte) ? LEX_EMPTY : LEX_NONE;
    if (n.kind == LEX_IS_NONE || n.kind == LEX_IS_EMPTY) return LEX_NONE;
    if (n.mark == x->mark) return n.derived;
    switch (n.kind) {
    case LEX_IS_CAT: d = derive_cat(x, a, byte); break;
    case LEX_IS_OR:
    case LEX_IS_AND: d = derive_list(x, a, byte); break;
    case LEX_IS_NOT: d = lex_not(x, derive(x, n.a, byte)); break;
    case LEX_IS_REPEAT:
        d = derive(x, n.a, byte);
        d = lex_cat(x, d, lex_repeat(x, n.a, n.min ? n.min - 1 : 0, n.max == LEX_FOREVER ? n.max : n.max - 1));
        break;
    case LEX_IS_MULTIPLE: d = derive_multiple(x, a, byte); break;
    }
    x->nodes[a].mark = x->mark;
    x->nodes[a].derived = d;
    return d;
}

/* --- Rows --------------------------------------------------------------------------------------------------------- */

typedef struct Classes { /* bytes that a lexeme does not tell apart */
    uint8_t of[256];
    uint16_t size[256];
    bool met[256]; /* scratch: by the split in progress */
    unsigned count;
} Classes;

/* A set and the rest of the bytes split alike: the smaller of the two is walked. */
static void split(Classes *classes, const ByteSet *set) {
    uint16_t inside[256];
    uint8_t touched[256], other[256], bytes[256];
    const unsigned size = byteset_size(set);
    unsigned count = 0, touched_count = 0;
    for (int i = 0; i < 4; i++)
        for (uint64_t word = size <= 128 ? set->bits[i] : ~set->bits[i]; word; word &= word - 1)
            bytes[count++] = (uint8_t)(i * 64 + __builtin_ctzll(word));
    for (unsigned i = 0; i < count; i++) {
        const uint8_t class = classes->of[bytes[i]];
        if (!classes->met[class]) {
            classes->met[class] = true;
            inside[class] = 0;
            touched[touched_count++] = class;
        }
        inside[class]++;
    }
    for (unsigned i = 0; i < touched_count; i++) {
        const uint8_t class = touched[i];
        classes->met[class] = false;
        other[class] = class;
        if (inside[class] == classes->size[class]) continue;
        other[class] = (uint8_t)classes->count;
        classes->size[classes->count++] = inside[class];
        classes->size[class] = (uint16_t)(classes->size[class] - inside[class]);
    }
    for (unsigned i = 0; i < count; i++) classes->of[bytes[i]] = other[classes->of[bytes[i]]];
}

static void split_by_lexeme(Lexicon *x, Lex a, Classes *classes) {
    for (; x->nodes[a].kind == LEX_IS_CAT; a = x->nodes[a].b) {
        const Lex head = x->nodes[a].a;
        split_by_lexeme(x, head, classes);
        if (!x->nodes[head].nullable) return;
    }
    LexNode *n = &x->nodes[a];
    if (n->seen == x->seen || !budget_step(x->budget, 1)) return;
    n->seen = x->seen;
    if (n->kind == LEX_IS_BYTES) {
        if (classes->count < 256) split(classes, &x->sets[n->a].set);
        budget_step(x->budget, 8);
    } else if (n->kind == LEX_IS_OR || n->kind == LEX_IS_AND) {
        for (uint32_t i = 0; i < n->b; i++) split_by_lexeme(x, x->children.data[n->a + i], classes);
    } else if (n->kind == LEX_IS_NOT || n->kind == LEX_IS_REPEAT) {
        split_by_lexeme(x, n->a, classes);
    } else if (n->kind == LEX_IS_MULTIPLE) {
        for (const char *c = "0123456789.-"; *c; c++) {
            ByteSet one = {{0}};
            byteset_add(&one, (uint8_t)*c);
            if (classes->count < 256) split(classes, &one);
        }
    }
}

static void derive_all(Lexicon *x, Lex a, Lex *row) {
    Classes classes = {.size = {256}, .count = 1};
    Lex target[256] = {0};
    bool done[256] = {false};
    x->seen++;
    split_by_lexeme(x, a, &classes);
    for (unsigned b = 0; b < 256; b++) {
        const uint8_t class = classes.of[b];
        if (!done[class]) {
            x->mark++;
            target[class] = derive(x, a, (uint8_t)b);
            done[class] = true;
        }
        row[b] = target[class];
    }
}

static const Lex *raw_row(Lexicon *x, Lex a);

/* Rows of AND and NOT are computed from the rows of their operands, which are shared. */
static void join_rows(Lexicon *x, Lex a, Lex *row) {
    const bool both = x->nodes[a].kind == LEX_IS_AND;
    const uint32_t first = x->nodes[a].a, count = both ? x->nodes[a].b : 1;
    for (uint32_t i = 0; i < count; i++)
        if (!raw_row(x, both ? x->children.data[first + i] : first)) return;
    for (unsigned b = 0; b < 256 && !x->budget->failed; b++) {
        bool same = b > 0;
        for (uint32_t i = 0; i < count && same; i++) {
            const Lex *of = x->nodes[both ? x->children.data[first + i] : first].row;
            same = of[b] == of[b - 1];
        }
        if (same) {
            row[b] = row[b - 1];
        } else if (!both) {
            row[b] = lex_not(x, x->nodes[first].row[b]);
        } else {
            const uint32_t work = x->work.count;
            for (uint32_t i = 0; i < count; i++) lex_push(x, x->nodes[x->children.data[first + i]].row[b]);
            row[b] = lex_combine(x, work, LEX_IS_AND);
        }
    }
}

/* The row of "repeat, then rest" is computed from the rows of the repeated expression and of the rest: a counted repeat
 * becomes another lexeme after each iteration, and all of these share the two rows. */
static void repeat_row(Lexicon *x, Lex a, Lex *row) {
    const Lex head = x->nodes[a].kind == LEX_IS_CAT ? x->nodes[a].a : a, tail = head == a ? LEX_EMPTY : x->nodes[a].b;
    const LexNode n = x->nodes[head];
    const uint32_t least = n.min ? n.min - 1 : 0, most = n.max == LEX_FOREVER ? n.max : n.max - 1;
    const Lex *once = raw_row(x, n.a), *over = once && n.nullable && tail != LEX_EMPTY ? raw_row(x, tail) : NULL;
    const Lex more = lex_cat(x, lex_repeat(x, n.a, least, most), tail);
    for (unsigned b = 0; once && b < 256 && !x->budget->failed; b++) {
        if (b && once[b] == once[b - 1] && (!over || over[b] == over[b - 1])) {
            row[b] = row[b - 1];
            continue;
        }
        row[b] = lex_cat(x, once[b], more);
        if (over) row[b] = lex_or2(x, row[b], over[b]);
    }
}

/* Not the first of many optional parts: the caller descends along those. */
static bool is_repeat(const Lexicon *x, Lex a) {
    const LexNode *n = &x->nodes[a];
    if (n->kind != LEX_IS_CAT) return n->kind == LEX_IS_REPEAT;
    const LexNode *head = &x->nodes[n->a], *tail = &x->nodes[n->b];
    const bool chain = head->nullable && tail->kind == LEX_IS_CAT && x->nodes[tail->a].nullable;
    return head->kind == LEX_IS_REPEAT && !chain;
}

static const Lex *raw_row(Lexicon *x, Lex a) {
    if (x->nodes[a].row) return x->nodes[a].row;
    Lex *row = budget_alloc(x->budget, 256 * sizeof *row);
    if (!row) return NULL;
    const ByteSet *set = lex_head(x, a);
    if (set) { /* no derivative needed */
        memset(row, 0, 256 * sizeof *row);
        for (int i = 0; i < 4; i++)
            for (uint64_t word = set->bits[i]; word; word &= word - 1)
                row[i * 64 + __builtin_ctzll(word)] = x->nodes[a].b;
    } else if (x->nodes[a].kind == LEX_IS_AND || x->nodes[a].kind == LEX_IS_NOT) {
        join_rows(x, a, row);
    } else if (is_repeat(x, a)) {
        repeat_row(x, a, row);
    } else {
        derive_all(x, a, row);
    }
    if (x->budget->failed) {
        budget_free(x->budget, row, 256 * sizeof *row);
        return NULL;
    }
    x->nodes[a].row = row;
    return row;
}

/* --- Emptiness ---------------------------------------------------------------------------------------------------- */

static void visit(Lexicon *x, Lex a) {
    if (x->nodes[a].visited == x->visited) return;
    x->nodes[a].visited = x->visited;
    LexList *q = &x->queue;
    q->data = budget_grow(x->budget, q->data, &q->capacity, (uint64_t)q->count + 1, sizeof *q->data);
    if (q->count < q->capacity) q->data[q->count++] = a;
}

/* What is not hard holds some text by construction. */
static int life_at_sight(const Lexicon *x, Lex a) {
    const LexNode *n = &x->nodes[a];
    if (a == LEX_NONE || n->life == LIFE_NO) return LIFE_NO;
    return n->nullable || !n->hard || n->life == LIFE_YES ? LIFE_YES : LIFE_UNKNOWN;
}

/* Breadth first over derivatives, until one that is known to be alive. When there is none, all that was seen is dead.
 */
static bool search(Lexicon *x, Lex a) {
    LexList *q = &x->queue;
    bool found = false;
    q->count = 0;
    x->visited++;
    visit(x, a);
    for (uint32_t at = 0; at < q->count && !found && !x->budget->failed; at++) {
        const Lex *row = raw_row(x, q->data[at]);
        for (unsigned b = 0; row && b < 256 && !found; b++) {
            if (b && row[b] == row[b - 1]) continue;
            const int life = life_at_sight(x, row[b]);
            found = life == LIFE_YES;
            if (life == LIFE_UNKNOWN) visit(x, row[b]);
        }
    }
    if (x->budget->failed) return false;
    for (uint32_t i = 0; i < q->count && !found; i++) x->nodes[q->data[i]].life = LIFE_NO;
    if (found) x->nodes[a].life = LIFE_YES;
    return found;
}

bool lex_live(Lexicon *x, Lex a) {
    for (; x->nodes[a].kind == LEX_IS_CAT && x->nodes[a].hard; a = x->nodes[a].b)
        if (!lex_live(x, x->nodes[a].a)) return false;
    const int life = life_at_sight(x, a);
    if (life != LIFE_UNKNOWN) return life == LIFE_YES;
    const LexNode n = x->nodes[a];
    if (n.kind == LEX_IS_REPEAT) return lex_live(x, n.a);
    if (n.kind != LEX_IS_OR) return search(x, a);
    for (uint32_t i = 0; i < n.b; i++)
        if (lex_live(x, x->children.data[n.a + i])) return true;
    return false;
}

const Lex *lex_row(Lexicon *x, Lex a) {
    if (x->nodes[a].filtered) return x->nodes[a].row;
    Lex *row = (Lex *)raw_row(x, a);
    if (!row) return NULL;
    Lex last = LEX_NONE;
    bool alive = false;
    for (unsigned b = 0; b < 256; b++) {
        if (row[b] == LEX_NONE) continue;
        if (row[b] != last) {
            last = row[b];
            alive = lex_live(x, last);
        }
        if (x->budget->failed) return NULL; /* zero derivatives stay zero */
        if (!alive) row[b] = LEX_NONE;
    }
    x->nodes[a].filtered = true;
    return row;
}

bool lex_matches(Lexicon *x, Lex a, Slice bytes) {
    for (size_t i = 0; i < bytes.size && a; i++) {
        const Lex *row = lex_row(x, a);
        a = row ? row[(uint8_t)bytes.data[i]] : LEX_NONE;
    }
    return x->nodes[a].nullable;
}

/* --- Alphabets --------------------------------------------------------------------------------------------- */

/* The lexeme after each of the byte sequences first…last, then `rest` continuation bytes; LEX_MIXED: they differ. */
static Lex behind_bytes(Lexicon *x, Lex a, uint8_t first, uint8_t last, int rest) {
    const Lex *row = a ? lex_row(x, a) : NULL;
    if (!row) return LEX_NONE;
    Lex common = LEX_NONE;
    for (unsigned b = first; b <= last; b++) {
        if (b > first && row[b] == row[b - 1]) continue;
        const Lex next = rest ? behind_bytes(x, row[b], 0x80, 0xBF, rest - 1) : row[b];
        if (b > first && next != common) return LEX_MIXED;
        common = next;
    }
    return common;
}

static Lex behind_any(Lexicon *x, Lex a, Alphabet alphabet) {
    /* UTF-8 (RFC 3629): for each first byte the range of the second and the number of bytes after it. */
    static const struct {
        uint8_t first, last, second, second_last;
        int rest;
    } forms[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1},
        {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
        {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
    const Lex *row = lex_row(x, a);
    if (!row) return LEX_MIXED;
    const Lex common = row['a'];
    for (unsigned b = 0; b < 0x80; b++)
        if (alphabet_has(alphabet, (uint8_t)b) && row[b] != common) return LEX_MIXED;
    for (size_t i = 0; alphabet == ALPHABET_PLAIN && i < COUNT_OF(forms); i++) {
        for (unsigned b = forms[i].first; b <= forms[i].last; b++) {
            if (b > forms[i].first && row[b] == row[b - 1]) continue;
            if (behind_bytes(x, row[b], forms[i].second, forms[i].second_last, forms[i].rest) != common)
                return LEX_MIXED;
        }
    }
    return common;
}

Lex lex_behind(Lexicon *x, Lex a, Alphabet alphabet) {
    if (x->nodes[a].behind[alphabet] == BEHIND_UNKNOWN) {
        const Lex found = behind_any(x, a, alphabet);
        if (x->budget->failed) return LEX_MIXED;
        x->nodes[a].behind[alphabet] = found;
    }
    return x->nodes[a].behind[alphabet];
}

/* --- Short texts -------------------------------------------------------------------------------------------------- */

/* A repetition consumes at least one byte, so each byte lowers a count by at most one. */
Lex lex_within(Lexicon *x, Lex a, uint32_t bytes) {
    const bool more = x->nodes[a].kind == LEX_IS_CAT;
    const LexNode n = x->nodes[more ? x->nodes[a].a : a];
    if (n.kind != LEX_IS_REPEAT) return a;
    const uint32_t min = n.min > bytes ? bytes + 1 : n.min, max = n.max > bytes ? LEX_FOREVER : n.max;
    if (min == n.min && max == n.max) return a;
    const Lex head = lex_repeat(x, n.a, min, max);
    return more ? lex_cat(x, head, x->nodes[a].b) : head;
}
