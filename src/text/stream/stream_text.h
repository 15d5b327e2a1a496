/* text/stream/: stop strings in generated text.
 *
 * Holds back text that may be the beginning of a stop string. Thread: one stream, one thread. */
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
/* Appends the decided text. True: a stop string is complete; the text ends before it. Out of memory is out's failure.
 */
bool stream_text_push(StreamText *stream, Slice piece, Buffer *out);
void stream_text_finish(StreamText *stream, Buffer *out); /* the text has ended: appends the held text */
void stream_text_free(StreamText *stream);
