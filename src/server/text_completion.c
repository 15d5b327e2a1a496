/* POST /v1/completions: prompts as text or token ids, echo, and the older shape of logprobs. */
#include <math.h>
#include <stdio.h>

#include "base/utf8.h"
#include "server/exchange.h"

static bool out_of_memory(ApiError *error) { return api_fail(error, 503, "out_of_memory", NULL, "Out of memory."); }

static bool take_text(Exchange *x, const Json *value, const char *param, ApiError *error) {
    Slice text;
    if (!api_string(value, param, &text, error)) return false;
    Tokens *prompt = &x->prompts[x->prompt_count];
    x->prompt_texts[x->prompt_count++] = text;
    Error why = {0};
    if (!tokenizer_encode(x->server->tokenizer, text, CONTROL_AS_TEXT, true, prompt, &why))
        return api_fail(error, 400, "invalid_value", param, "%s.", why.text);
    return prompt->count > 0 ||
        api_fail(error, 400, "invalid_value", param, "Invalid '%s': the prompt is empty.", param);
}

static bool take_ids(Exchange *x, const Json *value, const char *param, ApiError *error) {
    Tokens *prompt = &x->prompts[x->prompt_count];
    const int number = x->prompt_count++;
    if (value->size == 0)
        return api_fail(error, 400, "invalid_value", param, "Invalid '%s': the prompt is empty.", param);
    int index = 0;
    for (JSON_EACH(item, value)) {
        char path[API_PARAM_MAX];
        snprintf(path, sizeof path, "%.64s[%d]", param, index++);
        int64_t id;
        if (!api_integer(item, path, 0, x->params.vocab - 1, &id, error)) return false;
        if (!tokens_push(prompt, (int32_t)id)) return out_of_memory(error);
    }
    if (!x->params.echo) return true;
    Buffer text = {0};
    Error why = {0};
    bool ok = tokenizer_decode(x->server->tokenizer, prompt->ids, prompt->count, false, &text, &why);
    char *copy = ok ? arena_copy(&x->arena, buffer_view(&text)) : NULL;
    if (copy) x->prompt_texts[number] = (Slice){copy, text.size};
    buffer_free(&text);
    return copy || out_of_memory(error);
}

/* string | [string] | [id] | [[id]] */
static bool take_prompts(Exchange *x, ApiError *error) {
    const Json *prompt = x->params.prompt;
    const bool list = prompt->type == JSON_ARRAY;
    if (list && prompt->size == 0)
        return api_fail(error, 400, "empty_array", "prompt", "Invalid 'prompt': empty array.");
    const bool many = list && json_first(prompt)->type != JSON_INTEGER;
    const uint32_t count = many ? prompt->size : 1;
    if (count > PROMPTS_MAX)
        return api_fail(error, 400, "array_above_max_length", "prompt", "Invalid 'prompt': at most %d prompts, got %u.",
            PROMPTS_MAX, count);
    if (count * (uint32_t)x->params.choices > CHOICES_MAX)
        return api_fail(error, 400, "integer_above_max_value", "n",
            "Invalid 'n': at most %d choices over all prompts, got %u.", CHOICES_MAX,
            count * (uint32_t)x->params.choices);
    x->prompts = arena_alloc(&x->arena, count, sizeof *x->prompts);
    x->prompt_texts = arena_alloc(&x->arena, count, sizeof *x->prompt_texts);
    if (!x->prompts || !x->prompt_texts) return out_of_memory(error);
    if (!list) return take_text(x, prompt, "prompt", error);
    if (!many) return take_ids(x, prompt, "prompt", error);
    int index = 0;
    for (JSON_EACH(item, prompt)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "prompt[%d]", index++);
        if (item->type != json_first(prompt)->type)
            return api_fail(error, 400, "invalid_type", param,
                "Invalid type for '%s': the prompts of one request must all be of one kind.", param);
        if (!(item->type == JSON_ARRAY ? take_ids(x, item, param, error) : take_text(x, item, param, error)))
            return false;
    }
    return true;
}

static bool prepare_completion(Exchange *x, const Json *body, ApiError *error) {
    return params_read_completion(&x->params, body, error) && completion_check_model(x, error) &&
        take_prompts(x, error);
}

/* ---- shapes ---- */

static int prompt_of(const Exchange *x, const Choice *choice) { return choice->index / x->params.choices; }
static bool only_echo(const Exchange *x) { return x->params.max_tokens == 0; }

typedef struct LogprobColumns {
    Buffer tokens, logprobs, tops, offsets;
    int64_t offset; /* in characters */
    int count;
} LogprobColumns;

static int64_t count_characters(Slice text) {
    int64_t count = 0;
    for (size_t i = 0; i < text.size; i++) count += ((unsigned char)text.data[i] & 0xC0) != 0x80;
    return count;
}

static void add_top(Exchange *x, LogprobColumns *columns, const TokenOut *token) {
    Buffer seen = {0}; /* two ids may read alike: an object names a text once */
    buffer_byte(&columns->tops, '{');
    for (int k = 0; k < token->top_count; k++) {
        Buffer name = {0};
        write_token_text(&name, x->server->tokenizer, token->top[k].id);
        buffer_byte(&name, '\n');
        const bool again = seen.size && memmem(seen.data, seen.size, name.data, name.size);
        buffer_slice(&seen, buffer_view(&name));
        if (!again) {
            if (k) buffer_byte(&columns->tops, ',');
            buffer_append(&columns->tops, name.data, name.size - 1);
            buffer_byte(&columns->tops, ':');
            json_write_number(&columns->tops, token->top[k].logprob);
        }
        buffer_free(&name);
    }
    buffer_byte(&columns->tops, '}');
    buffer_free(&seen);
}

static void add_column(Exchange *x, LogprobColumns *columns, const TokenOut *token) {
    if (columns->count++) {
        buffer_byte(&columns->tokens, ',');
        buffer_byte(&columns->logprobs, ',');
        buffer_byte(&columns->tops, ',');
        buffer_byte(&columns->offsets, ',');
    }
    Buffer bytes = {0};
    Error why;
    if (!tokenizer_bytes(x->server->tokenizer, token->id, &bytes, &why)) buffer_clear(&bytes);
    json_write_string(&columns->tokens, buffer_view(&bytes));
    buffer_printf(&columns->offsets, "%lld", (long long)columns->offset);
    columns->offset += count_characters(buffer_view(&bytes));
    buffer_free(&bytes);
    if (isnan(token->logprob)) { /* the first token of a prompt has no context */
        buffer_text(&columns->logprobs, "null");
        buffer_text(&columns->tops, "null");
        return;
    }
    json_write_number(&columns->logprobs, isfinite(token->logprob) ? token->logprob : -9999.0);
    add_top(x, columns, token);
}

static void write_columns(Exchange *x, Choice *choice, bool echo, Buffer *out) {
    if (!x->params.logprobs) {
        buffer_text(out, "null");
        return;
    }
    LogprobColumns columns = {.offset = choice->text_offset};
    const Tokens *prompt = &x->prompts[prompt_of(x, choice)];
    for (size_t i = 0; echo && i < prompt->count; i++) {
        TokenOut token = {.id = prompt->ids[i], .logprob = NAN};
        if (i > 0 && !request_prompt_logprob(choice->request, (int)i, &token)) break;
        add_column(x, &columns, &token);
    }
    for (int i = 0; i < choice->token_count && !only_echo(x); i++) add_column(x, &columns, &choice->tokens[i]);
    choice->token_count = 0;
    choice->text_offset = columns.offset;
    buffer_text(out, "{\"tokens\":[");
    buffer_slice(out, buffer_view(&columns.tokens));
    buffer_text(out, "],\"token_logprobs\":[");
    buffer_slice(out, buffer_view(&columns.logprobs));
    buffer_text(out, "],\"top_logprobs\":[");
    buffer_slice(out, buffer_view(&columns.tops));
    buffer_text(out, "],\"text_offset\":[");
    buffer_slice(out, buffer_view(&columns.offsets));
    buffer_text(out, "]}");
    buffer_free(&columns.tokens);
    buffer_free(&columns.logprobs);
    buffer_free(&columns.tops);
    buffer_free(&columns.offsets);
}

/* The choice's text so far, with the prompt in front when echoed for the first time. */
static void write_text(Exchange *x, Choice *choice, bool echo, Buffer *out) {
    Buffer text = {0};
    if (echo) buffer_slice(&text, x->prompt_texts[prompt_of(x, choice)]);
    if (!only_echo(x)) buffer_slice(&text, buffer_view(&choice->pending));
    json_write_string(out, buffer_view(&text));
    out->failed |= text.failed;
    buffer_free(&text);
    buffer_clear(&choice->pending);
}

static void write_event(Exchange *x, Choice *choice, bool echo, bool last, Buffer *out) {
    write_event_head(x, "text_completion", out);
    buffer_text(out, ",\"choices\":[{\"index\":");
    buffer_text(out, choice->index_text);
    buffer_text(out, ",\"text\":");
    write_text(x, choice, echo, out);
    buffer_text(out, ",\"logprobs\":");
    if (last)
        buffer_text(out, "null");
    else
        write_columns(x, choice, echo, out);
    if (last)
        buffer_printf(out, ",\"finish_reason\":\"%s\"}]", finish_name(choice->finish));
    else
        buffer_text(out, ",\"finish_reason\":null}]");
    buffer_text(out, x->params.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void write_delta(Exchange *x, Choice *choice, Buffer *out) {
    const bool echo = x->params.echo && !choice->echoed;
    choice->echoed = true;
    write_event(x, choice, echo, false, out);
}

static void write_finish(Exchange *x, Choice *choice, Buffer *out) {
    if (x->params.echo && !choice->echoed) write_delta(x, choice, out);
    write_event(x, choice, false, true, out);
}

static void write_usage_event(Exchange *x, Buffer *out) {
    write_event_head(x, "text_completion", out);
    buffer_text(out, ",\"choices\":[],\"usage\":");
    write_usage(out, &x->generation);
    buffer_text(out, "}\n\n");
}

static void write_whole(Exchange *x, Buffer *out) {
    Generation *g = &x->generation;
    write_head(x, "text_completion", out);
    buffer_text(out, ",\"choices\":[");
    for (int i = 0; i < g->choice_count; i++) {
        Choice *choice = &g->choices[i];
        buffer_printf(out, "%s{\"index\":%d,\"text\":", i ? "," : "", choice->index);
        write_text(x, choice, x->params.echo, out);
        buffer_text(out, ",\"logprobs\":");
        write_columns(x, choice, x->params.echo, out);
        buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(choice->finish));
    }
    buffer_text(out, "],\"usage\":");
    write_usage(out, g);
    buffer_byte(out, '}');
}

const Endpoint endpoint_completion = {
    .id_prefix = "cmpl-",
    .prepare = prepare_completion,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_usage = write_usage_event,
    .write_whole = write_whole,
};
