/* Opening a tokenizer from its files. */
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "text/tokenizer/build.h"
#include "text/tokenizer/ranks.h"
#include "text/tokenizer/read.h"
#include "text/tokenizer/sentencepiece.h"

enum { CONFIG_BYTES_MAX = 64 << 20 };

static bool path_join(char *path, size_t size, const char *directory, const char *name, Error *error) {
    int length = snprintf(path, size, "%s/%s", directory, name);
    return (length > 0 && (size_t)length < size) || fail(error, ERROR_LIMIT, "the path %.100s… is too long", directory);
}

/* The strings of chat_template: one, or a list of {"name", "template"}. */
static void mark_templates(Tokenizer *t, const Json *template) {
    if (!template) return;
    if (template->type == JSON_STRING) added_mark_control(t, json_slice(template));
    if (template->type != JSON_ARRAY) return;
    for (JSON_EACH(named, template)) {
        const Json *source = json_get(named, "template");
        if (source && source->type == JSON_STRING) added_mark_control(t, json_slice(source));
    }
}

static bool mark_template_files(Tokenizer *t, const char *directory, Error *error) {
    static const char *const names[] = {"chat_template.jinja", "chat_template.json"};
    bool ok = true;
    for (size_t i = 0; i < COUNT_OF(names) && ok; i++) {
        char path[4096];
        ok = path_join(path, sizeof path, directory, names[i], error);
        if (!ok || !file_exists(path)) continue;
        Buffer source = {0};
        ok = file_read(path, CONFIG_BYTES_MAX, &source, error);
        /* The JSON file holds the source escaped; control tokens need no escapes. */
        if (ok) added_mark_control(t, buffer_view(&source));
        buffer_free(&source);
    }
    return ok;
}

/* Some checkpoints ask for the token that begins a text in their configuration alone. */
static bool apply_bos(Tokenizer *t, const Json *config, Error *error) {
    const Json *wanted = json_get(config, "add_bos_token"), *bos = json_get(config, "bos_token");
    if (!wanted || wanted->type != JSON_BOOL || !wanted->boolean || t->prefix_count || t->suffix_count) return true;
    if (bos && bos->type == JSON_OBJECT) bos = json_get(bos, "content");
    if (!bos || bos->type != JSON_STRING) return true;
    int32_t id;
    if (!tokenizer_id(t, json_slice(bos), &id)) {
        return fail(error, ERROR_FORMAT, "tokenizer_config.json: bos_token \"%.*s\" is not in the vocabulary",
            SLICE_SHOWN(json_slice(bos)));
    }
    t->prefix[t->prefix_count++] = id;
    return true;
}

static bool build(Tokenizer *t, const TokenizerFile *file, const Json *config, Error *error) {
    if (!normalizer_build(&t->normalizer, &t->arena, file->normalizer, error)) return false;
    if (!pretokenizer_build(&t->pre, &t->arena, file->pre_tokenizer, t->bpe.by_bytes, error)) return false;
    if (!post_processor_build(t, file->post_processor, error)) return false;
    if (!decoder_build(&t->decoder, &t->arena, file->decoder, error)) return false;
    if (!added_build(t, file->added_tokens, config, error)) return false;
    for (size_t i = 0; i < t->prefix_count + t->suffix_count; i++) {
        int32_t id = i < t->prefix_count ? t->prefix[i] : t->suffix[i - t->prefix_count];
        if (id >= t->vocab) return fail(error, ERROR_FORMAT, "post_processor: the id %d is not in the vocabulary", id);
    }
    return true;
}

static bool parse_into(Tokenizer *t, Slice json, const Json *config, Arena *arena, Error *error) {
    TokenizerFile file = {0};
    if (!json.size) return fail(error, ERROR_FORMAT, "the file is empty");
    if (!tokenizer_read(json, arena, &file, &t->bpe, error) || !build(t, &file, config, error)) return false;
    mark_templates(t, json_get(config, "chat_template"));
    return apply_bos(t, config, error);
}

Tokenizer *tokenizer_parse(Slice json, Slice config, Error *error) {
    Arena arena = {0};
    Tokenizer *t = calloc(1, sizeof *t);
    const Json *settings = t && config.size ? json_parse(&arena, config, error) : NULL;
    bool ok = t || fail(error, ERROR_MEMORY, "no memory for a tokenizer");
    if (ok && config.size && !settings) ok = fail_while(error, "tokenizer_config.json");
    ok = ok && parse_into(t, json, settings, &arena, error);
    arena_free(&arena);
    if (ok) return t;
    tokenizer_close(t);
    return NULL;
}

/* From a vocabulary of ranks or of pieces, where there is no tokenizer.json. */
static Tokenizer *open_other(const char *directory, const Buffer *config, bool *found, Error *error) {
    Buffer json = {0};
    Tokenizer *t = NULL;
    bool ok = ranks_read(directory, &json, found, error);
    if (ok && !*found) ok = sentencepiece_read(directory, buffer_view(config), &json, found, error);
    if (ok && *found) t = tokenizer_parse(buffer_view(&json), buffer_view(config), error);
    buffer_free(&json);
    return t;
}

Tokenizer *tokenizer_open(const char *directory, Error *error) {
    char path[4096], config_path[4096];
    if (!path_join(path, sizeof path, directory, "tokenizer.json", error)) return NULL;
    if (!path_join(config_path, sizeof config_path, directory, "tokenizer_config.json", error)) return NULL;
    Buffer config = {0};
    FileMap map = {0};
    Tokenizer *t = NULL;
    bool ok = !file_exists(config_path) || file_read(config_path, CONFIG_BYTES_MAX, &config, error);
    bool other = false;
    if (ok && !file_exists(path)) {
        t = open_other(directory, &config, &other, error);
        ok = t || !other;
        ok = ok && (!t || mark_template_files(t, directory, error));
    }
    if (ok && !other && file_map(&map, path, error)) {
        t = tokenizer_parse((Slice){(const char *)map.data, map.size}, buffer_view(&config), error);
        ok = t || fail_while(error, "%s", path);
        if (ok && file_damaged(&map)) ok = fail(error, ERROR_IO, "%s changed while it was read", path);
        ok = ok && mark_template_files(t, directory, error);
    }
    file_unmap(&map);
    buffer_free(&config);
    if (ok) return t;
    tokenizer_close(t);
    return NULL;
}

void tokenizer_close(Tokenizer *t) {
    if (!t) return;
    bpe_free(&t->bpe);
    normalizer_free(&t->normalizer);
    for (size_t i = 0; i < t->pre.count; i++) finder_free(&t->pre.steps[i].finder);
    for (size_t i = 0; i < t->decoder.count; i++) finder_free(&t->decoder.steps[i].finder);
    added_index_free(&t->raw);
    added_index_free(&t->normalized);
    free(t->id_flags);
    arena_free(&t->arena);
    free(t);
}
