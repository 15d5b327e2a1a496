/* From the JSON of tokenizer.json to normalizer, pre-tokenizer, post-processor and decoder. Unknown kinds are refused
 * by name: silence would change ids. */
#include "text/tokenizer/build.h"

#include <string.h>

#include "base/base64.h"
#include "text/tokenizer/members.h"
#include "text/tokenizer/read.h"
#include "text/tokenizer/split_fast.h"
#include "text/unicode/unicode.h"

/* What components are added to: one of the first four. */
typedef struct Build {
    Normalizer *normalizer;
    PreTokenizer *pre;
    Tokenizer *t; /* for the post-processor */
    Decoder *decoder;
    Arena *arena;
    const Json *last; /* pre-tokenizer: the ByteLevel whose mapping the model makes superfluous, or NULL */
} Build;

/* {"String": …} or {"Regex": …}. */
static bool get_pattern(const Json *node, Arena *arena, Finder *finder, Error *error) {
    const Json *pattern = json_get(node, "pattern");
    if (!pattern || pattern->type != JSON_OBJECT)
        return fail(error, ERROR_FORMAT, "pattern must be an object, not %s", json_type_name(pattern));
    if (json_get(pattern, "String")) {
        finder->kind = FIND_LITERAL;
        if (!member_string(pattern, "String", arena, &finder->literal, error)) return fail_while(error, "pattern");
        return finder->literal.size || fail(error, ERROR_FORMAT, "pattern.String is empty");
    }
    const Json *regex = json_get(pattern, "Regex");
    if (!regex || regex->type != JSON_STRING) return fail(error, ERROR_FORMAT, "pattern must hold a String or a Regex");
    finder->fast = split_fast(json_slice(regex));
    finder->kind = finder->fast ? FIND_FAST : FIND_REGEX;
    if (finder->fast) return true;
    finder->regex = regex_compile(json_slice(regex), error);
    return finder->regex || fail_while(error, "pattern.Regex");
}

/* --- Normalizer ------------------------------------------------------------------------------------------------- */

static NormalizeStep *add_normal(const Build *build, NormalizeKind kind, Error *error) {
    Normalizer *normalizer = build->normalizer;
    if (normalizer->count == NORMALIZER_STEPS_MAX) {
        fail(error, ERROR_LIMIT, "more than %d steps", NORMALIZER_STEPS_MAX);
        return NULL;
    }
    NormalizeStep *step = &normalizer->steps[normalizer->count++];
    *step = (NormalizeStep){.kind = kind};
    return step;
}

/* The canonical decomposition without marks of these categories. */
static bool add_marks(const Build *build, uint32_t marks, Error *error) {
    NormalizeStep *step = add_normal(build, NORMALIZE_MARKS, error);
    if (step) step->marks = marks;
    return step;
}

static bool add_bert_normalizer(const Build *build, const Json *node, Error *error) {
    bool clean, ideographs, lower, strip;
    if (!member_bool(node, "clean_text", true, &clean, error) ||
        !member_bool(node, "handle_chinese_chars", true, &ideographs, error) ||
        !member_bool(node, "lowercase", true, &lower, error) ||
        !member_bool(node, "strip_accents", lower, &strip, error))
        return false;
    return (!clean || add_normal(build, NORMALIZE_CLEAN, error)) &&
        (!ideographs || add_normal(build, NORMALIZE_IDEOGRAPHS, error)) &&
        (!strip || (add_normal(build, NORMALIZE_FORM, error) && add_marks(build, UNICODE_SET(CATEGORY_MN), error))) &&
        (!lower || add_normal(build, NORMALIZE_LOWERCASE, error));
}

/* precompiled_charsmap in base64: the bytes of a trie, the trie, then the texts. */
static bool get_table(const Build *build, const Json *node, NormalizeStep *step, Error *error) {
    const Json *map = json_get(node, "precompiled_charsmap");
    uint32_t trie = 0;
    size_t size = 0;
    if (!map || map->type != JSON_STRING)
        return fail(error, ERROR_FORMAT, "precompiled_charsmap must be a string, not %s", json_type_name(map));
    uint8_t *bytes = arena_alloc(build->arena, base64_bytes_max(map->size) + 1, 1);
    if (!bytes) return fail(error, ERROR_MEMORY, "no memory for a tokenizer");
    const bool decoded = base64_decode(json_slice(map), bytes, &size) && size >= sizeof trie;
    if (decoded) memcpy(&trie, bytes, sizeof trie);
    if (!decoded || trie % sizeof trie != 0 || trie > size - sizeof trie)
        return fail(error, ERROR_FORMAT, "precompiled_charsmap is no table in base64");
    uint32_t *units = arena_alloc(build->arena, trie / sizeof trie, sizeof *units);
    if (!units) return fail(error, ERROR_MEMORY, "no memory for a tokenizer");
    memcpy(units, bytes + sizeof trie, trie);
    step->units = units;
    step->unit_count = trie / sizeof trie;
    step->content = (Slice){(const char *)bytes + sizeof trie + trie, size - sizeof trie - trie};
    return true;
}

static bool add_precompiled(const Build *build, const Json *node, Error *error) {
    NormalizeStep *step = add_normal(build, NORMALIZE_PRECOMPILED, error);
    return step && get_table(build, node, step, error);
}

/* As sentencepiece.c writes it. */
static bool add_pieces(const Build *build, const Json *node, Error *error) {
    const Json *kept = json_get(node, "kept");
    NormalizeStep *step = add_normal(build, NORMALIZE_PIECES, error);
    if (!step || !member_bool(node, "prefix", false, &step->prefix, error) ||
        !member_bool(node, "prefix_once", false, &step->prefix_once, error) ||
        !member_bool(node, "trim", false, &step->trim, error))
        return false;
    if (json_get(node, "precompiled_charsmap") && !get_table(build, node, step, error)) return false;
    if (!kept) return true;
    if (kept->type != JSON_ARRAY) return fail(error, ERROR_FORMAT, "kept must be a list");
    for (JSON_EACH(text, kept)) {
        if (text->type != JSON_STRING || text->size == 0 || text->size > ADDED_TOKEN_BYTES_MAX)
            return fail(error, ERROR_FORMAT, "kept must hold texts of 1 to %d bytes", ADDED_TOKEN_BYTES_MAX);
        if (!added_index_add(&step->kept, json_slice(text), 0)) return fail(error, ERROR_MEMORY, "no memory for texts");
    }
    return true;
}

static bool add_normalizer(void *context, const Json *node, Error *error) {
    const Build *build = context;
    Slice type = component_type(node);
    if (slice_is(type, "BertNormalizer")) return add_bert_normalizer(build, node, error);
    if (slice_is(type, "StripAccents")) return add_marks(build, UNICODE_M, error);
    if (slice_is(type, "Precompiled")) return add_precompiled(build, node, error);
    if (slice_is(type, "SentencePiece")) return add_pieces(build, node, error);
    NormalizeStep *step = add_normal(build, NORMALIZE_FORM, error);
    if (!step) return false;
    if (slice_is(type, "NFC") || slice_is(type, "NFKC") || slice_is(type, "NFD") || slice_is(type, "NFKD")) {
        step->compatible = type.data[2] == 'K';
        step->compose = type.data[type.size - 1] == 'C';
        return true;
    }
    if (slice_is(type, "Replace")) {
        step->kind = NORMALIZE_REPLACE;
        return get_pattern(node, build->arena, &step->finder, error) &&
            member_string(node, "content", build->arena, &step->content, error);
    }
    if (slice_is(type, "Prepend")) {
        step->kind = NORMALIZE_PREPEND;
        return member_string(node, "prepend", build->arena, &step->content, error);
    }
    if (slice_is(type, "Strip")) {
        step->kind = NORMALIZE_STRIP;
        return member_bool(node, "strip_left", true, &step->left, error) &&
            member_bool(node, "strip_right", true, &step->right, error);
    }
    step->kind = NORMALIZE_LOWERCASE;
    return slice_is(type, "Lowercase") || component_unknown(node, error);
}

bool normalizer_build(Normalizer *normalizer, Arena *arena, const Json *node, Error *error) {
    normalizer->count = 0;
    Build build = {.normalizer = normalizer, .arena = arena};
    return member_absent(node) || component_each(node, "normalizers", add_normalizer, &build, error) ||
        fail_while(error, "normalizer");
}

/* --- Pre-tokenizer ---------------------------------------------------------------------------------------------- */

static PreStep *add_step(const Build *build, PreKind kind, Error *error) {
    if (build->pre->count == PRE_STEPS_MAX) {
        fail(error, ERROR_LIMIT, "more than %d steps", PRE_STEPS_MAX);
        return NULL;
    }
    PreStep *step = &build->pre->steps[build->pre->count++];
    *step = (PreStep){.kind = kind};
    return step;
}

static PreStep *add_split(const Build *build, FinderKind kind, SplitBehaviour behaviour, Error *error) {
    PreStep *step = add_step(build, PRE_SPLIT, error);
    if (!step) return NULL;
    step->finder.kind = kind;
    step->behaviour = behaviour;
    return step;
}

static bool get_behaviour(const Json *node, PreStep *step, Error *error) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    int value = step->behaviour;
    if (!member_name(node, "behavior", names, COUNT_OF(names), &value, error)) return false;
    step->behaviour = (SplitBehaviour)value;
    return true;
}

static bool get_scheme(const Json *node, PrependScheme *scheme, Error *error) {
    static const char *const names[] = {"first", "never", "always"};
    int value = PREPEND_ALWAYS;
    bool prefix;
    if (!member_name(node, "prepend_scheme", names, COUNT_OF(names), &value, error)) return false;
    if (!member_bool(node, "add_prefix_space", true, &prefix, error)) return false;
    *scheme = (PrependScheme)value;
    if (prefix || *scheme == PREPEND_NEVER) return true;
    return fail(error, ERROR_FORMAT, "add_prefix_space does not agree with prepend_scheme");
}

static bool add_metaspace(const Build *build, const Json *node, Error *error) {
    PreStep *step = add_step(build, PRE_METASPACE, error);
    bool split;
    if (!step || !member_character(node, "replacement", "▁", build->arena, &step->replacement, error)) return false;
    if (!get_scheme(node, &step->scheme, error) || !member_bool(node, "split", true, &split, error)) return false;
    if (!split) return true;
    PreStep *cut = add_split(build, FIND_LITERAL, SPLIT_WITH_NEXT, error);
    if (cut) cut->finder.literal = step->replacement;
    return cut;
}

static bool add_byte_level(const Build *build, const Json *node, Error *error) {
    bool prefix, regex;
    if (!member_bool(node, "add_prefix_space", true, &prefix, error)) return false;
    if (!member_bool(node, "use_regex", true, &regex, error)) return false;
    if (prefix && !add_step(build, PRE_PREFIX_SPACE, error)) return false;
    if (regex) {
        PreStep *step = add_split(build, FIND_FAST, SPLIT_ISOLATED, error);
        if (!step) return false;
        step->finder.fast = &split_gpt2;
    }
    return node == build->last || add_step(build, PRE_BYTES, error);
}

static bool add_pre_tokenizer(void *context, const Json *node, Error *error) {
    const Build *build = context;
    Slice type = component_type(node);
    if (slice_is(type, "ByteLevel")) return add_byte_level(build, node, error);
    if (slice_is(type, "Metaspace")) return add_metaspace(build, node, error);
    if (slice_is(type, "BertPreTokenizer"))
        return add_split(build, FIND_SPACE, SPLIT_REMOVED, error) &&
            add_split(build, FIND_PUNCTUATION, SPLIT_ISOLATED, error);
    if (slice_is(type, "WhitespaceSplit")) return add_split(build, FIND_SPACE, SPLIT_REMOVED, error);
    if (slice_is(type, "Split")) {
        PreStep *step = add_split(build, FIND_REGEX, SPLIT_ISOLATED, error);
        return step && get_pattern(node, build->arena, &step->finder, error) && get_behaviour(node, step, error) &&
            member_bool(node, "invert", false, &step->invert, error);
    }
    if (slice_is(type, "Digits")) {
        bool single;
        if (!member_bool(node, "individual_digits", false, &single, error)) return false;
        return add_split(build, FIND_NUMBER, single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, error);
    }
    if (slice_is(type, "Punctuation")) {
        PreStep *step = add_split(build, FIND_PUNCTUATION, SPLIT_ISOLATED, error);
        return step && get_behaviour(node, step, error);
    }
    if (slice_is(type, "Whitespace")) {
        PreStep *step = add_split(build, FIND_REGEX, SPLIT_REMOVED, error);
        if (!step) return false;
        step->invert = true;
        step->finder.regex = regex_compile(SLICE("\\w+|[^\\w\\s]+"), error);
        return step->finder.regex;
    }
    return component_unknown(node, error);
}

bool pretokenizer_build(PreTokenizer *pre, Arena *arena, const Json *node, bool by_bytes, Error *error) {
    pre->count = 0;
    Build build = {.pre = pre, .arena = arena, .last = by_bytes ? last_pre_tokenizer(node) : NULL};
    return member_absent(node) || component_each(node, "pretokenizers", add_pre_tokenizer, &build, error) ||
        fail_while(error, "pre_tokenizer");
}

/* --- Post-processor --------------------------------------------------------------------------------------------- */

static bool add_template_ids(Tokenizer *t, const Json *tokens, const Json *item, bool before, Error *error) {
    const Json *name = json_get(item, "id");
    const Json *entry = NULL;
    if (name && name->type == JSON_STRING && tokens && tokens->type == JSON_OBJECT) {
        for (JSON_EACH_PAIR(key, value, tokens)) {
            if (slice_equal(json_slice(key), json_slice(name))) entry = value;
        }
    }
    const Json *ids = json_get(entry, "ids");
    if (!ids || ids->type != JSON_ARRAY)
        return fail(error, ERROR_FORMAT, "special_tokens has no ids for a token of the template");
    for (JSON_EACH(id, ids)) {
        size_t *count = before ? &t->prefix_count : &t->suffix_count;
        if (id->type != JSON_INTEGER || id->integer < 0 || id->integer > BPE_ID_MAX) {
            return fail(error, ERROR_FORMAT, "special_tokens: ids must be whole numbers up to %d", BPE_ID_MAX);
        }
        if (*count == TEMPLATE_IDS_MAX) return fail(error, ERROR_LIMIT, "more than %d ids", TEMPLATE_IDS_MAX);
        (before ? t->prefix : t->suffix)[(*count)++] = (int32_t)id->integer;
    }
    return true;
}

static bool add_template(Tokenizer *t, const Json *node, Error *error) {
    const Json *single = json_get(node, "single"), *tokens = json_get(node, "special_tokens");
    if (!single || single->type != JSON_ARRAY)
        return fail(error, ERROR_FORMAT, "single must be an array, not %s", json_type_name(single));
    if (t->prefix_count || t->suffix_count)
        return fail(error, ERROR_UNSUPPORTED, "two templates in one post-processor");
    bool before = true;
    for (JSON_EACH(item, single)) {
        if (json_get(item, "SpecialToken")) {
            if (!add_template_ids(t, tokens, json_get(item, "SpecialToken"), before, error)) return false;
            continue;
        }
        const Json *sequence = json_get(json_get(item, "Sequence"), "id");
        bool text = before && sequence && sequence->type == JSON_STRING && slice_is(json_slice(sequence), "A");
        if (!text) return fail(error, ERROR_UNSUPPORTED, "single must hold special tokens and the sequence A once");
        before = false;
    }
    return !before || fail(error, ERROR_FORMAT, "single does not hold the sequence A");
}

static bool add_pair_item(Tokenizer *t, PairItem item, Error *error) {
    if (t->pair_count == TEMPLATE_IDS_MAX) return fail(error, ERROR_LIMIT, "more than %d ids", TEMPLATE_IDS_MAX);
    t->pair[t->pair_count++] = item;
    return true;
}

/* The template of two texts; tokenizers without one, or with a longer one, encode no pairs. */
static bool add_pair(Tokenizer *t, const Json *node, Error *error) {
    const Json *pair = json_get(node, "pair"), *tokens = json_get(node, "special_tokens");
    if (!pair || pair->type != JSON_ARRAY) return true;
    for (JSON_EACH(item, pair)) {
        const Json *special = json_get(item, "SpecialToken"), *sequence = json_get(item, "Sequence");
        const Json *own = special ? special : sequence, *type = json_get(own, "type_id"), *name = json_get(own, "id");
        PairItem entry = {.part = PAIR_TOKEN, .second = type && type->type == JSON_INTEGER && type->integer == 1};
        if (!name || name->type != JSON_STRING) return fail(error, ERROR_FORMAT, "pair must hold tokens and sequences");
        if (sequence) {
            entry.part = slice_is(json_slice(name), "A") ? PAIR_FIRST : PAIR_SECOND;
            if (!add_pair_item(t, entry, error)) return false;
            continue;
        }
        const Json *ids = NULL;
        if (tokens && tokens->type == JSON_OBJECT)
            for (JSON_EACH_PAIR(key, value, tokens))
                if (slice_equal(json_slice(key), json_slice(name))) ids = json_get(value, "ids");
        if (!ids || ids->type != JSON_ARRAY)
            return fail(error, ERROR_FORMAT, "special_tokens has no ids for a token of the template");
        for (JSON_EACH(id, ids)) {
            if (id->type != JSON_INTEGER || id->integer < 0 || id->integer > BPE_ID_MAX)
                return fail(error, ERROR_FORMAT, "special_tokens: ids must be whole numbers up to %d", BPE_ID_MAX);
            entry.id = (int32_t)id->integer;
            if (!add_pair_item(t, entry, error)) return false;
        }
    }
    return true;
}

/* ["[SEP]", 102] */
static bool get_marker(const Json *node, const char *name, int32_t *id, Error *error) {
    const Json *pair = json_get(node, name);
    const Json *number = pair && pair->type == JSON_ARRAY && pair->size == 2 ? json_next(json_first(pair)) : NULL;
    if (!number || number->type != JSON_INTEGER || number->integer < 0 || number->integer > BPE_ID_MAX)
        return fail(error, ERROR_FORMAT, "%s must be a token and its id", name);
    *id = (int32_t)number->integer;
    return true;
}

/* BERT: [CLS] A [SEP] and [CLS] A [SEP] B [SEP]; RoBERTa has two in the middle, and one type for all. */
static bool add_markers(Tokenizer *t, const Json *node, bool roberta, Error *error) {
    int32_t begin = 0, end = 0;
    if (!get_marker(node, "cls", &begin, error) || !get_marker(node, "sep", &end, error)) return false;
    if (t->prefix_count || t->suffix_count)
        return fail(error, ERROR_UNSUPPORTED, "two templates in one post-processor");
    t->prefix[t->prefix_count++] = begin;
    t->suffix[t->suffix_count++] = end;
    const PairItem items[] = {{PAIR_TOKEN, false, begin}, {PAIR_FIRST, false, 0}, {PAIR_TOKEN, false, end},
        {PAIR_TOKEN, false, end}, {PAIR_SECOND, !roberta, 0}, {PAIR_TOKEN, !roberta, end}};
    for (size_t i = 0; i < COUNT_OF(items); i++)
        if ((roberta || i != 3) && !add_pair_item(t, items[i], error)) return false;
    return true;
}

static bool add_post_processor(void *context, const Json *node, Error *error) {
    const Build *build = context;
    Slice type = component_type(node);
    if (slice_is(type, "ByteLevel")) return true; /* concerns offsets only */
    if (slice_is(type, "TemplateProcessing"))
        return add_template(build->t, node, error) && add_pair(build->t, node, error);
    if (slice_is(type, "BertProcessing")) return add_markers(build->t, node, false, error);
    if (slice_is(type, "RobertaProcessing")) return add_markers(build->t, node, true, error);
    return component_unknown(node, error);
}

bool post_processor_build(Tokenizer *t, const Json *node, Error *error) {
    Build build = {.t = t};
    return member_absent(node) || component_each(node, "processors", add_post_processor, &build, error) ||
        fail_while(error, "post_processor");
}

/* --- Decoder ---------------------------------------------------------------------------------------------------- */

static bool add_decoder(void *context, const Json *node, Error *error) {
    static const char *const names[] = {
        "ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"};
    const Build *build = context;
    Decoder *decoder = build->decoder;
    if (decoder->count == DECODE_STEPS_MAX) return fail(error, ERROR_LIMIT, "more than %d steps", DECODE_STEPS_MAX);
    DecodeStep *step = &decoder->steps[decoder->count++];
    Slice type = component_type(node);
    size_t kind = 0;
    while (kind < COUNT_OF(names) && !slice_is(type, names[kind])) kind++;
    *step = (DecodeStep){.kind = (DecodeKind)kind};
    switch (kind) {
    case DECODE_BYTE_LEVEL:
    case DECODE_BYTE_FALLBACK:
    case DECODE_FUSE: return true;
    case DECODE_REPLACE:
        return get_pattern(node, build->arena, &step->finder, error) &&
            member_string(node, "content", build->arena, &step->content, error);
    case DECODE_STRIP:
        return member_character(node, "content", " ", build->arena, &step->content, error) &&
            member_count(node, "start", &step->start, error) && member_count(node, "stop", &step->stop, error);
    case DECODE_METASPACE:
        return member_character(node, "replacement", "▁", build->arena, &step->content, error) &&
            get_scheme(node, &step->scheme, error);
    case DECODE_WORDPIECE:
        step->content = SLICE("##");
        return (!json_get(node, "prefix") || member_string(node, "prefix", build->arena, &step->content, error)) &&
            member_bool(node, "cleanup", true, &step->cleanup, error);
    default: return component_unknown(node, error);
    }
}

static DecodeShape decoder_shape(Decoder *decoder) {
    if (decoder->absent) return SHAPE_PIECES;
    if (decoder->count == 1 && decoder->steps[0].kind == DECODE_BYTE_LEVEL) return SHAPE_BYTES;
    size_t at = 0;
    while (at < decoder->count) {
        DecodeKind kind = decoder->steps[at].kind;
        if (kind != DECODE_REPLACE && kind != DECODE_STRIP && kind != DECODE_METASPACE && kind != DECODE_WORDPIECE)
            break;
        at++;
    }
    decoder->piece_steps = at;
    if (at < decoder->count && decoder->steps[at].kind == DECODE_BYTE_FALLBACK) {
        decoder->byte_fallback = true;
        at++;
    }
    bool fused = false;
    for (; at < decoder->count && decoder->steps[at].kind == DECODE_FUSE; at++) fused = true;
    if (fused && at < decoder->count && decoder->steps[at].kind == DECODE_STRIP) decoder->strip = &decoder->steps[at++];
    return at == decoder->count ? SHAPE_PIECES : SHAPE_WHOLE;
}

bool decoder_build(Decoder *decoder, Arena *arena, const Json *node, Error *error) {
    *decoder = (Decoder){.absent = member_absent(node)};
    Build build = {.decoder = decoder, .arena = arena};
    if (!decoder->absent && !component_each(node, "decoders", add_decoder, &build, error))
        return fail_while(error, "decoder");
    decoder->shape = decoder_shape(decoder);
    return true;
}
