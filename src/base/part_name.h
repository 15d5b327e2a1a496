/* Names of files in several parts, as llama.cpp's gguf-split writes them: NAME-00002-of-00003.gguf. Threads: any. */
#pragma once
#include "base/buffer.h"

typedef struct PartName {
    size_t stem; /* bytes of the path in front of "-00002-of-00003.gguf" */
    int part;    /* from 1 */
    int count;   /* 1 or more */
} PartName;

/* False: the path does not name a part. */
bool part_name_parse(const char *path, PartName *name);
/* Appends the path of another part of the same file. */
void part_name_write(Buffer *out, const char *path, const PartName *name, int part);
/* Appends the path of the first part, or the path itself where it does not name a part. */
void part_name_first(Buffer *out, const char *path);
