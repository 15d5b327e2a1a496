/* JSON schemas as sets of schemas that a value must satisfy together. References and allOf are resolved into one set,
 * anyOf and oneOf into several. Each set becomes one rule, so recursive schemas are recursive rules. Internal to
 * text/grammar. */
#pragma once
#include "base/map.h"
#include "text/grammar/argument_form.h"
#include "text/grammar/json_form.h"
#include "text/grammar/schema_type.h"

enum { SCHEMA_MEMBERS_MAX = 256, SCHEMA_CHOICES_MAX = 4096 };

/* Keywords of a member that are resolved already. */
enum { RESOLVED_ANY_OF = 1, RESOLVED_ONE_OF = 2, RESOLVED_REWRITTEN = 4 /* schema_rewrite.h */ };

typedef struct Member {
    const Json *schema; /* an object */
    uint64_t resolved;
} Member;

/* How the values of a set are spelled. */
typedef enum SchemaPlace {
    PLACE_JSON,
    PLACE_ARGUMENTS, /* the object of a call's arguments */
    PLACE_ARGUMENT,  /* the value of one argument */
} SchemaPlace;

typedef struct SchemaSet {
    Member *members;
    uint32_t count;
    SchemaPlace place;
    uint32_t types;  /* PLACE_ARGUMENT: types (SchemaType) that the argument may have at all */
    bool impossible; /* a member is the schema false */
    Rule rule;
    struct SchemaSet *next; /* next set whose rule is not made yet */
} SchemaSet;

typedef struct Schemas {
    Rules *rules;
    Budget *budget;
    JsonForm form;
    const ArgumentForm *arguments; /* NULL: values are JSON */
    Arena arena;
    const Json *root;
    Map sets;      /* members → set */
    Map rewritten; /* address of a schema → the schema that replaces it */
    SchemaSet *pending, **pending_end;
} Schemas;

/* Unsupported keywords are ignored instead of refused. */
static inline bool schema_is_lenient(const Schemas *s) { return s->arguments && s->arguments->lenient; }
/* Fails with the keyword's place in the schema. Always false. */
bool schema_refuse(Schemas *s, const Json *schema, const char *keyword, const char *why); /* unsupported */
bool schema_broken(Schemas *s, const Json *schema, const char *keyword, const char *why); /* invalid */

/* A set in the making. */
typedef struct MemberList {
    Member data[SCHEMA_MEMBERS_MAX];
    uint32_t count;
    bool impossible;
    SchemaPlace place; /* as in SchemaSet */
    uint32_t types;
} MemberList;
static inline void members_begin(MemberList *list, SchemaPlace place, uint32_t types) {
    list->count = 0;
    list->impossible = false;
    list->place = place;
    list->types = types;
}
/* Adds a schema (an object, true or false), its references and its allOf. */
bool members_add(Schemas *s, MemberList *list, const Json *schema, uint64_t resolved);
/* Adds a member of another list that also has the member's references and allOf. */
bool members_keep(Schemas *s, MemberList *list, Member member);
/* The set with these members; a new one is queued for its rule. NULL: the budget failed. */
SchemaSet *schema_set(Schemas *s, const MemberList *list);
Expr schema_set_expr(Schemas *s, const MemberList *list); /* the values that satisfy the list */

/* The schema that a reference such as "#/$defs/a" points to; NULL: none. */
const Json *schema_resolve(Schemas *s, const Json *schema, Slice reference);
/* additionalProperties, or unevaluatedProperties if no other keyword of the schema can evaluate a property; likewise
 * for items. *rest NULL: neither. False: the evaluated properties depend on the value. */
bool schema_rest(Schemas *s, const Json *schema, const char *keyword, const char *unevaluated, const Json **rest);
/* The value of a keyword that is a non-negative integer, otherwise fallback; *bound < LEX_FOREVER. */
bool schema_count(Schemas *s, const Json *schema, const char *keyword, uint32_t fallback, uint32_t *bound);
/* The types that a set allows. */
bool schema_types(Schemas *s, const SchemaSet *set, uint32_t *types);
