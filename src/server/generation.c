#include "server/generation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { READ_AT_ONCE = 32, POLL_MS = 5 };

const char *finish_name(Finish finish) { return finish == FINISH_LENGTH ? "length" : "stop"; }

static bool open_choice(Generation *g, Choice *choice, const ApiRequest *params, ApiError *error) {
    Error why;
    stream_text_init(&choice->stream);
    for (int i = 0; i < params->stop_count; i++) choice->stream.stops[i] = params->stops[i];
    choice->stream.stop_count = params->stop_count;
    choice->detokenizer = detokenizer_new(g->tokenizer, true, &why);
    return choice->detokenizer || api_fail(error, 503, "out_of_memory", NULL, "Out of memory.");
}

static bool submit(Generation *g, const ApiRequest *params, const Tokens *prompt, Request **request, ApiError *error) {
    const RequestOptions options = {
        .prompt = prompt->ids,
        .prompt_count = (int)prompt->count,
        .max_tokens = params->max_tokens > 0 ? (int)params->max_tokens
            : params->max_tokens == 0        ? 1
                                             : INT32_MAX,
        .choices = params->choices,
        .echo_logprobs = params->echo && params->logprobs,
        .sampling = params->sampling,
    };
    Error why = {0};
    *request = engine_submit(g->engine, &options, &why);
    if (*request) return true;
    const char *field = params->messages ? "messages" : "prompt";
    if (why.code == ERROR_BUSY) return api_fail(error, 429, "queue_full", NULL, "The server is busy: %s.", why.text);
    if (why.code == ERROR_LIMIT) return api_fail(error, 400, "context_length_exceeded", field, "%s.", why.text);
    if (why.code == ERROR_CANCELLED) return api_fail(error, 503, "shutting_down", NULL, "The server is shutting down.");
    if (why.code == ERROR_MEMORY) return api_fail(error, 503, "out_of_memory", NULL, "%s.", why.text);
    return api_fail(error, 500, "engine_error", NULL, "%s.", why.text);
}

static bool check_context(const Generation *g, const ApiRequest *params, const Tokens *prompt, ApiError *error) {
    const int64_t context = model_context(engine_model(g->engine));
    const int64_t wanted = params->max_tokens > 0 ? params->max_tokens : params->max_tokens < 0 ? 1 : 0;
    if (prompt->count > INT32_MAX || (int64_t)prompt->count + wanted > context)
        return api_fail(error, 400, "context_length_exceeded", params->messages ? "messages" : "prompt",
            "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%zu in the %s, "
            "%lld "
            "in the completion). Please reduce the length of the %s or completion.",
            (long long)context, (long long)((int64_t)prompt->count + wanted), prompt->count,
            params->messages ? "messages" : "prompt", (long long)wanted, params->messages ? "messages" : "prompt");
    return true;
}

bool generation_open(Generation *g, Engine *engine, const Tokenizer *tokenizer, const ApiRequest *params,
    const Tokens *prompts, int prompt_count, ApiError *error) {
    *g = (Generation){.engine = engine, .tokenizer = tokenizer, .logprobs = params->logprobs};
    for (int p = 0; p < prompt_count; p++)
        if (!check_context(g, params, &prompts[p], error)) return false;
    g->requests = arena_alloc(params->arena, (size_t)prompt_count, sizeof *g->requests);
    g->choices = arena_alloc(params->arena, (size_t)prompt_count * (size_t)params->choices, sizeof *g->choices);
    if (!g->requests || !g->choices) return api_fail(error, 503, "out_of_memory", NULL, "Out of memory.");
    for (int p = 0; p < prompt_count; p++) {
        if (!submit(g, params, &prompts[p], &g->requests[p], error)) goto failed;
        g->request_count++;
        g->prompt_tokens += (int64_t)prompts[p].count;
        for (int c = 0; c < params->choices; c++) {
            Choice *choice = &g->choices[g->choice_count];
            choice->request = g->requests[p];
            choice->request_choice = c;
            choice->index = g->choice_count++;
            snprintf(choice->index_text, sizeof choice->index_text, "%d", choice->index);
            if (!open_choice(g, choice, params, error)) goto failed;
        }
    }
    return true;
failed:
    generation_close(g);
    return false;
}

void generation_close(Generation *g) {
    for (int i = 0; i < g->request_count; i++) request_free(g->requests[i]);
    for (int i = 0; i < g->choice_count; i++) {
        Choice *choice = &g->choices[i];
        detokenizer_free(choice->detokenizer);
        stream_text_free(&choice->stream);
        buffer_free(&choice->pending);
        free(choice->tokens);
    }
    buffer_free(&g->piece);
    *g = (Generation){0};
}

bool generation_done(const Generation *g) { return g->ended == g->choice_count; }

int64_t generation_completion_tokens(const Generation *g) {
    int64_t total = 0;
    for (int i = 0; i < g->choice_count; i++) total += g->choices[i].generated;
    return total;
}

static bool keep_token(Choice *choice, const TokenOut *token, ApiError *error) {
    if (choice->token_count == choice->token_capacity) {
        const int capacity = choice->token_capacity ? choice->token_capacity * 2 : 16;
        TokenOut *grown = realloc(choice->tokens, (size_t)capacity * sizeof *grown);
        if (!grown) return api_fail(error, 503, "out_of_memory", NULL, "Out of memory.");
        choice->tokens = grown;
        choice->token_capacity = capacity;
    }
    choice->tokens[choice->token_count++] = *token;
    return true;
}

static void end_choice(Generation *g, Choice *choice, Finish finish) {
    choice->finish = finish;
    g->ended++;
}

/* Takes one token in. A stop string ends the choice. */
static bool take_token(Generation *g, Choice *choice, const TokenOut *token, ApiError *error) {
    Error why;
    choice->generated++;
    if (g->logprobs && !keep_token(choice, token, error)) return false;
    buffer_clear(&g->piece);
    if (!detokenizer_push(choice->detokenizer, token->id, &g->piece, &why))
        return api_fail(error, 500, "engine_error", NULL, "%s.", why.text);
    if (stream_text_push(&choice->stream, buffer_view(&g->piece), &choice->pending)) {
        request_stop_choice(choice->request, choice->request_choice);
        end_choice(g, choice, FINISH_STOP);
    }
    return true;
}

static bool finish_choice(Generation *g, Choice *choice, Finish finish, ApiError *error) {
    Error why;
    buffer_clear(&g->piece);
    if (!detokenizer_finish(choice->detokenizer, &g->piece, &why))
        return api_fail(error, 500, "engine_error", NULL, "%s.", why.text);
    if (stream_text_push(&choice->stream, buffer_view(&g->piece), &choice->pending))
        finish = FINISH_STOP;
    else
        stream_text_finish(&choice->stream, &choice->pending);
    end_choice(g, choice, finish);
    return true;
}

static bool drain_choice(Generation *g, Choice *choice, ApiError *error) {
    TokenOut tokens[READ_AT_ONCE];
    Finish finish = FINISH_NONE;
    if (choice->finish != FINISH_NONE) /* ended by a stop string: what was computed beyond it goes unseen */
        while (request_read(choice->request, choice->request_choice, tokens, READ_AT_ONCE, 0, &finish) > 0) continue;
    while (choice->finish == FINISH_NONE) {
        const int count = request_read(choice->request, choice->request_choice, tokens, READ_AT_ONCE, 0, &finish);
        for (int i = 0; i < count && choice->finish == FINISH_NONE; i++)
            if (!take_token(g, choice, &tokens[i], error)) return false;
        if (choice->finish != FINISH_NONE || (count < READ_AT_ONCE && finish == FINISH_NONE)) break;
        if (finish == FINISH_NONE) continue;
        if (finish == FINISH_ERROR) {
            Error why = {0};
            request_error(choice->request, &why);
            const bool memory = why.code == ERROR_MEMORY || why.code == ERROR_LIMIT;
            return api_fail(
                error, memory ? 503 : 500, memory ? "out_of_memory" : "engine_error", NULL, "%s.", why.text);
        }
        if (finish == FINISH_CANCELLED)
            return api_fail(error, 503, "shutting_down", NULL, "The server is shutting down.");
        if (!finish_choice(g, choice, finish, error)) return false;
    }
    return !choice->pending.failed || api_fail(error, 503, "out_of_memory", NULL, "Out of memory.");
}

bool generation_take(Generation *g, ApiError *error) {
    bool ok = true;
    for (int i = 0; i < g->choice_count && ok; i++) ok = drain_choice(g, &g->choices[i], error);
    return ok;
}

bool generation_pump(Generation *g, int timeout_ms, ApiError *error) {
    const int wait_ms = g->request_count == 1 ? timeout_ms : POLL_MS;
    if (g->request_count > 0) request_wait(g->requests[g->next++ % g->request_count], wait_ms);
    return generation_take(g, error);
}

void write_usage(Buffer *out, const Generation *g) {
    int64_t cached = 0;
    for (int i = 0; i < g->request_count; i++) cached += request_stats(g->requests[i]).cached_tokens;
    const int64_t generated = generation_completion_tokens(g);
    buffer_printf(out,
        "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"prompt_tokens_details\":"
        "{\"cached_tokens\":%lld},\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
        (long long)g->prompt_tokens, (long long)generated, (long long)(g->prompt_tokens + generated),
        (long long)cached);
}

void write_token_text(Buffer *out, const Tokenizer *tokenizer, int32_t id) {
    Buffer bytes = {0};
    Error why;
    if (!tokenizer_bytes(tokenizer, id, &bytes, &why)) buffer_clear(&bytes);
    json_write_string(out, buffer_view(&bytes));
    buffer_free(&bytes);
}

static void write_logprob_entry(Buffer *out, const Tokenizer *tokenizer, int32_t id, float logprob) {
    Buffer bytes = {0};
    Error why;
    if (!tokenizer_bytes(tokenizer, id, &bytes, &why)) buffer_clear(&bytes);
    buffer_text(out, "{\"token\":");
    json_write_string(out, buffer_view(&bytes));
    buffer_text(out, ",\"logprob\":");
    json_write_number(out, isfinite(logprob) ? logprob : -9999.0); /* OpenAI's value for "impossible" */
    buffer_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.size; i++) buffer_printf(out, "%s%d", i ? "," : "", (unsigned char)bytes.data[i]);
    buffer_byte(out, ']');
    buffer_free(&bytes);
}

void write_chat_logprobs(Buffer *out, Generation *g, Choice *choice) {
    buffer_text(out, "{\"content\":[");
    for (int i = 0; i < choice->token_count; i++) {
        const TokenOut *token = &choice->tokens[i];
        if (i) buffer_byte(out, ',');
        write_logprob_entry(out, g->tokenizer, token->id, token->logprob);
        buffer_text(out, ",\"top_logprobs\":[");
        for (int k = 0; k < token->top_count; k++) {
            if (k) buffer_byte(out, ',');
            write_logprob_entry(out, g->tokenizer, token->top[k].id, token->top[k].logprob);
            buffer_byte(out, '}');
        }
        buffer_text(out, "]}");
    }
    buffer_text(out, "],\"refusal\":null}");
    choice->token_count = 0;
}
