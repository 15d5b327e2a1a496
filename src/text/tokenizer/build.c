/* From the JSON of tokenizer.json to normalizer, pre-tokenizer, post-processor and decoder. Unknown kinds are refused
 * by name: silence would change ids. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer/internal.h"
#include "text/unicode/unicode.h"

enum { SEQUENCE_DEPTH_MAX = 8 };

/* --- Reading members -------------------------------------------------------------------------------------------- */

static bool no_memory(Error *error) { return fail(error, ERROR_MEMORY, "no memory for the tokenizer's steps"); }

/* The "type" of a component, or an empty slice. */
static Slice type_of(const Json *node) {
    const Json *type = json_get(node, "type");
    return type && type->type == JSON_STRING ? json_slice(type) : (Slice){"", 0};
}

static bool is_absent(const Json *node) { return !node || node->type == JSON_NULL; }

static bool fail_type(const Json *node, Error *error) {
    if (node->type != JSON_OBJECT) return fail(error, ERROR_FORMAT, "expected an object, not %s", json_type_name(node));
    Slice type = type_of(node);
    if (!type.size) return fail(error, ERROR_FORMAT, "type is missing");
    return fail(error, ERROR_UNSUPPORTED, "the type \"%.*s\" is not supported", (int)(type.size > 64 ? 64 : type.size),
        type.data);
}

static bool get_bool(const Json *node, const char *name, bool fallback, bool *value, Error *error) {
    const Json *member = json_get(node, name);
    *value = fallback;
    if (is_absent(member)) return true;
    if (member->type != JSON_BOOL)
        return fail(error, ERROR_FORMAT, "%s must be true or false, not %s", name, json_type_name(member));
    *value = member->boolean;
    return true;
}

static bool get_string(const Json *node, const char *name, Arena *arena, Slice *value, Error *error) {
    const Json *member = json_get(node, name);
    if (!member || member->type != JSON_STRING) {
        return fail(error, ERROR_FORMAT, "%s must be a string, not %s", name, json_type_name(member));
    }
    char *copy = arena_copy(arena, json_slice(member));
    if (!copy) return no_memory(error);
    *value = (Slice){copy, member->size};
    return true;
}

static bool get_character(
    const Json *node, const char *name, const char *fallback, Arena *arena, Slice *value, Error *error) {
    *value = slice_of(fallback);
    if (is_absent(json_get(node, name))) return true;
    if (!get_string(node, name, arena, value, error)) return false;
    uint32_t code;
    bool one = value->size && (size_t)utf8_decode(value->data, value->size, &code) == value->size;
    return one || fail(error, ERROR_FORMAT, "%s must be one character", name);
}

static bool get_count(const Json *node, const char *name, uint32_t *value, Error *error) {
    const Json *member = json_get(node, name);
    if (!member || member->type != JSON_INTEGER || member->integer < 0 || member->integer > 1000000) {
        return fail(error, ERROR_FORMAT, "%s must be a number from 0 to 1000000", name);
    }
    *value = (uint32_t)member->integer;
    return true;
}

/* One of names; its place is the value. */
static bool get_name(
    const Json *node, const char *name, const char *const *names, size_t count, int *value, Error *error) {
    const Json *member = json_get(node, name);
    if (is_absent(member)) return true;
    for (size_t i = 0; member->type == JSON_STRING && i < count; i++) {
        if (!slice_is(json_slice(member), names[i])) continue;
        *value = (int)i;
        return true;
    }
    if (member->type != JSON_STRING)
        return fail(error, ERROR_FORMAT, "%s must be a string, not %s", name, json_type_name(member));
    return fail(error, ERROR_UNSUPPORTED, "the %s \"%.*s\" is not known", name,
        (int)(member->size > 64 ? 64 : member->size), member->string);
}

/* {"String": …} or {"Regex": …}. */
static bool get_pattern(const Json *node, Arena *arena, Finder *finder, Error *error) {
    const Json *pattern = json_get(node, "pattern");
    if (!pattern || pattern->type != JSON_OBJECT)
        return fail(error, ERROR_FORMAT, "pattern must be an object, not %s", json_type_name(pattern));
    if (json_get(pattern, "String")) {
        finder->kind = FIND_LITERAL;
        if (!get_string(pattern, "String", arena, &finder->literal, error)) return fail_while(error, "pattern");
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

/* The member that lists the components of a Sequence. */
static const Json *get_list(const Json *node, const char *name, Error *error) {
    const Json *list = json_get(node, name);
    if (list && list->type == JSON_ARRAY) return list;
    fail(error, ERROR_FORMAT, "%s must be an array, not %s", name, json_type_name(list));
    return NULL;
}

/* --- Normalizer ------------------------------------------------------------------------------------------------- */

static bool add_normalizer(Normalizer *normalizer, Arena *arena, const Json *node, int depth, Error *error) {
    Slice type = type_of(node);
    if (slice_is(type, "Sequence")) {
        const Json *list = get_list(node, "normalizers", error);
        if (!list || depth >= SEQUENCE_DEPTH_MAX)
            return list && fail(error, ERROR_LIMIT, "Sequences are nested too deeply");
        int place = 0;
        for (JSON_EACH(child, list)) {
            if (!add_normalizer(normalizer, arena, child, depth + 1, error))
                return fail_while(error, "normalizers[%d]", place);
            place++;
        }
        return true;
    }
    if (normalizer->count == NORMALIZER_STEPS_MAX)
        return fail(error, ERROR_LIMIT, "more than %d steps", NORMALIZER_STEPS_MAX);
    NormalizeStep *step = &normalizer->steps[normalizer->count++];
    *step = (NormalizeStep){.kind = NORMALIZE_FORM};
    if (slice_is(type, "NFC") || slice_is(type, "NFKC") || slice_is(type, "NFD") || slice_is(type, "NFKD")) {
        step->compatible = type.data[2] == 'K';
        step->compose = type.data[type.size - 1] == 'C';
        return true;
    }
    if (slice_is(type, "Replace")) {
        step->kind = NORMALIZE_REPLACE;
        return get_pattern(node, arena, &step->finder, error) &&
            get_string(node, "content", arena, &step->content, error);
    }
    if (slice_is(type, "Prepend")) {
        step->kind = NORMALIZE_PREPEND;
        return get_string(node, "prepend", arena, &step->content, error);
    }
    if (slice_is(type, "Strip")) {
        step->kind = NORMALIZE_STRIP;
        return get_bool(node, "strip_left", true, &step->left, error) &&
            get_bool(node, "strip_right", true, &step->right, error);
    }
    if (slice_is(type, "Lowercase")) {
        step->kind = NORMALIZE_LOWERCASE;
        return true;
    }
    return fail_type(node, error);
}

bool normalizer_build(Normalizer *normalizer, Arena *arena, const Json *node, Error *error) {
    normalizer->count = 0;
    if (is_absent(node)) return true;
    return add_normalizer(normalizer, arena, node, 0, error) || fail_while(error, "normalizer");
}

/* --- Pre-tokenizer ---------------------------------------------------------------------------------------------- */

static const Json *last_pre_tokenizer(const Json *node) {
    while (slice_is(type_of(node), "Sequence")) {
        const Json *list = json_get(node, "pretokenizers"), *last = NULL;
        if (!list || list->type != JSON_ARRAY) return NULL;
        for (JSON_EACH(child, list)) last = child;
        node = last;
    }
    return node;
}

bool pretokenizer_by_bytes(const Json *node) { return slice_is(type_of(last_pre_tokenizer(node)), "ByteLevel"); }

typedef struct PreBuild {
    PreTokenizer *pre;
    Arena *arena;
    const Json *last; /* the ByteLevel whose mapping the model makes superfluous, or NULL */
    Error *error;
} PreBuild;

static PreStep *add_step(PreBuild *build, PreKind kind) {
    if (build->pre->count == PRE_STEPS_MAX) {
        fail(build->error, ERROR_LIMIT, "more than %d steps", PRE_STEPS_MAX);
        return NULL;
    }
    PreStep *step = &build->pre->steps[build->pre->count++];
    *step = (PreStep){.kind = kind};
    return step;
}

static PreStep *add_split(PreBuild *build, FinderKind kind, SplitBehaviour behaviour) {
    PreStep *step = add_step(build, PRE_SPLIT);
    if (!step) return NULL;
    step->finder.kind = kind;
    step->behaviour = behaviour;
    return step;
}

static bool get_behaviour(const Json *node, PreStep *step, Error *error) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    int value = step->behaviour;
    if (!get_name(node, "behavior", names, COUNT_OF(names), &value, error)) return false;
    step->behaviour = (SplitBehaviour)value;
    return true;
}

static bool get_scheme(const Json *node, PrependScheme *scheme, Error *error) {
    static const char *const names[] = {"first", "never", "always"};
    int value = PREPEND_ALWAYS;
    bool prefix;
    if (!get_name(node, "prepend_scheme", names, COUNT_OF(names), &value, error)) return false;
    if (!get_bool(node, "add_prefix_space", true, &prefix, error)) return false;
    *scheme = (PrependScheme)value;
    if (prefix || *scheme == PREPEND_NEVER) return true;
    return fail(error, ERROR_FORMAT, "add_prefix_space does not agree with prepend_scheme");
}

static bool add_metaspace(PreBuild *build, const Json *node) {
    PreStep *step = add_step(build, PRE_METASPACE);
    bool split;
    if (!step || !get_character(node, "replacement", "▁", build->arena, &step->replacement, build->error)) return false;
    if (!get_scheme(node, &step->scheme, build->error) || !get_bool(node, "split", true, &split, build->error))
        return false;
    if (!split) return true;
    PreStep *cut = add_split(build, FIND_LITERAL, SPLIT_WITH_NEXT);
    if (cut) cut->finder.literal = build->pre->steps[build->pre->count - 2].replacement;
    return cut;
}

static bool add_byte_level(PreBuild *build, const Json *node) {
    bool prefix, regex;
    if (!get_bool(node, "add_prefix_space", true, &prefix, build->error)) return false;
    if (!get_bool(node, "use_regex", true, &regex, build->error)) return false;
    if (prefix && !add_step(build, PRE_PREFIX_SPACE)) return false;
    if (regex) {
        PreStep *step = add_split(build, FIND_FAST, SPLIT_ISOLATED);
        if (!step) return false;
        step->finder.fast = split_gpt2;
    }
    return node == build->last || add_step(build, PRE_BYTES);
}

static bool add_pre_tokenizer(PreBuild *build, const Json *node, int depth) {
    Slice type = type_of(node);
    if (slice_is(type, "Sequence")) {
        const Json *list = get_list(node, "pretokenizers", build->error);
        if (!list || depth >= SEQUENCE_DEPTH_MAX)
            return list && fail(build->error, ERROR_LIMIT, "Sequences are nested too deeply");
        int place = 0;
        for (JSON_EACH(child, list)) {
            if (!add_pre_tokenizer(build, child, depth + 1))
                return fail_while(build->error, "pretokenizers[%d]", place);
            place++;
        }
        return true;
    }
    if (slice_is(type, "Split")) {
        PreStep *step = add_split(build, FIND_REGEX, SPLIT_ISOLATED);
        return step && get_pattern(node, build->arena, &step->finder, build->error) &&
            get_behaviour(node, step, build->error) && get_bool(node, "invert", false, &step->invert, build->error);
    }
    if (slice_is(type, "ByteLevel")) return add_byte_level(build, node);
    if (slice_is(type, "Metaspace")) return add_metaspace(build, node);
    if (slice_is(type, "Digits")) {
        bool single;
        if (!get_bool(node, "individual_digits", false, &single, build->error)) return false;
        return add_split(build, FIND_NUMBER, single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
    }
    if (slice_is(type, "Punctuation")) {
        PreStep *step = add_split(build, FIND_PUNCTUATION, SPLIT_ISOLATED);
        return step && get_behaviour(node, step, build->error);
    }
    if (slice_is(type, "WhitespaceSplit")) return add_split(build, FIND_SPACE, SPLIT_REMOVED);
    if (slice_is(type, "Whitespace")) {
        PreStep *step = add_split(build, FIND_REGEX, SPLIT_REMOVED);
        if (!step) return false;
        step->invert = true;
        step->finder.regex = regex_compile(SLICE("\\w+|[^\\w\\s]+"), build->error);
        return step->finder.regex;
    }
    return fail_type(node, build->error);
}

bool pretokenizer_build(PreTokenizer *pre, Arena *arena, const Json *node, bool by_bytes, Error *error) {
    pre->count = 0;
    if (is_absent(node)) return true;
    PreBuild build = {pre, arena, by_bytes ? last_pre_tokenizer(node) : NULL, error};
    return add_pre_tokenizer(&build, node, 0) || fail_while(error, "pre_tokenizer");
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
    const Json *single = get_list(node, "single", error), *tokens = json_get(node, "special_tokens");
    if (!single) return false;
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

static bool add_post_processor(Tokenizer *t, const Json *node, int depth, Error *error) {
    Slice type = type_of(node);
    if (slice_is(type, "Sequence")) {
        const Json *list = get_list(node, "processors", error);
        if (!list || depth >= SEQUENCE_DEPTH_MAX)
            return list && fail(error, ERROR_LIMIT, "Sequences are nested too deeply");
        int place = 0;
        for (JSON_EACH(child, list)) {
            if (!add_post_processor(t, child, depth + 1, error)) return fail_while(error, "processors[%d]", place);
            place++;
        }
        return true;
    }
    if (slice_is(type, "ByteLevel")) return true; /* concerns offsets only */
    if (slice_is(type, "TemplateProcessing")) return add_template(t, node, error);
    return fail_type(node, error);
}

bool post_processor_build(Tokenizer *t, const Json *node, Error *error) {
    if (is_absent(node)) return true;
    return add_post_processor(t, node, 0, error) || fail_while(error, "post_processor");
}

/* --- Decoder ---------------------------------------------------------------------------------------------------- */

static bool add_decoder(Decoder *decoder, Arena *arena, const Json *node, int depth, Error *error) {
    Slice type = type_of(node);
    if (slice_is(type, "Sequence")) {
        const Json *list = get_list(node, "decoders", error);
        if (!list || depth >= SEQUENCE_DEPTH_MAX)
            return list && fail(error, ERROR_LIMIT, "Sequences are nested too deeply");
        int place = 0;
        for (JSON_EACH(child, list)) {
            if (!add_decoder(decoder, arena, child, depth + 1, error)) return fail_while(error, "decoders[%d]", place);
            place++;
        }
        return true;
    }
    if (decoder->count == DECODE_STEPS_MAX) return fail(error, ERROR_LIMIT, "more than %d steps", DECODE_STEPS_MAX);
    DecodeStep *step = &decoder->steps[decoder->count++];
    *step = (DecodeStep){.kind = DECODE_BYTE_LEVEL};
    if (slice_is(type, "ByteLevel")) return true;
    if (slice_is(type, "Replace")) {
        step->kind = DECODE_REPLACE;
        return get_pattern(node, arena, &step->finder, error) &&
            get_string(node, "content", arena, &step->content, error);
    }
    if (slice_is(type, "ByteFallback")) {
        step->kind = DECODE_BYTE_FALLBACK;
        return true;
    }
    if (slice_is(type, "Fuse")) {
        step->kind = DECODE_FUSE;
        return true;
    }
    if (slice_is(type, "Strip")) {
        step->kind = DECODE_STRIP;
        return get_character(node, "content", " ", arena, &step->content, error) &&
            get_count(node, "start", &step->start, error) && get_count(node, "stop", &step->stop, error);
    }
    if (slice_is(type, "Metaspace")) {
        step->kind = DECODE_METASPACE;
        return get_character(node, "replacement", "▁", arena, &step->content, error) &&
            get_scheme(node, &step->scheme, error);
    }
    return fail_type(node, error);
}

static DecodeShape decoder_shape(Decoder *decoder) {
    if (decoder->absent) return SHAPE_PIECES;
    if (decoder->count == 1 && decoder->steps[0].kind == DECODE_BYTE_LEVEL) return SHAPE_BYTES;
    size_t at = 0;
    while (at < decoder->count) {
        DecodeKind kind = decoder->steps[at].kind;
        if (kind != DECODE_REPLACE && kind != DECODE_STRIP && kind != DECODE_METASPACE) break;
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
    *decoder = (Decoder){.absent = is_absent(node)};
    if (!decoder->absent && !add_decoder(decoder, arena, node, 0, error)) return fail_while(error, "decoder");
    decoder->shape = decoder_shape(decoder);
    return true;
}
