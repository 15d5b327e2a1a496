/* JSON trees made from values and other trees, without text in between. The caller allocates the nodes: one per value,
 * plus json_child_nodes() of every tree that is copied. Each function writes at `at` and returns the node after what it
 * wrote. Texts are borrowed. */
#pragma once
#include "base/json.h"

/* Nodes of all children of a container; NULL: 0. */
static inline size_t json_child_nodes(const Json *container) {
    return container ? (size_t)(container->end - container) - 1 : 0;
}

static inline Json *json_put_string(Json *at, Slice text) {
    *at = (Json){.type = JSON_STRING, .size = (uint32_t)text.size, .string = text.data};
    return at + 1;
}

static inline Json *json_put_bool(Json *at, bool value) {
    *at = (Json){.type = JSON_BOOL, .boolean = value};
    return at + 1;
}

/* Two nodes: a key and its text. */
static inline Json *json_put_pair(Json *at, Slice key, Slice value) {
    return json_put_string(json_put_string(at, key), value);
}

/* Copies a container's children; NULL: none. */
static inline Json *json_put_children(Json *at, const Json *container) {
    if (!container) return at;
    for (const Json *node = json_first(container); node != container->end; node++) {
        Json *copy = at + (node - json_first(container));
        *copy = *node;
        if (node->type >= JSON_ARRAY) copy->end = copy + (node->end - node);
    }
    return at + json_child_nodes(container);
}

/* Copies a value with its children. */
static inline Json *json_put_tree(Json *at, const Json *value) {
    if (value->type < JSON_ARRAY) {
        *at = *value;
        return at + 1;
    }
    Json *end = json_put_children(at + 1, value);
    *at = (Json){.type = value->type, .size = value->size, .end = end};
    return end;
}

/* Writes a container whose children lie between it and `end`; size: elements or pairs. Returns end. */
static inline Json *json_close(Json *container, JsonType type, uint32_t size, Json *end) {
    *container = (Json){.type = type, .size = size, .end = end};
    return end;
}
