/* The tables of the other doors' fields: what each lists is of the type and range it says, a value other than the
 * default changes the request or is refused, unless the table says that nothing depends on it, and there are no
 * fields beside them. */
#include <stdlib.h>

#include "base/log.h"
#include "server/api/endpoint.h"
#include "server/api/fields.h"
#include "server/api/cache_params.h"
#include "server/api/request.h"
#include "test.h"

typedef struct Member {
    const char *name, *value;
} Member;

typedef struct AdapterCase {
    Api api;
    Member members[4];                                                     /* of a body that is right */
    bool (*read)(ChatRequest *request, const Json *body, ApiError *error); /* NULL: it writes no chat */
} AdapterCase;

#define SAID(text) "[{\"role\":\"user\",\"content\":\"" text "\"}]"

static const AdapterCase adapters[] = {
    {API_RESPONSES, {{"model", "\"m\""}, {"input", "\"x\""}}, request_read_responses},
    {API_MESSAGES, {{"model", "\"m\""}, {"max_tokens", "9"}, {"messages", SAID("x")}}, request_read_messages},
    {API_OLLAMA_CHAT, {{"model", "\"m\""}, {"messages", SAID("x")}}, request_read_ollama_chat},
    {API_OLLAMA_GENERATE, {{"model", "\"m\""}, {"prompt", "\"x\""}}, request_read_ollama_generate},
    {API_TOKENIZE, {{"content", "\"x\""}}, NULL},
    {API_DETOKENIZE, {{"tokens", "[1]"}}, NULL},
    {API_OLLAMA_EMBED, {{"model", "\"m\""}, {"input", "\"x\""}}, NULL},
    {API_EMBEDDINGS, {{"model", "\"m\""}, {"input", "\"x\""}}, NULL},
    {API_TRANSCRIPTION, {{"model", "\"m\""}, {"file", "\"x\""}}, request_read_transcription},
    {API_TRANSLATION, {{"model", "\"m\""}, {"file", "\"x\""}}, request_read_translation},
    {API_RERANK, {{"model", "\"m\""}, {"query", "\"x\""}, {"documents", "[\"x\"]"}}, NULL},
};

/* Values that are not the default. */
static const Member others[] = {
    {"model", "\"other\""},
    {"input", "\"y\""},
    {"messages", SAID("y")},
    {"system", "\"y\""},
    {"stream_options.include_obfuscation", "true"},
    {"tools", "[{\"type\":\"function\",\"name\":\"f\",\"function\":{\"name\":\"f\"}}]"},
    {"tool_choice", "{\"type\":\"none\"}"},
    {"parallel_tool_calls", "false"},
    {"format", "\"json\""},
    {"text.format", "{\"type\":\"json_object\"}"},
    {"text.verbosity", "\"low\""},
    {"reasoning.effort", "\"low\""},
    {"reasoning.summary", "\"auto\""},
    {"reasoning.generate_summary", "\"auto\""},
    {"include", "[\"reasoning.encrypted_content\"]"},
    {"truncation", "\"auto\""},
    {"service_tier", "\"auto\""},
    {"prompt_cache_retention", "\"24h\""},
    {"conversation", "\"c\""},
    {"stop_sequences", "[\"q\"]"},
    {"thinking.type", "\"enabled\""},
    {"thinking.display", "\"omitted\""},
    {"output_config.effort", "\"low\""},
    {"speed", "\"fast\""},
    {"encoding_format", "\"base64\""},
    {"output_config.format", "{\"type\":\"json_schema\",\"schema\":{}}"},
    {"output_format", "{\"type\":\"json_schema\",\"schema\":{}}"},
    {"container", "\"c\""},
    {"metadata", "{\"user_id\":\"u\"}"},
    {"context_management", "{}"},
    {"think", "true"},
    {"keep_alive", "\"5m\""},
    {"options.seed", "7"},
    {"options.stop", "\"q\""},
    {"options.num_predict", "3"},
    {"options.repeat_last_n", "0"},
    {"options.repeat_penalty", "1.5"},
    {"context", "[1]"},
    {"images", "[\"AAAA\"]"},
    {"mcp_servers", "[{}]"},
    {"temperature", "0.5"},
    {"top_p", "0.5"},
};

static const char *other_value(const Field *f, AdapterCase const *api, const Member **beside) {
    static const Member stream = {"stream", "true"};
    *beside = !strncmp(f->name, "stream_options", 14) ? &stream : NULL;
    if (!strcmp(f->name, "tool_choice") && api->api == API_RESPONSES) return "\"none\"";
    if (!strcmp(f->name, "context_management") && api->api == API_RESPONSES) return "[]";
    if (!strcmp(f->name, "service_tier") && api->api == API_RESPONSES) return "\"flex\"";
    if (!strcmp(f->name, "metadata") && api->api == API_RESPONSES) return "{\"a\":\"b\"}";
    if (!strcmp(f->name, "tools") && api->api == API_MESSAGES) return "[{\"name\":\"f\",\"input_schema\":{}}]";
    if (api->api & (API_TRANSCRIPTION | API_TRANSLATION)) {
        if (!strcmp(f->name, "temperature")) return "\"0.5\"";
        if (!strcmp(f->name, "stream")) return "\"true\"";
        if (!strcmp(f->name, "response_format")) return "\"text\"";
        if (!strcmp(f->name, "prompt")) return "\"Ada\"";
    }
    if (!strcmp(f->name, "stream")) return api->api & (API_OLLAMA_CHAT | API_OLLAMA_GENERATE) ? "false" : "true";
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (!strcmp(others[i].name, f->name)) return others[i].value;
    switch (f->type) {
    case FIELD_NUMBER: return "0.5";
    case FIELD_INTEGER: return f->max == 2 ? "2" : "3";
    case FIELD_BOOL: return "true";
    case FIELD_TEXT: return "\"abc\"";
    case FIELD_OBJECT: return "{}";
    case FIELD_ARRAY: return "[]";
    case FIELD_ANY: break;
    }
    TEST_MSG(false, "%s: no example", f->name);
    return "null";
}

static Arena arena;

/* A name with a dot is a member of an object. */
static void write_member(const char *name, const char *value, Buffer *out) {
    const char *dot = strchr(name, '.');
    if (out->size > 1) buffer_byte(out, ',');
    if (dot)
        buffer_printf(out, "\"%.*s\":{\"%s\":%s}", (int)(dot - name), name, dot + 1, value);
    else
        buffer_printf(out, "\"%s\":%s", name, value);
}

/* The door's body with a field in place of its own. */
static const Json *make_body(const AdapterCase *api, const char *name, const char *value, const Member *beside) {
    Error why = {0};
    Buffer text = {0};
    buffer_byte(&text, '{');
    for (const Member *m = api->members; m->name; m++)
        if (strcmp(m->name, name) != 0) write_member(m->name, m->value, &text);
    write_member(name, value, &text);
    if (beside) write_member(beside->name, beside->value, &text);
    buffer_byte(&text, '}');
    const char *copy = arena_copy(&arena, buffer_view(&text));
    const Json *body = json_parse(&arena, (Slice){copy, text.size}, &why);
    CHECK(body != NULL);
    buffer_free(&text);
    return body;
}

/* All that a request says, as text. */
static void show(const ChatRequest *r, Buffer *out) {
    const SamplingOptions *o = &r->generation.request.sampling;
    const Json *const trees[] = {r->chat.arguments, r->tools.definitions};
    buffer_printf(out, "%.*s|%g %g %g %d %g %g %g %llu|%d %d|%d %d|%d %d %d %.*s %d %d %lld|%d %.*s|%llu|",
        SLICE_SHOWN(r->model), (double)o->temperature, (double)o->top_p, (double)o->min_p, o->top_k,
        (double)o->repetition_penalty, (double)o->presence_penalty, (double)o->frequency_penalty,
        (unsigned long long)o->seed, r->generation.request.max_tokens, r->cut, r->response.stream,
        r->response.obfuscated, r->tools.mode, r->tools.single, r->tools.choice_given, SLICE_SHOWN(r->reasoning.effort),
        r->reasoning.thinking, r->reasoning.thinking_given, (long long)r->reasoning.budget, r->format.kind,
        SLICE_SHOWN(r->format.source), (unsigned long long)cache_salt(&r->cache, NULL));
    buffer_printf(out, "%d %lld %d %.*s %d|", r->keep_alive_given, (long long)r->keep_alive_ms, r->raw,
        SLICE_SHOWN(r->suffix), r->response.plain);
    for (int i = 0; i < r->generation.stop_count; i++) buffer_slice(out, r->stops[i]);
    for (size_t i = 0; i < COUNT_OF(trees); i++)
        if (trees[i]) json_write(out, trees[i]);
    for (size_t i = 0; i < r->chat.message_count; i++) {
        const ChatMessage *message = &r->chat.messages[i];
        buffer_printf(out, "|%s %.*s %.*s", message->role, SLICE_SHOWN(message->name), SLICE_SHOWN(message->call_id));
        for (size_t k = 0; k < message->part_count; k++) {
            const ContentPart *part = &message->parts[k];
            if (part->kind == CONTENT_TOOL_CALL)
                buffer_printf(out, " %.*s(%.*s)", SLICE_SHOWN(part->call.name), SLICE_SHOWN(part->call.arguments));
            else
                buffer_printf(out, " %d %.*s", part->kind, SLICE_SHOWN(part->text));
        }
    }
}

static bool read_body(const AdapterCase *api, const Json *body, Buffer *shown, ApiError *error) {
    ChatRequest r = request_init(&arena, 1000);
    r.generation.request.sampling.repetition_penalty = 1.1f;
    r.generation.request.sampling.seed = 5;
    *error = (ApiError){0};
    buffer_clear(shown);
    if (!api->read) return fields_read(NULL, api->api, body, error);
    const bool ok = api->read(&r, body, error);
    if (ok) show(&r, shown);
    return ok;
}

static void refuses(const AdapterCase *api, const char *name, const char *value) {
    ApiError error;
    Buffer shown = {0};
    const bool ok = read_body(api, make_body(api, name, value, NULL), &shown, &error);
    const size_t size = strlen(name);
    const bool named = !strncmp(error.param, name, size) && (!error.param[size] || strchr(".[", error.param[size]));
    TEST_MSG(!ok && error.status == 400 && named, "%s = %s: %d %s %s", name, value, error.status, error.param,
        error.message);
    buffer_free(&shown);
}

static void test_types(const AdapterCase *api, const Field *f) {
    static const char *const wrong[] = {"\"text\"", "[[]]", "{\"a\":[]}", "true", "1.5", "-1e300", "1e300"};
    static const FieldType types[] = {
        FIELD_TEXT, FIELD_ARRAY, FIELD_OBJECT, FIELD_BOOL, FIELD_NUMBER, FIELD_NUMBER, FIELD_NUMBER};
    for (size_t i = 0; i < COUNT_OF(wrong) && f->type != FIELD_ANY; i++)
        if (f->type != types[i]) refuses(api, f->name, wrong[i]);
    char value[64];
    if (f->type > FIELD_INTEGER || (f->min == 0 && f->max == 0)) return;
    snprintf(value, sizeof value, "%.17g", f->min - 1);
    refuses(api, f->name, value);
    snprintf(value, sizeof value, "%.17g", f->max + 1);
    refuses(api, f->name, value);
}

static bool is_parent(const AdapterCase *api, const Field *f) {
    size_t count;
    const Field *rows = adapter_fields_all(&count);
    const size_t size = strlen(f->name);
    for (size_t i = 0; i < count; i++) {
        const Field *other = &rows[i];
        if (other->apis & api->api && !strncmp(other->name, f->name, size) && other->name[size] == '.') return true;
    }
    return false;
}

static void test_effect(const AdapterCase *api, const Field *f) {
    ApiError error;
    Buffer without = {0}, with = {0};
    const Member *beside;
    const char *value = other_value(f, api, &beside);
    const char *name = beside ? beside->name : "model", *given = beside ? beside->value : "\"m\"";
    const bool fine = read_body(api, make_body(api, name, given, NULL), &without, &error);
    TEST_MSG(fine, "%s %s", error.param, error.message);
    const bool ok = read_body(api, make_body(api, f->name, value, beside), &with, &error);
    const bool changed = ok && !slice_equal(buffer_view(&with), buffer_view(&without));
    switch (f->status) {
    case FIELD_HONOURED:
    case FIELD_EXTENSION: /* objects with rows for their members are those; tokens are no request */
        TEST_MSG(ok && (changed || is_parent(api, f) || !api->read), "%s is ignored: %s", f->name, error.message);
        break;
    case FIELD_ACCEPTED: TEST_MSG(ok && !changed, "%s: %s", f->name, error.message); break;
    case FIELD_NEUTRAL:
    case FIELD_REFUSED:
        TEST_MSG(!ok && error.status == 400 && !strcmp(error.param, f->name), "%s is not refused: %s %s", f->name,
            error.param, error.message);
        break;
    }
    if (!f->standing)
        TEST_MSG(read_body(api, make_body(api, f->name, "null", beside), &with, &error), "%s: null is not absent: %s",
            f->name, error.message);
    buffer_free(&without);
    buffer_free(&with);
}

static void test_adapter(const AdapterCase *api) {
    size_t count;
    const Field *rows = adapter_fields_all(&count);
    for (size_t i = 0; i < count; i++) {
        const Field *f = &rows[i];
        int found = 0;
        for (size_t k = 0; k < count; k++) found += (rows[k].apis & api->api) && !strcmp(rows[k].name, f->name);
        TEST_MSG(found <= 1, "%s is %d times in the table", f->name, found);
        if (found == 0 && !strchr(f->name, '.')) refuses(api, f->name, "1");
        if (!(f->apis & api->api)) continue;
        test_types(api, f);
        test_effect(api, f);
    }
    refuses(api, "no_such_field", "1");
    ApiError error;
    Buffer shown = {0};
    TEST(api->api == API_OLLAMA_EMBED ||
        !read_body(api, make_body(api, "options.no_such_option", "1", NULL), &shown, &error));
    buffer_free(&shown);
    arena_free(&arena);
    arena = (Arena){0};
}

/* A name that only looks like that of a member. */
static void test_names(void) {
    ApiError error;
    Buffer shown = {0};
    Error why = {0};
    static const char *const bodies[] = {"{\"model\":\"m\",\"prompt\":\"x\",\"options.seed\":5}",
        "{\"model\":\"m\",\"prompt\":\"x\",\"options\":{\"seed\\u0000\":5}}",
        "{\"model\":\"m\",\"prompt\":\"x\",\"mod\\u0000el\":5}"};
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        const Json *body = json_parse(&arena, slice_of(bodies[i]), &why);
        TEST(body && !read_body(&adapters[3], body, &shown, &error) && error.status == 400);
    }
    buffer_free(&shown);
    arena_free(&arena);
}

/* The form of a message, by either of its names, is kept or refused, whatever stands beside it. */
static void test_message_format(void) {
#define MESSAGE(more) "{\"model\":\"m\",\"max_tokens\":9,\"messages\":" SAID("x") "," more "}"
#define FORM "{\"type\":\"json_schema\",\"schema\":{\"type\":\"null\"}}"
    static const struct {
        const char *body, *refused;
    } cases[] = {{MESSAGE("\"output_config\":{\"format\":" FORM "}"), NULL}, {MESSAGE("\"output_format\":" FORM), NULL},
        {MESSAGE("\"output_config\":{\"effort\":\"low\"},\"output_format\":" FORM), NULL},
        {MESSAGE("\"output_format\":{\"type\":\"json_schema\"}"), "output_format"},
        {MESSAGE("\"output_config\":{\"format\":{\"type\":\"json_object\"}}"), "output_config.format"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ApiError error;
        Error why = {0};
        Buffer shown = {0};
        const Json *body = json_parse(&arena, slice_of(cases[i].body), &why);
        CHECK(body != NULL);
        const bool ok = read_body(&adapters[1], body, &shown, &error);
        if (cases[i].refused)
            TEST_MSG(!ok && !strncmp(error.param, cases[i].refused, strlen(cases[i].refused)), "%s", cases[i].body);
        else
            TEST_MSG(ok && strstr(shown.data, "{\"type\":\"null\"}"), "%s: %s", cases[i].body, shown.data);
        buffer_free(&shown);
    }
    arena_free(&arena);
}

/* An error names the field of the request that was sent, by its path in it. */
static void test_paths(void) {
#define CHAT "{\"model\":\"m\",\"messages\":"
#define RESPONSES "{\"model\":\"m\",\"input\":"
#define MESSAGES "{\"model\":\"m\",\"max_tokens\":9,\"messages\":"
#define USER(content) "[{\"role\":\"user\",\"content\":" content "}]"
#define IMAGE(url) "[{\"type\":\"image_url\",\"image_url\":{\"url\":\"" url "\"}}]"
#define CALL(function) "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[" function "]}]"
    static const struct {
        bool (*read)(ChatRequest *request, const Json *body, ApiError *error);
        const char *body, *param;
    } cases[] = {
        {request_read_chat, CHAT USER("[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image_url\"}]") "}",
            "messages[0].content[1].image_url"},
        {request_read_chat, CHAT USER("[{\"type\":\"file\"}]") "}", "messages[0].content[0].file"},
        {request_read_chat, CHAT USER(IMAGE("data:image/png;base64,AAAA=A")) "}",
            "messages[0].content[0].image_url.url"},
        {request_read_chat, CHAT USER(IMAGE("http://127.0.0.1/x.png")) "}", "messages[0].content[0].image_url.url"},
        {request_read_chat, CHAT USER(IMAGE("data:image/png;base64,AAAA\",\"detail\":\"most")) "}",
            "messages[0].content[0].image_url.detail"},
        {request_read_chat, CHAT USER(IMAGE("data:image/png;base64,AAAA\",\"size\":\"5")) "}",
            "messages[0].content[0].image_url.size"},
        {request_read_messages, MESSAGES USER("[{\"type\":\"image\"}]") "}", "messages[0].content[0].source"},
        {request_read_messages, MESSAGES USER("[{\"type\":\"image\",\"source\":{\"type\":\"url\"}}]") "}",
            "messages[0].content[0].source.type"},
        {request_read_ollama_chat, CHAT "[{\"role\":\"user\",\"content\":\"x\",\"images\":[\"AAAA\",5]}]}",
            "messages[0].images[1]"},
        {request_read_chat, CHAT USER("[{\"type\":\"x\"}]") "}", "messages[0].content[0].type"},
        {request_read_chat, CHAT USER("[{\"type\":\"text\"}]") "}", "messages[0].content[0].text"},
        {request_read_chat, CHAT CALL("{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\"}}") "}",
            "messages[1].tool_calls[0].function.arguments"},
        {request_read_chat, CHAT USER("\"x\"") ",\"tools\":[{\"type\":\"function\",\"function\":{}}]}",
            "tools[0].function.name"},
        {request_read_chat, CHAT USER("\"x\"") ",\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"f\"}}]}",
            "tools[0].type"},
        {request_read_messages, MESSAGES USER("\"x\"") ",\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]}",
            "tools[0].type"},
        {request_read_completion, "{\"model\":\"m\",\"prompt\":\"x\",\"stop\":[\"\"]}", "stop[0]"},
        {request_read_responses, RESPONSES "[]}", "input"},
        {request_read_responses, RESPONSES "[{\"role\":\"x\",\"content\":\"x\"}]}", "input[0].role"},
        {request_read_responses, RESPONSES "[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"function_call\"}]}",
            "input[1].call_id"},
        {request_read_responses, RESPONSES "[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"web_search_call\"}]}",
            "input[1]"},
        {request_read_responses, RESPONSES USER("[{\"text\":\"x\"}]") "}", "input[0].content[0].type"},
        {request_read_responses, RESPONSES USER("[{\"type\":\"input_text\",\"text\":5}]") "}",
            "input[0].content[0].text"},
        {request_read_responses, RESPONSES USER("[{\"type\":\"input_image\"}]") "}", "input[0].content[0].image_url"},
        {request_read_responses, RESPONSES USER("[{\"type\":\"input_image\",\"file_id\":\"f\"}]") "}",
            "input[0].content[0].file_id"},
        {request_read_responses, RESPONSES "\"x\",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\"}]}",
            "tools[1].name"},
        {request_read_responses, RESPONSES "\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":5}]}",
            "tools[0].parameters"},
        {request_read_responses,
            RESPONSES "\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],"
                      "\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}}",
            "tool_choice.name"},
        {request_read_responses, RESPONSES "\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}}",
            "text.format.name"},
        {request_read_messages, MESSAGES USER("[{\"type\":\"text\"}]") "}", "messages[0].content[0].text"},
        {request_read_messages, MESSAGES USER("[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image\"}]") "}",
            "messages[0].content[1].source"},
        {request_read_messages,
            MESSAGES USER("[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[{\"type\":\"image\"}]}]") "}",
            "messages[0].content[0].content[0].source"},
        {request_read_messages, MESSAGES USER("[{\"type\":\"tool_result\"}]") "}",
            "messages[0].content[0].tool_use_id"},
        {request_read_messages,
            MESSAGES "[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\"}]}]}",
            "messages[0].content[0].input"},
        {request_read_messages, MESSAGES USER("[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":{}}]") "}",
            "messages[0].content[0]"},
        {request_read_messages, MESSAGES USER("[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"tool_use\"}]") "}",
            "messages[0].content[1]"},
        {request_read_messages, MESSAGES USER("\"x\"") ",\"tools\":[{\"name\":\"f\"},{\"name\":\"f g\"}]}",
            "tools[1].name"},
        {request_read_messages, MESSAGES USER("\"x\"") ",\"tools\":[{\"name\":\"f\",\"input_schema\":5}]}",
            "tools[0].input_schema"},
        {request_read_messages,
            MESSAGES USER("\"x\"") ",\"tools\":[{\"name\":\"f\"}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\"}}",
            "tool_choice.name"},
        {request_read_messages, MESSAGES USER("\"x\"") ",\"stop_sequences\":[\"a\",\"\"]}", "stop_sequences[1]"},
        {request_read_ollama_chat, CHAT USER("[{\"type\":\"x\"}]") "}", "messages[0].content[0].type"},
        {request_read_ollama_chat, CHAT "[{\"role\":\"user\",\"images\":[\"x\"]}]}", "messages[0].images[0]"},
        {request_read_ollama_chat, CHAT CALL("{\"function\":{}}") "}", "messages[1].tool_calls[0].function.name"},
        {request_read_ollama_chat, CHAT USER("\"x\"") ",\"options\":{\"stop\":[\"\"]}}", "options.stop[0]"},
        {request_read_ollama_chat, CHAT USER("\"x\"") ",\"options\":{\"repeat_penalty\":0}}", "options.repeat_penalty"},
        {request_read_ollama_generate, "{\"model\":\"m\",\"prompt\":\"x\",\"options\":{\"seed\":\"y\"}}",
            "options.seed"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error why = {0};
        ApiError error = {0};
        ChatRequest request = request_init(&arena, 1000);
        const Json *body = json_parse(&arena, slice_of(cases[i].body), &why);
        TEST_MSG(body != NULL, "%s: %s", cases[i].body, why.text);
        const bool ok = body && cases[i].read(&request, body, &error);
        TEST_MSG(!ok && error.status == 400 && !strcmp(error.param, cases[i].param), "%s: %d '%s' %s", cases[i].body,
            error.status, error.param, error.message);
        TEST_MSG(strstr(error.message, cases[i].param) != NULL, "%s: %s", cases[i].param, error.message);
    }
    arena_free(&arena);
    arena = (Arena){0};
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < COUNT_OF(adapters); i++) test_adapter(&adapters[i]);
    test_names();
    test_message_format();
    test_paths();
    return test_done();
}
