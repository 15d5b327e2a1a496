/* POST /v1/completions: prompts as text or token ids, echo, and the older shape of logprobs. */
#include <math.h>

#include "chat/infill.h"
#include "chat/prompt.h"
#include "server/api/endpoint.h"
#include "server/api/inputs.h"
#include "server/api/openai_writer.h"

static bool keep_text(Exchange *x, int prompt, Slice text) {
    const char *copy = arena_copy(&x->arena, text);
    x->prompt_texts[prompt] = (Slice){copy, text.size};
    return copy;
}

typedef struct Prompts {
    Exchange *x;
    const ChatRequest *request;
} Prompts;

static bool take_text(const Prompts *p, const Json *value, const char *param, ApiError *error) {
    Exchange *x = p->x;
    const Slice suffix = p->request->suffix;
    Slice text;
    if (!api_string(value, param, &text, error)) return false;
    if (!completion_fits(x->model, text.size + suffix.size, "prompt", error)) return false;
    const int number = x->prompt_count++;
    Tokens *prompt = &x->prompts[number];
    if (p->request->response.echo && !keep_text(x, number, text)) return api_out_of_memory(error);
    Error why = {0};
    if (suffix.size > 0 ? infill_prompt(x->model, text, suffix, prompt, &why)
                        : raw_prompt(x->model, text, prompt, &why))
        return true;
    return why.code == ERROR_UNSUPPORTED
        ? api_fail(error, 400, "unsupported_parameter", "suffix", "Unsupported parameter: 'suffix': %s.", why.text)
        : input_refuse(&why, param, error);
}

static bool take_ids(const Prompts *p, const Json *value, const char *param, ApiError *error) {
    Exchange *x = p->x;
    const int number = x->prompt_count++;
    Tokens *prompt = &x->prompts[number];
    if (value->size > 0 && p->request->suffix.size > 0)
        return api_fail(error, 400, "invalid_value", "suffix", "'suffix' is for prompts that are texts.");
    if (!input_ids(value, param, p->request->vocab, prompt, error)) return false;
    if (!p->request->response.echo) return true;
    Buffer text = {0};
    Error why = {0};
    const bool ok = tokenizer_decode(x->model->tokenizer, prompt->ids, prompt->count, false, &text, &why) &&
        keep_text(x, number, buffer_view(&text));
    buffer_free(&text);
    return ok || api_out_of_memory(error);
}

static bool take_prompt(void *context, const Json *value, const char *param, ApiError *error) {
    const Prompts *p = context;
    if (!(value->type == JSON_ARRAY ? take_ids : take_text)(p, value, param, error)) return false;
    return p->x->prompts[p->x->prompt_count - 1].count > 0 ||
        api_fail(error, 400, "invalid_value", param, "Invalid '%s': the prompt is empty.", param);
}

static bool make_prompts(Exchange *x, const ChatRequest *request, ApiError *error) {
    Prompts prompts = {x, request};
    uint32_t count;
    if (!inputs_count(request->prompt, "prompt", PROMPTS_MAX, &count, error)) return false;
    if (count * (uint32_t)request->generation.request.choices > CHOICES_MAX)
        return api_fail(error, 400, "integer_above_max_value", "n",
            "Invalid 'n': at most %d choices over all prompts, got %u.", CHOICES_MAX,
            count * (uint32_t)request->generation.request.choices);
    x->prompts = arena_alloc(&x->arena, count, sizeof *x->prompts);
    x->prompt_texts = arena_alloc(&x->arena, count, sizeof *x->prompt_texts);
    if (!x->prompts || !x->prompt_texts) return api_out_of_memory(error);
    return inputs_each(request->prompt, "prompt", take_prompt, &prompts, error);
}

/* ---- shapes ---- */

/* Logprobs of echoed and generated tokens: four arrays of one length. */
typedef struct LogprobColumns {
    Buffer tokens, logprobs, tops, offsets;
    int64_t offset; /* in characters */
    int count;
} LogprobColumns;

static void add_top(const Exchange *x, const TokenOut *token, Buffer *out) {
    Buffer seen = {0}; /* two ids may read alike: an object names a text once */
    buffer_byte(out, '{');
    for (int k = 0; k < token->top_count; k++) {
        Buffer name = {0};
        writer_token(x, token->top[k].id, &name);
        buffer_byte(&name, '\n');
        const bool again = seen.size && memmem(seen.data, seen.size, name.data, name.size);
        buffer_slice(&seen, buffer_view(&name));
        if (!again) {
            if (k) buffer_byte(out, ',');
            buffer_append(out, name.data, name.size - 1);
            buffer_byte(out, ':');
            json_write_number(out, token->top[k].logprob);
        }
        out->failed |= name.failed;
        buffer_free(&name);
    }
    buffer_byte(out, '}');
    out->failed |= seen.failed;
    buffer_free(&seen);
}

static void add_column(const Exchange *x, const TokenOut *token, LogprobColumns *columns) {
    if (columns->count++) {
        buffer_byte(&columns->tokens, ',');
        buffer_byte(&columns->logprobs, ',');
        buffer_byte(&columns->tops, ',');
        buffer_byte(&columns->offsets, ',');
    }
    json_write_integer(&columns->offsets, columns->offset);
    columns->offset += writer_token(x, token->id, &columns->tokens);
    if (isnan(token->logprob)) { /* the first token of a prompt has no context */
        buffer_text(&columns->logprobs, "null");
        buffer_text(&columns->tops, "null");
        return;
    }
    writer_logprob(token->logprob, &columns->logprobs);
    add_top(x, token, &columns->tops);
}

static void write_column(const char *before, Buffer *column, Buffer *out) {
    buffer_text(out, before);
    buffer_slice(out, buffer_view(column));
    out->failed |= column->failed;
    buffer_free(column);
}

static void write_columns(Exchange *x, int index, bool echo, Buffer *out) {
    if (!x->response_options.logprobs) {
        buffer_text(out, "null");
        return;
    }
    Choice *choice = &x->generation.choices[index];
    LogprobColumns columns = {.offset = x->given[index].characters};
    const Tokens *prompt = &x->prompts[choice->prompt];
    for (size_t i = 0; echo && i < prompt->count; i++) {
        TokenOut token = {.id = prompt->ids[i], .logprob = NAN};
        if (i > 0 && !request_prompt_logprob(choice->request, (int)i, &token)) break;
        add_column(x, &token, &columns);
    }
    for (int i = 0; i < choice->token_count && !x->response_options.only_echo; i++)
        add_column(x, &choice->tokens[i], &columns);
    choice->token_count = 0;
    x->given[index].characters = columns.offset;
    write_column("{\"tokens\":[", &columns.tokens, out);
    write_column("],\"token_logprobs\":[", &columns.logprobs, out);
    write_column("],\"top_logprobs\":[", &columns.tops, out);
    write_column("],\"text_offset\":[", &columns.offsets, out);
    buffer_text(out, "]}");
}

/* The choice's text so far, with the prompt in front when it is echoed. */
static void write_text(Exchange *x, Choice *choice, bool echo, Buffer *out) {
    Buffer text = {0};
    if (echo) buffer_slice(&text, x->prompt_texts[choice->prompt]);
    if (!x->response_options.only_echo) buffer_slice(&text, buffer_view(&choice->text));
    json_write_string(out, buffer_view(&text));
    out->failed |= text.failed;
    buffer_free(&text);
    buffer_clear(&choice->text);
}

static void write_event(Exchange *x, int index, bool echo, bool last, Buffer *out) {
    Choice *choice = &x->generation.choices[index];
    const size_t start = out->size;
    writer_event_head(x, "text_completion", out);
    buffer_text(out, ",\"choices\":[{\"index\":");
    json_write_integer(out, index);
    buffer_text(out, ",\"text\":");
    write_text(x, choice, echo, out);
    buffer_text(out, ",\"logprobs\":");
    if (last)
        buffer_text(out, "null");
    else
        write_columns(x, index, echo, out);
    if (last)
        buffer_printf(out, ",\"finish_reason\":\"%s\"}]", writer_finish(choice->finish));
    else
        buffer_text(out, ",\"finish_reason\":null}]");
    if (!last) writer_obfuscation(x, start, out);
    buffer_text(out, x->response_options.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void write_delta(Exchange *x, int index, Buffer *out) {
    const bool echo = x->response_options.echo && !x->given[index].echo;
    x->given[index].echo = true;
    write_event(x, index, echo, false, out);
}

static void write_finish(Exchange *x, int index, Buffer *out) {
    if (x->response_options.echo && !x->given[index].echo) write_delta(x, index, out);
    write_event(x, index, false, true, out);
}

static void write_usage_event(Exchange *x, Buffer *out) {
    writer_event_head(x, "text_completion", out);
    buffer_text(out, ",\"choices\":[],\"usage\":");
    writer_usage(x, out);
    writer_timings(x, out);
    buffer_text(out, "}\n\n");
}

static void write_choice(Exchange *x, int index, int choice_index, Buffer *out) {
    Choice *choice = &x->generation.choices[choice_index];
    buffer_printf(out, "%s{\"index\":%d,\"text\":", index ? "," : "", index);
    write_text(x, choice, x->response_options.echo, out);
    buffer_text(out, ",\"logprobs\":");
    write_columns(x, choice_index, x->response_options.echo, out);
    buffer_printf(out, ",\"finish_reason\":\"%s\"}", writer_finish(choice->finish));
}

/* The log-probability per token. */
static double score(const Choice *choice) {
    double sum = 0;
    for (int i = 0; i < choice->token_count; i++) sum += (double)choice->tokens[i].logprob;
    return choice->token_count > 0 ? sum / choice->token_count : 0;
}

/* The best answer to a prompt that was not shown yet. */
static int find_best(const Exchange *x, int prompt) {
    const Generation *g = &x->generation;
    int best = -1;
    for (int i = 0; i < g->choice_count; i++) {
        if (g->choices[i].prompt != prompt || x->given[i].finish) continue;
        if (best < 0 || x->given[i].score > x->given[best].score) best = i;
    }
    return best;
}

static void write_whole(Exchange *x, Buffer *out) {
    Generation *g = &x->generation;
    const int shown = x->response_options.best > 0 ? x->response_options.best : g->choice_count / x->prompt_count;
    writer_head(x, "text_completion", out);
    buffer_text(out, ",\"choices\":[");
    for (int i = 0; i < g->choice_count && x->response_options.best > 0; i++) x->given[i].score = score(&g->choices[i]);
    for (int i = 0; i < shown * x->prompt_count; i++) {
        const int choice = x->response_options.best > 0 ? find_best(x, i / shown) : i;
        x->given[choice].finish = true;
        write_choice(x, i, choice, out);
    }
    buffer_text(out, "],\"usage\":");
    writer_usage(x, out);
    writer_timings(x, out);
    buffer_byte(out, '}');
}

const Endpoint endpoint_text = {
    .id_prefix = "cmpl-",
    .event_object = "text_completion",
    .done = "data: [DONE]\n\n",
    .heartbeat = ": waiting\n\n", /* a comment: keeps proxies and clients from giving up */
    .read = request_read_completion,
    .make_prompts = make_prompts,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_usage = write_usage_event,
    .write_whole = write_whole,
};
