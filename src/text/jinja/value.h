/* Values of a running template, as Python has them, and the Vm that owns them. Everything a render creates lives in its
 * arena; a Template's constants are shared by all threads and never written after compilation.
 * Every string knows for each byte whether the template's own text or a variable gave it (its origin). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Apart from text/unicode's, of a newer version, until these are gone. */
#define unicode_is_lower jinja_is_lower
#define unicode_is_upper jinja_is_upper
#define unicode_is_digit jinja_is_digit
#define unicode_is_case_ignorable jinja_is_case_ignorable
#define unicode_decimal jinja_decimal

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"

typedef struct Vm Vm;
typedef struct JinjaScope JinjaScope;

enum {
    JINJA_MEMORY_MAX = 96 << 20,  /* a render's arena */
    JINJA_BUFFERS_MAX = 80 << 20, /* text being written */
    JINJA_TEXT_MAX = 64 << 20,    /* one string */
    JINJA_STEPS_MAX = 200 << 20,
    JINJA_DEPTH_MAX = 900, /* nested evaluations: about 0.5 MB of stack */
    JINJA_BITS_MAX = 8192, /* integers */
    JINJA_RANGE_MAX = 100000,
};

typedef enum JinjaTag {
    JINJA_ERROR,   /* an error was raised: the caller returns at once */
    JINJA_MISSING, /* an argument not given */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_BIG,
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_VIEW, /* dict.keys(), .values(), .items() */
    JINJA_RANGE,
    JINJA_ITER, /* a generator: consumed once */
    JINJA_NAMESPACE,
    JINJA_MACRO,
    JINJA_FUNCTION, /* a global */
    JINJA_METHOD,
    JINJA_LOOP,
    JINJA_CYCLER,
    JINJA_JOINER,
} JinjaTag;

enum { ORIGIN_TEMPLATE = 1, ORIGIN_DATA = 2 }; /* both bits: mixed */

typedef struct JinjaRun {
    size_t end; /* byte after the run */
    uint8_t origin;
} JinjaRun;

/* A string: flat, or a rope (data NULL) that is made flat when somebody looks at its bytes. */
typedef struct JinjaStr {
    const char *data;
    size_t size, length; /* bytes, code points */
    uint8_t origin;
    bool markup; /* markupsafe.Markup */
    uint32_t run_count;
    const JinjaRun *runs; /* of a flat string of mixed origin */
    struct JinjaStr *left, *right;
} JinjaStr;

typedef struct Jv {
    uint8_t tag;
    uint8_t flag;   /* UNDEFINED: unsafe. TUPLE: a groupby pair. VIEW: 'k' 'v' 'i' */
    uint16_t kind;  /* UNDEFINED: JinjaTag of the object. FUNCTION: which */
    uint32_t count; /* free use */
    union {
        bool b;
        int64_t i;
        double f;
        JinjaStr *s; /* STR; UNDEFINED: the name, or a hint, or NULL */
        struct JinjaBig *big;
        struct JinjaList *list; /* LIST, TUPLE */
        struct JinjaDict *dict; /* DICT, VIEW, NAMESPACE */
        struct JinjaRange *range;
        struct JinjaIter *iter;
        struct JinjaMacro *macro;
        struct JinjaMethod *method;
        struct JinjaLoop *loop;
        struct JinjaCycler *cycler;
        struct JinjaJoiner *joiner;
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

typedef struct JinjaRange {
    int64_t start, stop, step, count;
} JinjaRange;

typedef struct JinjaCycler {
    JinjaList items;
    size_t position;
} JinjaCycler;

typedef struct JinjaJoiner {
    Jv separator;
    bool used;
} JinjaJoiner;

typedef struct JinjaMethod {
    Jv self;
    uint32_t id;
} JinjaMethod;

typedef struct JinjaKeyword {
    Slice name;
    Jv value;
} JinjaKeyword;

typedef struct JinjaArgs {
    const Jv *positional;
    size_t count;
    const JinjaKeyword *keywords;
    size_t keyword_count;
} JinjaArgs;

/* A lazy filter: the work happens when the first item is asked for, as in Python. */
typedef struct JinjaIter {
    const struct JinjaFilter *filter; /* to run first, or NULL */
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
    Error *error;
    bool failed;
    uint32_t line;
    int depth, macro_depth;
    int64_t budget; /* steps until the clock is looked at */
    int64_t steps, cpu_end_ns;
    JinjaText **texts;
    size_t text_count, text_depth, text_bytes;
    JinjaText *out;
    JinjaScope *scope, *root;
    bool has_now;
    struct tm now;
    long now_us;
    uint64_t random;
};

/* Errors: raise returns a JINJA_ERROR value. The first error stays. */
Jv jinja_raise(Vm *vm, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
#define jinja_fail(vm, ...) jinja_raise(vm, ERROR_FORMAT, __VA_ARGS__)
bool jinja_step(Vm *vm, size_t cost); /* false: raised */
bool jinja_enter(Vm *vm);             /* one level deeper; leave with vm->depth-- */
void *jinja_alloc(Vm *vm, size_t count, size_t size);
void jinja_vm_free(Vm *vm);

static inline bool jv_bad(Jv v) { return v.tag == JINJA_ERROR; }
static inline bool jv_is(Jv v, JinjaTag tag) { return v.tag == (uint8_t)tag; }
static inline bool jv_given(Jv v) { return v.tag != JINJA_MISSING; }
static inline Jv jv_error(void) { return (Jv){.tag = JINJA_ERROR}; }
static inline Jv jv_none(void) { return (Jv){.tag = JINJA_NONE}; }
static inline Jv jv_bool(bool b) { return (Jv){.tag = JINJA_BOOL, .b = b}; }
static inline Jv jv_int(int64_t i) { return (Jv){.tag = JINJA_INT, .i = i}; }
static inline Jv jv_float(double f) { return (Jv){.tag = JINJA_FLOAT, .f = f}; }
static inline Jv jv_str(JinjaStr *s) { return s ? (Jv){.tag = JINJA_STR, .s = s} : jv_error(); }
static inline Jv jv_undefined(void) { return (Jv){.tag = JINJA_UNDEFINED}; }
static inline bool jv_integral(Jv v) { return v.tag == JINJA_INT || v.tag == JINJA_BOOL || v.tag == JINJA_BIG; }
static inline int64_t jv_small(Jv v) { return v.tag == JINJA_BOOL ? v.b : v.i; } /* INT or BOOL */
const char *jv_type_name(Jv v);                                                  /* "str", "NoneType" */
Jv jv_hint(Vm *vm, const char *text);                                            /* undefined with a reason */
Jv jv_undefined_error(Vm *vm, Jv v);                                             /* raises what using it raises */

/* jinja_string.c */
JinjaStr *jinja_str_new(Vm *vm, const char *bytes, size_t size, uint8_t origin); /* keeps the pointer */
JinjaStr *jinja_str_copy(Vm *vm, const char *bytes, size_t size, uint8_t origin);
JinjaStr *jinja_str_part(Vm *vm, JinjaStr *s, size_t from, size_t to); /* bytes [from, to) */
JinjaStr *jinja_str_concat(Vm *vm, JinjaStr *a, JinjaStr *b);
JinjaStr *jinja_str_markup(Vm *vm, JinjaStr *s, bool markup);
bool jinja_str_flatten(Vm *vm, JinjaStr *s);              /* false: raised */
size_t jinja_str_offset(const JinjaStr *s, size_t index); /* byte offset of a code point; s is flat */
static inline Slice jinja_str_slice(const JinjaStr *s) { return (Slice){s->data, s->size}; }
uint8_t jinja_str_origin(const JinjaStr *s, size_t offset); /* of one byte */
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
void jinja_text_drop(Vm *vm, JinjaText *text);

/* jinja_big.c: integers of any size up to JINJA_BITS_MAX. Results are INT when they fit int64. */
Jv jinja_int_add(Vm *vm, Jv a, Jv b);
Jv jinja_int_sub(Vm *vm, Jv a, Jv b);
Jv jinja_int_mul(Vm *vm, Jv a, Jv b);
bool jinja_int_divmod(Vm *vm, Jv a, Jv b, Jv *quotient, Jv *remainder); /* floor; false: raised */
Jv jinja_int_power(Vm *vm, Jv a, uint64_t exponent);
Jv jinja_int_negate(Vm *vm, Jv a);
int jinja_int_compare(Jv a, Jv b);
int jinja_int_sign(Jv a);
double jinja_int_double(Jv a);                                          /* infinite when too large */
Jv jinja_int_divide(Vm *vm, Jv a, Jv b);                                /* true division, correctly rounded */
Jv jinja_int_from_double(Vm *vm, double value);                         /* truncated; finite */
Jv jinja_int_parse(Vm *vm, const char *digits, size_t count, int base); /* digits only, valid for the base */
bool jinja_int_digits(Vm *vm, Jv a, int base, Buffer *out);             /* sign and digits; false: raised */
int jinja_int_bits(Jv a);

/* jinja_number.c */
void jinja_float_repr(double value, char out[40]);
Jv jinja_float_parse(Vm *vm, Slice text, bool *ok);        /* Python's float(str) */
Jv jinja_int_text(Vm *vm, Slice text, int base, bool *ok); /* Python's int(str, base) */
Jv jinja_binary(Vm *vm, int op, Jv a, Jv b);
Jv jinja_unary(Vm *vm, int op, Jv a);
Jv jinja_round(Vm *vm, Jv value, Jv precision);
bool jinja_as_double(Vm *vm, Jv v, double *out); /* a number of any kind; false: raised */
bool jinja_as_index(Vm *vm, Jv v, int64_t *out); /* an integer, clamped to int64; false: raised */

/* jinja_value.c */
bool jinja_truth(Vm *vm, Jv v, bool *out);
bool jinja_equal(Vm *vm, Jv a, Jv b, bool *out);
bool jinja_less(Vm *vm, Jv a, Jv b, const char *op, int *order); /* order <0, 0, >0; 2 = unordered (NaN) */
bool jinja_contains(Vm *vm, Jv container, Jv item, bool *out);
bool jinja_length(Vm *vm, Jv v, size_t *out);
Jv jinja_list_new(Vm *vm, size_t capacity);
bool jinja_list_push(Vm *vm, JinjaList *list, Jv v);
Jv jinja_tuple(Vm *vm, const Jv *items, size_t count);
Jv jinja_iterate(Vm *vm, Jv v); /* a LIST value with all items: the same list for lists, a new one otherwise */
Jv jinja_dict_new(Vm *vm, size_t capacity);
bool jinja_hash(Vm *vm, Jv key, uint64_t *out); /* false: raised unhashable */
bool jinja_hashable(Jv key);
bool jinja_dict_set(Vm *vm, JinjaDict *dict, Jv key, Jv value);
bool jinja_dict_set_hashed(Vm *vm, JinjaDict *dict, Jv key, uint64_t hash, Jv value);
JinjaPair *jinja_dict_find(Vm *vm, const JinjaDict *dict, Jv key); /* NULL: absent or raised */
JinjaPair *jinja_dict_find_text(const JinjaDict *dict, Slice key);
uint64_t jinja_hash_text(Slice text);
Jv jinja_slice(Vm *vm, Jv v, Jv start, Jv stop, Jv step);
Jv jinja_range_at(const JinjaRange *range, int64_t index);
Jv jinja_iter_new(Vm *vm, Jv list, const char *type_name);
bool jinja_iter_force(Vm *vm, JinjaIter *iter);

/* jinja_repr.c */
bool jinja_write_str(Vm *vm, JinjaText *out, Jv v);  /* str(v) */
bool jinja_write_repr(Vm *vm, JinjaText *out, Jv v); /* repr(v) */
Jv jinja_to_str(Vm *vm, Jv v);                       /* str(v): the same value for plain strings */
Jv jinja_soft_str(Vm *vm, Jv v);                     /* str(v), keeping Markup */
Jv jinja_to_repr(Vm *vm, Jv v);
bool jinja_write_ascii(Vm *vm, JinjaText *out, Jv v); /* ascii(v) */

/* jinja_json.c */
Jv jinja_tojson(Vm *vm, Jv value, bool ensure_ascii, Jv indent, Jv separators, bool sort_keys);

/* jinja_format.c, jinja_percent.c */
Jv jinja_percent_format(Vm *vm, JinjaStr *format, Jv values);
Jv jinja_str_format(Vm *vm, JinjaStr *format, const JinjaArgs *args, Jv mapping);

/* jinja_unicode.c: Python 3.11's view of characters (Unicode 14). */
bool unicode_is_space(uint32_t code);
bool unicode_is_printable(uint32_t code);
bool unicode_is_alpha(uint32_t code);
bool unicode_is_decimal(uint32_t code);
bool unicode_is_digit(uint32_t code);
bool unicode_is_numeric(uint32_t code);
bool unicode_is_lower(uint32_t code);
bool unicode_is_upper(uint32_t code);
bool unicode_is_title(uint32_t code);
bool unicode_is_cased(uint32_t code);
bool unicode_is_case_ignorable(uint32_t code);
bool unicode_is_id_start(uint32_t code);
bool unicode_is_id_continue(uint32_t code);
static inline bool unicode_is_alnum(uint32_t c) { return unicode_is_alpha(c) || unicode_is_numeric(c); }
int unicode_decimal(uint32_t code); /* 0…9, or -1 */
/* Full case mappings: 1…3 code points. */
int jinja_upper(uint32_t code, uint32_t out[3]);
int jinja_lower(uint32_t code, uint32_t out[3]);
int jinja_title(uint32_t code, uint32_t out[3]);
int jinja_fold(uint32_t code, uint32_t out[3]);
