/* The tables of fields as docs/api.md has them. */
#include <math.h>

#include "server/fields.h"

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
    case FIELD_INTEGER:
    case FIELD_LONG: write_range(f, "integer", out); break;
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

void fields_write(Buffer *out) {
    size_t count;
    const Field *table = fields_all(&count);
    buffer_text(out, "| field | chat | completions | status | values | default | |\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < count; i++) {
        const Field *f = &table[i];
        buffer_printf(out, "| `%s` | %s | %s | %s | ", f->name, f->doors & DOOR_CHAT ? "✓" : "",
            f->doors & DOOR_TEXT ? "✓" : "", statuses[f->status]);
        write_form(f, out);
        buffer_printf(out, " | %s | %s |\n", f->standing, f->what);
    }
}

void door_fields_write(Buffer *out) {
    static const struct {
        unsigned doors;
        const char *name;
    } doors[] = {{DOOR_RESPONSES, "`/v1/responses`"}, {DOOR_MESSAGES, "`/v1/messages`"},
        {DOOR_OLLAMA_CHAT | DOOR_GENERATE, "`/api/chat`, `/api/generate`"}, {DOOR_OLLAMA_CHAT, "`/api/chat`"},
        {DOOR_GENERATE, "`/api/generate`"}, {DOOR_OLLAMA_EMBED, "`/api/embed`"}, {DOOR_EMBEDDINGS, "`/v1/embeddings`"},
        {DOOR_TOKENIZE, "`/tokenize`"}, {DOOR_DETOKENIZE, "`/detokenize`"}};
    size_t count;
    const DoorField *table = door_fields_all(&count);
    for (size_t d = 0; d < COUNT_OF(doors); d++) {
        buffer_printf(out, "%s| %s | status | values | |\n|---|---|---|---|\n", d ? "\n" : "", doors[d].name);
        for (size_t i = 0; i < count; i++) {
            const Field *f = &table[i].field;
            if (f->doors != doors[d].doors) continue;
            buffer_printf(out, "| `%s` | %s | ", f->name, statuses[f->status]);
            write_form(f, out);
            buffer_printf(out, " | %s |\n", f->what);
        }
    }
}
