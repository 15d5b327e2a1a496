/* Running normalizers. Normal forms: Unicode Standard Annex 15, over the tables of the reference library. */
#include "text/tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer/normal_pass.h"
#include "text/unicode/unicode.h"

/* --- Normal forms --------------------------------------------------------------------------------------------- */

static bool codes_reserve(NormalText *scratch, size_t count) {
    if (count <= scratch->codes_capacity) return true;
    size_t capacity = scratch->codes_capacity ? scratch->codes_capacity * 2 : 256;
    while (capacity < count) capacity *= 2;
    uint32_t *codes = realloc(scratch->codes, capacity * sizeof *codes);
    if (codes) scratch->codes = codes;
    uint8_t *origin = realloc(scratch->code_origin, capacity);
    if (origin) scratch->code_origin = origin;
    uint8_t *classes = realloc(scratch->classes, capacity);
    if (classes) scratch->classes = classes;
    if (!codes || !origin || !classes) return false;
    scratch->codes_capacity = capacity;
    return true;
}

/* Appends the full decomposition of code to the stretch. */
static bool decompose(NormalText *scratch, size_t *count, uint32_t code, uint8_t origin, bool compatible) {
    uint32_t codes[UNICODE_EXPANSION_MAX];
    size_t size = unicode_decompose(code, compatible, codes);
    if (!codes_reserve(scratch, *count + size)) return false;
    for (size_t i = 0; i < size; i++) {
        scratch->codes[*count] = codes[i];
        scratch->code_origin[*count] = origin;
        scratch->classes[*count] = unicode_combining(codes[i]);
        ++*count;
    }
    return true;
}

/* Canonical order of the marks in start…end: stable by class. Counting, so that a long run of marks stays linear. */
static bool order_marks(NormalText *scratch, size_t start, size_t end) {
    bool ordered = true;
    for (size_t i = start + 1; i < end && ordered; i++) ordered = scratch->classes[i - 1] <= scratch->classes[i];
    if (ordered) return true;
    size_t count = end - start, place[256] = {0};
    uint32_t *codes = malloc(count * (sizeof *codes + 2));
    if (!codes) return false;
    uint8_t *classes = (uint8_t *)(codes + count), *origin = classes + count;
    memcpy(codes, scratch->codes + start, count * sizeof *codes);
    memcpy(classes, scratch->classes + start, count);
    memcpy(origin, scratch->code_origin + start, count);
    for (size_t i = 0; i < count; i++) place[classes[i]]++;
    for (size_t k = 0, sum = start; k < 256; k++) {
        size_t these = place[k];
        place[k] = sum;
        sum += these;
    }
    for (size_t i = 0; i < count; i++) {
        size_t to = place[classes[i]]++;
        scratch->codes[to] = codes[i];
        scratch->classes[to] = classes[i];
        scratch->code_origin[to] = origin[i];
    }
    free(codes);
    return true;
}

static size_t compose(NormalText *scratch, size_t count) {
    size_t kept = 0, starter = SIZE_MAX;
    int last_class = -1; /* combining class of the last character after the starter; -1: none */
    for (size_t i = 0; i < count; i++) {
        uint32_t code = scratch->codes[i];
        uint8_t klass = scratch->classes[i];
        bool free_way = starter != SIZE_MAX && (last_class == -1 || (klass && last_class < klass));
        uint32_t composed = free_way ? unicode_compose(scratch->codes[starter], code) : 0;
        if (composed) {
            scratch->codes[starter] = composed;
            if (scratch->code_origin[i] < scratch->code_origin[starter])
                scratch->code_origin[starter] = scratch->code_origin[i];
            continue;
        }
        scratch->codes[kept] = code;
        scratch->classes[kept] = klass;
        scratch->code_origin[kept] = scratch->code_origin[i];
        if (klass == 0) {
            starter = kept;
            last_class = -1;
        } else {
            last_class = klass;
        }
        kept++;
    }
    return kept;
}

/* A character that no normalisation form changes or composes with its predecessor. */
static bool is_inert(uint32_t code) { return code < 0xA0; }

static bool run_form(const NormalizeStep *step, Pass *pass) {
    NormalText *scratch = pass->scratch;
    Slice in = pass->in;
    size_t at = 0;
    while (at < in.size) {
        /* Copy up to the last inert character before one that is not: that one might compose with what follows. */
        size_t start = at, boundary = at;
        uint32_t code = 0;
        while (at < in.size) {
            size_t length = decode_at(in, at, &code);
            if (!is_inert(code)) break;
            boundary = at;
            at += length;
        }
        if (at == in.size) boundary = at;
        put_range(pass, start, boundary);
        size_t count = 0;
        for (at = boundary; at < in.size;) {
            size_t length = decode_at(in, at, &code);
            if (count && is_inert(code)) break;
            if (!decompose(scratch, &count, code, least_origin(pass, at, at + length), step->compatible)) return false;
            at += length;
        }
        for (size_t i = 0; i < count;) {
            size_t end = i + 1;
            if (scratch->classes[i]) {
                while (end < count && scratch->classes[end]) end++;
                if (!order_marks(scratch, i, end)) return false;
            }
            i = end;
        }
        if (step->compose) count = compose(scratch, count);
        for (size_t i = 0; i < count; i++) put_code(pass, scratch->codes[i], scratch->code_origin[i]);
    }
    return true;
}

/* Whether a text is in the form already: true for all text below U+0300 (U+00A0 except for NFC) and, in NFC, for the
 * characters of `plain`, which neither decompose nor compose nor reorder; false: unknown without computing it. */
static bool form_is_identity(const NormalizeStep *step, Slice text) {
    static const UnicodeRange plain[] = {{0x391, 0x3A1}, {0x3A3, 0x3CE}, {0x400, 0x482}, {0x5D0, 0x5EA}, {0x620, 0x64A},
        {0x2002, 0x2027}, {0x2190, 0x2328}, {0x2330, 0x2ADB}, {0x3000, 0x3029}, {0x3042, 0x3096}, {0x30A2, 0x30FE},
        {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xAC00, 0xD7A3}, {0xE000, 0xF8FF}, {0xFE00, 0xFE19}, {0xFE30, 0xFE6F},
        {0xFF01, 0xFFEF}, {0x1F300, 0x1FAFF}};
    const bool nfc = step->compose && !step->compatible;
    uint32_t limit = nfc ? 0x300 : 0xA0;
    for (size_t at = 0; at < text.size;) {
        uint64_t word;
        if (text.size - at >= sizeof word) {
            memcpy(&word, text.data + at, sizeof word);
            if (!(word & 0x8080808080808080u)) {
                at = utf8_skip_ascii(text, at + sizeof word);
                continue;
            }
            /* what Chinese texts consist of */
            const uint32_t wide = (uint32_t)((word & 0x0F) << 12 | (word >> 8 & 0x3F) << 6 | (word >> 16 & 0x3F));
            if (nfc && (word & 0xF0) == 0xE0 &&
                (wide - 0x4E00 < 0x5200 || wide - 0x3000 < 0x2A || wide - 0xFF01 < 0xEF)) {
                at += 3;
                continue;
            }
        }
        uint32_t code;
        at += decode_at(text, at, &code);
        if (code < limit) continue;
        if (!nfc) return false;
        if (!unicode_in_ranges(code, plain, COUNT_OF(plain))) return false;
    }
    return true;
}

/* --- The other steps ------------------------------------------------------------------------------------------ */

static RegexResult run_replace(const NormalizeStep *step, Pass *pass, RegexWork *work) {
    size_t at = 0, last_end = SIZE_MAX, start, end;
    for (size_t from = 0; from <= pass->in.size;) {
        RegexResult result = finder_next(&step->finder, work, pass->in, from, &start, &end);
        if (result == REGEX_EXHAUSTED) return result;
        if (result == REGEX_NONE || pass->out->failed) break;
        bool stutter =
            start == end && end == last_end; /* an empty match directly after the last match does not count */
        if (!stutter) {
            put_range(pass, at, start);
            put_bytes(pass, step->content.data, step->content.size, least_origin(pass, start, end));
            at = last_end = end;
        }
        from = finder_resume(pass->in, start, end);
    }
    if (at < pass->in.size) put_range(pass, at, pass->in.size);
    return REGEX_FOUND;
}

static void run_strip(const NormalizeStep *step, Pass *pass) {
    size_t start = step->left ? space_behind(pass->in, 0) : 0;
    size_t end = step->right ? space_before(pass->in, pass->in.size) : pass->in.size;
    if (end < start) end = start; /* nothing but white space */
    put_range(pass, start, end);
}

static void run_lowercase(Pass *pass) {
    for (size_t at = 0; at < pass->in.size;) {
        uint32_t code;
        size_t length = decode_at(pass->in, at, &code);
        uint8_t origin = least_origin(pass, at, at + length);
        if (code == 0x130) {
            put_bytes(pass, "i\xCC\x87", 3, origin);
        } else {
            put_code(pass, unicode_lower(code), origin);
        }
        at += length;
    }
}

/* char::is_control of the reference: tabs and line ends are none. */
static bool is_cleaned(uint32_t code) {
    static const uint32_t other = UNICODE_SET(CATEGORY_CC) | UNICODE_SET(CATEGORY_CF) | UNICODE_SET(CATEGORY_CO) |
        UNICODE_SET(CATEGORY_CS) | UNICODE_SET(CATEGORY_CC_SPACE);
    if (code == '\t' || code == '\n' || code == '\r') return false;
    return code == 0 || code == 0xFFFD || (unicode_set(code) & other);
}

static void run_clean(Pass *pass) {
    for (size_t at = 0; at < pass->in.size;) {
        uint32_t code;
        const size_t length = decode_at(pass->in, at, &code);
        if (!is_cleaned(code))
            put_code(pass, unicode_is_white_space(code) ? ' ' : code, least_origin(pass, at, at + length));
        at += length;
    }
}

/* The ranges of the reference (bert.rs, is_chinese_char). */
static bool is_ideograph(uint32_t code) {
    static const UnicodeRange ranges[] = {{0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xF900, 0xFAFF}, {0x20000, 0x2A6DF},
        {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
    return code >= 0x3400 && unicode_in_ranges(code, ranges, COUNT_OF(ranges));
}

static void run_ideographs(Pass *pass) {
    for (size_t at = 0; at < pass->in.size;) {
        uint32_t code;
        const size_t length = decode_at(pass->in, at, &code);
        const bool apart = is_ideograph(code);
        const uint8_t origin = least_origin(pass, at, at + length);
        if (apart) put_code(pass, ' ', origin);
        put_code(pass, code, origin);
        if (apart) put_code(pass, ' ', origin);
        at += length;
    }
}

static void run_marks(const NormalizeStep *step, Pass *pass) {
    for (size_t at = 0; at < pass->in.size;) {
        uint32_t code;
        const size_t length = decode_at(pass->in, at, &code);
        if (!(unicode_set(code) & step->marks)) put_range(pass, at, at + length);
        at += length;
    }
}

/* ---- SentencePiece's table ---- */

/* Whether a character joins the one before it in a grapheme cluster (UAX 29: Extend, SpacingMark, ZWJ). */
static bool joins(uint32_t code) { return (unicode_set(code) & UNICODE_M) || code == 0x200C || code == 0x200D; }

static size_t cluster_end(Slice in, size_t at) {
    static const uint32_t breaks = UNICODE_SET(CATEGORY_CC) | UNICODE_SET(CATEGORY_CC_SPACE) |
        UNICODE_SET(CATEGORY_CF) | UNICODE_SET(CATEGORY_ZL) | UNICODE_SET(CATEGORY_ZP);
    uint32_t code;
    size_t end = at + decode_at(in, at, &code);
    if (code == '\r' && end < in.size && in.data[end] == '\n') return end + 1;
    if ((unicode_set(code) & breaks) && !joins(code)) return end;
    while (end < in.size) {
        const size_t length = decode_at(in, end, &code);
        if (!joins(code)) break;
        end += length;
    }
    return end;
}

/* precompiled.rs: a short cluster as a whole, otherwise each character. */
static void run_precompiled(const NormalizeStep *step, Pass *pass) {
    enum { WHOLE_BYTES = 5 };
    Slice text;
    for (size_t at = 0; at < pass->in.size;) {
        const size_t end = cluster_end(pass->in, at);
        const Slice cluster = {pass->in.data + at, end - at};
        if (cluster.size <= WHOLE_BYTES && table_look_up(step, cluster, false, &text)) {
            put_bytes(pass, text.data, text.size, least_origin(pass, at, end));
            at = end;
        }
        while (at < end) {
            uint32_t code;
            const size_t length = decode_at(pass->in, at, &code);
            if (table_look_up(step, (Slice){pass->in.data + at, length}, false, &text))
                put_bytes(pass, text.data, text.size, least_origin(pass, at, at + length));
            else
                put_range(pass, at, at + length);
            at += length;
        }
    }
}

/* A check first: steps that change nothing cost no copy. */
static bool step_is_identity(const NormalizeStep *step, RegexWork *work, Slice text) {
    size_t start, end;
    switch (step->kind) {
    case NORMALIZE_FORM: return form_is_identity(step, text);
    case NORMALIZE_REPLACE:
        return step->finder.kind == FIND_LITERAL &&
            finder_next(&step->finder, work, text, 0, &start, &end) == REGEX_NONE;
    case NORMALIZE_PREPEND: return text.size == 0;
    default: return false;
    }
}

static bool run_step(const NormalizeStep *step, Pass *pass, RegexWork *work, Error *error) {
    bool memory = true;
    RegexResult result = REGEX_FOUND;
    switch (step->kind) {
    case NORMALIZE_FORM: memory = run_form(step, pass); break;
    case NORMALIZE_REPLACE: result = run_replace(step, pass, work); break;
    case NORMALIZE_PREPEND:
        put_bytes(pass, step->content.data, step->content.size, least_origin(pass, 0, 1));
        put_range(pass, 0, pass->in.size);
        break;
    case NORMALIZE_STRIP: run_strip(step, pass); break;
    case NORMALIZE_LOWERCASE: run_lowercase(pass); break;
    case NORMALIZE_CLEAN: run_clean(pass); break;
    case NORMALIZE_IDEOGRAPHS: run_ideographs(pass); break;
    case NORMALIZE_MARKS: run_marks(step, pass); break;
    case NORMALIZE_PRECOMPILED: run_precompiled(step, pass); break;
    case NORMALIZE_PIECES: normalize_pieces(step, pass); break;
    }
    if (result == REGEX_EXHAUSTED)
        return fail(error, ERROR_LIMIT, "the normalizer's pattern takes too many steps on this text");
    if (!memory) return fail(error, ERROR_MEMORY, "no memory for the normalized text");
    const Buffer *failed = pass->out->failed ? pass->out : pass->out_origin;
    return !failed->failed || fail(error, buffer_failure(failed), "no room for the normalized text");
}

bool normalizer_run(const Normalizer *normalizer, NormalText *scratch, RegexWork *work, Slice *text,
    const uint8_t **origin, Error *error) {
    int side = 0;
    size_t limit = text->size > (SIZE_MAX - NORMALIZED_SIZE_MIN) / NORMALIZED_GROWTH_MAX
        ? SIZE_MAX
        : text->size * NORMALIZED_GROWTH_MAX + NORMALIZED_SIZE_MIN;
    for (size_t i = 0; i < normalizer->count; i++) {
        const NormalizeStep *step = &normalizer->steps[i];
        if (step_is_identity(step, work, *text)) continue;
        Pass pass = {.in = *text,
            .in_origin = origin ? *origin : NULL,
            .out = &scratch->text[side],
            .out_origin = &scratch->origin[side],
            .scratch = scratch};
        buffer_clear(pass.out);
        buffer_clear(pass.out_origin);
        pass.out->limit = pass.out_origin->limit = limit;
        if (!run_step(step, &pass, work, error)) return false;
        *text = buffer_view(pass.out);
        if (origin && *origin) *origin = (const uint8_t *)pass.out_origin->data;
        side ^= 1;
    }
    return true;
}

void normal_text_free(NormalText *scratch) {
    for (int i = 0; i < 2; i++) {
        buffer_free(&scratch->text[i]);
        buffer_free(&scratch->origin[i]);
    }
    free(scratch->codes);
    free(scratch->code_origin);
    free(scratch->classes);
    *scratch = (NormalText){0};
}

void normalizer_free(Normalizer *normalizer) {
    for (size_t i = 0; i < normalizer->count; i++) {
        finder_free(&normalizer->steps[i].finder);
        added_index_free(&normalizer->steps[i].kept);
    }
    normalizer->count = 0;
}
