/* The table of fields: docs/api shows it, OpenAI's fields are all in it, and nothing that it lists is ignored: each
 * field refuses what is of the wrong type or out of range, and a value other than its default changes the request or is
 * refused, unless the table says that nothing depends on it. */
#include "server/api/fields.h"
#include "server/api/request.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "test.h"

/* ---- what a body gives ---- */

#define MESSAGE "{\"role\":\"assistant\",\"content\":\"x\"}"

static Arena arena;

static ChatRequest defaults(void) {
    ChatRequest r;
    memset(&r, 0, sizeof r); /* padding, too: requests are compared byte by byte */
    r.arena = &arena;
    r.vocab = 1000;
    r.reasoning.budget = -1;
    r.generation.request.max_tokens = -1;
    r.generation.request.choices = 1;
    r.generation.request.sampling =
        (SamplingOptions){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .seed = 5};
    return r;
}

/* {model, messages or prompt, and a field with a value} */
static bool read_with(Api api, const char *field, const char *value, ChatRequest *request, ApiError *error) {
    Error why = {0};
    Buffer text = {0};
    const bool chat = api == API_CHAT;
    buffer_text(&text, "{");
    if (strcmp(field, "model") != 0) buffer_text(&text, "\"model\":\"m\",");
    if (chat && strcmp(field, "messages") != 0) buffer_text(&text, "\"messages\":[" MESSAGE "],");
    if (!chat && strcmp(field, "prompt") != 0) buffer_text(&text, "\"prompt\":\"x\",");
    if (!strcmp(field, "stream_options")) buffer_text(&text, "\"stream\":true,");
    if (chat && !strcmp(field, "top_logprobs")) buffer_text(&text, "\"logprobs\":true,");
    if (!strcmp(field, "return_progress")) buffer_text(&text, "\"stream\":true,");
    if (!strcmp(field, "kv_group_size")) buffer_text(&text, "\"kv_bits\":8,");
    buffer_printf(&text, "\"%s\":%s}", field, value);
    const char *copy = arena_copy(&arena, buffer_view(&text));
    const Json *body = json_parse(&arena, (Slice){copy, text.size}, &why);
    buffer_free(&text);
    CHECK(body != NULL);
    *request = defaults();
    memset(error, 0, sizeof *error);
    return chat ? request_read_chat(request, body, error) : request_read_completion(request, body, error);
}

static bool refuses(Api api, const char *field, const char *value) {
    ChatRequest request;
    ApiError error;
    const bool ok = read_with(api, field, value, &request, &error);
    const size_t size = strlen(field);
    const bool named = !strncmp(error.param, field, size) && (!error.param[size] || strchr(".[", error.param[size]));
    TEST_MSG(!ok && error.status == 400 && named, "%s = %.60s: %d %s %s", field, value, error.status, error.param,
        error.message);
    return !ok;
}

/* ---- every field ---- */

/* A value that is not the default. */
static const struct {
    const char *field, *value;
} others[] = {{"messages", "[" MESSAGE "," MESSAGE "]"}, {"prompt", "[1,2]"}, {"logit_bias", "{\"5\":1}"},
    {"seed", "77"}, {"stop", "\"x\""}, {"stream_options", "{\"include_usage\":true}"}, {"suffix", "\"x\""},
    {"response_format", "{\"type\":\"json_object\"}"},
    {"tools", "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"}, {"tool_choice", "\"none\""},
    {"reasoning_effort", "\"low\""}, {"functions", "[{\"name\":\"f\"}]"}, {"function_call", "{\"name\":\"f\"}"},
    {"prediction", "{\"type\":\"content\",\"content\":\"x\"}"}, {"modalities", "[\"text\",\"audio\"]"},
    {"service_tier", "\"flex\""}, {"verbosity", "\"low\""}, {"metadata", "{\"a\":\"b\"}"},
    {"chat_template_kwargs", "{\"a\":1}"}, {"kv_cache", "\"q8\""}, {"kv_bits", "8"}, {"kv_group_size", "64"},
    {"json_schema", "{}"}, {"guided_json", "true"}, {"structured_outputs", "{\"regex\":\"a+\"}"},
    {"guided_choice", "[\"a\",\"b\"]"}, {"best_of", "3"}, {"reasoning", "{\"max_tokens\":5}"},
    {"prompt_cache_retention", "\"24h\""}};

static const char *other_value(const Field *f) {
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (!strcmp(others[i].field, f->name)) return others[i].value;
    switch (f->type) {
    case FIELD_NUMBER: return "0.5";
    case FIELD_INTEGER: return "3";
    case FIELD_BOOL: return strcmp(f->standing, "true") ? "true" : "false";
    case FIELD_TEXT: return "\"abc\"";
    case FIELD_OBJECT: return "{}";
    case FIELD_ARRAY:
    case FIELD_ANY: break;
    }
    TEST_MSG(false, "%s: no example", f->name);
    return "null";
}

static void test_types(const Field *f, Api api) {
    static const char *const wrong[] = {"\"text\"", "[[]]", "{\"a\":[]}", "true", "1.5", "-1e300", "1e300"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const bool text = i == 0, array = i == 1, object = i == 2, boolean = i == 3;
        const bool right = f->type == FIELD_TEXT ? text
            : f->type == FIELD_ARRAY             ? array
            : f->type == FIELD_OBJECT            ? object
            : f->type == FIELD_BOOL              ? boolean
            : f->type == FIELD_NUMBER            ? i == 4
                                                 : f->type == FIELD_ANY;
        if (!right) refuses(api, f->name, wrong[i]);
    }
    char value[64];
    if (f->type > FIELD_INTEGER || (f->min == 0 && f->max == 0)) return;
    snprintf(value, sizeof value, "%.17g", f->min - 1);
    refuses(api, f->name, value);
    snprintf(value, sizeof value, "%.17g", f->max + 1);
    refuses(api, f->name, value);
}

static void test_effect(const Field *f, Api api) {
    ChatRequest without, with;
    ApiError error;
    /* What a field needs beside it is in both. */
    static const char *const beside[][3] = {{"stream_options", "stream", "true"}, {"return_progress", "stream", "true"},
        {"top_logprobs", "logprobs", "true"}, {"kv_group_size", "kv_bits", "8"}};
    const char *field = "user", *value = "null";
    for (size_t i = 0; i < COUNT_OF(beside); i++)
        if (!strcmp(f->name, beside[i][0])) {
            field = beside[i][1];
            value = beside[i][2];
        }
    CHECK(read_with(api, field, value, &without, &error));
    const bool ok = read_with(api, f->name, other_value(f), &with, &error);
    const bool refused = !ok && error.status == 400 && !strncmp(error.param, f->name, strlen(f->name));
    /* Where a body's values lie does not count. */
    with.model = without.model;
    with.chat.messages = without.chat.messages;
    if (strcmp(f->name, "prompt") != 0) with.prompt = without.prompt;
    const bool changed = ok && memcmp(&with, &without, sizeof with) != 0;
    switch (f->status) {
    case FIELD_HONOURED:
    case FIELD_EXTENSION:
        TEST_MSG(changed || !strcmp(f->name, "model"), "%s is ignored: %s", f->name, error.message);
        break;
    case FIELD_ACCEPTED: TEST_MSG(ok && !changed, "%s: %s", f->name, error.message); break;
    case FIELD_NEUTRAL:
    case FIELD_REFUSED: TEST_MSG(refused, "%s is not refused: %s", f->name, error.message); break;
    }
    ChatRequest absent;
    if (!strcmp(f->standing, "required")) {
        TEST_MSG(refuses(api, f->name, "null"), "%s may be absent", f->name);
        return;
    }
    CHECK(read_with(api, "user", "null", &without, &error));
    TEST_MSG(read_with(api, f->name, "null", &absent, &error), "%s: null is not absent: %s", f->name, error.message);
}

static void test_every_field(void) {
    size_t count;
    const Field *fields = fields_all(&count);
    for (size_t i = 0; i < count; i++) {
        for (unsigned api = API_CHAT; api <= API_COMPLETIONS; api++) {
            if (!(fields[i].apis & api)) {
                bool other = false; /* the same name in another row */
                for (size_t k = 0; k < count; k++)
                    other |= (fields[k].apis & api) && !strcmp(fields[k].name, fields[i].name);
                if (!other) refuses((Api)api, fields[i].name, "1");
                continue;
            }
            test_types(&fields[i], (Api)api);
            test_effect(&fields[i], (Api)api);
            arena_free(&arena);
            arena = (Arena){0};
        }
    }
}

/* ---- OpenAI's schemas ---- */

static void test_openai(void) {
    static const char *const chat[] = {"messages", "model", "audio", "frequency_penalty", "function_call", "functions",
        "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata", "modalities", "moderation", "n",
        "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier",
        "stop", "store", "stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p",
        "user", "verbosity", "web_search_options"};
    static const char *const text[] = {"model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias",
        "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix",
        "temperature", "top_p", "user"};
    size_t count;
    const Field *fields = fields_all(&count);
    for (int api = 0; api < 2; api++) {
        const char *const *names = api ? text : chat;
        for (size_t i = 0; i < (api ? COUNT_OF(text) : COUNT_OF(chat)); i++) {
            int found = 0;
            for (size_t k = 0; k < count; k++)
                found += (fields[k].apis & (api ? API_COMPLETIONS : API_CHAT)) && !strcmp(fields[k].name, names[i]) &&
                    fields[k].status != FIELD_EXTENSION;
            TEST_MSG(found == 1, "%s is %d times in the table", names[i], found);
        }
    }
}

/* ---- limits beyond type and range ---- */

static void test_limits(void) {
    static const struct {
        Api api;
        const char *field, *value;
    } wrong[] = {{API_CHAT, "tools", "{}"}, {API_CHAT, "functions", "{}"}, {API_CHAT, "stop", "[]"},
        {API_CHAT, "modalities", "[]"}, {API_CHAT, "modalities", "[\"video\"]"}, {API_CHAT, "service_tier", "\"x\""},
        {API_CHAT, "repetition_penalty", "1e-40"}, {API_CHAT, "metadata", "{\"a\":5}"}, {API_CHAT, "moderation", "{}"},
        {API_CHAT, "stop", "[\"\"]"}, {API_CHAT, "response_format", "{\"type\":\"text\",\"schema\":{}}"},
        {API_CHAT, "response_format", "{}"}, {API_CHAT, "response_format", "{\"type\":\"json_schema\"}"},
        {API_CHAT, "response_format", "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}"},
        {API_CHAT, "response_format", "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a b\",\"schema\":{}}}"},
        {API_CHAT, "response_format", "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":5}}"},
        {API_CHAT, "response_format", "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"strict\":5}}"},
        {API_CHAT, "structured_outputs", "{}"}, {API_CHAT, "structured_outputs", "{\"regex\":\"a\",\"json\":{}}"},
        {API_CHAT, "structured_outputs", "{\"structural_tag\":\"x\"}"}, {API_CHAT, "guided_choice", "[]"},
        {API_CHAT, "prediction", "{\"type\":\"content\"}"}, {API_CHAT, "prediction", "{\"content\":\"x\"}"},
        {API_CHAT, "prediction", "{\"type\":\"content\",\"content\":[{\"type\":\"image\"}]}"}};
    ChatRequest request;
    ApiError error;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) refuses(wrong[i].api, wrong[i].field, wrong[i].value);
    char text[700];
    for (int over = 0; over < 2; over++) {
        snprintf(text, sizeof text, "\"%0*d\"", 64 + over, 0);
        TEST(read_with(API_CHAT, "safety_identifier", text, &request, &error) == !over);
        snprintf(text, sizeof text, "{\"%0*d\":\"\"}", 64 + over, 0);
        TEST(read_with(API_CHAT, "metadata", text, &request, &error) == !over);
        snprintf(text, sizeof text, "{\"a\":\"%0*d\"}", 512 + over, 0);
        TEST(read_with(API_CHAT, "metadata", text, &request, &error) == !over);
    }
    TEST(read_with(API_CHAT, "moderation", "null", &request, &error));
    TEST(!read_with(API_COMPLETIONS, "n\":3,\"best_of", "2", &request, &error) && !strcmp(error.param, "best_of"));
    TEST(!read_with(API_CHAT, "max_tokens\":3,\"min_tokens", "4", &request, &error));
    TEST(!read_with(API_CHAT, "grammar\":\"root ::= \\\"a\\\"\",\"response_format", "{\"type\":\"json_object\"}",
             &request, &error) &&
        !strcmp(error.param, "response_format"));
    TEST(read_with(
             API_CHAT, "grammar\":\"root ::= \\\"a\\\"\",\"response_format", "{\"type\":\"text\"}", &request, &error) &&
        request.format.kind == GRAMMAR_GBNF);
    TEST(read_with(API_CHAT, "grammar", "\"start: /a/\"", &request, &error) && request.format.kind == GRAMMAR_LARK);
    arena_free(&arena);
}

/* Each document shows the tables that `apus debug fields` prints, and each field is in one of them. */
static void test_documents(void) {
    size_t count, fields, adapter_fields;
    const FieldTable *tables = field_tables(&count);
    const Field *field = fields_all(&fields);
    const Field *adapter_field = adapter_fields_all(&adapter_fields);
    for (size_t i = 0; i < count; i++) {
        Buffer table = {0}, document = {0};
        Error error = {0};
        field_table_write(&tables[i], &table);
        CHECK(!table.failed && file_read(tables[i].document, 1 << 20, &document, &error));
        TEST_MSG(memmem(document.data, document.size, table.data, table.size) != NULL,
            "%s does not show the fields of %s as `apus debug fields` prints them: run tools/write_docs.py",
            tables[i].document, tables[i].routes);
        buffer_clear(&table);
        member_table_write(&tables[i], &table);
        TEST_MSG(table.size == 0 || memmem(document.data, document.size, table.data, table.size) != NULL,
            "%s does not show the members of %s as `apus debug fields` prints them: run tools/write_docs.py",
            tables[i].document, tables[i].routes);
        buffer_free(&table);
        buffer_free(&document);
    }
    for (size_t i = 0; i < fields; i++) TEST(field[i].apis & tables[0].apis);
    for (size_t i = 0; i < adapter_fields; i++) {
        int shown = 0;
        for (size_t t = 0; t < count; t++) shown += adapter_field[i].apis == tables[t].apis;
        TEST(shown == 1);
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    test_every_field();
    test_openai();
    test_limits();
    test_documents();
    return test_done();
}
