/* Running a template: functions with their arguments, attributes and items, scopes, statements. */
#pragma once
#include "text/jinja/syntax.h"

typedef struct JinjaVariable {
    uint32_t name;
    Jv value;
} JinjaVariable;

/* Names visible at a place. The root keeps its values by name id, the others a few in a list. */
struct JinjaScope {
    JinjaScope *parent;
    JinjaVariable *variables;
    size_t count, capacity;
    bool captured; /* a macro or loop function may outlive the block: not to be reused */
    Jv *root;      /* variables of the root scope: JINJA_MISSING where not set */
};

typedef struct JinjaMacro {
    const JinjaNode *node;
    JinjaScope *scope; /* where it was defined */
} JinjaMacro;

typedef struct JinjaLoop {
    JinjaList items; /* those that passed the loop's own if */
    const JinjaList *source;
    size_t source_next, index;
    const JinjaNode *node;
    JinjaScope *scope;                                          /* around the loop */
    bool (*fill)(Vm *vm, struct JinjaLoop *loop, size_t count); /* tries to have that many items; false: raised */
} JinjaLoop;

enum { JINJA_PARAMS_MAX = 8 };

/* call.c: functions of the library, attributes, items */
bool jinja_bind(Vm *vm, const char *what, const char *params, const JinjaArgs *args, Jv out[JINJA_PARAMS_MAX]);
Jv jinja_function_call(Vm *vm, const JinjaFunction *function, Jv self, const JinjaArgs *args);
Jv jinja_getattr(Vm *vm, Jv object, JinjaStr *name, const JinjaFunction *method); /* method: found by name, or NULL */
Jv jinja_getitem(Vm *vm, Jv object, Jv key);
bool jinja_namespace_set(Vm *vm, Jv ns, Jv name, Jv value);

/* eval.c */
bool jinja_run(Vm *vm, const JinjaNode *body); /* renders into vm->out; false: raised */
