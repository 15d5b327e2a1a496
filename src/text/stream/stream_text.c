/* Holding back the beginnings of stop strings. Nothing is held longer than it could still become one. */
#include "text/stream/stream_text.h"

#include <string.h>

void stream_text_init(StreamText *stream) { *stream = (StreamText){.matched = -1}; }

/* The stop string that begins first in text, the longest of several; *at: its index. −1: none. */
static int find_stop(const StreamText *stream, Slice text, size_t *at) {
    int found = -1;
    for (int i = 0; i < stream->stop_count; i++) {
        Slice stop = stream->stops[i];
        if (!stop.size || stop.size > text.size) continue;
        const char *where = memmem(text.data, text.size, stop.data, stop.size);
        if (!where) continue;
        size_t start = (size_t)(where - text.data);
        if (found >= 0 && (start > *at || (start == *at && stop.size <= stream->stops[found].size))) continue;
        found = i;
        *at = start;
    }
    return found;
}

/* Index of the earliest prefix of a stop string at the end of text; the text's size: none. */
static size_t find_beginning(const StreamText *stream, Slice text) {
    size_t earliest = text.size;
    for (int i = 0; i < stream->stop_count; i++) {
        Slice stop = stream->stops[i];
        if (!stop.size) continue;
        size_t at = text.size >= stop.size ? text.size - stop.size + 1 : 0;
        for (; at < earliest; at++) {
            if (memcmp(text.data + at, stop.data, text.size - at) == 0) earliest = at;
        }
    }
    return earliest;
}

bool stream_text_push(StreamText *stream, Slice piece, Buffer *out) {
    if (stream->matched >= 0) return true;
    buffer_slice(&stream->held, piece);
    out->failed |= stream->held.failed;
    Slice text = buffer_view(&stream->held);
    if (!text.size) return false;
    size_t end = 0;
    int stop = find_stop(stream, text, &end);
    if (stop < 0) end = find_beginning(stream, text);
    buffer_append(out, text.data, end);
    if (stop >= 0) {
        stream->matched = stop;
        buffer_clear(&stream->held);
        return true;
    }
    memmove(stream->held.data, stream->held.data + end, text.size - end);
    stream->held.size = text.size - end;
    return false;
}

void stream_text_finish(StreamText *stream, Buffer *out) {
    if (stream->held.size) buffer_slice(out, buffer_view(&stream->held));
    buffer_clear(&stream->held);
}

void stream_text_free(StreamText *stream) { buffer_free(&stream->held); }
