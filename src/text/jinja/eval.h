/* Running a template: scopes, calls, and the tables of filters, tests, methods and globals. */
#pragma once
#include "text/jinja/ast.h"

typedef struct JinjaVariable {
    uint32_t name;
    Jv value;
} JinjaVariable;

/* Names visible at a place. The root keeps its values by name id, the others a few in a list. */
struct JinjaScope {
    JinjaScope *parent;
    JinjaVariable *variables;
    uint32_t count, capacity;
    bool captured; /* a macro or loop function may outlive the block: not to be reused */
    Jv *root;      /* of the root scope: JINJA_MISSING where not set */
};

typedef struct JinjaMacro {
    const JinjaNode *node;
    JinjaScope *scope; /* where it was defined */
} JinjaMacro;

typedef struct JinjaLoop {
    JinjaList items; /* those that passed the loop's own if */
    const JinjaList *source;
    size_t source_next, index;
    int64_t depth;
    const JinjaNode *node;
    JinjaScope *scope; /* around the loop */
    Jv changed;        /* the last arguments of changed(), or MISSING */
} JinjaLoop;

enum { JINJA_PARAMS_MAX = 8 };

/* params: names separated by spaces; the first `required` must be given; a leading "/": positional only. Arguments not
 * given are JINJA_MISSING. Filters with NULL params take the arguments as they are. */
typedef struct JinjaFilter {
    const char *name, *params;
    int required;
    bool lazy; /* the result is a generator */
    Jv (*run)(Vm *vm, Jv value, const Jv *args);
    Jv (*run_any)(Vm *vm, Jv value, const JinjaArgs *args);
} JinjaFilter;

typedef struct JinjaTest {
    const char *name;
    int arguments; /* exactly so many */
    bool (*run)(Vm *vm, Jv value, const Jv *args, bool *out);
} JinjaTest;

typedef struct JinjaMethodEntry {
    const char *name;
    uint16_t types; /* METHOD_… */
    bool refused;   /* the sandbox does not hand it out: it changes its object */
    const char *params;
    int required;
    Jv (*run)(Vm *vm, Jv self, const Jv *args);
    Jv (*run_any)(Vm *vm, Jv self, const JinjaArgs *args);
} JinjaMethodEntry;

enum {
    METHOD_STR = 1,
    METHOD_LIST = 2,
    METHOD_TUPLE = 4,
    METHOD_DICT = 8,
    METHOD_INT = 16,
    METHOD_FLOAT = 32,
    METHOD_RANGE = 64,
    METHOD_LOOP = 128,
    METHOD_MARKUP = 256,
};

const JinjaFilter *jinja_filter_find(Slice name);
const JinjaTest *jinja_test_find(Slice name);
uint32_t jinja_method_id(Slice name); /* 0: no method of any type has this name */
const JinjaMethodEntry *jinja_method_entry(uint32_t id, uint16_t types);

bool jinja_bind(
    Vm *vm, const char *what, const char *params, int required, const JinjaArgs *args, Jv out[JINJA_PARAMS_MAX]);
Jv jinja_filter_run(Vm *vm, const JinjaFilter *filter, Jv value, const JinjaArgs *args);
bool jinja_test_run(Vm *vm, const JinjaTest *test, Jv value, const JinjaArgs *args, bool *out);
Jv jinja_filter_named(Vm *vm, Jv name, Jv value, const JinjaArgs *args); /* by a name known at run time */
bool jinja_test_named(Vm *vm, Jv name, Jv value, const JinjaArgs *args, bool *out);

Jv jinja_getattr(Vm *vm, Jv object, JinjaStr *name, uint32_t method);
Jv jinja_getitem(Vm *vm, Jv object, Jv key);
Jv jinja_call(Vm *vm, Jv callee, const JinjaArgs *args);
bool jinja_callable(Jv v);

/* Globals: range, dict, namespace, … */
typedef enum JinjaGlobal {
    GLOBAL_RANGE,
    GLOBAL_DICT,
    GLOBAL_LIPSUM,
    GLOBAL_CYCLER,
    GLOBAL_JOINER,
    GLOBAL_NAMESPACE,
    GLOBAL_RAISE_EXCEPTION,
    GLOBAL_STRFTIME_NOW,
    GLOBAL_FROMKEYS, /* dict.fromkeys: not a name of its own */
    GLOBAL_COUNT,
} JinjaGlobal;
extern const char *const jinja_global_names[GLOBAL_COUNT];
Jv jinja_global_call(Vm *vm, JinjaGlobal which, const JinjaArgs *args);
bool jinja_namespace_set(Vm *vm, Jv ns, JinjaStr *name, Jv value);

Jv jinja_scope_get(Vm *vm, uint32_t name); /* JINJA_MISSING when not set */
void jinja_scope_set(Vm *vm, JinjaScope *scope, uint32_t name, Jv value);
JinjaScope *jinja_scope_push(Vm *vm, JinjaScope *parent); /* becomes the current scope; NULL: raised */
Jv jinja_eval(Vm *vm, const JinjaNode *node);
Jv jinja_capture(Vm *vm, const JinjaNode *list);    /* what the statements write, as a string */
bool jinja_run_body(Vm *vm, const JinjaNode *body); /* renders into vm->out; false: raised */
Jv jinja_macro_call(Vm *vm, JinjaMacro *macro, const JinjaArgs *args);
Jv jinja_loop_call(Vm *vm, JinjaLoop *loop, Jv items);       /* loop(items) of a recursive loop */
bool jinja_loop_fill(Vm *vm, JinjaLoop *loop, size_t count); /* tries to have that many items */

Jv jinja_escape(Vm *vm, Jv v); /* markupsafe.escape */
bool jinja_attribute_parts(Vm *vm, Jv attribute, JinjaList *out);
Jv jinja_attribute_get(Vm *vm, Jv item, const JinjaList *parts, Jv fallback);
bool jinja_sort(Vm *vm, JinjaList *items, const Jv *keys, bool reverse);
Jv jinja_ignore_case(Vm *vm, Jv v);
uint64_t jinja_random(Vm *vm);

/* text methods shared with filters (jinja_strings.c) */
typedef enum JinjaCase { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP, CASE_FOLD } JinjaCase;
Jv jinja_str_case(Vm *vm, Jv s, JinjaCase how);
Jv jinja_str_strip(Vm *vm, Jv s, Jv chars, bool left, bool right);
Jv jinja_str_replace(Vm *vm, Jv s, Jv old, Jv with, int64_t count);
Jv jinja_str_split(Vm *vm, Jv s, Jv separator, int64_t limit, bool from_right);
Jv jinja_str_splitlines(Vm *vm, Jv s, bool keep_ends);
Jv jinja_str_pad(Vm *vm, Jv s, int64_t width, Jv fill, int mode); /* -1 ljust, 0 center, 1 rjust */
Jv jinja_str_join(Vm *vm, Jv separator, Jv items, bool convert);
bool jinja_str_test(Vm *vm, Jv s, int which); /* 'u' isupper, 'l' islower, … */
Jv jinja_method_call(Vm *vm, JinjaMethod *method, const JinjaArgs *args);
Jv jinja_html_unescape(Vm *vm, Jv s);
Jv jinja_striptags(Vm *vm, Jv s);
Jv jinja_filter_urlize(Vm *vm, Jv value, const Jv *args); /* jinja_urlize.c */
extern const JinjaFilter jinja_text_filters[];            /* jinja_filters_text.c; ends with a NULL name */
extern const JinjaFilter jinja_html_filters[];            /* jinja_filters_html.c */
extern const JinjaFilter jinja_list_filters[];            /* jinja_filters_list.c */
