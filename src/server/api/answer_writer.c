#include "server/api/answer_writer.h"

#include <stdio.h>

#include "base/sha256.h"

void answer_call_id(const Exchange *x, int choice, int call, Slice name, char id[CALL_ID_BYTES]) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    enum { ID_CHARACTERS = 24, ID_NINE = 9 };
    const CallFormat *calls = x->model->calls;
    if (calls && calls->ids == CALL_ID_INDEXED) {
        snprintf(id, CALL_ID_BYTES, "functions.%.*s:%d", (int)name.size, name.data, call);
        return;
    }
    const bool nine = calls && calls->ids == CALL_ID_NINE;
    const int32_t which[] = {choice, call};
    uint8_t digest[SHA256_BYTES];
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, x->id, strlen(x->id));
    sha256_add(&sha, which, sizeof which);
    sha256_end(&sha, digest);
    int at = snprintf(id, CALL_ID_BYTES, "%s", nine ? "" : "call_");
    for (int i = 0; i < (nine ? ID_NINE : ID_CHARACTERS); i++) id[at++] = alphabet[digest[i] % (sizeof alphabet - 1)];
    id[at] = 0;
}

bool answer_has(const AnswerEvents *events, AnswerEventKind kind) {
    for (int i = 0; i < events->count; i++)
        if (events->list[i].kind == kind) return true;
    return false;
}

void answer_write_text(const AnswerEvents *events, AnswerEventKind kind, Buffer *out) {
    Buffer text = {0};
    for (int i = 0; i < events->count; i++)
        if (events->list[i].kind == kind) buffer_slice(&text, answer_event_text(events, i));
    json_write_string(out, buffer_view(&text));
    out->failed |= text.failed;
    buffer_free(&text);
}

int answer_next_call(const AnswerEvents *events, int from) {
    for (int i = from; i < events->count; i++)
        if (events->list[i].kind == ANSWER_CALL) return i;
    return -1;
}

void answer_arguments(const AnswerEvents *events, int call, Buffer *out) {
    for (int i = call + 1; i < events->count && events->list[i].kind == ANSWER_ARGUMENTS; i++)
        buffer_slice(out, answer_event_text(events, i));
}
