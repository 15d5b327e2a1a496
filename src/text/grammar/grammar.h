/* text/grammar/: what a model may say next: grammars, and masks of the tokens that they allow.
 *
 * A grammar is compiled from a JSON schema, a regular expression or rules (GBNF, Lark) and is then asked, token by
 * token, which tokens may follow. What it lets through is always a beginning of a text of the language, so that as long
 * as a token is allowed the text can be finished; a source that cannot be kept exactly is refused, never approximated
 * by more than it allows.
 *
 * How: lexemes are regular expressions over bytes that are their own automata by derivatives (Brzozowski 1964; Owens,
 * Reppy, Turon 2009), with counted repeats, intersection and complement; rules over lexemes are run as a set of
 * (lexeme, stack) pairs in which everything equal is stored once, so that a state is a number. A mask is a walk of the
 * vocabulary's trie; in the free text of strings, where nearly every token fits, what does not depend on the grammar
 * was computed with the vocabulary (mask.c). References: llguidance (parser/src/earley, toktrie), XGrammar, llama.cpp's
 * llama-grammar.cpp.
 *
 * In this folder lives what decides which bytes and tokens may follow, and nothing that samples. Each file calls only
 * those above it:
 *   budget                        bytes and steps of one grammar
 *   lex, lex_step                 lexemes and their derivatives
 *   chars, pattern, number        sets of characters; regular expressions; ranges of numbers
 *   rules, rules_check            expressions over lexemes; what can end, what cannot begin
 *   matcher                       states and their transitions
 *   vocabulary, mask              tokens as tries; which of them fit
 *   json_form, format             JSON as bytes; the formats of strings
 *   schema_type, argument_form    types of members; arguments of tool calls as text
 *   schema_set, schema_rewrite, schema_scalar, schema_array, schema_object, schema_disjoint, schema
 *                                 from JSON schemas to rules
 *   source, gbnf, lark            from written rules to rules
 *   grammar, debug                what others call
 *
 * Threads: a Vocabulary is immutable and shared by all. A Grammar fills its tables as it is asked: one thread at a
 * time, but any thread, so it can be compiled off the engine's thread and handed over. */
#pragma once
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"
#include "text/tokenizer/tokenizer.h"

enum {
    GRAMMAR_SOURCE_BYTES_MAX = 4 << 20,
    GRAMMAR_DEPTH_MAX = 100,         /* nesting of groups in a source; JSON schemas nest as deep as JSON may */
    GRAMMAR_BYTES_MAX = 128 << 20,   /* tables of one grammar, masks included */
    GRAMMAR_RULES_MAX = 1 << 16,     /* rules of a source; combinations of schemas */
    GRAMMAR_ITEMS_MAX = 1 << 15,     /* ways to read a text that are followed at once */
    GRAMMAR_COMPILE_STEPS = 8 << 20, /* about a second at most */
    GRAMMAR_MASK_STEPS = 8 << 20,    /* work per mask or accepted token */
    GRAMMAR_INDENT_MAX = 64,         /* blanks behind a line feed in JSON: white space cannot go on for ever */
    GRAMMAR_FORCED_MAX = 1 << 10,    /* bytes of one call of grammar_forced */
};

/* --- Vocabulary --------------------------------------------------------------------------------------------------- */

typedef struct Vocabulary Vocabulary;

/* tokens: what each id stands for, by id. An empty one is never allowed: control tokens are given as such. ends: the
 * ids that end a text (they are allowed where the text may end). Copies all. About 40 bytes a token and 0.1 s. */
NODISCARD Vocabulary *vocabulary_new(
    const Slice *tokens, size_t count, const int32_t *ends, size_t end_count, Error *error);
/* Special tokens that stand for their spelling, as markers do. */
typedef struct SpelledTokens {
    bool (*spelled)(const void *context, Slice spelling);
    const void *context;
} SpelledTokens;

/* That of a tokenizer: its special tokens stand for nothing, but for those that are spelled (NULL: none). */
NODISCARD Vocabulary *vocabulary_of(
    const Tokenizer *t, const int32_t *ends, size_t end_count, const SpelledTokens *spelled, Error *error);
void vocabulary_free(Vocabulary *vocabulary);
size_t vocabulary_mask_words(const Vocabulary *vocabulary); /* of 64 bits, in a mask */

/* --- Grammars ----------------------------------------------------------------------------------------------------- */

typedef enum GrammarKind {
    GRAMMAR_JSON_SCHEMA, /* draft 2020-12; docs/grammar.md has the keywords */
    GRAMMAR_JSON_OBJECT, /* any object; the source is not looked at */
    GRAMMAR_REGEX,       /* ECMA-262; the whole text matches */
    GRAMMAR_GBNF,        /* llama.cpp's rules, from `root` */
    GRAMMAR_LARK,        /* Lark's, as llguidance reads them, from `start` */
} GrammarKind;

/* White space between the parts of JSON: none; or at most one space, or one line feed with an indent. */
typedef enum GrammarSpace { GRAMMAR_SPACE_FLEXIBLE, GRAMMAR_SPACE_NONE } GrammarSpace;

/* A directive of Lark's rules for this program's own grammars (a byte that no source should hold keeps it apart): the
 * arguments of a tool call. Behind it stand seven texts and a schema: the syntax ("json", "tagged", "python",
 * "braces"); "typed" or ""; "lenient" or ""; in front of a key, behind it, in front of a value, behind it. With
 * "lenient", keywords that cannot be kept are left out. */
#define GRAMMAR_ARGUMENTS "%\1arguments"

typedef struct Grammar Grammar;

/* vocabulary must outlive the grammar; NULL: only bytes will be asked about. ERROR_FORMAT: the source is broken;
 * ERROR_UNSUPPORTED: it is not, but cannot be kept (of a schema: names the keyword and where it stands); ERROR_LIMIT.
 */
NODISCARD Grammar *grammar_compile(
    GrammarKind kind, Slice source, GrammarSpace space, const Vocabulary *vocabulary, Error *error);
void grammar_free(Grammar *grammar);

/* Where a text stands. A plain number: equal states are equal, copies are free, going back is keeping an older one. */
typedef uint32_t GrammarState;
GrammarState grammar_start(const Grammar *grammar);

/* The tokens that may follow: bit id % 64 of word id / 64; vocabulary_mask_words of them. False: a limit. */
NODISCARD bool grammar_mask(Grammar *grammar, GrammarState state, uint64_t *mask, Error *error);
/* Moves on by a token; false and unmoved when it may not follow. An end token, where the text may end, leads to a state
 * that nothing may follow. */
NODISCARD bool grammar_accept(Grammar *grammar, GrammarState *state, int32_t token, Error *error);
NODISCARD bool grammar_accept_bytes(Grammar *grammar, GrammarState *state, Slice bytes, Error *error);
/* The text may end here. */
bool grammar_may_end(const Grammar *grammar, GrammarState state);
/* Appends the bytes that must follow, as there is one way on only: at most GRAMMAR_FORCED_MAX. */
NODISCARD bool grammar_forced(Grammar *grammar, GrammarState state, Buffer *bytes, Error *error);
/* Appends the tokens that spell these bytes the way the tokenizer does behind the token `last` (−1: at the beginning of
 * a text), but for those at their end whose place a longer token could take, which begins in these bytes and goes on
 * with what may come behind them. Each may follow. As any text that fits begins with these bytes, taking these tokens
 * changes which tokens spell it, never which text it is. */
NODISCARD bool grammar_jump_ahead_tokens(
    Grammar *grammar, GrammarState state, const Tokenizer *tokenizer, int32_t last, Tokens *tokens, Error *error);
