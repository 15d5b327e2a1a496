/* Which files of a repository make a model that can be run here. */
#pragma once
#include "hub/tree.h"

typedef struct HubChoice {
    HubFormat format;
    const HubFile **files; /* array to free(); its elements are borrowed from the tree. GGUF: a file, or its parts */
    size_t count;
} HubChoice;

/* memory_bytes: what the machine has to spare, for the order in which files to choose from are named. */
NODISCARD bool choose_files(
    const HubTree *tree, const HubName *name, uint64_t memory_bytes, HubChoice *choice, Error *error);
void choice_free(HubChoice *choice);
/* A GGUF file that can be a model by itself, or the first part of one. */
bool choose_is_gguf_model(const char *path);
/* The bytes of such a model in all its parts; −1: not all are there, or the size of one is not known. */
int64_t choose_gguf_bytes(const HubTree *tree, const HubFile *model);
