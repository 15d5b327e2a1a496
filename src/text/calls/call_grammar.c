#include "text/calls/call_grammar.h"

/* ---- pieces of Lark ---- */

static void write_literal(Slice text, Buffer *out) {
    buffer_text(out, " \"");
    for (size_t i = 0; i < text.size; i++) {
        const char c = text.data[i];
        if (c == '\n')
            buffer_text(out, "\\n");
        else if (c == '"' || c == '\\')
            buffer_printf(out, "\\%c", c);
        else
            buffer_byte(out, c);
    }
    buffer_byte(out, '"');
}

static void write_marker(const char *text, Buffer *out) {
    if (text && text[0]) write_literal(slice_of(text), out);
}

/* Any text without the marker that ends it, of so many characters. */
static void write_free_text(const char *end, uint64_t min, uint64_t max, Buffer *out) {
    const Slice marker = call_marker(end);
    buffer_text(out, " /(?![\\s\\S]*");
    for (size_t i = 0; i < marker.size; i++) {
        const char c = marker.data[i];
        if (c && strchr("\\/.*+?()[]{}|^$-", c)) buffer_byte(out, '\\');
        buffer_byte(out, c);
    }
    buffer_text(out, ")[\\s\\S]");
    if (max < UINT64_MAX)
        buffer_printf(out, "{%llu,%llu}/", (unsigned long long)min, (unsigned long long)max);
    else if (min > 0)
        buffer_printf(out, "{%llu,}/", (unsigned long long)min);
    else
        buffer_text(out, "*/");
}

/* ---- schemas ---- */

static bool is_type(const Json *schema, const char *type) {
    const Json *value = json_get(schema, "type");
    return value && value->type == JSON_STRING && slice_is(json_slice(value), type);
}

static uint64_t limit_of(const Json *schema, const char *name, uint64_t otherwise) {
    const Json *value = json_get(schema, name);
    return value && value->type == JSON_INTEGER && value->integer >= 0 ? (uint64_t)value->integer : otherwise;
}

/* A schema that stands in the parameters, with what it may refer to; type: it is that, if it does not say what. */
static void write_schema(const Json *root, const Json *schema, const char *type, Buffer *out) {
    static const char *const shared[] = {"$defs", "definitions"};
    bool first = true;
    buffer_text(out, " %json {");
    if (type && !json_get(schema, "type")) {
        buffer_printf(out, "\"type\":\"%s\"", type);
        first = false;
    }
    if (schema && schema->type == JSON_OBJECT)
        for (JSON_EACH_PAIR(key, value, schema)) {
            if (!first) buffer_byte(out, ',');
            first = false;
            json_write(out, key);
            buffer_byte(out, ':');
            json_write(out, value);
        }
    for (size_t i = 0; i < COUNT_OF(shared) && root != schema; i++) {
        const Json *definitions = json_get(root, shared[i]);
        if (!definitions || json_get(schema, shared[i])) continue;
        buffer_printf(out, "%s\"%s\":", first ? "" : ",", shared[i]);
        first = false;
        json_write(out, definitions);
    }
    buffer_byte(out, '}');
}

static void write_object(const CallTool *tool, Buffer *out) {
    if (tool->loose)
        buffer_text(out, " %json {\"type\":\"object\"}");
    else if (tool->parameters)
        write_schema(tool->parameters, tool->parameters, "object", out);
    else
        buffer_text(out, " %json {\"type\":\"object\",\"additionalProperties\":false}");
}

static bool is_required(const Json *parameters, Slice name) {
    const Json *required = json_get(parameters, "required");
    if (!required || required->type != JSON_ARRAY) return false;
    for (JSON_EACH(one, required))
        if (one->type == JSON_STRING && slice_equal(json_slice(one), name)) return true;
    return false;
}

/* ---- arguments one by one ---- */

/* A name that needs no quotes in any format. */
static bool plain_key(Slice key) {
    for (size_t i = 0; i < key.size; i++) {
        const char c = key.data[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && !(i > 0 && ((c >= '0' && c <= '9') || c == '-' || c == '.'))) return false;
    }
    return key.size > 0;
}

/* A text between markers, as it is. */
static void write_plain_string(const Json *schema, const char *end, Buffer *out) {
    const Json *values = json_get(schema, "enum"), *value = json_get(schema, "const");
    if (value && value->type == JSON_STRING) {
        write_literal(json_slice(value), out);
    } else if (values && values->type == JSON_ARRAY && values->size > 0) {
        const char *before = " (";
        for (JSON_EACH(one, values)) {
            if (one->type != JSON_STRING) continue;
            buffer_text(out, before);
            write_literal(json_slice(one), out);
            before = " |";
        }
        buffer_text(out, before[1] == '|' ? ")" : " \"\"");
    } else {
        write_free_text(end, limit_of(schema, "minLength", 0), limit_of(schema, "maxLength", UINT64_MAX), out);
    }
}

/* Strings that only JSON can be asked for. */
static bool needs_json(const Json *schema) { return json_get(schema, "pattern") || json_get(schema, "format"); }

static void write_value(const CallFormat *f, const Json *root, const Json *schema, Buffer *out) {
    const bool string = is_type(schema, "string");
    if (f->syntax == CALL_TAGGED && string) {
        write_plain_string(schema, f->value_end, out);
    } else if (f->syntax == CALL_BRACES && string && !needs_json(schema)) {
        write_marker(f->quote, out);
        write_plain_string(schema, f->quote, out);
        write_marker(f->quote, out);
    } else if (f->syntax == CALL_PYTHON && is_type(schema, "boolean")) {
        buffer_text(out, " (\"True\" | \"False\")");
    } else {
        write_schema(root, schema, NULL, out);
    }
}

static void write_argument(const CallFormat *f, const Json *root, Slice key, const Json *schema, Buffer *out) {
    if (f->syntax == CALL_TAGGED) {
        Buffer before = {0};
        buffer_text(&before, f->key_begin);
        buffer_slice(&before, key);
        buffer_text(&before, f->key_end);
        if (f->typed) buffer_printf(&before, " string=\"%s\"", is_type(schema, "string") ? "true" : "false");
        buffer_text(&before, f->value_begin ? f->value_begin : "");
        write_literal(buffer_view(&before), out);
        out->failed |= before.failed;
        buffer_free(&before);
        write_value(f, root, schema, out);
        write_marker(f->value_end, out);
        return;
    }
    write_literal(key, out);
    write_literal(f->syntax == CALL_PYTHON ? SLICE("=") : SLICE(":"), out);
    write_value(f, root, schema, out);
}

/* Rules that chain the properties in order, those that need not be there left out at will: a{tool}_{i} before any is
 * written, m{tool}_{i} behind one. */
static void write_chain(const CallFormat *f, int tool, const Json *parameters, Buffer *out) {
    const char *separator = f->syntax == CALL_TAGGED ? NULL : f->syntax == CALL_PYTHON ? ", " : ",";
    const Json *properties = json_get(parameters, "properties");
    int i = 0;
    if (properties && properties->type == JSON_OBJECT)
        for (JSON_EACH_PAIR(name, schema, properties)) {
            const Slice key = json_slice(name);
            if (!plain_key(key)) continue;
            buffer_printf(out, "p%d_%d:", tool, i);
            write_argument(f, parameters, key, schema, out);
            const char *skip = is_required(parameters, key) ? "" : " | ";
            buffer_printf(out, "\na%d_%d: p%d_%d m%d_%d", tool, i, tool, i, tool, i + 1);
            if (skip[0]) buffer_printf(out, "%sa%d_%d", skip, tool, i + 1);
            buffer_printf(out, "\nm%d_%d:", tool, i);
            write_marker(separator, out);
            buffer_printf(out, " p%d_%d m%d_%d", tool, i, tool, i + 1);
            if (skip[0]) buffer_printf(out, "%sm%d_%d", skip, tool, i + 1);
            buffer_byte(out, '\n');
            i++;
        }
    buffer_printf(out, "a%d_%d: \"\"\nm%d_%d: \"\"\n", tool, i, tool, i);
}

/* Any arguments: names and values are the model's to choose. */
static void write_any(const CallFormat *f, int tool, Buffer *out) {
    static const char name[] = " /[A-Za-z_][A-Za-z0-9_]*/";
    buffer_printf(out, "p%d:", tool);
    if (f->syntax == CALL_TAGGED) {
        write_marker(f->key_begin, out);
        buffer_text(out, name);
        write_marker(f->key_end, out);
        if (f->typed) buffer_text(out, " / string=\"(true|false)\"/");
        write_marker(f->value_begin, out);
        write_free_text(f->value_end, 0, UINT64_MAX, out);
        write_marker(f->value_end, out);
        buffer_printf(out, "\na%d_0: p%d*\n", tool, tool);
        return;
    }
    const bool python = f->syntax == CALL_PYTHON;
    buffer_printf(out, "%s \"%s\" %%json {}\na%d_0: \"\" | p%d (\"%s\" p%d)*\n", name, python ? "=" : ":", tool, tool,
        python ? ", " : ",", tool);
}

/* ---- calls ---- */

static void write_tool(const CallFormat *f, int index, const CallTool *tool, Buffer *out) {
    const bool whole = call_format_is_whole(f);
    buffer_printf(out, "c%d:", index);
    write_marker(f->head, out);
    write_literal(tool->name, out);
    if (f->ids == CALL_ID_INDEXED) buffer_text(out, " \":\" /[0-9]{1,2}/");
    write_marker(f->neck, out);
    if (whole)
        write_object(tool, out);
    else
        buffer_printf(out, " a%d_0", index);
    write_marker(f->foot, out);
    buffer_byte(out, '\n');
    if (whole) return;
    if (tool->loose)
        write_any(f, index, out);
    else
        write_chain(f, index, tool->parameters, out);
}

/* A group of calls, and what may come behind it. */
static void write_section(const CallRules *r, const char *name, bool open, Buffer *out) {
    const CallFormat *f = r->format;
    const char *close = open && f->syntax != CALL_CHANNELS ? f->close : NULL;
    const bool many = !r->single && f->syntax != CALL_CHANNELS;
    buffer_printf(out, "%s:", name);
    if (open) write_marker(f->open, out);
    write_marker(f->list_open, out);
    buffer_text(out, " call");
    if (many && (f->section || !open)) {
        buffer_text(out, " (");
        write_marker(f->next, out);
        buffer_text(out, " call)*");
    }
    write_marker(f->list_close, out);
    write_marker(close, out);
    if (many && open && !f->section && !r->followed) {
        buffer_text(out, " (");
        write_marker(f->next, out);
        buffer_printf(out, " %s)?", name);
    }
    buffer_byte(out, '\n');
}

void call_grammar_write(const CallRules *r, Buffer *out) {
    buffer_printf(out, "start: %s", r->announced && r->bare ? "marked | bare" : r->bare ? "bare" : "marked");
    if (r->otherwise.data) {
        buffer_text(out, " | %json ");
        buffer_slice(out, r->otherwise);
    }
    buffer_byte(out, '\n');
    if (r->announced) write_section(r, "marked", true, out);
    if (r->bare) write_section(r, "bare", false, out);
    buffer_text(out, "call:");
    for (int i = 0; i < r->count; i++) buffer_printf(out, "%s c%d", i ? " |" : "", i);
    buffer_byte(out, '\n');
    for (int i = 0; i < r->count; i++) write_tool(r->format, i, &r->tools[i], out);
}
