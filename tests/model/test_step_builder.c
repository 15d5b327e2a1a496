/* Steps as the builder makes them from rows of sequences, and what it refuses. */
#include "model/step_builder.h"

#include "backend/token.h"
#include "base/slice.h"
#include "test.h"

enum { ROWS = 16, SEQUENCES = 3, OUTPUTS = 6, HIDDEN_ROWS = 2, EMBEDDINGS = 4 };

static StepBuilder builder;

static void begin(void) { step_begin(&builder, false); }

static const Step *end(void) {
    Error error = {0};
    const Step *step = step_end(&builder, &error);
    TEST_MSG(step, "%s", error.text);
    return step;
}

static bool same(const int32_t *values, const int32_t *wanted, int count) {
    return memcmp(values, wanted, (size_t)count * sizeof *values) == 0;
}

/* Decode rows of one sequence, then prefill rows of another: rows, chunks, tokens, places and outputs follow. */
static void test_rows(void) {
    const int32_t decode[] = {7, token_from_output(2)}, prompt[] = {1, 2, 3}, second[] = {0, 2};
    const int32_t *tables[1] = {NULL};
    const KvQuantView quant = {0};
    begin();
    step_add_sequence(&builder,
        &(StepSequence){
            .rows = 2, .decode = true, .position = 40, .tables = tables, .tokens = decode, .output_count = 1});
    step_add_sequence(
        &builder, &(StepSequence){.rows = 3, .quant = &quant, .tokens = prompt, .output_count = 2, .outputs = second});
    const Step *step = end();
    TEST(step->rows == 5 && step->decode_rows == 2 && step->chunk_count == 2 && !step->uniform_matmul);
    TEST(same(step->tokens, (int32_t[]){7, token_from_output(2), 1, 2, 3}, 5));
    TEST(step->position_dims == 1 && same(step->positions, (int32_t[]){40, 41, 0, 1, 2}, 5));
    TEST(step->output_count == 3 && same(step->outputs, (int32_t[]){1, 2, 4}, 3)); /* the last row; rows 0 and 2 */
    const SequenceChunk *chunks = step->chunks;
    TEST(chunks[0].row == 0 && chunks[0].rows == 2 && chunks[0].position == 40 && chunks[0].tables == tables);
    TEST(!chunks[0].quant && chunks[1].row == 2 && chunks[1].rows == 3 && chunks[1].position == 0);
    TEST(chunks[1].quant == &quant && !step->scales && !step->sample_params && step->hidden_row_count == 0);
    TEST(step->embedding_count == 0);
}

/* A sequence of the cache: its tables, its length and the rows of a step that has not ended. */
static void test_sequence(void) {
    int32_t table[] = {5}, *tables[] = {table};
    const KvSequence kv = {.length = 9, .reserved = 12, .tables = tables};
    const int32_t tokens[] = {token_from_output(0)};
    begin();
    step_add_sequence(&builder, &(StepSequence){.rows = 1, .kv = &kv, .lookahead = 2, .tokens = tokens});
    const Step *step = end();
    TEST(step->chunks[0].position == 11 && step->positions[0] == 11 && step->output_count == 0);
    TEST(step->chunks[0].tables == (const int32_t *const *)tables && step->decode_rows == 0);
}

/* Given embeddings count from the sequence's first row; their rows have no token, whatever was passed. */
static void test_embeddings(void) {
    const float values[8] = {0};
    const int32_t tokens[] = {1, 2, 3, 4};
    const EmbeddingRange some[] = {{.row = 0, .rows = 1, .values = values},
        {.row = 2, .rows = 2, .values = values + 2, .in_backend = true}},
                         all = {.row = 0, .rows = 2, .values = values};
    begin();
    step_add_sequence(&builder, &(StepSequence){.rows = 1, .tokens = tokens});
    step_add_sequence(&builder, &(StepSequence){.rows = 4, .tokens = tokens, .embedding_count = 2, .embeddings = some});
    step_add_sequence(&builder, &(StepSequence){.rows = 2, .embedding_count = 1, .embeddings = &all});
    const Step *step = end();
    TEST(same(step->tokens, (int32_t[]){1, TOKEN_GIVEN, 2, TOKEN_GIVEN, TOKEN_GIVEN, TOKEN_GIVEN, TOKEN_GIVEN}, 7));
    const EmbeddingRange *ranges = step->embeddings;
    TEST(step->embedding_count == 3 && ranges[0].row == 1 && ranges[0].rows == 1 && ranges[0].values == values);
    TEST(ranges[1].row == 3 && ranges[1].rows == 2 && ranges[1].values == values + 2 && ranges[1].in_backend);
    TEST(ranges[2].row == 5 && ranges[2].rows == 2 && !ranges[2].in_backend);
}

/* RoPE positions: an offset from the place, or given; three dimensions only where they differ. */
static void test_positions(void) {
    const int32_t tokens[] = {1, 2}, equal[] = {8, 9, 8, 9, 8, 9}, image[] = {8, 8, 3, 3, 4, 5};
    begin();
    step_add_sequence(&builder, &(StepSequence){.rows = 2, .position = 20, .tokens = tokens, .position_offset = -15});
    step_add_sequence(&builder, &(StepSequence){.rows = 2, .position = 30, .tokens = tokens, .positions = equal});
    const Step *step = end();
    TEST(step->position_dims == 1 && same(step->positions, (int32_t[]){5, 6, 8, 9}, 4));
    TEST(step->chunks[0].position == 20 && step->chunks[1].position == 30);

    begin();
    step_add_sequence(&builder, &(StepSequence){.rows = 1, .position = 4, .tokens = tokens});
    step_add_sequence(&builder, &(StepSequence){.rows = 2, .position = 6, .tokens = tokens, .positions = image});
    step = end();
    TEST(step->position_dims == POSITION_DIMS_MAX);
    TEST(same(step->positions, (int32_t[]){4, 8, 8, 4, 3, 3, 4, 4, 5}, 9)); /* [dim][row] */

    begin(); /* nothing is left of the step before */
    step_add_sequence(&builder, &(StepSequence){.rows = 1, .tokens = tokens});
    TEST(end()->position_dims == 1);
}

/* Scales and sampling parameters exist where all outputs have them, also beside hidden rows. */
static void test_sampling(void) {
    const int32_t tokens[] = {1, 2, 3};
    const float scales[] = {0.5f, 0.25f};
    const SampleParams samples[] = {{.uniform = 0.1}, {.uniform = 0.2}};
    const StepSequence none = {.rows = 3, .tokens = tokens},
                       scaled = {.rows = 3, .tokens = tokens, .output_count = 2, .scales = scales};
    StepSequence sampled = scaled, hidden = scaled;
    sampled.sample_params = samples;
    hidden.sample_params = samples;
    hidden.hidden_row_count = 2;

    begin();
    step_add_sequence(&builder, &none);
    step_add_sequence(&builder, &sampled);
    const Step *step = end();
    TEST(step->sample_params && step->sample_params[1].uniform == samples[1].uniform && !step->scales);

    begin();
    step_add_sequence(&builder, &scaled);
    step_add_sequence(&builder, &sampled);
    step = end();
    TEST(!step->sample_params && step->scales && step->scales[3] == scales[1]);

    begin();
    step_add_sequence(&builder, &hidden);
    step = end();
    TEST(step->sample_params && !step->scales && step->hidden_row_count == 2);
    TEST(same(step->hidden_rows, (int32_t[]){1, 2}, 2));
}

/* ---- what is refused ---- */

static void refuses(const char *what, ErrorCode code, const StepSequence *sequence, const char *words) {
    const int32_t token = 1;
    const StepSequence before = {.rows = 1, .tokens = &token};
    Error error = {0};
    begin();
    step_add_sequence(&builder, &before);
    step_add_sequence(&builder, sequence);
    step_add_sequence(&builder, &before); /* the first error stays */
    TEST_MSG(
        !step_end(&builder, &error) && error.code == code && strstr(error.text, words), "%s: %s", what, error.text);
    TEST(!step_end(&builder, NULL));
    begin(); /* the builder can be used again */
    step_add_sequence(&builder, &before);
    TEST(end()->rows == 1);
}

static void test_refused(void) {
    static int32_t tokens[ROWS + 1];
    static float values[4];
    const int32_t late[] = {3}, twice[] = {1, 1}, negative[] = {-1};
    const EmbeddingRange beyond = {.row = 2, .rows = 2, .values = values},
                         negative_row = {.row = -1, .rows = 2, .values = values},
                         crossing[] = {{.row = 0, .rows = 2, .values = values},
                             {.row = 1, .rows = 1, .values = values}},
                         part = {.row = 0, .rows = 2, .values = values};
    const BidirectionalSpan outside = {0, 4}, reversed = {2, 2}, overlap[] = {{0, 2}, {1, 3}};
    const struct {
        const char *what, *words;
        ErrorCode code;
        StepSequence sequence;
    } cases[] = {
        {"no rows", "0 rows", ERROR_USAGE, {.rows = 0}},
        {"negative rows", "-3 rows", ERROR_USAGE, {.rows = -3}},
        {"too many rows", "1 of 16 rows", ERROR_LIMIT, {.rows = ROWS}},
        {"more rows than an int has", "no room", ERROR_LIMIT, {.rows = INT32_MAX}},
        {"decode rows last", "decode rows", ERROR_USAGE, {.rows = 1, .decode = true}},
        {"too many outputs", "0 of 6 outputs", ERROR_LIMIT, {.rows = 7, .output_count = 7}},
        {"negative outputs", "outputs", ERROR_LIMIT, {.rows = 2, .output_count = -1}},
        {"more outputs than rows", "2 outputs", ERROR_USAGE, {.rows = 1, .output_count = 2}},
        {"an output behind the rows", "output 0 is row 3", ERROR_USAGE,
            {.rows = 3, .output_count = 1, .outputs = late}},
        {"a negative output", "row -1", ERROR_USAGE, {.rows = 3, .output_count = 1, .outputs = negative}},
        {"an output twice", "output 1", ERROR_USAGE, {.rows = 3, .output_count = 2, .outputs = twice}},
        {"too many hidden rows", "hidden rows", ERROR_LIMIT, {.rows = 3, .hidden_row_count = 3}},
        {"too many ranges", "ranges of embeddings", ERROR_LIMIT, {.rows = 3, .embedding_count = 5}},
        {"embeddings behind the rows", "rows 2 to 4", ERROR_USAGE,
            {.rows = 3, .embedding_count = 1, .embeddings = &beyond}},
        {"embeddings before the rows", "rows -1", ERROR_USAGE,
            {.rows = 3, .embedding_count = 1, .embeddings = &negative_row}},
        {"embeddings that overlap", "after row 2", ERROR_USAGE,
            {.rows = 3, .embedding_count = 2, .embeddings = crossing}},
        {"a span behind the rows", "span", ERROR_USAGE, {.rows = 3, .span_count = 1, .spans = &outside}},
        {"a span of nothing", "span", ERROR_USAGE, {.rows = 3, .span_count = 1, .spans = &reversed}},
        {"spans that overlap", "span", ERROR_USAGE, {.rows = 3, .span_count = 2, .spans = overlap}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        StepSequence sequence = cases[i].sequence;
        sequence.tokens = tokens;
        refuses(cases[i].what, cases[i].code, &sequence, cases[i].words);
    }
    const StepSequence bare = {.rows = 3}, gap = {.rows = 3, .embedding_count = 1, .embeddings = &part};
    refuses("neither tokens nor embeddings", ERROR_USAGE, &bare, "3 rows have neither");
    refuses("embeddings of some rows without tokens", ERROR_USAGE, &gap, "1 rows have neither");

    Error error = {0};
    begin();
    for (int i = 0; i <= SEQUENCES; i++) step_add_sequence(&builder, &(StepSequence){.rows = 1, .tokens = tokens});
    TEST(!step_end(&builder, &error) && error.code == ERROR_LIMIT && strstr(error.text, "3 of 3 sequences"));
}

int main(void) {
    Error error = {0};
    const StepCapacity capacity = {
        .rows = ROWS, .sequences = SEQUENCES, .outputs = OUTPUTS, .hidden_rows = HIDDEN_ROWS, .embeddings = EMBEDDINGS};
    TEST(step_builder_open(&builder, &capacity, &error));
    test_rows();
    test_sequence();
    test_embeddings();
    test_positions();
    test_sampling();
    test_refused();
    step_builder_close(&builder);
    step_builder_close(&builder);
    return test_done();
}
