/* Grammars: the public functions. */
#include "text/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/lark.h"
#include "text/grammar/mask.h"
#include "text/grammar/pattern.h"
#include "text/grammar/schema.h"

struct Grammar {
    Budget budget;
    Lexicon lexicon;
    Rules rules;
    Matcher matcher;
    Masks masks; /* without a vocabulary: not open */
    bool has_masks;
};

static bool give(const Budget *budget, Error *error) {
    if (error) *error = budget->error;
    return false;
}

static bool compile_regex(Grammar *g, Slice source, Rule *root) {
    *root = rule_new(&g->rules, SLICE("root"));
    rule_define(&g->rules, *root, expr_lex(&g->rules, pattern_whole(&g->lexicon, source, (PatternFlags){0})));
    return !g->budget.failed;
}

static bool compile_source(Grammar *g, GrammarKind kind, Slice source, GrammarSpace space, Rule *root) {
    JsonForm form;
    if (source.size > GRAMMAR_SOURCE_BYTES_MAX)
        return budget_fail(&g->budget, ERROR_LIMIT, "the grammar is longer than %d bytes", GRAMMAR_SOURCE_BYTES_MAX);
    if (kind != GRAMMAR_JSON_OBJECT && !utf8_valid(source))
        return budget_fail(&g->budget, ERROR_FORMAT, "the grammar is not UTF-8");
    switch (kind) {
    case GRAMMAR_REGEX: return compile_regex(g, source, root);
    case GRAMMAR_GBNF: return gbnf_compile(&g->rules, source, root);
    case GRAMMAR_LARK: return lark_compile(&g->rules, source, space, root);
    case GRAMMAR_JSON_SCHEMA:
    case GRAMMAR_JSON_ANSWER:
        if (!json_form_open(&form, &g->rules, space)) return false;
        form.closed = kind == GRAMMAR_JSON_ANSWER;
        return schema_compile(&form, NULL, source, root);
    case GRAMMAR_JSON_OBJECT:
        if (!json_form_open(&form, &g->rules, space)) return false;
        *root = form.any_object;
        return true;
    }
    return budget_fail(&g->budget, ERROR_UNSUPPORTED, "no such kind of grammar");
}

Grammar *grammar_compile(
    GrammarKind kind, Slice source, GrammarSpace space, const Vocabulary *vocabulary, Error *error) {
    Grammar *g = calloc(1, sizeof *g);
    Rule root = 0;
    if (!g) {
        fail(error, ERROR_MEMORY, "no memory for a grammar");
        return NULL;
    }
    if (!source.size) source = SLICE("");
    budget_begin(&g->budget, GRAMMAR_COMPILE_STEPS);
    bool ok = lexicon_open(&g->lexicon, &g->budget) && rules_open(&g->rules, &g->lexicon) &&
        compile_source(g, kind, source, space, &root) && rules_check(&g->rules, root) &&
        matcher_open(&g->matcher, &g->rules, root);
    if (ok && vocabulary) ok = g->has_masks = masks_open(&g->masks, &g->matcher, vocabulary);
    if (ok) return g;
    give(&g->budget, error);
    grammar_free(g);
    return NULL;
}

void grammar_free(Grammar *g) {
    if (!g) return;
    if (g->has_masks) masks_close(&g->masks);
    matcher_close(&g->matcher);
    rules_close(&g->rules);
    lexicon_close(&g->lexicon);
    free(g);
}

/* Begins a call. Drops recomputable tables early, so that the other ones have room. */
static void begin(Grammar *g) {
    budget_begin(&g->budget, GRAMMAR_MASK_STEPS);
    if (g->budget.bytes < GRAMMAR_BYTES_MAX / 2) return;
    lexicon_forget_rows(&g->lexicon);
    if (g->has_masks) masks_forget(&g->masks);
}

GrammarState grammar_start(const Grammar *g) { return g->matcher.start; }
bool grammar_may_end(const Grammar *g, GrammarState state) { return g->matcher.states[state].ends; }

bool grammar_mask(Grammar *g, GrammarState state, uint64_t *mask, Error *error) {
    begin(g);
    CHECK(g->has_masks && state < g->matcher.state_count);
    return masks_fill(&g->masks, state, mask) || give(&g->budget, error);
}

bool grammar_accept(Grammar *g, GrammarState *state, int32_t token, Error *error) {
    CHECK(g->has_masks && *state < g->matcher.state_count);
    const Vocabulary *v = g->masks.vocabulary;
    begin(g);
    if (token >= 0 && (size_t)token < v->count) {
        if (vocabulary_is_end(v, token) && grammar_may_end(g, *state)) {
            *state = STATE_DEAD;
            return true;
        }
        const State to = masks_token(&g->masks, *state, token);
        if (to) {
            *state = to;
            return true;
        }
        if (g->budget.failed) return give(&g->budget, error);
    }
    return fail(error, ERROR_FORMAT, "the grammar does not allow the token %d here", token);
}

bool grammar_accept_bytes(Grammar *g, GrammarState *state, Slice bytes, Error *error) {
    State at = *state;
    CHECK(at < g->matcher.state_count);
    begin(g);
    for (size_t i = 0; i < bytes.size; i++) {
        at = matcher_step(&g->matcher, at, (uint8_t)bytes.data[i]);
        if (g->budget.failed) return give(&g->budget, error);
        if (!at) return fail(error, ERROR_FORMAT, "the grammar does not allow byte %zu", i);
    }
    *state = at;
    return true;
}

/* The state after the forced bytes. */
static State find_forced(Grammar *g, State state, Buffer *bytes) {
    for (int i = 0; state && i < GRAMMAR_FORCED_MAX; i++) {
        const int byte = matcher_only_byte(&g->matcher, state);
        if (byte < 0) break;
        buffer_byte(bytes, (char)byte);
        state = matcher_step(&g->matcher, state, (uint8_t)byte);
    }
    return state;
}

bool grammar_forced(Grammar *g, GrammarState state, Buffer *bytes, Error *error) {
    CHECK(state < g->matcher.state_count);
    begin(g);
    (void)find_forced(g, state, bytes);
    return !g->budget.failed || give(&g->budget, error);
}

static Slice token_bytes(const Grammar *g, int32_t id) {
    const Vocabulary *v = g->masks.vocabulary;
    return id >= 0 && (size_t)id < v->count ? vocabulary_token(v, id) : (Slice){"", 0};
}

/* Appends tokens of the text from byte `from`, at most up to byte `to`. False: no token boundary at `from`. A prefix
 * that the tokenizer adds, or an unspelled marker, ends the tokens. */
static bool take_tokens(const Grammar *g, const Tokens *all, Slice text, size_t from, size_t to, Tokens *tokens) {
    size_t at = 0;
    for (size_t i = 0; i < all->count; i++) {
        const Slice token = token_bytes(g, all->ids[i]);
        if (!token.size || token.size > to - at || memcmp(token.data, text.data + at, token.size) != 0) break;
        if (at < from && at + token.size > from) return false;
        if (at >= from && !tokens_push(tokens, all->ids[i])) break;
        at += token.size;
    }
    return at >= from;
}

bool grammar_jump_ahead_tokens(
    Grammar *g, GrammarState state, const Tokenizer *tokenizer, int32_t last, Tokens *tokens, Error *error) {
    CHECK(g->has_masks && state < g->matcher.state_count);
    const Slice before = token_bytes(g, last);
    Buffer text = {0};
    begin(g);
    buffer_slice(&text, before);
    const State to = find_forced(g, state, &text);
    const Slice whole = buffer_view(&text), forced = {whole.data + before.size, whole.size - before.size};
    const size_t settled = !text.failed && forced.size && to ? masks_settled(&g->masks, to, forced) : 0;
    bool ok = !g->budget.failed || give(&g->budget, error);
    if (ok && text.failed) ok = fail(error, ERROR_MEMORY, "no memory for what must follow");
    /* Without a token boundary after `before`, another tokenization chose that token. Tokens that begin or end inside
     * of a character are left out. */
    for (int alone = before.size == 0; ok && settled && alone < 2; alone++) {
        Tokens all = {0};
        const Slice part = alone ? forced : whole;
        const size_t from = alone ? 0 : before.size;
        if (utf8_valid(part)) ok = tokenizer_encode(tokenizer, part, CONTROL_RECOGNISED, false, &all, error);
        const bool done = ok && take_tokens(g, &all, part, from, from + settled, tokens);
        tokens_free(&all);
        if (done) break;
    }
    buffer_free(&text);
    return ok;
}
