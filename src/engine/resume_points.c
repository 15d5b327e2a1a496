#include "engine/resume_points.h"

#include <limits.h>
#include <string.h>

#include "backend/backend.h"

static bool ends_message(const MessageText *text, int i) {
    for (int n = 0; n < text->end_count; n++)
        if (text->tokens[i] == text->end_tokens[n]) return true;
    return false;
}

void resume_points_add_exactly(ResumePoints *points, int position) {
    int place = points->count;
    while (place > 0 && points->at[place - 1] > position) place--;
    if (points->count == RESUME_POINTS_MAX || (place > 0 && points->at[place - 1] == position)) return;
    memmove(&points->at[place + 1], &points->at[place], (size_t)(points->count++ - place) * sizeof *points->at);
    points->at[place] = position;
}

void resume_points_add(ResumePoints *points, int position) {
    const int last = (position - points->behind) / points->every * points->every + points->behind;
    if (last > points->behind) resume_points_add_exactly(points, last);
}

void resume_points_add_first(ResumePoints *points, const MessageText *text) {
    for (int i = KV_PAGE_TOKENS - 1; i < text->count; i++) {
        if (!ends_message(text, i)) continue;
        resume_points_add(points, i + 1);
        return;
    }
}

void resume_points_add_snapshots(ResumePoints *points, const MessageText *text, int begin) {
    int spacing = RESUME_SPACING, most = RESUME_SPACING_MOST, last = begin, end = 0;
    while ((text->count - begin) / spacing > RESUME_POINTS_MAX / 2) spacing *= 2;
    if (most < spacing) most = spacing;
    for (int i = begin; i < text->count; i++) {
        const bool message = ends_message(text, i);
        if (message) end = i + 1;
        if (i + 1 - last < (message ? spacing : most)) continue;
        resume_points_add(points, i + 1);
        last = i + 1;
    }
    resume_points_add(points, end);
    resume_points_add(points, text->count);
}

int resume_points_left(const ResumePoints *points, int length) {
    for (int i = 0; i < points->count; i++)
        if (points->at[i] > length) return points->at[i] - length;
    return INT_MAX;
}

int resume_points_behind(const ResumePoints *points, int length) {
    int last = 0;
    for (int i = 0; i < points->count && points->at[i] <= length; i++) last = points->at[i];
    return length - last;
}

bool resume_points_have(const ResumePoints *points, int length) {
    for (int i = 0; i < points->count; i++)
        if (points->at[i] == length) return true;
    return false;
}
