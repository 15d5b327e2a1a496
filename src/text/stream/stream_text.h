/* text/stream/: what happens to generated text on its way out.
 *
 * From pieces of text to what a client may see: holds back what could be the beginning of a stop string.
 * In this folder lives what happens to generated text on its way out. Threads: one stream, one thread. */
#pragma once
#include "base/buffer.h"
#include "base/slice.h"

enum { STOP_STRINGS_MAX = 16, STOP_STRING_BYTES_MAX = 4096 };

typedef struct StreamText {
    Slice stops[STOP_STRINGS_MAX]; /* owned by the caller */
    int stop_count;
    Buffer held; /* text that might begin a stop string */
    int matched; /* index of the stop string that ended the text, or −1 */
} StreamText;

void stream_text_init(StreamText *stream);
/* Appends to out what is certain; memory that ends for what is held back is out's failure, too. True when a stop string
 * was completed: the text ends just before it. */
bool stream_text_push(StreamText *stream, Slice piece, Buffer *out);
void stream_text_finish(StreamText *stream, Buffer *out); /* no more text: releases what was held */
void stream_text_free(StreamText *stream);
