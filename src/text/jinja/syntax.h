/* The language of templates: tokens, the tree, the compiled Template. Reference: jinja2 3.1 lexer.py and parser.py. */
#pragma once
#include "base/map.h"
#include "text/jinja/value.h"

typedef enum JinjaToken {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
    TOKEN_BAD, /* an error was raised */
} JinjaToken;

typedef struct JinjaLexeme {
    JinjaToken type;
    JinjaOp op;
    uint32_t line;
    Slice text; /* as written; of DATA what remains after trimming */
    Jv value;   /* STRING, INTEGER, FLOAT */
} JinjaLexeme;

enum { LEXER_BALANCE_MAX = 1000 };

typedef struct JinjaLexer {
    Vm *vm;
    Slice source; /* newlines are \n */
    size_t at, line_at;
    uint32_t line; /* line number at line_at */
    enum { LEX_ROOT, LEX_BLOCK, LEX_PRINT } state;
    bool line_starting;
    JinjaLexeme queue[3];
    int queued, next;
    char balance[LEXER_BALANCE_MAX];
    int balanced;
} JinjaLexer;

/* source is copied into the Vm's arena, with newlines and the final one treated as jinja2 does. */
bool jinja_lexer_init(JinjaLexer *lexer, Vm *vm, Slice source);
JinjaLexeme jinja_lexer_next(JinjaLexer *lexer);

typedef enum JinjaKind {
    /* expressions */
    NODE_CONST,   /* value */
    NODE_NAME,    /* name */
    NODE_TUPLE,   /* list */
    NODE_LIST,    /* list */
    NODE_DICT,    /* list of PAIR */
    NODE_PAIR,    /* a: b */
    NODE_GETATTR, /* a . text; function: the first method of that name */
    NODE_GETITEM, /* a [ b ] */
    NODE_SLICE,   /* a : b : c */
    NODE_CALL,    /* a ( list ) */
    NODE_KEYWORD, /* value = a */
    NODE_STAR,    /* *a */
    NODE_STARS,   /* **a */
    NODE_FILTER,  /* a | text ( list ); function */
    NODE_TEST,    /* a is text ( list ); function */
    NODE_NOT,     /* a */
    NODE_UNARY,   /* op a */
    NODE_BINARY,  /* a op b */
    NODE_AND,     /* a and b */
    NODE_OR,      /* a or b */
    NODE_CONCAT,  /* list */
    NODE_COMPARE, /* a, list of OPERAND */
    NODE_OPERAND, /* op a */
    NODE_COND,    /* b if a else c */
    NODE_NSREF,   /* name . value: a target */
    /* statements */
    NODE_DATA,         /* value */
    NODE_PRINT,        /* a */
    NODE_IF,           /* a: list; b: the next IF or a BODY */
    NODE_BODY,         /* list */
    NODE_FOR,          /* a in b if c: list; d: else BODY */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a | b: list */
    NODE_MACRO,        /* name ( list of PARAM ): b BODY; flag: MACRO_… */
    NODE_PARAM,        /* name = a */
    NODE_CALL_BLOCK,   /* a: the call, b: MACRO */
    NODE_FILTER_BLOCK, /* a: list */
    NODE_SCOPE,        /* list: a generation block */
    NODE_BREAK,
    NODE_CONTINUE,
} JinjaKind;

/* Names that a macro may read without a parameter of that name. The flag of a macro has bit 1 << n for each. */
typedef enum MacroName { MACRO_CALLER, MACRO_KWARGS, MACRO_VARARGS, MACRO_NAMES } MacroName;

typedef struct JinjaNode {
    uint8_t kind, flag;
    uint16_t op;                /* JinjaOp */
    uint32_t line, name, count; /* count: of list */
    struct JinjaNode *a, *b, *c, *d, *list, *next;
    union {
        Jv value;
        struct {
            JinjaStr *text;                /* FILTER, TEST, GETATTR: the name */
            const JinjaFunction *function; /* function of that name; NULL: none */
        };
    };
} JinjaNode;

typedef struct Template {
    Arena arena;
    Slice source;
    JinjaNode *body;
    Slice *names; /* every variable name in it, by id */
    size_t name_count, name_capacity;
    Map name_ids;
    uint32_t name_loop;
    uint32_t macro_names[MACRO_NAMES];
} Template;

/* check.c: what jinja2's compiler checks: filters and tests, break and continue, the name loop. False: raised. */
bool jinja_check(Vm *vm, JinjaNode *body);
/* statement.c: parses and checks. What the template keeps is in vm's arena. False: raised. */
bool jinja_parse(Vm *vm, Template *template, Slice source);
