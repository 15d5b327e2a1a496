#include "text/calls/call_grammar.h"

#include "text/grammar/grammar.h"

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

/* ---- arguments ---- */

static void write_text(const char *text, Buffer *out) { write_literal(slice_of(text ? text : ""), out); }

/* Valid arguments in the format's spelling. */
static void write_arguments(const CallFormat *f, const CallTool *tool, Buffer *out) {
    const bool tagged = f->syntax == CALL_TAGGED, braces = f->syntax == CALL_BRACES;
    buffer_text(out, " " GRAMMAR_ARGUMENTS);
    write_text(tagged ? "tagged" : braces ? "braces" : f->syntax == CALL_PYTHON ? "python" : "json", out);
    write_text(f->typed ? "typed" : "", out);
    write_text(tool->keeps == CALL_KEEPS_PART ? "lenient" : "", out);
    write_text(tagged ? f->key_begin : "", out);
    write_text(tagged ? f->key_end : "", out);
    write_text(tagged ? f->value_begin : "", out);
    write_text(tagged ? f->value_end : braces ? f->quote : "", out);
    buffer_byte(out, ' ');
    if (tool->keeps == CALL_KEEPS_NOTHING)
        buffer_text(out, "{}");
    else if (tool->parameters && tool->parameters->type == JSON_OBJECT)
        json_write(out, tool->parameters);
    else
        buffer_text(out, "{\"additionalProperties\":false}");
}

/* ---- calls ---- */

static void write_tool(const CallFormat *f, int index, const CallTool *tool, Buffer *out) {
    buffer_printf(out, "c%d:", index);
    write_marker(f->head, out);
    write_literal(tool->name, out);
    if (f->ids == CALL_ID_INDEXED) buffer_text(out, " \":\" /[0-9]{1,2}/");
    write_marker(f->neck, out);
    write_arguments(f, tool, out);
    write_marker(f->foot, out);
    buffer_byte(out, '\n');
}

/* A group of calls and its continuations. */
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
        buffer_text(out, " | " GRAMMAR_ANSWER " ");
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
