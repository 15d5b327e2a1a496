#include "text/tokenizer/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/base64.h"
#include "base/file.h"
#include "base/json.h"
#include "base/map.h"
#include "text/tokenizer/byte_level.h"

enum { FILE_BYTES_MAX = 128 << 20, TOKENS_MAX = 1 << 22, TOKEN_BYTES_MAX = 4096, SPECIAL_MAX = 1 << 16 };
static const size_t MEMORY_MAX = (size_t)2 << 30;

typedef struct Ranks {
    Arena arena;
    int32_t count, capacity;
    Slice *bytes; /* by rank */
    Map by_bytes; /* → rank */
    int32_t first_id;
    Error *error;
} Ranks;

/* --- Reading ---------------------------------------------------------------------------------------------------- */

static bool add(Ranks *r, int64_t rank, Slice text) {
    size_t size;
    if (rank != r->count || rank >= TOKENS_MAX)
        return fail(r->error, ERROR_FORMAT, "rank %lld where %d must be", (long long)rank, r->count);
    if (text.size > TOKEN_BYTES_MAX)
        return fail(r->error, ERROR_LIMIT, "rank %d: more than %d characters", r->count, TOKEN_BYTES_MAX);
    if (r->count == r->capacity) {
        const int32_t capacity = r->capacity ? 2 * r->capacity : 1 << 12;
        Slice *grown = arena_alloc(&r->arena, (size_t)capacity, sizeof *grown);
        if (!grown) return fail(r->error, ERROR_MEMORY, "no memory for %d tokens", capacity);
        if (r->count) memcpy(grown, r->bytes, (size_t)r->count * sizeof *grown);
        r->bytes = grown;
        r->capacity = capacity;
    }
    uint8_t *bytes = arena_alloc(&r->arena, base64_bytes_max(text.size) + 1, 1);
    if (!bytes) return fail(r->error, ERROR_MEMORY, "no memory for the tokens");
    if (!base64_decode(text, bytes, &size) || size == 0)
        return fail(r->error, ERROR_FORMAT, "rank %d: %.*s is no base64", r->count, SLICE_SHOWN(text));
    const Slice token = {(const char *)bytes, size};
    if (map_get(&r->by_bytes, token, NULL))
        return fail(r->error, ERROR_FORMAT, "rank %d: its bytes have another one", r->count);
    r->bytes[r->count] = token;
    return map_put(&r->by_bytes, token, (uint64_t)r->count++) ||
        fail(r->error, ERROR_MEMORY, "no memory for the tokens");
}

/* Lines of base64, a space and the rank. */
static bool read_lines(Ranks *r, Slice text) {
    for (size_t at = 0, line = 1; at < text.size; line++) {
        const char *start = text.data + at, *end = memchr(start, '\n', text.size - at);
        const size_t size = end ? (size_t)(end - start) : text.size - at;
        const char *space = memchr(start, ' ', size);
        char number[16] = "";
        at += size + 1;
        if (size == 0) continue;
        if (!space || size - (size_t)(space - start) >= sizeof number)
            return fail(r->error, ERROR_FORMAT, "line %zu is not a token and its rank", line);
        memcpy(number, space + 1, size - (size_t)(space - start) - 1);
        char *rest;
        const long rank = strtol(number, &rest, 10);
        if (rest == number || (*rest && *rest != '\r'))
            return fail(r->error, ERROR_FORMAT, "line %zu has no rank", line);
        if (!add(r, rank, (Slice){start, (size_t)(space - start)})) return false;
    }
    return r->count > 0 || fail(r->error, ERROR_FORMAT, "there is no token");
}

/* --- Writing ---------------------------------------------------------------------------------------------------- */

static void write_spelled(Slice bytes, Buffer *spelled, Buffer *out) {
    buffer_clear(spelled);
    byte_level_write(bytes, spelled);
    json_write_string(out, buffer_view(spelled));
}

/* Each way to join two tokens into a third, in the order of the third's rank. */
static void write_merges(const Ranks *r, Buffer *spelled, Buffer *out) {
    bool first = true;
    for (int32_t i = 0; i < r->count; i++) {
        const Slice token = r->bytes[i];
        for (size_t at = 1; at < token.size; at++) {
            const Slice left = {token.data, at}, right = {token.data + at, token.size - at};
            uint64_t a, b;
            if (!map_get(&r->by_bytes, left, &a) || !map_get(&r->by_bytes, right, &b)) continue;
            if (a >= (uint64_t)i || b >= (uint64_t)i) continue;
            buffer_text(out, first ? "[" : ",[");
            write_spelled(left, spelled, out);
            buffer_byte(out, ',');
            write_spelled(right, spelled, out);
            buffer_byte(out, ']');
            first = false;
        }
    }
}

static void write_steps(Slice pattern, bool nfc, Buffer *out) {
    buffer_printf(out, ",\"normalizer\":%s", nfc ? "{\"type\":\"NFC\"}" : "null");
    buffer_text(out,
        ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    json_write_string(out, pattern);
    buffer_text(out,
        "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
        "\"trim_offsets\":true,\"use_regex\":true}");
}

static bool write_model(Ranks *r, Buffer *out) {
    Buffer spelled = {0};
    buffer_text(out,
        ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
        "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":true,\"vocab\":{");
    for (int32_t i = 0; i < r->count; i++) {
        if (i) buffer_byte(out, ',');
        write_spelled(r->bytes[i], &spelled, out);
        buffer_printf(out, ":%d", i + r->first_id);
    }
    buffer_text(out, "},\"merges\":[");
    write_merges(r, &spelled, out);
    buffer_text(out, "]}}");
    const bool ok = !spelled.failed && !out->failed;
    buffer_free(&spelled);
    return ok || fail(r->error, ERROR_MEMORY, "no memory for the vocabulary");
}

static void write_added(Buffer *out, int64_t id, Slice text, bool first) {
    buffer_printf(out, "%s{\"id\":%lld,\"content\":", first ? "" : ",", (long long)id);
    json_write_string(out, text);
    buffer_text(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}");
}

/* --- tekken.json ------------------------------------------------------------------------------------------------ */

/* Those of files without a list; the others are <SPECIAL_n>. */
static const char *const tekken_special[] = {"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"};

static const Json *special_at(const Json *list, int64_t rank) {
    if (!list || list->type != JSON_ARRAY) return NULL;
    for (JSON_EACH(item, list)) {
        const Json *own = json_get(item, "rank"), *text = json_get(item, "token_str");
        if (own && own->type == JSON_INTEGER && own->integer == rank && text && text->type == JSON_STRING) return text;
    }
    return NULL;
}

static bool whole(const Json *object, const char *name, int64_t most, int64_t *value, Error *error) {
    const Json *number = json_get(object, name);
    if (!number || number->type != JSON_INTEGER || number->integer < 1 || number->integer > most)
        return fail(
            error, ERROR_FORMAT, "config.%s is %s, must be 1 to %lld", name, json_type_name(number), (long long)most);
    *value = number->integer;
    return true;
}

static bool from_tekken(Ranks *r, Slice text, Buffer *out) {
    const Json *root = json_parse(&r->arena, text, r->error), *config = json_get(root, "config");
    const Json *vocab = json_get(root, "vocab"), *list = json_get(root, "special_tokens"),
               *pattern = json_get(config, "pattern");
    int64_t all = 0, special = 0;
    if (!root) return false;
    if (!pattern || pattern->type != JSON_STRING || !vocab || vocab->type != JSON_ARRAY)
        return fail(r->error, ERROR_FORMAT, "config.pattern or vocab is missing");
    if (!whole(config, "default_vocab_size", TOKENS_MAX, &all, r->error) ||
        !whole(config, "default_num_special_tokens", SPECIAL_MAX, &special, r->error))
        return false;
    r->first_id = (int32_t)special;
    for (const Json *item = json_first(vocab); item != vocab->end && r->count < all - special; item = json_next(item)) {
        const Json *rank = json_get(item, "rank"), *bytes = json_get(item, "token_bytes");
        if (!rank || rank->type != JSON_INTEGER || !bytes || bytes->type != JSON_STRING)
            return fail(r->error, ERROR_FORMAT, "vocab[%d] has no rank or no token_bytes", r->count);
        if (!add(r, rank->integer, json_slice(bytes))) return false;
    }
    buffer_text(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int64_t i = 0; i < special; i++) {
        const Json *own = special_at(list, i);
        char name[32];
        snprintf(name, sizeof name, "<SPECIAL_%lld>", (long long)i);
        const bool usual = !list && i < (int64_t)COUNT_OF(tekken_special);
        write_added(out, i, own ? json_slice(own) : slice_of(usual ? tekken_special[i] : name), i == 0);
    }
    buffer_byte(out, ']');
    write_steps(json_slice(pattern), false, out);
    buffer_text(out,
        ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_"
        "id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":["
        "1],"
        "\"tokens\":[\"<s>\"]}}}");
    return write_model(r, out);
}

/* --- tiktoken files --------------------------------------------------------------------------------------------- */

#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

typedef struct RankFile {
    const char *name, *pattern;
    bool nfc;
    const char *const *special; /* behind the ranks; NULL: tokenizer_config.json has them */
} RankFile;

static const char *const qwen_special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", NULL};
static const RankFile files[] = {
    {"tiktoken.model",
        "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" SHORT_FORMS
        "?|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" SHORT_FORMS
        "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        false, NULL},
    {"qwen.tiktoken",
        SHORT_FORMS
        "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        true, qwen_special},
};

static bool from_lines(Ranks *r, Slice text, const RankFile *file, Buffer *out) {
    if (!read_lines(r, text)) return false;
    buffer_text(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; file->special && file->special[i]; i++)
        write_added(out, (int64_t)r->count + i, slice_of(file->special[i]), i == 0);
    buffer_text(out, "],\"post_processor\":null");
    write_steps(slice_of(file->pattern), file->nfc, out);
    return write_model(r, out);
}

bool ranks_read(const char *directory, Buffer *out, bool *found, Error *error) {
    *found = false;
    for (size_t i = 0; i <= COUNT_OF(files) && !*found; i++) {
        const RankFile *file = i < COUNT_OF(files) ? &files[i] : NULL;
        char path[4096];
        const int length = snprintf(path, sizeof path, "%s/%s", directory, file ? file->name : "tekken.json");
        if (length < 0 || (size_t)length >= sizeof path || !file_exists(path)) continue;
        *found = true;
        Ranks r = {.arena.limit = MEMORY_MAX, .error = error};
        Buffer text = {0};
        const bool ok = file_read(path, FILE_BYTES_MAX, &text, error) &&
            ((file ? from_lines(&r, buffer_view(&text), file, out) : from_tekken(&r, buffer_view(&text), out)) ||
                fail_while(error, "%s", path));
        map_free(&r.by_bytes);
        arena_free(&r.arena);
        buffer_free(&text);
        return ok;
    }
    return true;
}
