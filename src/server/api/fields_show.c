/* The tables of fields as the documents of docs/api show them. */
#include <math.h>

#include "server/api/fields.h"
#include "server/api/object_members.h"

static void write_range(const Field *f, const char *type, Buffer *out) {
    buffer_text(out, type);
    if (f->max == INT32_MAX)
        buffer_printf(out, " ≥ %s%g", f->min < 0 ? "−" : "", fabs(f->min));
    else if (f->max > 0)
        buffer_printf(out, ", %s%g…%g", f->min < 0 ? "−" : "", fabs(f->min), f->max);
}

static void write_form(const Field *f, Buffer *out) {
    if (f->form) {
        buffer_text(out, f->form);
        return;
    }
    switch (f->type) {
    case FIELD_NUMBER: write_range(f, "number", out); break;
    case FIELD_INTEGER: write_range(f, "integer", out); break;
    case FIELD_BOOL: buffer_text(out, "boolean"); break;
    case FIELD_TEXT:
        buffer_text(out, "string");
        if (f->max > 0) buffer_printf(out, " ≤ %g characters", f->max);
        break;
    case FIELD_ARRAY: write_range(f, "array", out); break;
    case FIELD_OBJECT: buffer_text(out, "object"); break;
    case FIELD_ANY: buffer_text(out, "anything"); break;
    }
}

static const char *const statuses[] = {[FIELD_HONOURED] = "honoured",
    [FIELD_EXTENSION] = "extension",
    [FIELD_ACCEPTED] = "accepted",
    [FIELD_NEUTRAL] = "neutral",
    [FIELD_REFUSED] = "refused"};

static const FieldTable tables[] = {
    {"docs/api/openai.md", "/v1/chat/completions, /v1/completions", API_CHAT | API_COMPLETIONS, API_CHAT},
    {"docs/api/openai.md", "/v1/embeddings", API_EMBEDDINGS, 0},
    {"docs/api/openai.md", "/v1/audio/transcriptions, /v1/audio/translations", API_TRANSCRIPTION | API_TRANSLATION, 0},
    {"docs/api/openai.md", "/v1/audio/transcriptions", API_TRANSCRIPTION, 0},
    {"docs/api/responses.md", "/v1/responses", API_RESPONSES, API_RESPONSES},
    {"docs/api/anthropic.md", "/v1/messages", API_MESSAGES, API_MESSAGES},
    {"docs/api/ollama.md", "/api/chat, /api/generate", API_OLLAMA_CHAT | API_OLLAMA_GENERATE, 0},
    {"docs/api/ollama.md", "/api/chat", API_OLLAMA_CHAT, API_OLLAMA_CHAT},
    {"docs/api/ollama.md", "/api/generate", API_OLLAMA_GENERATE, 0},
    {"docs/api/ollama.md", "/api/embed", API_OLLAMA_EMBED, 0},
    {"docs/api/native.md", "/v1/rerank", API_RERANK, 0},
    {"docs/api/native.md", "/tokenize", API_TOKENIZE, 0},
    {"docs/api/native.md", "/detokenize", API_DETOKENIZE, 0},
};

const FieldTable *field_tables(size_t *count) {
    *count = COUNT_OF(tables);
    return tables;
}

static void write_openai_rows(Buffer *out) {
    size_t count;
    const Field *fields = fields_all(&count);
    buffer_text(out, "| field | chat | completions | status | values | default | |\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < count; i++) {
        const Field *f = &fields[i];
        buffer_printf(out, "| `%s` | %s | %s | %s | ", f->name, f->apis & API_CHAT ? "✓" : "",
            f->apis & API_COMPLETIONS ? "✓" : "", statuses[f->status]);
        write_form(f, out);
        buffer_printf(out, " | %s | %s |\n", f->standing, f->what);
    }
}

void field_table_write(const FieldTable *table, Buffer *out) {
    buffer_printf(out, "<!-- fields of %s -->\n", table->routes);
    if (table->apis & API_CHAT) {
        write_openai_rows(out);
        return;
    }
    size_t count;
    const Field *fields = adapter_fields_all(&count);
    buffer_text(out, "| field | status | values | |\n|---|---|---|---|\n");
    for (size_t i = 0; i < count; i++) {
        const Field *f = &fields[i];
        if (f->apis != table->apis) continue;
        buffer_printf(out, "| `%s` | %s | ", f->name, statuses[f->status]);
        write_form(f, out);
        buffer_printf(out, " | %s |\n", f->what);
    }
}

static void write_names(const char *names, Buffer *out) {
    for (const char *at = names; *at; at += strspn(at, " ")) {
        const size_t size = strcspn(at, " ");
        buffer_printf(out, "%s`%.*s`", at == names ? "" : ", ", (int)size, at);
        at += size;
    }
}

void member_table_write(const FieldTable *table, Buffer *out) {
    size_t count;
    const ObjectMembers *rows = object_members_all(&count);
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        const ObjectMembers *row = &rows[i];
        if (!(row->apis & table->objects)) continue;
        if (!any)
            buffer_printf(out,
                "<!-- members in %s -->\n| object | type | read | no effect | refused |\n|---|---|---|---|---|\n",
                table->routes);
        any = true;
        buffer_printf(out, "| `%s` | %s | ", row->path, row->type ? row->type : "");
        write_names(row->read, out);
        buffer_text(out, " | ");
        write_names(row->without_effect, out);
        buffer_text(out, " | ");
        write_names(row->refused, out);
        buffer_text(out, " |\n");
    }
}
