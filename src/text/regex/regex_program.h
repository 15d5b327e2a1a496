/* Programs of the matcher. Internal to text/regex. */
#pragma once
#include "text/regex/regex.h"
#include "text/regex/regex_ast.h"

typedef enum OpCode {
    OP_SET,      /* one character of set */
    OP_RUN,      /* min…max characters of set, by mode */
    OP_SPLIT,    /* try the next instruction, then target */
    OP_SPLIT_TO, /* try target, then the next instruction */
    OP_JUMP,
    OP_LOOK,   /* the following instructions up to their OP_MATCH must (not) match here; go on at target */
    OP_ATOMIC, /* the same, consuming */
    OP_ASSERT,
    OP_MARK,     /* remembers the position in a register */
    OP_PROGRESS, /* goes to target when nothing was consumed since the mark */
    OP_MATCH,
} OpCode;

typedef struct Op {
    uint8_t code, mode; /* mode: RepeatMode, AssertKind, or 1 for a negative look-ahead */
    uint16_t reg;
    uint32_t min, max;
    uint32_t target;
    const CharSet *set;
} Op;

enum { REGEX_REGISTERS_MAX = 64 };

struct Regex {
    Arena arena; /* owns the program */
    Op *ops;
    uint32_t count;
    uint32_t registers;
};
