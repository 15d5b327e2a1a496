/* A trie in a hash table. */
#include "text/tokenizer/added_index.h"

#include <stdlib.h>
#include <string.h>

enum { NODE_BITS = 24 };

void added_index_free(AddedIndex *index) {
    free(index->edges);
    free(index->token);
    *index = (AddedIndex){0};
}

static inline uint32_t edge_slot(const AddedIndex *index, uint32_t key) {
    return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32) & index->edge_mask;
}

/* The child of a node by a byte, or 0. */
static inline uint32_t edge_find(const AddedIndex *index, uint32_t node, uint8_t byte) {
    uint32_t key = node << 8 | byte;
    for (uint32_t i = edge_slot(index, key);; i = (i + 1) & index->edge_mask) {
        uint64_t edge = index->edges[i];
        if (!edge) return 0;
        if (edge >> 32 == key) return (uint32_t)edge;
    }
}

static void edge_insert(AddedIndex *index, uint64_t edge) {
    uint32_t i = edge_slot(index, (uint32_t)(edge >> 32));
    while (index->edges[i]) i = (i + 1) & index->edge_mask;
    index->edges[i] = edge;
}

static bool edges_grow(AddedIndex *index) {
    size_t capacity = index->edges ? ((size_t)index->edge_mask + 1) * 2 : 256;
    AddedIndex old = *index;
    index->edges = calloc(capacity, sizeof *index->edges);
    if (!index->edges) {
        index->edges = old.edges;
        return false;
    }
    index->edge_mask = (uint32_t)capacity - 1;
    for (uint32_t i = 0; old.edges && i <= old.edge_mask; i++) {
        if (old.edges[i]) edge_insert(index, old.edges[i]);
    }
    free(old.edges);
    return true;
}

static bool node_new(AddedIndex *index, uint32_t *node) {
    if (index->node_count >= (1u << NODE_BITS) - 1) return false;
    if (index->node_count == index->node_capacity) {
        uint32_t capacity = index->node_capacity ? index->node_capacity * 2 : 256;
        int32_t *token = realloc(index->token, capacity * sizeof *token);
        if (!token) return false;
        index->token = token;
        index->node_capacity = capacity;
    }
    *node = index->node_count++;
    index->token[*node] = -1;
    return true;
}

bool added_index_add(AddedIndex *index, Slice pattern, int32_t token) {
    uint32_t node = 0, child;
    if (!index->node_count && !node_new(index, &node)) return false;
    if (!index->edges && !edges_grow(index)) return false;
    for (size_t i = 0; i < pattern.size; i++) {
        uint8_t byte = (uint8_t)pattern.data[i];
        child = edge_find(index, node, byte);
        if (!child) {
            if (index->edge_count * 2 > index->edge_mask && !edges_grow(index)) return false;
            if (!node_new(index, &child)) return false;
            edge_insert(index, (uint64_t)(node << 8 | byte) << 32 | child);
            index->edge_count++;
        }
        node = child;
    }
    if (pattern.size) {
        index->first_byte = (uint8_t)pattern.data[0];
        index->first_count += !index->first[index->first_byte];
        index->first[index->first_byte] = true;
        index->token[node] = token;
    }
    return true;
}

size_t added_index_next(const AddedIndex *index, Slice text, size_t from) {
    if (!index->first_count || from >= text.size) return text.size;
    if (index->first_count == 1) { /* the usual case: "<" */
        const char *at = memchr(text.data + from, index->first_byte, text.size - from);
        return at ? (size_t)(at - text.data) : text.size;
    }
    while (from < text.size && !index->first[(uint8_t)text.data[from]]) from++;
    return from;
}

int32_t added_index_match(const AddedIndex *index, Slice text, size_t at, size_t *end) {
    int32_t found = -1;
    uint32_t node = 0;
    while (at < text.size) {
        node = edge_find(index, node, (uint8_t)text.data[at++]);
        if (!node) break;
        if (index->token[node] >= 0) {
            found = index->token[node];
            *end = at;
        }
    }
    return found;
}

uint32_t added_index_step(const AddedIndex *index, uint32_t node, uint8_t byte) { return edge_find(index, node, byte); }
