#include "server/shape.h"

#include <math.h>

void shape_head(Exchange *x, const char *object, Buffer *out) {
    buffer_printf(
        out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object, (long long)x->created);
    json_write_string(out, slice_of(x->model->name));
    buffer_printf(out, ",\"system_fingerprint\":\"%s\"", x->model->fingerprint);
}

void shape_event_head(Exchange *x, const char *object, Buffer *out) {
    if (x->head.size == 0) {
        buffer_text(&x->head, "data: ");
        shape_head(x, object, &x->head);
    }
    buffer_slice(out, buffer_view(&x->head));
    out->failed |= x->head.failed;
}

const char *shape_finish(Finish finish) { return finish == FINISH_LENGTH ? "length" : "stop"; }

void shape_usage(const Generation *g, Buffer *out) {
    const int64_t generated = generation_answer_tokens(g);
    buffer_printf(out,
        "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"prompt_tokens_details\":"
        "{\"cached_tokens\":%lld},\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
        (long long)g->prompt_tokens, (long long)generated, (long long)(g->prompt_tokens + generated),
        (long long)generation_cached_tokens(g));
}

/* An id outside the vocabulary has no bytes; memory that ends must not look like that. */
static void token_bytes(const Exchange *x, int32_t id, Buffer *bytes, Buffer *out) {
    Error why;
    if (!tokenizer_bytes(x->model->tokenizer, id, bytes, &why)) {
        out->failed |= why.code == ERROR_MEMORY;
        buffer_clear(bytes);
    }
}

int64_t shape_token(const Exchange *x, int32_t id, Buffer *out) {
    Buffer bytes = {0};
    token_bytes(x, id, &bytes, out);
    json_write_string(out, buffer_view(&bytes));
    int64_t characters = 0;
    for (size_t i = 0; i < bytes.size; i++) characters += ((unsigned char)bytes.data[i] & 0xC0) != 0x80;
    buffer_free(&bytes);
    return characters;
}

void shape_logprob(float logprob, Buffer *out) {
    json_write_number(out, isfinite(logprob) ? logprob : -9999.0); /* OpenAI's value for "impossible" */
}

/* Without the closing brace. */
static void chat_entry(const Exchange *x, int32_t id, float logprob, Buffer *out) {
    Buffer bytes = {0};
    token_bytes(x, id, &bytes, out);
    buffer_text(out, "{\"token\":");
    json_write_string(out, buffer_view(&bytes));
    buffer_text(out, ",\"logprob\":");
    shape_logprob(logprob, out);
    buffer_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.size; i++) buffer_printf(out, "%s%d", i ? "," : "", (unsigned char)bytes.data[i]);
    buffer_byte(out, ']');
    buffer_free(&bytes);
}

void shape_chat_logprobs(const Exchange *x, Choice *choice, Buffer *out) {
    buffer_text(out, "{\"content\":[");
    for (int i = 0; i < choice->token_count; i++) {
        const TokenOut *token = &choice->tokens[i];
        if (i) buffer_byte(out, ',');
        chat_entry(x, token->id, token->logprob, out);
        buffer_text(out, ",\"top_logprobs\":[");
        for (int k = 0; k < token->top_count; k++) {
            if (k) buffer_byte(out, ',');
            chat_entry(x, token->top[k].id, token->top[k].logprob, out);
            buffer_byte(out, '}');
        }
        buffer_text(out, "]}");
    }
    buffer_text(out, "],\"refusal\":null}");
    choice->token_count = 0;
}
