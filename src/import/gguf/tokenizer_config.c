/* tokenizer_config.json from GGUF metadata: the special tokens by name and the chat templates; and which tokens end an
 * answer. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "import/gguf/internal.h"

enum { KEY_MAX = 128 };

/* A user-defined token is an added token that a text may spell: white space, tags, <tool_call>. But early converters
 * gave that type to all added tokens, and later ones give it to those that the model's SentencePiece file defines and
 * its tokenizer_config.json does not mention, such as Gemma's <start_of_image>, which tokenizer.json has as special.
 * The file says nothing else about them, so it goes by the spelling: later converters themselves call <|…|>, <｜…｜>
 * and <unused…> control tokens whatever the model says; <start_of_…> and <end_of_…> are no tags of any markup. Others
 * that steer a model, <think> and <tool_call>, are not special in tokenizer.json either: they are written and read as
 * text, and are kept from users' texts because the chat template spells them (text/tokenizer). */
static bool looks_like_control(Slice text) {
    static const struct {
        const char *start, *end;
    } shapes[] = {
        {"<|", "|>"}, {"<\xEF\xBD\x9C", "\xEF\xBD\x9C>"}, {"<unused", ">"}, {"<start_of_", ">"}, {"<end_of_", ">"}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        Slice start = slice_of(shapes[i].start), end = slice_of(shapes[i].end);
        if (text.size > start.size + end.size && slice_starts(text, start) &&
            slice_is((Slice){text.data + text.size - end.size, end.size}, shapes[i].end))
            return true;
    }
    return false;
}

int32_t gguf_token_type(const GgufFile *file, int64_t id, Slice text, int32_t type) {
    static const char *const roles[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.padding_token_id"};
    if (type != GGUF_TOKEN_USER_DEFINED) return type;
    for (size_t i = 0; i < COUNT_OF(roles); i++) {
        int64_t holder;
        if (gguf_integer(file, roles[i], &holder) && holder == id) return GGUF_TOKEN_CONTROL;
    }
    return looks_like_control(text) ? GGUF_TOKEN_CONTROL : type;
}

static bool token_text(const GgufFile *file, int64_t id, Slice *text) {
    const GgufValue *tokens = gguf_value(file, "tokenizer.ggml.tokens");
    if (!tokens || !tokens->array || tokens->kind != GGUF_STRING || id < 0 || (uint64_t)id >= tokens->count)
        return false;
    const uint8_t *at = tokens->data;
    for (int64_t i = 0; i <= id; i++) *text = gguf_string_next(&at);
    return true;
}

static void end_token_add(int64_t *ids, int *count, int limit, int64_t id) {
    for (int i = 0; i < *count; i++) {
        if (ids[i] == id) return;
    }
    if (*count < limit) ids[(*count)++] = id;
}

int gguf_end_tokens(const GgufFile *file, int64_t *ids, int limit) {
    static const char *const keys[] = {
        "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    /* Names that end a turn or a text in every family that has them. */
    static const char *const names[] = {
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"};
    const GgufValue *tokens = gguf_value(file, "tokenizer.ggml.tokens"),
                    *types = gguf_value(file, "tokenizer.ggml.token_type");
    int count = 0;
    bool typed = tokens && tokens->array && tokens->kind == GGUF_STRING && types && types->array &&
        types->kind == GGUF_I32 && types->count == tokens->count;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        int64_t id;
        if (gguf_integer(file, keys[i], &id) && id >= 0) end_token_add(ids, &count, limit, id);
    }
    const uint8_t *at = typed ? tokens->data : NULL;
    for (uint64_t id = 0; typed && id < tokens->count; id++) {
        int32_t type;
        Slice text = gguf_string_next(&at);
        memcpy(&type, types->data + id * sizeof type, sizeof type);
        if (gguf_token_type(file, (int64_t)id, text, type) != GGUF_TOKEN_CONTROL) continue;
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            if (slice_is(text, names[i])) end_token_add(ids, &count, limit, (int64_t)id);
        }
    }
    return count;
}

static void put_token(Buffer *out, const GgufFile *file, const char *name, const char *key) {
    int64_t id;
    Slice text;
    if (!gguf_integer(file, key, &id) || !token_text(file, id, &text)) return;
    buffer_printf(out, ",\n  \"%s\": ", name);
    json_write_string(out, text);
}

static void put_flag(Buffer *out, const GgufFile *file, const char *name, const char *key) {
    bool flag;
    if (gguf_bool(file, key, &flag)) buffer_printf(out, ",\n  \"%s\": %s", name, flag ? "true" : "false");
}

/* One template is a string; several are a list of names and templates. */
static bool put_templates(Buffer *out, const GgufFile *file, Error *error) {
    Slice main_template, text;
    const GgufValue *names = gguf_value(file, "tokenizer.chat_templates");
    bool has_main = gguf_string(file, "tokenizer.chat_template", &main_template);
    if (!names || !names->array || names->kind != GGUF_STRING || names->count == 0) {
        if (!has_main) return true;
        buffer_text(out, ",\n  \"chat_template\": ");
        json_write_string(out, main_template);
        return true;
    }
    const char *separator = "";
    const uint8_t *at = names->data;
    buffer_text(out, ",\n  \"chat_template\": [");
    if (has_main) {
        buffer_text(out, "{\"name\": \"default\", \"template\": ");
        json_write_string(out, main_template);
        buffer_byte(out, '}');
        separator = ", ";
    }
    for (uint64_t i = 0; i < names->count; i++) {
        char key[KEY_MAX];
        Slice name = gguf_string_next(&at);
        if (slice_is(name, "default") && has_main) continue;
        int size = snprintf(key, sizeof key, "tokenizer.chat_template.%.*s", SLICE_ARGS(name));
        if (size >= KEY_MAX || !gguf_string(file, key, &text)) {
            return fail(
                error, ERROR_FORMAT, "tokenizer.chat_templates names %.*s, which is missing", SLICE_SHOWN(name));
        }
        buffer_printf(out, "%s{\"name\": ", separator);
        json_write_string(out, name);
        buffer_text(out, ", \"template\": ");
        json_write_string(out, text);
        buffer_byte(out, '}');
        separator = ", ";
    }
    buffer_byte(out, ']');
    return true;
}

bool gguf_tokenizer_config(Buffer *out, const GgufFile *file, Error *error) {
    int64_t context;
    buffer_text(
        out, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"clean_up_tokenization_spaces\": false");
    put_flag(out, file, "add_bos_token", "tokenizer.ggml.add_bos_token");
    put_flag(out, file, "add_eos_token", "tokenizer.ggml.add_eos_token");
    put_token(out, file, "bos_token", "tokenizer.ggml.bos_token_id");
    put_token(out, file, "eos_token", "tokenizer.ggml.eos_token_id");
    put_token(out, file, "unk_token", "tokenizer.ggml.unknown_token_id");
    put_token(out, file, "pad_token", "tokenizer.ggml.padding_token_id");
    if (gguf_integer(file, ".context_length", &context)) {
        buffer_text(out, ",\n  \"model_max_length\": ");
        json_write_integer(out, context);
    }
    if (!put_templates(out, file, error)) return false;
    buffer_text(out, "\n}\n");
    return !out->failed || fail(error, ERROR_MEMORY, "no memory for tokenizer_config.json");
}
