/* Pre-tokenising: a piece passes the steps depth first, so that words reach the model at once. */
#include "text/tokenizer/pretokenize.h"

#include <string.h>

#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/split_fast.h"
#include "text/tokenizer/word_models.h"

typedef struct Run {
    const PreTokenizer *pre;
    const Bpe *bpe;
    PreWork *work;
    Tokens *out;
    Error *error;
} Run;

static bool run_step(const Run *run, size_t step, Slice piece, bool first);

void pre_work_free(PreWork *work) {
    for (size_t i = 0; i < PRE_STEPS_MAX; i++) buffer_free(&work->text[i]);
    bpe_work_free(&work->bpe);
}

static bool no_memory(const Run *run) { return fail(run->error, ERROR_MEMORY, "no memory to tokenize"); }

static inline bool pass_on(const Run *run, size_t step, Slice text, size_t start, size_t end, bool first) {
    if (start == end) return true;
    Slice piece = {text.data + start, end - start};
    if (step + 1 < run->pre->count) return run_step(run, step + 1, piece, first && start == 0);
    return word_encode(run->bpe, &run->work->bpe, piece, run->out) || no_memory(run);
}

/* Whether a step makes the words of a BPE model from matches that are found many at a time. */
static bool makes_words(const Run *run, size_t step) {
    const PreStep *split = &run->pre->steps[step];
    if (step + 1 < run->pre->count || run->bpe->kind != MODEL_BPE || split->finder.kind != FIND_FAST) return false;
    return split->behaviour == SPLIT_ISOLATED ||
        (split->behaviour == SPLIT_REMOVED && split->invert && split->finder.fast->tiles);
}

enum { AT_ONCE = 256 };

static bool split_words(const Run *run, size_t step, Slice text) {
    size_t ends[AT_ONCE];
    for (size_t at = 0, count; at < text.size; at = ends[count - 1]) {
        count = run->pre->steps[step].finder.fast->many(text.data, text.size, at, ends, AT_ONCE);
        if (!bpe_encode_words(run->bpe, &run->work->bpe, text, at, ends, count, run->out)) return no_memory(run);
    }
    return true;
}

static bool is_deepseek(const PreTokenizer *pre, const Bpe *bpe) {
    if (pre->count != 3 || bpe->kind != MODEL_BPE) return false;
    for (int i = 0; i < 3; i++) {
        const PreStep *step = &pre->steps[i];
        if (step->kind != PRE_SPLIT || step->finder.kind != FIND_FAST || step->behaviour != SPLIT_ISOLATED)
            return false;
    }
    return split_deepseek_steps(pre->steps[0].finder.fast, pre->steps[1].finder.fast, pre->steps[2].finder.fast);
}

/* Three steps at once. */
static bool split_deepseek(const Run *run, Slice text) {
    size_t ends[AT_ONCE], piece = 0;
    for (size_t at = 0, count; at < text.size; at = ends[count - 1]) {
        count = split_deepseek_words(text.data, text.size, at, &piece, ends, AT_ONCE);
        if (!bpe_encode_words(run->bpe, &run->work->bpe, text, at, ends, count, run->out)) return no_memory(run);
    }
    return true;
}

/* The usual case: matches and the text between them are separate pieces. */
static bool split_isolated(const Run *run, size_t step, Slice text, bool first) {
    const PreStep *split = &run->pre->steps[step];
    size_t done = 0, from = 0, start = 0, end = 0;
    bool keep_gaps = split->behaviour == SPLIT_ISOLATED || !split->invert,
         keep_matches = split->behaviour == SPLIT_ISOLATED || split->invert;
    while (from <= text.size) {
        RegexResult result = finder_next(&split->finder, run->work->regex, text, from, &start, &end);
        if (result == REGEX_NONE) break;
        if (result == REGEX_EXHAUSTED) {
            return fail(run->error, ERROR_LIMIT, "the pre-tokenizer's pattern takes too many steps on this text");
        }
        if (keep_gaps && !pass_on(run, step, text, done, start, first)) return false;
        if (keep_matches && !pass_on(run, step, text, start, end, first)) return false;
        done = end;
        from = finder_resume(text, start, end);
    }
    return !keep_gaps || pass_on(run, step, text, done, text.size, first);
}

/* Segments, alternately matching or not, joined as the behaviour says. */
typedef struct Joiner {
    const Run *run;
    size_t step;
    Slice text;
    bool first;
    size_t start, end; /* the piece under construction; empty: none */
    bool match;        /* the last segment was a match */
} Joiner;

static bool join_flush(Joiner *joiner) {
    size_t start = joiner->start, end = joiner->end;
    joiner->start = end;
    return pass_on(joiner->run, joiner->step, joiner->text, start, end, joiner->first);
}

static bool join_segment(Joiner *joiner, SplitBehaviour behaviour, size_t start, size_t end, bool match) {
    if (joiner->start == joiner->end) joiner->start = joiner->end = start;
    bool join = false;
    switch (behaviour) {
    case SPLIT_WITH_PREVIOUS: join = match && !joiner->match; break;
    case SPLIT_WITH_NEXT: join = joiner->match && !match; break;
    case SPLIT_CONTIGUOUS: join = match == joiner->match; break;
    default: break;
    }
    if (!join && !join_flush(joiner)) return false;
    if (!join) joiner->start = start;
    joiner->end = end;
    joiner->match = match;
    return true;
}

static bool split_joined(const Run *run, size_t step, Slice text, bool first) {
    const PreStep *split = &run->pre->steps[step];
    Joiner joiner = {.run = run, .step = step, .text = text, .first = first};
    size_t done = 0, from = 0, start = 0, end = 0;
    while (from <= text.size) {
        RegexResult result = finder_next(&split->finder, run->work->regex, text, from, &start, &end);
        if (result == REGEX_NONE) break;
        if (result == REGEX_EXHAUSTED) {
            return fail(run->error, ERROR_LIMIT, "the pre-tokenizer's pattern takes too many steps on this text");
        }
        if (start > done && !join_segment(&joiner, split->behaviour, done, start, split->invert)) return false;
        if (!join_segment(&joiner, split->behaviour, start, end, !split->invert)) return false;
        done = end;
        from = finder_resume(text, start, end);
    }
    if (done < text.size && !join_segment(&joiner, split->behaviour, done, text.size, split->invert)) return false;
    return join_flush(&joiner);
}

static bool run_metaspace(const Run *run, size_t step, Slice piece, bool first) {
    const PreStep *meta = &run->pre->steps[step];
    Buffer *text = &run->work->text[step];
    buffer_clear(text);
    bool wanted = meta->scheme == PREPEND_ALWAYS || (meta->scheme == PREPEND_FIRST && first);
    if (wanted && piece.data[0] != ' ' && !slice_starts(piece, meta->replacement))
        buffer_slice(text, meta->replacement);
    for (size_t at = 0; at < piece.size;) {
        const char *space = memchr(piece.data + at, ' ', piece.size - at);
        size_t end = space ? (size_t)(space - piece.data) : piece.size;
        buffer_append(text, piece.data + at, end - at);
        if (space) buffer_slice(text, meta->replacement);
        at = end + (space != NULL);
    }
    if (text->failed) return no_memory(run);
    return pass_on(run, step, buffer_view(text), 0, text->size, first);
}

static bool run_bytes(const Run *run, size_t step, Slice piece, bool first) {
    Buffer *text = &run->work->text[step];
    buffer_clear(text);
    byte_level_write(piece, text);
    if (text->failed) return no_memory(run);
    return pass_on(run, step, buffer_view(text), 0, text->size, first);
}

static bool run_prefix_space(const Run *run, size_t step, Slice piece, bool first) {
    if (piece.data[0] == ' ') return pass_on(run, step, piece, 0, piece.size, first);
    Buffer *text = &run->work->text[step];
    buffer_clear(text);
    buffer_byte(text, ' ');
    buffer_slice(text, piece);
    if (text->failed) return no_memory(run);
    return pass_on(run, step, buffer_view(text), 0, text->size, first);
}

static bool run_step(const Run *run, size_t step, Slice piece, bool first) {
    const PreStep *pre = &run->pre->steps[step];
    switch (pre->kind) {
    case PRE_SPLIT:
        if (makes_words(run, step)) return split_words(run, step, piece);
        if (pre->behaviour == SPLIT_ISOLATED || pre->behaviour == SPLIT_REMOVED)
            return split_isolated(run, step, piece, first);
        return split_joined(run, step, piece, first);
    case PRE_PREFIX_SPACE: return run_prefix_space(run, step, piece, first);
    case PRE_BYTES: return run_bytes(run, step, piece, first);
    case PRE_METASPACE: return run_metaspace(run, step, piece, first);
    }
    return false;
}

bool pretokenize(
    const PreTokenizer *pre, const Bpe *bpe, PreWork *work, Slice text, bool first, Tokens *out, Error *error) {
    if (!text.size) return true;
    const Run run = {pre, bpe, work, out, error};
    if (is_deepseek(pre, bpe)) return split_deepseek(&run, text);
    if (pre->count) return run_step(&run, 0, text, first);
    return word_encode(bpe, &work->bpe, text, out) || no_memory(&run);
}
