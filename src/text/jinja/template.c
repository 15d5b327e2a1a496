/* Chat templates from outside: compile, render a conversation, find a model's template. The rules around a render (what
 * is always defined, reasoning fields, continuing the last message) are those of transformers 5.23,
 * chat_template_utils.py. */
#include "text/jinja/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/jinja/library.h"

enum {
    COMPILE_CPU_MS = TEMPLATE_CPU_MS * 3 / 10, /* the rest is for reading and writing around them */
    RENDER_CPU_MS = TEMPLATE_CPU_MS * 6 / 10,
    CONFIG_SIZE_MAX = 64 << 20,
};

static const JinjaLibrary library = {&jinja_filters, &jinja_tests, &jinja_methods, &jinja_globals};

static const char continue_tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

Template *template_compile(Slice source, Error *error) {
    if (source.size > TEMPLATE_SOURCE_MAX) {
        fail(error, ERROR_LIMIT, "the chat template has %zu bytes, more than %d", source.size, TEMPLATE_SOURCE_MAX);
        return NULL;
    }
    if (!utf8_valid(source)) {
        fail(error, ERROR_FORMAT, "the chat template is not UTF-8");
        return NULL;
    }
    Template *template = calloc(1, sizeof *template);
    if (!template) {
        fail(error, ERROR_MEMORY, "no memory for a chat template");
        return NULL;
    }
    Vm vm;
    jinja_vm_init(&vm, &library, COMPILE_CPU_MS, error);
    bool ok = jinja_parse(&vm, template, source);
    template->arena = vm.arena;
    vm.arena = (Arena){0};
    jinja_vm_free(&vm);
    if (ok) return template;
    fail_while(error, "chat template");
    template_free(template);
    return NULL;
}

void template_free(Template *template) {
    if (!template) return;
    map_free(&template->name_ids);
    arena_free(&template->arena);
    free(template);
}

Slice template_source(const Template *template) { return template->source; }

void rendered_free(Rendered *rendered) {
    buffer_free(&rendered->text);
    arena_free(&rendered->arena);
    *rendered = (Rendered){0};
}

/* Variables */

static bool ends_with(Slice text, const char *suffix) {
    size_t size = strlen(suffix);
    return text.size >= size && memcmp(text.data + text.size - size, suffix, size) == 0;
}

/* A role of these names is as good as template text: templates build control tokens from it, as in '<|' + role + '|>'.
 */
static bool is_usual_role(Slice role) {
    static const char *const roles[] = {
        "system", "developer", "user", "assistant", "tool", "function", "model", "ipython"};
    for (size_t i = 0; i < COUNT_OF(roles); i++) {
        if (slice_is(role, roles[i])) return true;
    }
    return false;
}

static Jv value_of(Vm *vm, const Json *json) { return jinja_from_json(vm, json, ORIGIN_DATA); }

static bool dict_put(Vm *vm, JinjaDict *dict, const char *key, Jv value) {
    return jinja_dict_set(vm, dict, jinja_literal(vm, key), value);
}

static const char *const reasoning_fields[] = {"reasoning_content", "thinking", "reasoning"};

static bool is_reasoning(Slice field) {
    for (size_t i = 0; i < COUNT_OF(reasoning_fields); i++) {
        if (slice_is(field, reasoning_fields[i])) return true;
    }
    return false;
}

/* A message: the first reasoning field that is not null also goes by the names that templates read. */
static Jv message_of(Vm *vm, const Json *json) {
    const Json *reasoning = NULL;
    for (size_t i = 0; i < COUNT_OF(reasoning_fields) && !reasoning; i++) {
        reasoning = json_get(json, reasoning_fields[i]);
        if (reasoning && reasoning->type == JSON_NULL) reasoning = NULL;
    }
    Jv message = jinja_dict_new(vm, json->size + 2), thought = reasoning ? value_of(vm, reasoning) : jv_none();
    if (jv_bad(message) || (reasoning && !dict_put(vm, message.dict, "thinking", thought))) return jv_error();
    for (JSON_EACH_PAIR(key, value, json)) {
        Jv item = value_of(vm, value);
        bool role = slice_is(json_slice(key), "role") && value->type == JSON_STRING && is_usual_role(json_slice(value));
        if (role && !jv_bad(item)) item.s->origin = ORIGIN_TEMPLATE;
        if (!jinja_dict_set(vm, message.dict, value_of(vm, key), item)) return jv_error();
    }
    if (reasoning && !dict_put(vm, message.dict, "reasoning_content", thought)) return jv_error();
    return message;
}

/* A list of objects, or null where that is allowed. */
static bool check_objects(Vm *vm, const Json *json, const char *name, bool null_too) {
    if (null_too && json->type == JSON_NULL) return true;
    bool ok = json->type == JSON_ARRAY;
    if (ok) {
        for (JSON_EACH(item, json)) ok = ok && item->type == JSON_OBJECT;
    }
    if (!ok) jinja_fail(vm, "%s must be a list of objects", name);
    return ok;
}

static Jv messages_of(Vm *vm, const Json *json) {
    Jv list = jinja_list_new(vm, json ? json->size : 0);
    if (!json || jv_bad(list)) return list;
    if (!check_objects(vm, json, "messages", false)) return jv_error();
    for (JSON_EACH(item, json)) {
        if (!jinja_list_push(vm, list.list, message_of(vm, item))) return jv_error();
    }
    return list;
}

/* Continuing the last message */

typedef struct Continuation {
    bool wanted;
    Slice field;
    JinjaStr *text; /* what the message says before the tag */
} Continuation;

static bool continue_fail(Vm *vm, const char *why) {
    jinja_fail(vm, "continue_final_message is set but %s", why);
    return false;
}

static Jv tagged(Vm *vm, Jv text) {
    if (text.tag != JINJA_STR) return jinja_fail(vm, "continue_final_message: the text to continue is not a string");
    JinjaStr *tag = jinja_str_new(vm, continue_tag, sizeof continue_tag - 1, ORIGIN_DATA);
    return tag ? jv_str(jinja_str_concat(vm, text.s, tag)) : jv_error();
}

static bool continue_parts(Vm *vm, Jv parts, Continuation *c) {
    for (size_t i = parts.list->count; i-- > 0;) {
        Jv part = parts.list->items[i];
        JinjaPair *pair = part.tag == JINJA_DICT ? jinja_dict_find_text(part.dict, SLICE("text")) : NULL;
        if (!pair) continue;
        if (pair->value.tag == JINJA_STR) c->text = pair->value.s;
        pair->value = tagged(vm, pair->value);
        return !vm->failed;
    }
    return continue_fail(vm, "we could not find any text to continue in the final message");
}

static bool continue_message(Vm *vm, Jv messages, Continuation *c) {
    if (messages.list->count == 0) return continue_fail(vm, "the conversation is empty");
    JinjaDict *last = messages.list->items[messages.list->count - 1].dict;
    JinjaPair *pair = jinja_dict_find_text(last, c->field);
    if (!pair || pair->value.tag == JINJA_NONE) return continue_fail(vm, "the final message has nothing to continue");
    Slice source = vm->template->source;
    Jv value = pair->value;
    JinjaPair *copies[COUNT_OF(reasoning_fields)] = {pair};
    size_t count = 1;
    if (is_reasoning(c->field)) { /* it goes by several names: whichever the template reads is tagged */
        count = 0;
        for (size_t i = 0; i < COUNT_OF(reasoning_fields); i++) {
            bool equal = false;
            JinjaPair *copy = jinja_dict_find_text(last, slice_of(reasoning_fields[i]));
            if (copy && !jinja_equal(vm, copy->value, value, &equal)) return false;
            if (equal) copies[count++] = copy;
        }
    }
    bool read = false;
    for (size_t i = 0; i < count; i++) {
        JinjaStr *name = copies[i]->key.s;
        read = read || memmem(source.data, source.size, name->data, name->size) != NULL;
    }
    if (!read) return continue_fail(vm, "the template does not use the field to continue");
    if (value.tag == JINJA_LIST) return continue_parts(vm, value, c);
    if (value.tag == JINJA_STR) c->text = value.s;
    Jv with_tag = tagged(vm, value);
    for (size_t i = 0; i < count && !jv_bad(with_tag); i++) copies[i]->value = with_tag;
    return !vm->failed;
}

/* Cuts the rendered text at the tag; trailing white space goes when the template trimmed the tag's own. */
static bool continue_cut(Vm *vm, const Continuation *c, const Buffer *text, size_t *size) {
    const size_t tag_size = sizeof continue_tag - 2; /* without its space */
    Jv stripped = jinja_str_strip(vm, jv_str(c->text), jv_none(), true, true);
    if (jv_bad(stripped) || !jinja_str_flatten(vm, stripped.s)) return false;
    const char *data = text->data ? text->data : "", *last = NULL;
    bool found = stripped.s->size == 0 || memmem(data, text->size, stripped.s->data, stripped.s->size);
    for (const char *at = data; (at = memmem(at, text->size - (size_t)(at - data), continue_tag, tag_size)); at++)
        last = at;
    if (!found || !last)
        return continue_fail(vm, "the final message does not appear in the chat after applying the template");
    *size = (size_t)(last - data);
    if (*size + tag_size < text->size && last[tag_size] == ' ') return true;
    *size = jinja_strip_spaces(data, 0, *size);
    return true;
}

/* Time */

static bool set_now(Vm *vm, const Json *now) {
    if (!now) {
        struct timespec time;
        clock_gettime(CLOCK_REALTIME, &time);
        vm->now_us = time.tv_nsec / 1000;
        return localtime_r(&time.tv_sec, &vm->now) != NULL;
    }
    char text[40] = "";
    if (now->type == JSON_STRING && now->size < sizeof text) memcpy(text, now->string, now->size);
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &vm->now);
    if (!end && (end = strptime(text, "%Y-%m-%d", &vm->now)) && *end) end = NULL;
    if (!end) {
        jinja_fail(vm, "now must be a time like 2025-01-31T12:00:00");
        return false;
    }
    long unit = 100000;
    for (end += *end == '.'; *end >= '0' && *end <= '9'; end++, unit /= 10) vm->now_us += (*end - '0') * unit;
    struct tm time = vm->now;
    timegm(&time); /* the weekday and the day of the year */
    vm->now.tm_wday = time.tm_wday;
    vm->now.tm_yday = time.tm_yday;
    return true;
}

/* Rendering */

static void root_set(Vm *vm, Slice name, Jv value) {
    uint64_t id;
    if (map_get(&vm->template->name_ids, name, &id)) vm->root->root[id] = value;
}

static bool set_variables(Vm *vm, const Json *variables, Jv *messages, Continuation *c) {
    const Json *generate = json_get(variables, "add_generation_prompt"),
               *go_on = json_get(variables, "continue_final_message");
    for (size_t i = 0; i < jinja_globals.count; i++) {
        const JinjaFunction *function = &jinja_globals.functions[i];
        root_set(vm, slice_of(function->name), (Jv){.tag = JINJA_FUNCTION, .function = function});
    }
    *messages = messages_of(vm, json_get(variables, "messages"));
    if (jv_bad(*messages)) return false;
    root_set(vm, SLICE("messages"), *messages);
    root_set(vm, SLICE("tools"), jv_none());
    root_set(vm, SLICE("documents"), jv_none());
    root_set(vm, SLICE("add_generation_prompt"), jv_bool(false));
    for (JSON_EACH_PAIR(key, value, variables)) {
        Slice name = json_slice(key);
        if (slice_is(name, "messages") || slice_is(name, "continue_final_message") || slice_is(name, "now")) continue;
        bool objects = slice_is(name, "tools") || slice_is(name, "documents");
        if (objects && !check_objects(vm, value, slice_is(name, "tools") ? "tools" : "documents", true)) return false;
        if (!map_get(&vm->template->name_ids, name, NULL)) continue;
        Jv item = value_of(vm, value);
        if (jv_bad(item)) return false;
        if (item.tag == JINJA_STR && ends_with(name, "_token")) item.s->origin = ORIGIN_TEMPLATE;
        root_set(vm, name, item);
    }
    bool text = go_on && go_on->type == JSON_STRING;
    c->wanted = text ? go_on->size > 0 : go_on && go_on->type == JSON_BOOL && go_on->boolean;
    c->field = text ? json_slice(go_on) : SLICE("content");
    if (go_on && !text && go_on->type != JSON_BOOL && go_on->type != JSON_NULL) {
        return continue_fail(vm, "it is neither a boolean nor the name of a field");
    }
    if (c->wanted && generate && generate->type == JSON_BOOL && generate->boolean) {
        return continue_fail(vm, "it cannot be combined with add_generation_prompt");
    }
    return !c->wanted || continue_message(vm, *messages, c);
}

/* Hands the text over, with a span for each stretch of one origin up to size. */
static bool make_rendered(Vm *vm, JinjaText *text, size_t size, Rendered *out) {
    Span *spans = arena_alloc(&out->arena, text->run_count, sizeof *spans);
    if (!spans) {
        jinja_raise(vm, ERROR_MEMORY, "no memory for the prompt");
        return false;
    }
    out->text = text->bytes;
    out->text.limit = 0;
    text->bytes = (Buffer){0};
    out->text.size = size;
    if (out->text.data) out->text.data[size] = '\0';
    size_t from = 0;
    for (size_t i = 0; i < text->run_count && from < size; i++) {
        size_t to = text->runs[i].end < size ? text->runs[i].end : size;
        spans[out->span_count++] = (Span){{out->text.data + from, to - from}, text->runs[i].origin == ORIGIN_TEMPLATE};
        from = to;
    }
    out->spans = spans;
    return true;
}

static bool render(Vm *vm, const Json *variables, Rendered *out) {
    const Template *template = vm->template;
    JinjaScope *root = jinja_alloc(vm, 1, sizeof *root);
    Continuation c = {0};
    Jv messages;
    if (!root || !(root->root = jinja_alloc(vm, template->name_count, sizeof *root->root))) return false;
    for (size_t i = 0; i < template->name_count; i++) root->root[i].tag = JINJA_MISSING;
    vm->root = vm->scope = root;
    if (!set_now(vm, json_get(variables, "now")) || !set_variables(vm, variables, &messages, &c)) return false;
    JinjaText *text = jinja_text_push(vm);
    vm->out = text;
    if (!text || !jinja_run(vm, template->body)) return false;
    vm->line = 0;
    size_t size = text->bytes.size;
    return (!c.wanted || continue_cut(vm, &c, &text->bytes, &size)) && make_rendered(vm, text, size, out);
}

bool template_render(const Template *template, const Json *variables, Rendered *out, Error *error) {
    *out = (Rendered){0};
    if (variables->type != JSON_OBJECT) return fail(error, ERROR_FORMAT, "a template's variables must be an object");
    Vm vm;
    jinja_vm_init(&vm, &library, RENDER_CPU_MS, error);
    vm.template = template;
    bool ok = render(&vm, variables, out);
    jinja_vm_free(&vm);
    if (ok) return true;
    rendered_free(out);
    return fail_while(error, "chat template");
}

/* A model's files */

static bool read_config(const char *directory, const char *name, Arena *arena, const Json **out, Error *error) {
    char path[4096];
    Buffer text = {0};
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path) {
        return fail(error, ERROR_USAGE, "%s: the path is too long", directory);
    }
    if (!file_exists(path)) return true;
    bool ok = file_read(path, CONFIG_SIZE_MAX, &text, error);
    char *copy = ok ? arena_copy(arena, buffer_view(&text)) : NULL; /* strings point into it */
    if (ok && !copy) fail(error, ERROR_MEMORY, "no memory for the chat template of %s", path);
    if (copy && !(*out = json_parse(arena, (Slice){copy, text.size}, error))) fail_while(error, "%s", path);
    buffer_free(&text);
    return *out &&
        ((*out)->type == JSON_OBJECT ||
            fail(error, ERROR_FORMAT, "%s is %s, must be an object", path, json_type_name(*out)));
}

/* chat_template as a string, or a list of {name, template} with one named default. *out is NULL when there is none. */
static bool config_template(const Json *config, const Json **out, Error *error) {
    const Json *value = json_get(config, "chat_template");
    *out = NULL;
    if (value && value->type == JSON_ARRAY) {
        const Json *list = value;
        value = NULL;
        for (JSON_EACH(item, list)) {
            const Json *name = json_get(item, "name");
            if (!name || name->type != JSON_STRING)
                return fail(error, ERROR_FORMAT, "chat_template: an entry of the list has no name");
            if (slice_is(json_slice(name), "default")) value = json_get(item, "template");
        }
    }
    if (!value || value->type == JSON_NULL) return true;
    if (value->type != JSON_STRING)
        return fail(error, ERROR_FORMAT, "chat_template is %s, must be a string or a list of named templates",
            json_type_name(value));
    *out = value;
    return true;
}

static Template *open_file(const char *path, Error *error) {
    Buffer text = {0};
    Template *template = NULL;
    if (file_read(path, TEMPLATE_SOURCE_MAX, &text, error)) template = template_compile(buffer_view(&text), error);
    buffer_free(&text);
    if (!template) fail_while(error, "%s", path);
    return template;
}

Template *template_open(const char *directory, Error *error) {
    static const char *const configs[] = {"tokenizer_config.json", "chat_template.json"};
    char path[4096];
    if (snprintf(path, sizeof path, "%s/chat_template.jinja", directory) >= (int)sizeof path) {
        fail(error, ERROR_USAGE, "%s: the path is too long", directory);
        return NULL;
    }
    if (file_exists(path)) return open_file(path, error);
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        Arena arena = {0};
        const Json *config, *value;
        Template *template = NULL;
        bool ok = read_config(directory, configs[i], &arena, &config, error);
        if (ok && !config_template(config, &value, error)) ok = fail_while(error, "%s/%s", directory, configs[i]);
        const bool found = ok && value;
        if (found && !(template = template_compile(json_slice(value), error)))
            fail_while(error, "%s/%s", directory, configs[i]);
        arena_free(&arena);
        if (found || !ok) return template;
    }
    fail(error, ERROR_NOT_FOUND, "%s: no chat template", directory);
    return NULL;
}

bool template_token_variables(const char *directory, Buffer *out, Error *error) {
    Arena arena = {0};
    const Json *config;
    bool ok = read_config(directory, "tokenizer_config.json", &arena, &config, error);
    if (ok && config) {
        for (JSON_EACH_PAIR(key, value, config)) {
            if (!ends_with(json_slice(key), "_token")) continue;
            const Json *text = value->type == JSON_OBJECT ? json_get(value, "content") : value;
            if (!text || text->type != JSON_STRING) continue;
            buffer_byte(out, ',');
            json_write_string(out, json_slice(key));
            buffer_byte(out, ':');
            json_write_string(out, json_slice(text));
        }
    }
    arena_free(&arena);
    if (ok && out->failed) return fail(error, ERROR_MEMORY, "no memory for the special tokens of %s", directory);
    return ok;
}

bool template_debug_prompt(const Template *template, Slice json, Buffer *out, Error *error) {
    Arena arena = {.limit = TEMPLATE_MEMORY_MAX / 4};
    Rendered rendered = {0};
    const Json *variables = json_parse(&arena, json, error);
    bool ok = variables && template_render(template, variables, &rendered, error);
    if (ok) {
        buffer_text(out, "{\"prompt\":");
        json_write_string(out, buffer_view(&rendered.text));
        buffer_text(out, "}");
        if (out->failed) ok = fail(error, ERROR_MEMORY, "no memory for the prompt");
    }
    rendered_free(&rendered);
    arena_free(&arena);
    return ok;
}
