/* JSON schemas: sets of schemas that a value must satisfy all at once. References and allOf are resolved into such a
 * set, anyOf and oneOf into several; each set is a rule, made once, so that recursive schemas are recursive rules.
 * Internal to text/grammar. */
#pragma once
#include "base/map.h"
#include "text/grammar/argument_form.h"
#include "text/grammar/json_form.h"
#include "text/grammar/schema_type.h"

enum { SCHEMA_MEMBERS_MAX = 256, SCHEMA_CHOICES_MAX = 4096 };

/* What of a member has been resolved already. */
enum { RESOLVED_ANY_OF = 1, RESOLVED_ONE_OF = 2, RESOLVED_REWRITTEN = 4 /* schema_rewrite.h */ };

typedef struct Member {
    const Json *schema; /* an object */
    uint64_t resolved;
} Member;

/* How the values of a set are spelled. */
typedef enum SchemaPlace {
    PLACE_JSON,
    PLACE_ARGUMENTS, /* the object of a call's arguments */
    PLACE_ARGUMENT,  /* one of them */
} SchemaPlace;

typedef struct SchemaSet {
    Member *members;
    uint32_t count;
    SchemaPlace place;
    uint32_t types;  /* ARGUMENT: those that the argument's key may have at all (SchemaType) */
    bool impossible; /* one of them is false */
    Rule rule;
    struct SchemaSet *next; /* whose rule is still to be made */
} SchemaSet;

typedef struct Schemas {
    Rules *rules;
    Budget *budget;
    JsonForm form;
    const ArgumentForm *arguments; /* NULL: the whole is JSON */
    Arena arena;
    const Json *root;
    Map sets;      /* by members */
    Map rewritten; /* schemas, by the address of those that they stand for */
    SchemaSet *pending, **pending_end;
} Schemas;

/* Keywords that cannot be kept are left out instead of being refused. */
static inline bool schema_is_lenient(const Schemas *s) { return s->arguments && s->arguments->lenient; }
/* The error for a keyword of a schema: says where. Always false. */
bool schema_refuse(Schemas *s, const Json *schema, const char *keyword, const char *why); /* it cannot be kept */
bool schema_broken(Schemas *s, const Json *schema, const char *keyword, const char *why); /* it is not valid */

/* A list of members that grows; NULL data: none yet. */
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
/* Adds a schema (an object, true or false) with all that it refers to. */
bool members_add(Schemas *s, MemberList *list, const Json *schema, uint64_t resolved);
/* A member of another list, whose references and allOf are members of that list as well. */
bool members_keep(Schemas *s, MemberList *list, Member member);
/* The set of a list, its rule to be made when it is new. NULL: a failure. */
SchemaSet *schema_set(Schemas *s, const MemberList *list);
Expr schema_set_expr(Schemas *s, const MemberList *list); /* what fits it */

/* The next array or object that a reference such as "#/$defs/a" points to, or NULL. */
const Json *schema_resolve(Schemas *s, const Json *schema, Slice reference);
/* additionalProperties, or what unevaluatedProperties says where nothing else of the schema could evaluate a property;
 * the same of items. NULL: nothing. False: what is evaluated depends on the value. */
bool schema_rest(Schemas *s, const Json *schema, const char *keyword, const char *unevaluated, const Json **rest);
/* A keyword that is a whole number of at least 0, or fallback; *bound stays below LEX_FOREVER. */
bool schema_count(Schemas *s, const Json *schema, const char *keyword, uint32_t fallback, uint32_t *bound);
/* The types that a set allows. */
bool schema_types(Schemas *s, const SchemaSet *set, uint32_t *types);
