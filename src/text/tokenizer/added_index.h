/* The added tokens that begin at a place of a text. Threads: immutable once all are added. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/slice.h"

typedef struct AddedIndex { /* a trie in a hash table */
    bool first[256];        /* bytes that tokens begin with */
    uint32_t first_count;   /* number of such bytes */
    uint8_t first_byte;     /* a byte of that kind */
    uint64_t *edges;        /* node 24 bits, byte 8 bits, child 32 bits; 0: free */
    uint32_t edge_mask, edge_count;
    int32_t *token; /* by node: the added token that ends there, or −1. Node 0 is the root */
    uint32_t node_count, node_capacity;
} AddedIndex;
void added_index_free(AddedIndex *index);
/* False: no memory. */
NODISCARD bool added_index_add(AddedIndex *index, Slice pattern, int32_t token);
/* The next place from `from` on where a token may begin; text.size: there is none. */
size_t added_index_next(const AddedIndex *index, Slice text, size_t from);
/* The longest token that begins at `at`, or −1. */
int32_t added_index_match(const AddedIndex *index, Slice text, size_t at, size_t *end);
/* The child of a node by a byte; 0: none. */
uint32_t added_index_step(const AddedIndex *index, uint32_t node, uint8_t byte);
