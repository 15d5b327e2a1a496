/* Where a prompt is left in the prefix cache while it is read, so that another text can go on from there. Sequences
 * that keep all pages need none (prefix_forgets). */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
    RESUME_POINTS_MAX = 64,
    RESUME_SPACING = 512,       /* least tokens between snapshots of recurrent states at the ends of messages, and of an
                                   answer whose end is kept on disk */
    RESUME_SPACING_MOST = 8192, /* most tokens without a snapshot */
    SNAPSHOTS_DEFAULT = 32,     /* snapshots that the cache has room for by default, beside what sequences take */
};

typedef struct ResumePoints {
    int every, behind; /* positions are multiples of `every` plus `behind`; larger than `behind` */
    int count;
    int at[RESUME_POINTS_MAX]; /* ascending */
} ResumePoints;

/* A text and what ends a message in it. Borrowed. */
typedef struct MessageText {
    const int32_t *tokens; /* [count] */
    int count;
    const int32_t *end_tokens; /* [end_count] */
    int end_count;
} MessageText;

/* Adds the last such position up to this one, unless there is none or the list is full. */
void resume_points_add(ResumePoints *points, int position);
/* Adds this position itself. */
void resume_points_add_exactly(ResumePoints *points, int position);
/* The end of the first message behind the first page. */
void resume_points_add_first(ResumePoints *points, const MessageText *text);
/* For recurrent states, whose snapshots are large: behind `begin`, ends of messages that lie RESUME_SPACING apart
 * (further in long texts), each RESUME_SPACING_MOST tokens without one, the end of the last message, and of the text.
 */
void resume_points_add_snapshots(ResumePoints *points, const MessageText *text, int begin);
/* Tokens from a length to the next point; INT_MAX: there is none. */
int resume_points_left(const ResumePoints *points, int length);
/* Tokens from the last point up to a length; the length: there is none. */
int resume_points_behind(const ResumePoints *points, int length);
bool resume_points_have(const ResumePoints *points, int length);
