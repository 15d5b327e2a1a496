/* text/grammar/: grammars for constrained decoding, and masks of the tokens that they allow.
 *
 * A grammar is compiled from a JSON schema, a regular expression or rules (GBNF, Lark); it then gives, token by token,
 * the tokens that may follow. The text so far is always a prefix of a text of the language, so while a token is allowed
 * the text can be completed. A source that is not supported exactly is refused, never approximated by a larger
 * language.
 *
 * Lexemes are regular expressions over bytes; their derivatives are the states of the automaton (Brzozowski 1964;
 * Owens, Reppy, Turon 2009), with counted repeats, intersection and complement. Rules over lexemes run as a set of
 * (lexeme, stack) pairs; equal ones are stored once, so that a state is a number. A mask is a walk of the vocabulary's
 * trie; in the free text of strings, where nearly every token is allowed, the part that does not depend on the grammar
 * is computed with the vocabulary (mask.c). References: llguidance (parser/src/earley, toktrie), XGrammar, llama.cpp's
 * llama-grammar.cpp.
 *
 * The folder decides which bytes and tokens may follow; it does not sample. Each file calls only those above it:
 *   budget                        bytes and steps of one grammar
 *   lex, lex_step                 lexemes and their derivatives
 *   chars, pattern, number        sets of characters; regular expressions; ranges of numbers
 *   rules, rules_check            expressions over lexemes; nullable and unproductive rules
 *   matcher                       states and their transitions
 *   vocabulary, mask              tokens as tries; token masks
 *   json_form, format             JSON syntax; the formats of strings
 *   schema_type, argument_form    types of members; arguments of tool calls as text
 *   schema_set, schema_rewrite, schema_scalar, schema_array, schema_object, schema_disjoint, schema
 *                                 from JSON schemas to rules
 *   source, gbnf, lark            from grammar sources to rules
 *   grammar, debug                public functions
 *
 * Thread: a Vocabulary is immutable, any thread. A Grammar fills its tables on demand: one thread at a time, but any
 * thread, so it can be compiled outside of the engine's thread. */
#pragma once
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"
#include "text/tokenizer/tokenizer.h"

enum {
    GRAMMAR_SOURCE_BYTES_MAX = 4 << 20,
    GRAMMAR_DEPTH_MAX = 100,         /* nesting of groups in a source; JSON schemas: JSON's own limit */
    GRAMMAR_BYTES_MAX = 128 << 20,   /* tables of one grammar, masks included */
    GRAMMAR_RULES_MAX = 1 << 16,     /* rules of a source; combinations of schemas */
    GRAMMAR_ITEMS_MAX = 1 << 15,     /* parses of a text that are followed in parallel */
    GRAMMAR_COMPILE_STEPS = 8 << 20, /* about a second at most */
    GRAMMAR_MASK_STEPS = 8 << 20,    /* work per mask or accepted token */
    GRAMMAR_INDENT_MAX = 64,         /* spaces after a line feed in JSON, which bounds white space */
    GRAMMAR_FORCED_MAX = 1 << 10,    /* bytes of one call of grammar_forced */
};

/* --- Vocabulary --------------------------------------------------------------------------------------------------- */

typedef struct Vocabulary Vocabulary;

/* tokens: [count] bytes of each token; an empty one is never allowed, as control tokens. ends: ids that end a text,
 * allowed where the text may end. Copies all. Costs about 40 bytes per token and 0.1 s. */
NODISCARD Vocabulary *vocabulary_new(
    const Slice *tokens, size_t count, const int32_t *ends, size_t end_count, Error *error);
/* Special tokens that a grammar may use as text, such as markers of tool calls. */
typedef struct SpelledTokens {
    bool (*spelled)(const void *context, Slice spelling);
    const void *context;
} SpelledTokens;

/* The vocabulary of a tokenizer. Special tokens are never allowed, except those in `spelled` (NULL: none). */
NODISCARD Vocabulary *vocabulary_of(
    const Tokenizer *t, const int32_t *ends, size_t end_count, const SpelledTokens *spelled, Error *error);
void vocabulary_free(Vocabulary *vocabulary);
size_t vocabulary_mask_words(const Vocabulary *vocabulary); /* of 64 bits, in a mask */

/* --- Grammars ----------------------------------------------------------------------------------------------------- */

typedef enum GrammarKind {
    GRAMMAR_JSON_SCHEMA, /* draft 2020-12; docs/grammar.md has the keywords */
    /* The same, but an object has the properties that its schema names, and others only where the schema speaks of them
     * (additionalProperties, patternProperties) or demands more than it names: models would invent some. */
    GRAMMAR_JSON_ANSWER,
    GRAMMAR_JSON_OBJECT, /* any object; the source is ignored */
    GRAMMAR_REGEX,       /* ECMA-262; the whole text matches */
    GRAMMAR_GBNF,        /* llama.cpp's rules, from `root` */
    GRAMMAR_LARK,        /* Lark's, as llguidance reads them, from `start` */
} GrammarKind;

/* White space between the parts of JSON: none; or at most one space, or one line feed with an indent. */
typedef enum GrammarSpace { GRAMMAR_SPACE_FLEXIBLE, GRAMMAR_SPACE_NONE } GrammarSpace;

/* A directive of Lark sources that this program itself makes, kept apart by a byte that users' sources may not contain:
 * the arguments of a tool call. Seven texts and a schema follow: the syntax ("json", "tagged", "python", "braces");
 * "typed" or ""; "lenient" or "" (unsupported keywords are ignored); the markers before a key, after it, before a value
 * and after it. */
#define GRAMMAR_ARGUMENTS "%\1arguments"
/* Likewise: a schema follows, which is read as GRAMMAR_JSON_ANSWER. */
#define GRAMMAR_ANSWER "%\1answer"

typedef struct Grammar Grammar;

/* vocabulary: borrowed, must outlive the grammar; NULL: only the functions of bytes may be called. Errors:
 * ERROR_FORMAT: the source is malformed; ERROR_UNSUPPORTED: valid but not supported (a schema's keyword and its place
 * are named); ERROR_LIMIT. */
NODISCARD Grammar *grammar_compile(
    GrammarKind kind, Slice source, GrammarSpace space, const Vocabulary *vocabulary, Error *error);
void grammar_free(Grammar *grammar);

/* Position in a text: a plain number. Equal numbers are equal states; keeping an older one allows going back. */
typedef uint32_t GrammarState;
GrammarState grammar_start(const Grammar *grammar);

/* The tokens that may follow: mask [vocabulary_mask_words], bit id % 64 of word id / 64. False: ERROR_LIMIT. */
NODISCARD bool grammar_mask(Grammar *grammar, GrammarState state, uint64_t *mask, Error *error);
/* Advances by a token. False, state unchanged: it may not follow. An end token, where the text may end, leads to a
 * state without successors. */
NODISCARD bool grammar_accept(Grammar *grammar, GrammarState *state, int32_t token, Error *error);
NODISCARD bool grammar_accept_bytes(Grammar *grammar, GrammarState *state, Slice bytes, Error *error);
/* The text may end here. */
bool grammar_may_end(const Grammar *grammar, GrammarState state);
/* Appends the bytes that must follow (the only continuation), at most GRAMMAR_FORCED_MAX. */
NODISCARD bool grammar_forced(Grammar *grammar, GrammarState state, Buffer *bytes, Error *error);
/* Appends the tokens of the forced bytes, as the tokenizer splits them after the token `last` (−1: at the beginning of
 * a text). Tokens at the end are left out if a longer token could begin in them and continue past the forced bytes.
 * Each token may follow. Every text of the language begins with these bytes, so the tokens change its tokenization,
 * never the text itself. */
NODISCARD bool grammar_jump_ahead_tokens(
    Grammar *grammar, GrammarState state, const Tokenizer *tokenizer, int32_t last, Tokens *tokens, Error *error);
