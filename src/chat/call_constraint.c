#include "chat/call_constraint.h"

#include <stdlib.h>

/* Where no grammar holds, a state is one of these kinds, and how much of a text has been read. */
typedef enum FreeKind {
    FREE_BEGIN, /* nothing but the beginning of the answer, which may be that of a call without its marker */
    FREE_TEXT,  /* index: bytes of the marker */
    FREE_AFTER, /* behind the marker: white space only */
} FreeKind;

static const ConstraintState FREE_BIT = 0x80000000u, FREE_INDEX = 0xFFFF;
enum { FREE_KIND_SHIFT = 16, HEAD_MAX = 64 };

typedef struct CallConstraint {
    Constraint base;
    const Tokenizer *tokenizer;
    Grammar *grammar;
    Slice marker;                /* in front of calls */
    char head[HEAD_MAX];         /* beginning of an answer that starts with calls, without its blanks; empty: none */
    GrammarState marked, headed; /* behind them */
    char opener;                 /* first byte of a call after the marker; 0: any */
    char next;                   /* with which another call follows */
    bool returns;                /* behind a call comes any text */
    Buffer piece;
    size_t words;
    uint64_t mask[]; /* behind the marker */
} CallConstraint;

static CallConstraint *own(Constraint *constraint) { return (CallConstraint *)(void *)constraint; }

static ConstraintState free_state(FreeKind kind, size_t index) {
    return FREE_BIT | (ConstraintState)kind << FREE_KIND_SHIFT | (ConstraintState)index;
}

static bool blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* ---- free text ---- */

/* The bytes of the marker that the text ends with, behind index of them and one more. */
static size_t advance_marker(const CallConstraint *c, size_t index, char byte) {
    for (size_t size = index + 1; size > 0; size--) { /* marker[index + 1 − size … index) and byte */
        if (c->marker.data[size - 1] != byte) continue;
        if (!memcmp(c->marker.data, c->marker.data + index + 1 - size, size - 1)) return size;
    }
    return 0;
}

static ConstraintState advance_text(const CallConstraint *c, size_t index, char byte) {
    index = advance_marker(c, index, byte);
    if (index < c->marker.size) return free_state(FREE_TEXT, index);
    return c->opener ? free_state(FREE_AFTER, 0) : c->marked;
}

/* The beginning of an answer is that of the head so far; when it is not any more, its text may be a marker's. */
static ConstraintState advance_begin(const CallConstraint *c, size_t index, char byte) {
    if (blank(byte)) return free_state(FREE_BEGIN, index);
    if (byte && c->head[index] == byte) return c->head[index + 1] ? free_state(FREE_BEGIN, index + 1) : c->headed;
    ConstraintState state = free_state(FREE_TEXT, 0);
    for (size_t i = 0; i < index && state & FREE_BIT; i++) state = advance_text(c, state & FREE_INDEX, c->head[i]);
    return advance_text(c, state & FREE_INDEX, byte);
}

static ConstraintState advance_free(CallConstraint *c, ConstraintState state, char byte) {
    const FreeKind kind = (FreeKind)((state & ~FREE_BIT) >> FREE_KIND_SHIFT);
    const size_t index = state & FREE_INDEX;
    if (kind == FREE_BEGIN) return advance_begin(c, index, byte);
    if (kind == FREE_TEXT) return advance_text(c, index, byte);
    if (blank(byte)) return state;
    GrammarState next = c->marked;
    Error why;
    if (byte == c->opener && grammar_accept_bytes(c->grammar, &next, (Slice){&byte, 1}, &why)) return next;
    return advance_text(c, 0, byte);
}

/* ---- both ---- */

/* Behind a whole call there is any text again, unless another call may follow at once. */
static ConstraintState leave(CallConstraint *c, GrammarState state) {
    Error why;
    GrammarState next = state;
    if (!c->returns || !grammar_may_end(c->grammar, state)) return state;
    if (c->next && grammar_accept_bytes(c->grammar, &next, (Slice){&c->next, 1}, &why)) return state;
    return free_state(FREE_TEXT, 0);
}

static bool accept_free(CallConstraint *c, ConstraintState *state, int32_t token, Error *error) {
    buffer_clear(&c->piece);
    if (!tokenizer_bytes(c->tokenizer, token, &c->piece, error) && c->piece.failed) return false;
    const Slice bytes = buffer_view(&c->piece);
    for (size_t i = 0; i < bytes.size; i++) {
        *state = advance_free(c, *state, bytes.data[i]);
        if (*state & FREE_BIT) continue;
        const Slice rest = {bytes.data + i + 1, bytes.size - i - 1};
        if (rest.size > 0 && !grammar_accept_bytes(c->grammar, state, rest, error))
            *state = free_state(FREE_TEXT, 0); /* only where nothing tells a call from text */
        else
            *state = leave(c, *state);
        return true;
    }
    return true;
}

static bool accept_token(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    CallConstraint *c = own(constraint);
    if (*state & FREE_BIT) return accept_free(c, state, token, error);
    if (!grammar_accept(c->grammar, state, token, error)) return false;
    *state = leave(c, *state);
    return true;
}

static bool give_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    CallConstraint *c = own(constraint);
    *any = (state & FREE_BIT) && state != free_state(FREE_AFTER, 0);
    if (*any) return true;
    if (!(state & FREE_BIT)) return grammar_mask(c->grammar, state, mask, error);
    memcpy(mask, c->mask, c->words * sizeof *mask);
    return true;
}

static bool give_forced(
    Constraint *constraint, ConstraintState state, int32_t last, int32_t *tokens, int max, int *count, Error *error) {
    const CallConstraint *c = own(constraint);
    *count = 0;
    return state & FREE_BIT || constraint_jump_ahead(c->grammar, state, c->tokenizer, last, tokens, max, count, error);
}

static void free_constraint(Constraint *constraint) {
    CallConstraint *c = own(constraint);
    grammar_free(c->grammar);
    buffer_free(&c->piece);
    free(c);
}

/* ---- making ---- */

/* After the marker, every token is permitted except those that cannot begin a call. */
static bool fill_mask(CallConstraint *c, const ChatModel *model, Error *error) {
    memset(c->mask, 0xFF, c->words * sizeof *c->mask);
    Buffer bytes = {0};
    for (size_t i = 0; c->opener && i < model->call_openers.count; i++) {
        const int32_t id = model->call_openers.ids[i];
        GrammarState state = c->marked;
        Error why;
        buffer_clear(&bytes);
        if (!tokenizer_bytes(c->tokenizer, id, &bytes, &why)) continue;
        if (!grammar_accept_bytes(c->grammar, &state, call_marker_begin(buffer_view(&bytes)), &why))
            c->mask[id / 64] &= ~(UINT64_C(1) << id % 64);
    }
    const bool failed = bytes.failed;
    buffer_free(&bytes);
    return !failed || fail(error, ERROR_MEMORY, "no memory for a constraint");
}

static bool begin_states(CallConstraint *c, const CallRules *rules, Error *error) {
    const CallFormat *f = rules->format;
    c->marked = c->headed = grammar_start(c->grammar);
    c->marker = call_marker(f->open);
    if (!grammar_accept_bytes(c->grammar, &c->marked, slice_of(f->open), error)) return false;
    const Slice list = call_marker(f->list_open), head = call_marker(f->head);
    c->opener = list.size ? list.data[0] : head.size ? head.data[0] : 0;
    c->next = f->next ? f->next[0] : 0;
    if (!rules->bare || f->syntax != CALL_JSON) return true;
    size_t size = 0;
    for (const char *at = f->head; *at; at++) {
        CHECK(size + 1 < HEAD_MAX);
        if (!blank(*at)) c->head[size++] = *at;
    }
    return grammar_accept_bytes(c->grammar, &c->headed, slice_of(f->head), error);
}

static Constraint *make(ChatModel *model, const CallRules *rules, Grammar *grammar, size_t words, Error *error) {
    static const ConstraintOps ops = {
        .mask = give_mask, .jump_ahead = give_forced, .accept = accept_token, .free = free_constraint};
    CallConstraint *c = calloc(1, sizeof *c + words * sizeof *c->mask);
    if (!c) {
        fail(error, ERROR_MEMORY, "no memory for a constraint");
        grammar_free(grammar);
        return NULL;
    }
    constraint_init(&c->base, &ops, free_state(FREE_BEGIN, 0), words);
    c->grammar = grammar;
    c->tokenizer = model->tokenizer;
    c->words = words;
    c->returns = !rules->single && (rules->format->close || rules->format->list_close);
    if (begin_states(c, rules, error) && fill_mask(c, model, error)) return &c->base;
    free_constraint(&c->base);
    return NULL;
}

Constraint *call_constraint(ChatModel *model, const CallRules *rules, bool demanded, Error *error) {
    const Vocabulary *vocabulary = chat_model_call_vocabulary(model, error);
    if (!vocabulary) return NULL;
    Buffer source = {0};
    call_grammar_write(rules, &source);
    Grammar *grammar = NULL;
    if (source.failed)
        fail(error, ERROR_MEMORY, "no memory for the grammar of calls");
    else
        grammar = grammar_compile(GRAMMAR_LARK, buffer_view(&source), GRAMMAR_SPACE_FLEXIBLE, vocabulary, error);
    buffer_free(&source);
    if (!grammar) return NULL;
    return demanded ? constraint_of(model, grammar, error)
                    : make(model, rules, grammar, vocabulary_mask_words(vocabulary), error);
}
