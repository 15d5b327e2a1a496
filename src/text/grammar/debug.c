/* The debug instrument for grammars. */
#include "text/grammar/debug.h"

#include <stdlib.h>
#include <time.h>

#include "base/json.h"

static bool read_source(const Json *request, GrammarKind *kind, Buffer *source, Error *error) {
    static const struct {
        const char *name;
        GrammarKind kind;
    } kinds[] = {
        {"schema", GRAMMAR_JSON_SCHEMA}, {"regex", GRAMMAR_REGEX}, {"gbnf", GRAMMAR_GBNF}, {"lark", GRAMMAR_LARK}};
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const Json *value = json_get(request, kinds[i].name);
        if (!value) continue;
        *kind = kinds[i].kind;
        if (kinds[i].kind == GRAMMAR_JSON_SCHEMA) {
            json_write(source, value);
        } else if (value->type == JSON_STRING) {
            buffer_slice(source, json_slice(value));
        } else {
            break;
        }
        return !source->failed || fail(error, ERROR_MEMORY, "no memory for the grammar");
    }
    return fail(error, ERROR_USAGE, "there must be a \"schema\", \"regex\", \"gbnf\" or \"lark\"");
}

/* CPU time of this thread: wall time would include other threads. */
static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Tokens that forced bytes skip: the text's own, or other tokens with the same bytes. */
typedef struct Skips {
    size_t tokens, same, to; /* to: the token up to which they go */
} Skips;

static bool skip_forced(
    Grammar *g, const Tokenizer *t, GrammarState state, const Tokens *ids, size_t at, Skips *skips, Error *error) {
    Tokens forced = {0};
    if (at < skips->to) return true;
    bool ok = grammar_jump_ahead_tokens(g, state, t, at ? ids->ids[at - 1] : -1, &forced, error),
         same = at + forced.count <= ids->count;
    for (size_t i = 0; ok && i < forced.count; i++) {
        same = same && forced.ids[i] == ids->ids[at + i];
        ok = grammar_accept(g, &state, forced.ids[i], error);
    }
    skips->tokens += forced.count;
    skips->same += same ? forced.count : 0;
    skips->to = at + forced.count;
    tokens_free(&forced);
    return ok;
}

/* Each token of the text must be in the mask before it; masks and accepted tokens must agree. */
static bool check_text(Grammar *g, const Tokenizer *t, size_t words, Slice text, Buffer *out, Error *error) {
    Tokens ids = {0};
    uint64_t *mask = calloc(words + 1, sizeof *mask);
    GrammarState state = grammar_start(g);
    Skips skips = {0};
    bool ok = mask || fail(error, ERROR_MEMORY, "no memory for a mask"), accepted = true;
    size_t at = 0;
    ok = ok && tokenizer_encode(t, text, CONTROL_AS_TEXT, false, &ids, error);
    buffer_text(out, ",\"mask_us\":[");
    for (size_t i = 0; ok && accepted && i <= ids.count; i++) {
        const double begin = cpu_us();
        ok = grammar_mask(g, state, mask, error);
        buffer_printf(out, "%s%.1f", i ? "," : "", cpu_us() - begin);
        ok = ok && skip_forced(g, t, state, &ids, i, &skips, error);
        if (!ok || i == ids.count) break;
        const int32_t id = ids.ids[i];
        const bool fits = mask[id / 64] >> (id % 64) & 1;
        accepted = grammar_accept(g, &state, id, NULL);
        if (ok && fits != accepted) ok = fail(error, ERROR_FORMAT, "the mask says otherwise of token %d", id);
        at = accepted ? i + 1 : at;
    }
    const bool whole = accepted && grammar_may_end(g, state);
    buffer_printf(out, "],\"at\":%zu,\"tokens\":%zu,\"accepted\":%s", at, ids.count, whole ? "true" : "false");
    buffer_printf(out, ",\"skipped\":%zu,\"skipped_same\":%zu", skips.tokens, skips.same);
    tokens_free(&ids);
    free(mask);
    return ok;
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* One of the tokens in a mask. */
static int32_t choose(const uint64_t *mask, size_t words, uint64_t *random) {
    uint64_t count = 0;
    for (size_t i = 0; i < words; i++) count += (uint64_t)__builtin_popcountll(mask[i]);
    uint64_t skip = count ? next_random(random) % count : 0;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = mask[i];
        const uint64_t here = (uint64_t)__builtin_popcountll(word);
        if (skip >= here) {
            skip -= here;
            continue;
        }
        for (; skip; skip--) word &= word - 1;
        return (int32_t)(i * 64) + __builtin_ctzll(word);
    }
    return -1;
}

static bool sample(
    Grammar *g, const Tokenizer *t, size_t words, int64_t limit, uint64_t seed, Buffer *out, Error *error) {
    uint64_t *mask = calloc(words + 1, sizeof *mask), random = seed;
    GrammarState state = grammar_start(g);
    Buffer text = {0}, forced = {0};
    bool ok = mask || fail(error, ERROR_MEMORY, "no memory for a mask"), ended = false;
    for (int64_t i = 0; ok && !ended && i < limit; i++) {
        buffer_clear(&forced);
        ok = grammar_forced(g, state, &forced, error) && grammar_accept_bytes(g, &state, buffer_view(&forced), error) &&
            grammar_mask(g, state, mask, error);
        buffer_slice(&text, buffer_view(&forced));
        ended = ok && grammar_may_end(g, state) && next_random(&random) % 2;
        if (!ok || ended) break;
        const int32_t id = choose(mask, words, &random);
        ended = id < 0;
        if (id < 0 && !grammar_may_end(g, state))
            ok = fail(error, ERROR_FORMAT, "nothing may follow, and it cannot end");
        if (id >= 0) ok = grammar_accept(g, &state, id, error) && tokenizer_bytes(t, id, &text, error);
    }
    buffer_text(out, ",\"text\":");
    json_write_string(out, buffer_view(&text));
    buffer_printf(out, ",\"ended\":%s", ended ? "true" : "false");
    buffer_free(&text);
    buffer_free(&forced);
    free(mask);
    return ok;
}

static bool answer(const Tokenizer *t, const Vocabulary *v, const Json *request, Buffer *out, Error *error) {
    GrammarKind kind = GRAMMAR_JSON_SCHEMA;
    Buffer source = {0};
    const Json *text = json_get(request, "text"), *limit = json_get(request, "sample"),
               *seed = json_get(request, "seed");
    const Json *compact = json_get(request, "compact");
    bool ok = read_source(request, &kind, &source, error);
    if (ok && !(text && text->type == JSON_STRING) && !(limit && limit->type == JSON_INTEGER))
        ok = fail(error, ERROR_USAGE, "there must be a \"text\" or a \"sample\"");
    if (ok) {
        const double begin = cpu_us();
        const bool tight = compact && compact->type == JSON_BOOL && compact->boolean;
        Error why = {0};
        Grammar *g =
            grammar_compile(kind, buffer_view(&source), tight ? GRAMMAR_SPACE_NONE : GRAMMAR_SPACE_FLEXIBLE, v, &why);
        buffer_printf(out, "{\"compile_us\":%.1f", cpu_us() - begin);
        const uint64_t from = seed && seed->type == JSON_INTEGER ? (uint64_t)seed->integer : 0;
        if (!g) {
            buffer_text(out, ",\"unsupported\":");
            json_write_string(out, slice_of(why.text));
        } else if (limit) {
            ok = sample(g, t, vocabulary_mask_words(v), limit->integer, from, out, error);
        } else {
            ok = check_text(g, t, vocabulary_mask_words(v), json_slice(text), out, error);
        }
        buffer_byte(out, '}');
        grammar_free(g);
    }
    buffer_free(&source);
    return ok;
}

bool text_debug_grammar(const Tokenizer *t, const Vocabulary *v, Slice json_line, Buffer *out, Error *error) {
    Arena arena = {0};
    const Json *request = json_parse(&arena, json_line, error);
    bool ok = request && answer(t, v, request, out, error);
    if (ok && out->failed) ok = fail(error, buffer_failure(out), "no room for the answer");
    arena_free(&arena);
    return ok;
}
