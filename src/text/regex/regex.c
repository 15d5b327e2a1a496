/* Regular expressions: from the tree to a program, and the backtracking matcher that runs it. */
#include "text/regex/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/regex/regex_program.h"
#include "text/unicode/unicode.h"

/* --- Compiling ------------------------------------------------------------------------------------------------ */

typedef struct Compiler {
    Op *ops;
    uint32_t count;
    uint32_t registers;
    bool failed; /* too long */
} Compiler;

static uint32_t emit(Compiler *compiler, OpCode code) {
    if (compiler->count >= REGEX_PROGRAM_MAX || compiler->registers > REGEX_REGISTERS_MAX) {
        compiler->failed = true;
        return 0;
    }
    compiler->ops[compiler->count] = (Op){.code = (uint8_t)code};
    return compiler->count++;
}

static void compile_node(Compiler *compiler, const Node *node);

/* Whether the node can match the empty text. */
static bool node_may_be_empty(const Node *node) {
    switch (node->kind) {
    case NODE_SET: return false;
    case NODE_CAT:
        for (const Node *child = node->first; child; child = child->next) {
            if (!node_may_be_empty(child)) return false;
        }
        return true;
    case NODE_ALT:
        for (const Node *child = node->first; child; child = child->next) {
            if (node_may_be_empty(child)) return true;
        }
        return false;
    case NODE_REPEAT: return node->min == 0 || node_may_be_empty(node->first);
    case NODE_ATOMIC: return node_may_be_empty(node->first);
    default: return true;
    }
}

/* Repeats the body; an iteration that consumes nothing ends the loop. */
static void compile_loop(Compiler *compiler, const Node *body, RepeatMode mode) {
    uint32_t split = emit(compiler, mode == REPEAT_LAZY ? OP_SPLIT_TO : OP_SPLIT);
    bool guarded = node_may_be_empty(body);
    uint16_t reg = 0;
    uint32_t progress = 0;
    if (guarded) {
        reg = (uint16_t)compiler->registers++;
        compiler->ops[emit(compiler, OP_MARK)].reg = reg;
    }
    compile_node(compiler, body);
    if (guarded) {
        progress = emit(compiler, OP_PROGRESS);
        compiler->ops[progress].reg = reg;
    }
    uint32_t jump = emit(compiler, OP_JUMP);
    compiler->ops[jump].target = split;
    compiler->ops[split].target = compiler->count;
    if (guarded) compiler->ops[progress].target = compiler->count;
}

static void compile_repeat(Compiler *compiler, const Node *node) {
    const Node *body = node->first;
    if (body->kind == NODE_SET) {
        Op *op = &compiler->ops[emit(compiler, OP_RUN)];
        op->set = body->set;
        op->mode = (uint8_t)node->mode;
        op->min = node->min;
        op->max = node->max;
        return;
    }
    uint32_t atomic = node->mode == REPEAT_POSSESSIVE ? emit(compiler, OP_ATOMIC) : 0;
    for (uint32_t i = 0; i < node->min && !compiler->failed; i++) compile_node(compiler, body);
    if (node->max == REPEAT_FOREVER) {
        compile_loop(compiler, body, node->mode);
    } else if (node->max > node->min) {
        uint32_t first = compiler->count, step = 0;
        for (uint32_t i = node->min; i < node->max && !compiler->failed; i++) {
            uint32_t start = compiler->count;
            emit(compiler, node->mode == REPEAT_LAZY ? OP_SPLIT_TO : OP_SPLIT);
            compile_node(compiler, body);
            step = compiler->count - start;
        }
        /* Each round is as long as the next: every split leaves for the end. */
        for (uint32_t at = first; !compiler->failed && step && at < compiler->count; at += step) {
            compiler->ops[at].target = compiler->count;
        }
    }
    if (node->mode != REPEAT_POSSESSIVE) return;
    emit(compiler, OP_MATCH);
    compiler->ops[atomic].target = compiler->count;
}

static void compile_alternatives(Compiler *compiler, const Node *node) {
    uint32_t last_jump = 0; /* the jumps to the end are chained through their targets until the end is known */
    for (const Node *child = node->first; child; child = child->next) {
        if (!child->next) {
            compile_node(compiler, child);
            break;
        }
        uint32_t split = emit(compiler, OP_SPLIT);
        compile_node(compiler, child);
        uint32_t jump = emit(compiler, OP_JUMP);
        compiler->ops[jump].target = last_jump;
        last_jump = jump;
        compiler->ops[split].target = compiler->count;
        if (compiler->failed) return;
    }
    while (last_jump) {
        uint32_t next = compiler->ops[last_jump].target;
        compiler->ops[last_jump].target = compiler->count;
        last_jump = next;
    }
}

static void compile_node(Compiler *compiler, const Node *node) {
    if (compiler->failed) return;
    uint32_t at;
    switch (node->kind) {
    case NODE_SET: compiler->ops[emit(compiler, OP_SET)].set = node->set; return;
    case NODE_CAT:
        for (const Node *child = node->first; child; child = child->next) compile_node(compiler, child);
        return;
    case NODE_ALT: compile_alternatives(compiler, node); return;
    case NODE_REPEAT: compile_repeat(compiler, node); return;
    case NODE_LOOK:
    case NODE_ATOMIC:
        at = emit(compiler, node->kind == NODE_LOOK ? OP_LOOK : OP_ATOMIC);
        compiler->ops[at].mode = node->negative;
        compile_node(compiler, node->first);
        emit(compiler, OP_MATCH);
        compiler->ops[at].target = compiler->count;
        return;
    case NODE_ASSERT: compiler->ops[emit(compiler, OP_ASSERT)].mode = (uint8_t)node->assert; return;
    }
}

Regex *regex_compile(Slice pattern, Error *error) {
    Regex *regex = calloc(1, sizeof *regex);
    if (!regex) {
        fail(error, ERROR_MEMORY, "no memory for a regular expression");
        return NULL;
    }
    regex->arena.limit = 64 << 20;
    const RegexSyntax syntax = {
        .dialect = REGEX_ONIGURUMA, .depth_max = REGEX_DEPTH_MAX, .size_max = REGEX_PATTERN_MAX};
    Node *tree = regex_parse(&regex->arena, pattern, &syntax, error);
    Compiler compiler = {.ops = tree ? malloc(REGEX_PROGRAM_MAX * sizeof(Op)) : NULL};
    bool ok = compiler.ops;
    if (ok) {
        emit(&compiler, OP_JUMP); /* no instruction that is a target stands at 0: 0 ends chains */
        compiler.ops[0].target = 1;
        compile_node(&compiler, tree);
        emit(&compiler, OP_MATCH);
        if (compiler.failed)
            ok = fail(error, ERROR_LIMIT, "regular expression: more than %d instructions", REGEX_PROGRAM_MAX);
    } else if (tree) {
        fail(error, ERROR_MEMORY, "no memory for a regular expression");
    }
    if (ok) {
        regex->ops = arena_alloc(&regex->arena, compiler.count, sizeof(Op));
        ok = regex->ops || fail(error, ERROR_MEMORY, "no memory for a regular expression");
    }
    if (ok) memcpy(regex->ops, compiler.ops, compiler.count * sizeof(Op));
    regex->count = compiler.count;
    regex->registers = compiler.registers;
    free(compiler.ops);
    if (ok) return regex;
    regex_free(regex);
    return NULL;
}

void regex_free(Regex *regex) {
    if (!regex) return;
    arena_free(&regex->arena);
    free(regex);
}

/* --- Matching ------------------------------------------------------------------------------------------------- */

typedef enum ChoiceKind { CHOICE_GO, CHOICE_SHRINK, CHOICE_GROW, CHOICE_REGISTER } ChoiceKind;

typedef struct RegexChoice { /* continuation if the match fails later */
    uint8_t kind;
    uint32_t pc;   /* GO: where to go on. SHRINK, GROW: the run. REGISTER: which */
    uint32_t left; /* GROW: characters that may still be consumed */
    size_t at;     /* GO, GROW: the position. SHRINK: where the run ends now. REGISTER: its old value */
    size_t floor;  /* SHRINK: where the run may end at the least */
} RegexChoice;

enum { CHOICES_MAX = 4 << 20 };

typedef struct Matcher {
    const Regex *regex;
    RegexWork *work;
    const char *text;
    size_t size;
    size_t reg[REGEX_REGISTERS_MAX + 1];
    bool exhausted;
} Matcher;

void regex_work_free(RegexWork *work) {
    free(work->stack);
    *work = (RegexWork){0};
}

static bool choice_push(Matcher *matcher, RegexChoice choice) {
    RegexWork *work = matcher->work;
    if (work->depth == work->capacity) {
        size_t capacity = work->capacity ? work->capacity * 2 : 64;
        RegexChoice *stack = capacity <= CHOICES_MAX ? realloc(work->stack, capacity * sizeof *stack) : NULL;
        if (!stack) {
            matcher->exhausted = true;
            return false;
        }
        work->stack = stack;
        work->capacity = capacity;
    }
    work->stack[work->depth++] = choice;
    return true;
}

static inline size_t previous_at(const char *text, size_t at) {
    do at--;
    while (((uint8_t)text[at] & 0xC0) == 0x80);
    return at;
}

/* The length of the character at `at` when the set has it, else 0. */
static inline size_t set_takes(const CharSet *set, const char *text, size_t size, size_t at) {
    if (at >= size) return 0;
    uint8_t byte = (uint8_t)text[at];
    if (byte < 0x80) return set->ascii[byte >> 6] >> (byte & 63) & 1;
    uint32_t code;
    int length = utf8_decode(text + at, size - at, &code);
    if (length < 0) return 0;
    return charset_has(set, code) ? (size_t)length : 0;
}

static bool word_at(const Matcher *matcher, size_t at) {
    uint32_t code;
    return at < matcher->size && utf8_decode(matcher->text + at, matcher->size - at, &code) > 0 &&
        unicode_is_word(code);
}

static bool assert_holds(const Matcher *matcher, AssertKind kind, size_t at) {
    bool line_end = at == matcher->size || matcher->text[at] == '\n';
    switch (kind) {
    case ASSERT_START: return at == 0;
    case ASSERT_END: return at == matcher->size;
    case ASSERT_LAST_LINE_END: return at == matcher->size || (line_end && at + 1 == matcher->size);
    case ASSERT_LINE_START: return at == 0 || matcher->text[at - 1] == '\n';
    case ASSERT_LINE_END: return line_end;
    case ASSERT_WORD:
    case ASSERT_NOT_WORD: break;
    }
    bool before = at > 0 && word_at(matcher, previous_at(matcher->text, at));
    return (before != word_at(matcher, at)) == (kind == ASSERT_WORD);
}

/* Consumes as many characters as the run allows and pushes the alternatives. False: too few. */
static bool run_take(Matcher *matcher, uint32_t pc, size_t *at) {
    const Op *op = &matcher->regex->ops[pc];
    size_t position = *at, floor = *at;
    uint32_t want = op->mode == REPEAT_LAZY ? op->min : op->max, count = 0;
    while (count < want) {
        size_t length = set_takes(op->set, matcher->text, matcher->size, position);
        if (!length) break;
        position += length;
        if (++count == op->min) floor = position;
    }
    uint64_t cost = 1 + count;
    matcher->work->steps -= matcher->work->steps < cost ? matcher->work->steps : cost;
    if (count < op->min) return false;
    *at = position;
    if (op->mode == REPEAT_LAZY) {
        if (op->max == op->min) return true;
        uint32_t left = op->max == REPEAT_FOREVER ? REPEAT_FOREVER : op->max - op->min;
        return choice_push(matcher, (RegexChoice){.kind = CHOICE_GROW, .pc = pc, .at = position, .left = left});
    }
    if (op->mode == REPEAT_POSSESSIVE || position == floor) return true;
    return choice_push(matcher, (RegexChoice){.kind = CHOICE_SHRINK, .pc = pc, .at = position, .floor = floor});
}

/* Goes back to the newest choice above base. False: there is none. */
static bool choice_pop(Matcher *matcher, size_t base, uint32_t *pc, size_t *at) {
    RegexWork *work = matcher->work;
    while (work->depth > base) {
        RegexChoice *choice = &work->stack[work->depth - 1];
        const Op *op = &matcher->regex->ops[choice->pc];
        size_t length;
        switch ((ChoiceKind)choice->kind) {
        case CHOICE_GO:
            *pc = choice->pc;
            *at = choice->at;
            work->depth--;
            return true;
        case CHOICE_SHRINK:
            choice->at = previous_at(matcher->text, choice->at);
            *pc = choice->pc + 1;
            *at = choice->at;
            if (choice->at == choice->floor) work->depth--;
            return true;
        case CHOICE_GROW:
            length = set_takes(op->set, matcher->text, matcher->size, choice->at);
            if (!length) {
                work->depth--;
                break;
            }
            choice->at += length;
            if (choice->left != REPEAT_FOREVER) choice->left--;
            *pc = choice->pc + 1;
            *at = choice->at;
            if (!choice->left) work->depth--;
            return true;
        case CHOICE_REGISTER:
            matcher->reg[choice->pc] = choice->at;
            work->depth--;
            break;
        }
    }
    return false;
}

/* Runs from pc to its OP_MATCH. False: no match, or exhausted. Leaves the stack as it found it. */
static bool run_match(Matcher *matcher, uint32_t pc, size_t at, size_t *end) {
    RegexWork *work = matcher->work;
    size_t base = work->depth, length, inner;
    for (;;) {
        const Op *op = &matcher->regex->ops[pc];
        bool ok = true;
        if (work->steps == 0) matcher->exhausted = true;
        if (matcher->exhausted) return false;
        work->steps--;
        switch ((OpCode)op->code) {
        case OP_SET:
            length = set_takes(op->set, matcher->text, matcher->size, at);
            ok = length > 0;
            at += length;
            pc++;
            break;
        case OP_RUN: ok = run_take(matcher, pc++, &at); break;
        case OP_SPLIT:
            ok = choice_push(matcher, (RegexChoice){.kind = CHOICE_GO, .pc = op->target, .at = at});
            pc++;
            break;
        case OP_SPLIT_TO:
            ok = choice_push(matcher, (RegexChoice){.kind = CHOICE_GO, .pc = pc + 1, .at = at});
            pc = op->target;
            break;
        case OP_JUMP: pc = op->target; break;
        case OP_LOOK:
            ok = run_match(matcher, pc + 1, at, &inner) != op->mode;
            pc = op->target;
            break;
        case OP_ATOMIC:
            ok = run_match(matcher, pc + 1, at, &inner);
            if (ok) at = inner;
            pc = op->target;
            break;
        case OP_ASSERT:
            ok = assert_holds(matcher, (AssertKind)op->mode, at);
            pc++;
            break;
        case OP_MARK:
            ok = choice_push(
                matcher, (RegexChoice){.kind = CHOICE_REGISTER, .pc = op->reg, .at = matcher->reg[op->reg]});
            matcher->reg[op->reg] = at;
            pc++;
            break;
        case OP_PROGRESS: pc = matcher->reg[op->reg] == at ? op->target : pc + 1; break;
        case OP_MATCH:
            work->depth = base;
            *end = at;
            return true;
        }
        if (matcher->exhausted) return false;
        if (!ok && !choice_pop(matcher, base, &pc, &at)) return false;
    }
}

RegexResult regex_search(const Regex *regex, RegexWork *work, Slice text, size_t from, size_t *start, size_t *end) {
    Matcher matcher = {.regex = regex, .work = work, .text = text.data, .size = text.size};
    for (size_t at = from; at <= text.size;) {
        work->depth = 0;
        bool found = run_match(&matcher, 0, at, end);
        if (matcher.exhausted) return REGEX_EXHAUSTED;
        if (found) {
            *start = at;
            return REGEX_FOUND;
        }
        at++;
        while (at < text.size && ((uint8_t)text.data[at] & 0xC0) == 0x80) at++;
    }
    return REGEX_NONE;
}
