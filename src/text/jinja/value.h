/* The lowest layer of Jinja: values of a running template, as Python has them, what can be done with them, and the Vm
 * that owns them. Everything a render creates lives in its arena; a Template's constants are shared by all threads and
 * never written after compilation. Every string knows for each byte whether the template's own text or a variable gave
 * it (its origin).
 *
 * The layers, of which each uses only those before it: values (this header), the language (syntax.h, run.h), what
 * templates call (library.h), whole templates (template.h). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/json.h"
#include "base/slice.h"

typedef struct Vm Vm;
typedef struct JinjaScope JinjaScope;

enum {
    JINJA_MEMORY_MAX = 96 << 20,  /* a render's arena */
    JINJA_BUFFERS_MAX = 80 << 20, /* text being written */
    JINJA_TEXT_MAX = 64 << 20,    /* one string */
    JINJA_STEPS_MAX = 200 << 20,
    JINJA_DEPTH_MAX = 900, /* nested evaluations: about 0.5 MB of stack */
    JINJA_RANGE_MAX = 100000,
};

typedef enum JinjaTag {
    JINJA_ERROR,   /* an error was raised: the caller returns at once */
    JINJA_MISSING, /* an argument not given */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_LONG, /* an integer beyond 64 bits: only its digits, nothing to calculate with */
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_VIEW, /* dict.keys(), .values(), .items(), range() */
    JINJA_ITER, /* a generator: consumed once */
    JINJA_NAMESPACE,
    JINJA_MACRO,
    JINJA_FUNCTION, /* a global */
    JINJA_METHOD,
    JINJA_LOOP,
} JinjaTag;

typedef enum JinjaOp { /* operators, as tokens and in the tree */
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_DIV,
    OP_FLOORDIV,
    OP_MUL,
    OP_MOD,
    OP_POW,
    OP_TILDE,
    OP_LBRACKET,
    OP_RBRACKET,
    OP_LPAREN,
    OP_RPAREN,
    OP_LBRACE,
    OP_RBRACE,
    OP_EQ,
    OP_NE,
    OP_GT,
    OP_GE,
    OP_LT,
    OP_LE,
    OP_ASSIGN,
    OP_DOT,
    OP_COLON,
    OP_PIPE,
    OP_COMMA,
    OP_SEMICOLON,
    OP_IN, /* these are not tokens */
    OP_NOT_IN,
    OP_NEG,
    OP_POS,
} JinjaOp;

enum { ORIGIN_TEMPLATE = 1, ORIGIN_DATA = 2 }; /* both bits: mixed */

typedef struct JinjaRun {
    size_t end; /* byte after the run */
    uint8_t origin;
} JinjaRun;

/* A string: flat, or a rope (data NULL) that is flattened at the first access to its bytes. */
typedef struct JinjaStr {
    const char *data;
    size_t size, length; /* bytes, code points */
    uint8_t origin;
    bool markup; /* markupsafe.Markup */
    uint32_t run_count;
    const JinjaRun *runs; /* flat strings of mixed origin only */
    struct JinjaStr *left, *right;
} JinjaStr;

typedef struct Jv {
    uint8_t tag;
    uint8_t flag;   /* UNDEFINED: unsafe. VIEW: 'k' 'v' 'i' 'r' */
    uint16_t kind;  /* UNDEFINED: JinjaTag of the object */
    uint32_t count; /* free use */
    union {
        bool b;
        int64_t i;
        double f;
        JinjaStr *s;            /* STR; LONG: sign and digits; UNDEFINED: the name, or a hint, or NULL */
        struct JinjaList *list; /* LIST, TUPLE, VIEW */
        struct JinjaDict *dict; /* DICT, NAMESPACE */
        struct JinjaIter *iter;
        struct JinjaMacro *macro;
        const struct JinjaFunction *function;
        struct JinjaMethod *method;
        struct JinjaLoop *loop;
    };
} Jv;

typedef struct JinjaList {
    Jv *items;
    size_t count, capacity;
} JinjaList;

typedef struct JinjaPair {
    Jv key, value;
    uint64_t hash;
} JinjaPair;

typedef struct JinjaDict { /* insertion order; an index once it is large */
    JinjaPair *pairs;
    size_t count, capacity;
    uint32_t *index;
    size_t index_size;
} JinjaDict;

typedef struct JinjaKeyword {
    JinjaStr *name; /* flat; its origin goes with it into a dict's keys */
    Jv value;
} JinjaKeyword;

typedef struct JinjaArgs {
    const Jv *values; /* by position; JINJA_MISSING where a named parameter was not given */
    size_t count;
    const JinjaKeyword *keywords;
    size_t keyword_count;
} JinjaArgs;

/* A filter, test, method or global of the library. run gets one value for each of params, which are written as "old new
 * count=": separated by spaces, those that may be left out with "=", after a "/" all by position only. With NULL for
 * params it gets the arguments as they are. self: what the filter is applied to, the method's object. */
typedef struct JinjaFunction {
    const char *name;
    uint16_t flags; /* FUNCTION_…; of a method its types, METHOD_… */
    const char *params;
    Jv (*run)(Vm *vm, Jv self, const JinjaArgs *a);
} JinjaFunction;

enum {
    FUNCTION_LAZY = 1,  /* the result is a generator over the list that run gives */
    METHOD_REFUSED = 2, /* not handed out: it changes its object */
    METHOD_STR = 4,
    METHOD_LIST = 8,
    METHOD_DICT = 16,
};

typedef struct JinjaTable {
    const JinjaFunction *functions;
    size_t count;
} JinjaTable;

/* Names available to templates. Methods of one name are adjacent, one entry per type. */
typedef struct JinjaLibrary {
    const JinjaTable *filters, *tests, *methods, *globals;
} JinjaLibrary;

const JinjaFunction *jinja_find(const JinjaTable *table, Slice name); /* NULL: none */

typedef struct JinjaMethod {
    Jv self;
    const JinjaFunction *function;
} JinjaMethod;

/* A lazy filter: it runs when the first item is requested, as in Python. */
typedef struct JinjaIter {
    const JinjaFunction *function; /* to run first, or NULL */
    Jv source;
    JinjaArgs args;
    JinjaList items;
    size_t next;
    const char *type_name;
} JinjaIter;

/* Text being written, with its origins. Buffers nest: push, write, then finish or drop. */
typedef struct JinjaText {
    Vm *vm;
    Buffer bytes;
    JinjaRun *runs;
    size_t run_count, run_capacity;
} JinjaText;

struct Vm {
    Arena arena;
    char *block; /* small objects come from here */
    size_t block_left;
    const struct Template *template;
    const JinjaLibrary *library;
    Error *error;
    bool failed;
    uint32_t line;
    int depth, macro_depth;
    int64_t budget; /* steps until the clock is looked at */
    int64_t steps, cpu_end_ns;
    JinjaText **texts;
    size_t text_count, text_capacity, text_depth, text_bytes;
    JinjaText *out;
    JinjaScope *scope, *root;
    bool has_now;
    struct tm now;
    long now_us;
};

/* Errors: raise returns a JINJA_ERROR value. The first error stays. */
Jv jinja_raise(Vm *vm, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
#define jinja_fail(vm, ...) jinja_raise(vm, ERROR_FORMAT, __VA_ARGS__)
bool jinja_step(Vm *vm, size_t cost); /* false: raised */
bool jinja_enter(Vm *vm);             /* one level deeper; leave with vm->depth-- */
void *jinja_alloc(Vm *vm, size_t count, size_t size);
/* items with room for one more than count, moved when capacity is used up; NULL: raised, and items stay. */
void *jinja_grow(Vm *vm, void *items, size_t count, size_t *capacity, size_t size);
void jinja_vm_init(Vm *vm, const JinjaLibrary *library, int64_t cpu_ms, Error *error);
void jinja_vm_free(Vm *vm);

static inline bool jv_bad(Jv v) { return v.tag == JINJA_ERROR; }
static inline bool jv_given(Jv v) { return v.tag != JINJA_MISSING; }
static inline Jv jv_error(void) { return (Jv){.tag = JINJA_ERROR}; }
static inline Jv jv_missing(void) { return (Jv){.tag = JINJA_MISSING}; }
static inline Jv jv_none(void) { return (Jv){.tag = JINJA_NONE}; }
static inline Jv jv_bool(bool b) { return (Jv){.tag = JINJA_BOOL, .b = b}; }
static inline Jv jv_int(int64_t i) { return (Jv){.tag = JINJA_INT, .i = i}; }
static inline Jv jv_float(double f) { return (Jv){.tag = JINJA_FLOAT, .f = f}; }
static inline Jv jv_str(JinjaStr *s) { return s ? (Jv){.tag = JINJA_STR, .s = s} : jv_error(); }
static inline bool jv_integral(Jv v) { return v.tag == JINJA_INT || v.tag == JINJA_BOOL; }
static inline bool jv_number(Jv v) { return jv_integral(v) || v.tag == JINJA_FLOAT || v.tag == JINJA_LONG; }
static inline int64_t jv_small(Jv v) { return v.tag == JINJA_BOOL ? v.b : v.i; } /* INT or BOOL */
/* string.c */
JinjaStr *jinja_str_new(Vm *vm, const char *bytes, size_t size, uint8_t origin); /* keeps the pointer */
JinjaStr *jinja_str_copy(Vm *vm, const char *bytes, size_t size, uint8_t origin);
JinjaStr *jinja_str_part(Vm *vm, JinjaStr *s, size_t from, size_t to); /* bytes [from, to) */
JinjaStr *jinja_str_concat(Vm *vm, JinjaStr *a, JinjaStr *b);
JinjaStr *jinja_str_markup(Vm *vm, JinjaStr *s, bool markup);
bool jinja_str_flatten(Vm *vm, JinjaStr *s);              /* false: raised */
size_t jinja_str_offset(const JinjaStr *s, size_t index); /* byte offset of a code point; s is flat */
static inline Slice jinja_str_slice(const JinjaStr *s) { return (Slice){s->data, s->size}; }
Jv jinja_str_like(Vm *vm, Jv text, const JinjaStr *source); /* text, Markup if source is, or the error that it is */
/* Bytes [from, to): the first that is not white space, the end of the last that is not; where needle is, or SIZE_MAX.
 */
size_t jinja_skip_spaces(const char *data, size_t from, size_t to);
size_t jinja_strip_spaces(const char *data, size_t from, size_t to);
size_t jinja_find_bytes(const char *data, size_t from, size_t to, const JinjaStr *needle);
uint8_t jinja_str_origin(const JinjaStr *s, size_t offset); /* origin of one byte */
Jv jinja_literal(Vm *vm, const char *text);                 /* a string of template origin; keeps the pointer */
size_t utf8_length(const char *data, size_t size);          /* code points of valid UTF-8 */
static inline size_t utf8_width(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

JinjaText *jinja_text_push(Vm *vm); /* NULL: raised */
void jinja_text_bytes(JinjaText *text, const char *bytes, size_t size, uint8_t origin);
void jinja_text_string(JinjaText *text, JinjaStr *s);
void jinja_text_part(JinjaText *text, const JinjaStr *flat, size_t from, size_t to);
void jinja_text_code(JinjaText *text, uint32_t code, uint8_t origin);
static inline void jinja_text_plain(JinjaText *text, const char *literal) {
    jinja_text_bytes(text, literal, strlen(literal), ORIGIN_TEMPLATE);
}
void jinja_text_repeat(JinjaText *text, char byte, size_t count, uint8_t origin);
Jv jinja_text_finish(Vm *vm, JinjaText *text); /* the innermost text as a string */

/* value.c. Where a bool says whether it worked, false means that an error was raised. */
const char *jv_type_name(Jv v);       /* "str", "NoneType" */
Jv jv_hint(Vm *vm, const char *text); /* undefined with a reason */
Jv jv_undefined_error(Vm *vm, Jv v);  /* raises what using it raises */
Jv jinja_overflow(Vm *vm);            /* raises */
bool jinja_as_double(Vm *vm, Jv v, double *out);
bool jinja_as_index(Vm *vm, Jv v, int64_t *out); /* an integer, clamped to int64 */
bool jinja_length(Vm *vm, Jv v, size_t *out);
bool jinja_truth(Vm *vm, Jv v, bool *out);
bool jinja_equal(Vm *vm, Jv a, Jv b, bool *out);
bool jinja_less(Vm *vm, Jv a, Jv b, const char *op, int *order); /* order <0, 0, >0; 2 = unordered (NaN) */
Jv jinja_list_new(Vm *vm, size_t capacity);
Jv jinja_list_copy(Vm *vm, Jv list);
bool jinja_list_push(Vm *vm, JinjaList *list, Jv v);
Jv jinja_tuple(Vm *vm, const Jv *items, size_t count);
bool jinja_iter_force(Vm *vm, JinjaIter *iter);
Jv jinja_iterate(Vm *vm, Jv v);      /* a LIST value with all items: the same list for lists, a new one otherwise */
bool jinja_hashable(Vm *vm, Jv key); /* false: it is not, or an error was raised */
Jv jinja_dict_new(Vm *vm, size_t capacity);
Jv jinja_dict_view(Vm *vm, const JinjaDict *dict, char what); /* 'k' keys, 'v' values, 'i' pairs */
bool jinja_dict_set(Vm *vm, JinjaDict *dict, Jv key, Jv value);
JinjaPair *jinja_dict_find(Vm *vm, const JinjaDict *dict, Jv key); /* NULL: absent or raised */
JinjaPair *jinja_dict_find_text(const JinjaDict *dict, Slice key);

/* number.c */
void jinja_float_repr(double value, char out[40]);
Jv jinja_float_parse(Vm *vm, Slice text, bool *ok); /* Python's float(str) */
Jv jinja_int_parse(Vm *vm, Slice text, bool *ok);   /* Python's int(str) */
Jv jinja_int_from_double(Vm *vm, double value);     /* truncated */
Jv jinja_number_binary(Vm *vm, int op, Jv a, Jv b);

/* repr.c */
bool jinja_write_str(Vm *vm, JinjaText *out, Jv v);  /* str(v) */
bool jinja_write_repr(Vm *vm, JinjaText *out, Jv v); /* repr(v) */
Jv jinja_to_str(Vm *vm, Jv v);                       /* str(v): the same value for plain strings */
Jv jinja_soft_str(Vm *vm, Jv v);                     /* str(v), keeping Markup */

/* text.c: Python's str methods. Values named s are strings. */
typedef enum JinjaCase { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE } JinjaCase;
Jv jinja_str_case(Vm *vm, Jv s, JinjaCase how);
Jv jinja_str_strip(Vm *vm, Jv s, Jv chars, bool left, bool right);
Jv jinja_str_replace(Vm *vm, Jv s, Jv old, Jv with, int64_t count);
Jv jinja_str_split(Vm *vm, Jv s, Jv separator, int64_t limit, bool from_right);
Jv jinja_str_splitlines(Vm *vm, Jv s, bool keep_ends);
Jv jinja_str_join(Vm *vm, Jv separator, Jv items, bool convert);
bool jinja_str_test(
    Vm *vm, Jv s, char which); /* 'u' isupper, 'l' islower, 'a' isalpha, 'n' isalnum, 'd' isdigit, 's' isspace */
Jv jinja_escape(Vm *vm, Jv v); /* markupsafe.escape */

/* operator.c */
const char *jinja_op_text(JinjaOp op);
Jv jinja_binary(Vm *vm, JinjaOp op, Jv a, Jv b);
Jv jinja_unary(Vm *vm, JinjaOp op, Jv a);
bool jinja_compare(Vm *vm, JinjaOp op, Jv a, Jv b, bool *out);
bool jinja_contains(Vm *vm, Jv container, Jv item, bool *out);
Jv jinja_slice(Vm *vm, Jv v, Jv start, Jv stop, Jv step);
bool jinja_sort(Vm *vm, JinjaList *items, const Jv *keys, bool reverse); /* stable; keys may be items->items */

/* json.c */
Jv jinja_from_json(Vm *vm, const Json *json, uint8_t origin); /* strings point into the Json */
Jv jinja_json_read(Vm *vm, Jv text);                          /* Python's json.loads */
Jv jinja_json_write(Vm *vm, Jv value, bool ensure_ascii, Jv indent, Jv separators, bool sort_keys); /* json.dumps */
