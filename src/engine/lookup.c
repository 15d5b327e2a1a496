#include "engine/lookup.h"

#include <string.h>

#include "base/checked.h"
#include "base/error.h"

enum { HASH_LEAST = 1 << 8, HASH_MOST = 1 << 16 };

static int64_t places_of(const LookupShape *s) {
    return (int64_t)s->prediction + s->prompt + (int64_t)s->answer * s->choices;
}

static uint32_t hash_size(const LookupShape *s) {
    const int64_t tokens = (int64_t)s->prediction + s->prompt + s->answer;
    uint32_t size = HASH_LEAST;
    while (size < tokens && size < HASH_MOST) size *= 2;
    return size;
}

bool lookup_bytes(const LookupShape *shape, size_t *bytes) {
    const int64_t places = places_of(shape);
    if (places >= INT32_MAX) return false;
    const size_t words = 2 * (size_t)hash_size(shape) + 2 * (size_t)places + (size_t)shape->choices;
    return size_mul(words, sizeof(uint32_t), bytes);
}

void lookup_init(Lookup *l, const LookupShape *shape, void *memory) {
    const uint32_t size = hash_size(shape);
    const size_t places = (size_t)places_of(shape);
    *l = (Lookup){.shape = *shape, .hash_mask = size - 1, .pairs = memory};
    l->singles = l->pairs + size;
    l->earlier = l->singles + size;
    l->ids = (int32_t *)(l->earlier + places);
    l->lengths = l->ids + places;
}

/* ---- places ---- */

static int answers_at(const Lookup *l) { return l->shape.prediction + l->shape.prompt; }
static int answer_at(const Lookup *l, int choice) { return answers_at(l) + choice * l->shape.answer; }

/* The choice whose answer has this place; −1: it is before the answers. */
static int choice_of(const Lookup *l, int place) {
    const int at = place - answers_at(l);
    return at < 0 ? -1 : l->shape.choices == 1 ? 0 : at / l->shape.answer;
}

/* −1: the text begins with this place. */
static int place_before(const Lookup *l, int place) {
    if (place == 0 || place == l->shape.prediction) return -1;
    const int choice = choice_of(l, place);
    return choice > 0 && place == answer_at(l, choice) ? answers_at(l) - 1 : place - 1;
}

static int last_place(const Lookup *l, int choice) {
    return l->lengths[choice] ? answer_at(l, choice) + l->lengths[choice] - 1 : answers_at(l) - 1;
}

/* The place behind one, in the text of a choice; −1: nothing is there. */
static int place_behind(const Lookup *l, int choice, int place) {
    if (place == l->shape.prediction - 1) return -1;
    const int own = place == answers_at(l) - 1 ? choice : choice_of(l, place);
    if (own < 0) return place + 1;
    return place == last_place(l, own) ? -1 : place == answers_at(l) - 1 ? answer_at(l, own) : place + 1;
}

/* ---- the index ---- */

static uint32_t hash_single(const Lookup *l, int32_t id) { return ((uint32_t)id * 0x9E3779B1u) >> 7 & l->hash_mask; }

static uint32_t hash_pair(const Lookup *l, int32_t a, int32_t b) {
    return (((uint32_t)a * 0x9E3779B1u) ^ ((uint32_t)b * 0x85EBCA77u)) >> 9 & l->hash_mask;
}

/* The last place of a text is indexed when another follows, or the text would match itself. */
static void index_place(Lookup *l, int place) {
    const int before = place_before(l, place);
    const int32_t id = l->ids[place];
    l->singles[hash_single(l, id)] = (uint32_t)place + 1;
    if (before < 0) return;
    uint32_t *head = &l->pairs[hash_pair(l, l->ids[before], id)];
    l->earlier[place] = *head;
    *head = (uint32_t)place + 1;
}

void lookup_begin(Lookup *l, const int32_t *prediction, const int32_t *prompt) {
    const int predicted = l->shape.prediction;
    if (predicted) memcpy(l->ids, prediction, (size_t)predicted * sizeof *l->ids);
    memcpy(l->ids + predicted, prompt, (size_t)l->shape.prompt * sizeof *l->ids);
    for (int i = 0; i < answers_at(l); i++)
        if (i != answers_at(l) - 1) index_place(l, i);
    l->ready = true;
}

void lookup_add(Lookup *l, int choice, int32_t id) {
    const int last = last_place(l, choice), place = answer_at(l, choice) + l->lengths[choice];
    bool first = true; /* no answer has a token: the prompt's last place is indexed once */
    for (int i = 0; i < l->shape.choices && first; i++) first = l->lengths[i] == 0;
    CHECK(l->lengths[choice] < l->shape.answer);
    if (l->lengths[choice] > 0 || first) index_place(l, last);
    l->ids[place] = id;
    l->lengths[choice]++;
}

/* Tokens that the texts up to two places have in common. */
static int match_length(const Lookup *l, int a, int b) {
    int length = 0;
    while (a >= 0 && b >= 0 && length < LOOKUP_MATCH_MAX && l->ids[a] == l->ids[b]) {
        length++;
        a = place_before(l, a);
        b = place_before(l, b);
    }
    return length;
}

/* The place where the longest match with the text up to `last` ends; −1: there is none. */
static int find_match(const Lookup *l, int last, int *length) {
    const int before = place_before(l, last);
    int best = -1;
    *length = 0;
    uint32_t next = before < 0 ? 0 : l->pairs[hash_pair(l, l->ids[before], l->ids[last])];
    for (int i = 0; next && i < LOOKUP_CANDIDATES_MAX && *length < LOOKUP_MATCH_MAX; i++) {
        const int place = (int)next - 1, same = match_length(l, place, last);
        if (same > *length) {
            *length = same;
            best = place;
        }
        next = l->earlier[place];
    }
    if (best >= 0) return best;
    const int single = (int)l->singles[hash_single(l, l->ids[last])] - 1;
    if (single < 0 || l->ids[single] != l->ids[last]) return -1;
    *length = match_length(l, single, last);
    return single;
}

LookupMatch lookup_find(const Lookup *l, int choice, int max, int32_t *tokens) {
    const int last = last_place(l, choice);
    LookupMatch match = {0};
    int place = find_match(l, last, &match.length);
    if (place < 0) return match;
    match.prediction = place < l->shape.prediction;
    int written = 0; /* tokens read again, of those that continue the text */
    for (; match.count < max; match.count++) {
        const int next = place < 0 ? -1 : place_behind(l, choice, place);
        if (next < 0 && place != last && place >= 0) break; /* the end of another text */
        tokens[match.count] = next >= 0 ? l->ids[next] : tokens[written++];
        place = next;
    }
    return match;
}
