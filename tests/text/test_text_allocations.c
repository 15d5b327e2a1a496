/* From messages to ids and from ids to text with every allocation failing once: no crash, nothing left behind, and
 * either an error or exactly the answer of a run in which nothing failed: no text is lost in silence. */
#include "allocations.h"
#include "base/file.h"
#include "text/jinja/template.h"
#include "text/stream/stream_text.h"
#include "tokenizer_files.h"

static char directory[] = "/tmp/apus-text-allocations-XXXXXX";
static Buffer expected; /* of a run without failures; while it is empty, the run fills it */

static const char config[] =
    "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},\"chat_template\":\"{% macro line(m) %}"
    "{{ '<|' + m.role + '|>' }}{{ m['content'] | trim | replace('  ', ' ') }}{{ '\\\\n' }}{% endmacro %}"
    "{% set ns = namespace(count=0, names=[]) %}{{ bos_token }}{% for m in messages %}{{ line(m) }}"
    "{% set ns.count = ns.count + 1 %}{% set ns.names = ns.names + [m.role] %}{% endfor %}"
    "{% if tools %}{% for t in tools %}{{ t | tojson(indent=2) }}{% endfor %}{% endif %}"
    "{{ ns.names | join(', ') | upper }}{{ '%s' | replace('%s', ns.count | string) }}{{ {'a': [1, 2.5, none]} }}"
    "{{ messages | map(attribute='role') | list | length }}{{ 'x' * 300 }}{{ eos_token }}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}\"}";

static const char variables[] =
    "\"messages\":[{\"role\":\"system\",\"content\":\"Be  brief. \\u00e9\\u0301 \"},{\"role\":\"user\",\"content\":"
    "\"  The quick brown fox jumps over the lazy dog, 12345 times. \\ud83d\\ude00 "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\tend\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],"
    "\"add_generation_prompt\":true";

typedef struct Life {
    Error *error;
    Tokenizer *tokenizer;
    Template *template;
    Detokenizer *detokenizer;
    Arena arena;
    Buffer json, piece, shown, answer;
    Rendered rendered;
    Tokens ids;
    StreamText stream;
} Life;

static bool room(Life *life, const Buffer *buffer) {
    return !buffer->failed || fail(life->error, ERROR_MEMORY, "no room for the test's own text");
}

static bool render(Life *life) {
    buffer_text(&life->json, "{");
    buffer_text(&life->json, variables);
    if (!template_token_variables(directory, &life->json, life->error)) return false;
    buffer_text(&life->json, "}");
    if (!room(life, &life->json)) return false;
    const Json *root = json_parse(&life->arena, buffer_view(&life->json), life->error);
    return root && template_render(life->template, root, &life->rendered, life->error);
}

static bool stream(Life *life) {
    bool stopped = false;
    life->detokenizer = detokenizer_new(life->tokenizer, false, life->error);
    if (!life->detokenizer) return false;
    for (size_t i = 0; i <= life->ids.count && !stopped; i++) {
        buffer_clear(&life->piece);
        if (i < life->ids.count && !detokenizer_push(life->detokenizer, life->ids.ids[i], &life->piece, life->error))
            return false;
        if (i == life->ids.count && !detokenizer_finish(life->detokenizer, &life->piece, life->error)) return false;
        if (!room(life, &life->piece)) return false;
        stopped = stream_text_push(&life->stream, buffer_view(&life->piece), &life->shown);
    }
    if (!stopped) stream_text_finish(&life->stream, &life->shown);
    return room(life, &life->stream.held) && room(life, &life->shown);
}

static bool answer(Life *life) {
    Buffer *out = &life->answer;
    buffer_slice(out, buffer_view(&life->rendered.text));
    for (size_t i = 0; i < life->rendered.span_count; i++)
        buffer_printf(
            out, "%zu%c", life->rendered.spans[i].text.size, life->rendered.spans[i].from_template ? 't' : 'd');
    for (size_t i = 0; i < life->ids.count; i++) {
        buffer_printf(out, " %d=", life->ids.ids[i]);
        if (!tokenizer_bytes(life->tokenizer, life->ids.ids[i], out, life->error)) return false;
    }
    if (!tokenizer_decode(life->tokenizer, life->ids.ids, life->ids.count, true, out, life->error)) return false;
    json_write_string(out, buffer_view(&life->shown));
    return room(life, out);
}

static bool go(Life *life) {
    life->tokenizer = tokenizer_open(directory, life->error);
    if (!life->tokenizer) return false;
    life->template = template_open(directory, life->error);
    if (!life->template || !render(life)) return false;
    stream_text_init(&life->stream);
    life->stream.stops[life->stream.stop_count++] = SLICE("lazy dogma");
    life->stream.stops[life->stream.stop_count++] = SLICE("assistant|>!");
    return tokenizer_encode_spans(
               life->tokenizer, life->rendered.spans, life->rendered.span_count, &life->ids, life->error) &&
        tokenizer_encode(
            life->tokenizer, SLICE("Hello <|user|> world"), CONTROL_RECOGNISED, true, &life->ids, life->error) &&
        stream(life) && answer(life);
}

static bool live(Error *error) {
    Life life = {.error = error};
    const bool ok = go(&life);
    if (ok && expected.size == 0) buffer_slice(&expected, buffer_view(&life.answer));
    TEST_MSG(!ok || slice_equal(buffer_view(&life.answer), buffer_view(&expected)), "the answer is\n%s\nnot\n%s",
        life.answer.data, expected.data);
    detokenizer_free(life.detokenizer);
    stream_text_free(&life.stream);
    tokens_free(&life.ids);
    rendered_free(&life.rendered);
    template_free(life.template);
    tokenizer_close(life.tokenizer);
    arena_free(&life.arena);
    buffer_free(&life.json);
    buffer_free(&life.piece);
    buffer_free(&life.shown);
    buffer_free(&life.answer);
    return ok;
}

static const char *path_of(const char *name) {
    static char path[96];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static void sweep(const TokenizerGoldens *goldens, const char *name) {
    Error error = {0};
    Buffer json = {0};
    for (size_t i = 0; i < goldens->count; i++) {
        const Json *one = goldens->cases[i];
        if (slice_is(json_slice(json_get(one, "name")), name)) golden_text(goldens, one, &json);
    }
    TEST(json.size && file_write_atomic(path_of("tokenizer.json"), buffer_view(&json), &error));
    buffer_free(&json);
    buffer_clear(&expected);
    TEST_MSG(live(&error) && expected.size, "%s: %s", name, error.text);
    for (int mode = ALLOCATIONS_ONE; mode <= ALLOCATIONS_ALL; mode++)
        printf("%s: %ld allocations\n", name, allocations_sweep(name, live, mode));
}

/* A tokenizer.model instead. */
static void sweep_pieces(const char *name, const char *source) {
    Error error = {0};
    Buffer model = {0};
    TEST_MSG(file_read(source, 0, &model, &error) &&
            file_write_atomic(path_of("tokenizer.model"), buffer_view(&model), &error),
        "%s", error.text);
    buffer_free(&model);
    buffer_clear(&expected);
    TEST_MSG(live(&error) && expected.size, "%s: %s", name, error.text);
    for (int mode = ALLOCATIONS_ONE; mode <= ALLOCATIONS_ALL; mode++)
        printf("%s: %ld allocations\n", name, allocations_sweep(name, live, mode));
    unlink(path_of("tokenizer.model"));
}

int main(int argc, char **argv) {
    TokenizerGoldens goldens;
    Error error = {0};
    allocations_verbose = argc > 1;
    if (!mkdtemp(directory) || !goldens_open(&goldens)) return 1;
    TEST(file_write_atomic(path_of("tokenizer_config.json"), SLICE(config), &error));
    static const char *const names[] = {"qwen2", "llama", "flags_nfd", "tekken"};
    for (size_t i = 0; i < COUNT_OF(names); i++) sweep(&goldens, names[i]);
    unlink(path_of("tokenizer.json"));
    TEST(file_write_atomic(path_of("added_tokens.json"), SLICE("{\"<|user|>\":400}"), &error));
    sweep_pieces("unigram", "tests/fuzz/corpus/tokenizer/unigram.model");
    sweep_pieces("pieces", "tests/fuzz/corpus/tokenizer/bpe.model");
    unlink(path_of("added_tokens.json"));
    unlink(path_of("tokenizer_config.json"));
    rmdir(directory);
    goldens_close(&goldens);
    buffer_free(&expected);
    return test_done();
}
