#include "model/step_builder.h"

#include <stdlib.h>
#include <string.h>

bool step_builder_open(StepBuilder *b, const StepCapacity *capacity, Error *error) {
    const size_t rows = (size_t)capacity->rows, outputs = (size_t)capacity->outputs + 1; /* never 0 bytes */
    *b = (StepBuilder){
        .capacity = *capacity,
        .tokens = calloc(rows, sizeof *b->tokens),
        .positions = calloc(rows * POSITION_DIMS_MAX, sizeof *b->positions),
        .outputs = calloc(outputs, sizeof *b->outputs),
        .hidden_rows = calloc((size_t)capacity->hidden_rows + 1, sizeof *b->hidden_rows),
        .scales = calloc(outputs, sizeof *b->scales),
        .sample_params = calloc(outputs, sizeof *b->sample_params),
        .chunks = calloc((size_t)capacity->sequences, sizeof *b->chunks),
        .embeddings = calloc((size_t)capacity->embeddings + 1, sizeof *b->embeddings),
    };
    if (b->tokens && b->positions && b->outputs && b->hidden_rows && b->scales && b->sample_params && b->chunks &&
        b->embeddings)
        return true;
    step_builder_close(b);
    return fail(error, ERROR_MEMORY, "no memory for a step of %zu rows", rows);
}

void step_builder_close(StepBuilder *b) {
    free(b->tokens);
    free(b->positions);
    free(b->outputs);
    free(b->hidden_rows);
    free(b->scales);
    free(b->sample_params);
    free(b->chunks);
    free(b->embeddings);
    *b = (StepBuilder){0};
}

void step_begin(StepBuilder *b, bool uniform_matmul) {
    b->step = (Step){.uniform_matmul = uniform_matmul,
        .tokens = b->tokens,
        .positions = b->positions,
        .position_dims = 1,
        .chunks = b->chunks,
        .embeddings = b->embeddings,
        .outputs = b->outputs,
        .hidden_rows = b->hidden_rows};
    b->has_dims = b->failed = false;
    b->has_scales = b->has_samples = true;
}

static void add_chunk(StepBuilder *b, const StepSequence *s) {
    SequenceChunk *chunk = &b->chunks[b->step.chunk_count++];
    *chunk = (SequenceChunk){.row = b->step.rows,
        .rows = s->rows,
        .position = s->position,
        .tables = s->tables,
        .quant = s->quant,
        .adapter = s->adapter,
        .span_count = s->span_count,
        .spans = s->spans};
    if (!s->kv) return;
    kv_run(s->kv, chunk);
    chunk->position += s->lookahead;
}

static void add_tokens(StepBuilder *b, const StepSequence *s) {
    int32_t *tokens = b->tokens + b->step.rows;
    if (s->tokens)
        memcpy(tokens, s->tokens, (size_t)s->rows * sizeof *tokens);
    else
        for (int i = 0; i < s->rows; i++) tokens[i] = TOKEN_GIVEN;
    for (int i = 0; i < s->embedding_count; i++) {
        EmbeddingRange *range = &b->embeddings[b->step.embedding_count++];
        *range = s->embeddings[i];
        for (int r = 0; r < range->rows && !s->states; r++) tokens[range->row + r] = TOKEN_GIVEN;
        range->row += b->step.rows;
    }
}

static void add_positions(StepBuilder *b, const StepSequence *s, int place) {
    for (int dim = 0; dim < POSITION_DIMS_MAX; dim++) {
        int32_t *to = b->positions + (size_t)dim * (size_t)b->capacity.rows + b->step.rows;
        for (int i = 0; i < s->rows; i++) {
            to[i] = s->positions ? s->positions[dim * s->rows + i] : place + i + s->position_offset;
            if (s->positions && to[i] != s->positions[i]) b->has_dims = true;
        }
    }
}

static void add_outputs(StepBuilder *b, const StepSequence *s) {
    for (int i = 0; i < s->output_count; i++) {
        const int at = b->step.output_count++, row = s->outputs ? s->outputs[i] : s->rows - s->output_count + i;
        b->outputs[at] = b->step.rows + row;
        if (s->scales) b->scales[at] = s->scales[i];
        if (s->sample_params) b->sample_params[at] = s->sample_params[i];
    }
    b->has_scales = b->has_scales && (s->scales || s->output_count == 0);
    b->has_samples = b->has_samples && (s->sample_params || s->output_count == 0);
    for (int i = s->rows - s->hidden_row_count; i < s->rows; i++)
        b->hidden_rows[b->step.hidden_row_count++] = b->step.rows + i;
}

/* ---- what cannot be added ---- */

static bool check_room(const char *what, int count, int used, int capacity, Error *error) {
    if (count >= 0 && count <= capacity - used) return true;
    return fail(error, ERROR_LIMIT, "a step with %d of %d %s has no room for %d", used, capacity, what, count);
}

static bool has_room(const StepBuilder *b, const StepSequence *s, Error *error) {
    const Step *step = &b->step;
    const StepCapacity *most = &b->capacity;
    return check_room("sequences", 1, step->chunk_count, most->sequences, error) &&
        check_room("rows", s->rows, step->rows, most->rows, error) &&
        check_room("outputs", s->output_count, step->output_count, most->outputs, error) &&
        check_room("hidden rows", s->hidden_row_count, step->hidden_row_count, most->hidden_rows, error) &&
        check_room("ranges of embeddings", s->embedding_count, step->embedding_count, most->embeddings, error);
}

static bool check_outputs(const StepSequence *s, Error *error) {
    if (s->output_count > s->rows || s->hidden_row_count > s->rows)
        return fail(error, ERROR_USAGE, "%d outputs and %d hidden rows of %d rows", s->output_count,
            s->hidden_row_count, s->rows);
    for (int i = 0; s->outputs && i < s->output_count; i++)
        if (s->outputs[i] < 0 || s->outputs[i] >= s->rows || (i && s->outputs[i] <= s->outputs[i - 1]))
            return fail(error, ERROR_USAGE, "output %d is row %d of %d rows, or not behind the output before it", i,
                s->outputs[i], s->rows);
    return true;
}

static bool check_embeddings(const StepSequence *s, Error *error) {
    int64_t given = 0;
    for (int i = 0; i < s->embedding_count; i++) {
        const EmbeddingRange *range = &s->embeddings[i];
        const int before = i ? range[-1].row + range[-1].rows : 0;
        if (range->row < before || range->rows < 1 || range->rows > s->rows - range->row)
            return fail(error, ERROR_USAGE, "embeddings of rows %d to %d, after row %d, in a sequence of %d rows",
                range->row, range->row + range->rows, before, s->rows);
        given += range->rows;
    }
    if (s->states ? s->tokens && given == s->rows : s->tokens || given == s->rows) return true;
    return fail(error, ERROR_USAGE, "%d rows have neither tokens nor embeddings", (int)(s->rows - given));
}

static bool check_spans(const StepSequence *s, Error *error) {
    const int first = s->kv ? s->kv->length + s->lookahead : s->position;
    for (int i = 0; i < s->span_count; i++) {
        const BidirectionalSpan *span = &s->spans[i];
        const int before = i ? span[-1].end : first;
        if (span->begin < before || span->end <= span->begin || span->end - first > s->rows)
            return fail(error, ERROR_USAGE, "a bidirectional span of positions %d to %d, after %d, in rows %d to %d",
                span->begin, span->end, before, first, first + s->rows);
    }
    return true;
}

static bool check_sequence(const StepBuilder *b, const StepSequence *s, Error *error) {
    if (s->rows < 1) return fail(error, ERROR_USAGE, "a sequence of %d rows in a step", s->rows);
    if (s->decode && b->step.decode_rows != b->step.rows)
        return fail(error, ERROR_USAGE, "decode rows of a step come before its prefill rows");
    return has_room(b, s, error) && check_outputs(s, error) && check_embeddings(s, error) && check_spans(s, error);
}

/* ---- building ---- */

void step_add_sequence(StepBuilder *b, const StepSequence *s) {
    Step *step = &b->step;
    b->failed = b->failed || !check_sequence(b, s, &b->error);
    if (b->failed) return;
    add_chunk(b, s);
    add_tokens(b, s);
    add_positions(b, s, b->chunks[step->chunk_count - 1].position);
    add_outputs(b, s);
    step->rows += s->rows;
    if (s->decode) step->decode_rows = step->rows;
}

const Step *step_end(StepBuilder *b, Error *error) {
    Step *step = &b->step;
    if (b->failed) {
        if (error) *error = b->error;
        return NULL;
    }
    const bool sampled = b->has_samples && step->output_count > 0;
    step->sample_params = sampled ? b->sample_params : NULL;
    step->scales = !sampled && b->has_scales && step->output_count > 0 ? b->scales : NULL;
    step->position_dims = b->has_dims ? POSITION_DIMS_MAX : 1;
    for (int dim = 1; b->has_dims && dim < POSITION_DIMS_MAX; dim++)
        memmove(b->positions + (size_t)dim * (size_t)step->rows, b->positions + (size_t)dim * (size_t)b->capacity.rows,
            (size_t)step->rows * sizeof *b->positions);
    return step;
}
