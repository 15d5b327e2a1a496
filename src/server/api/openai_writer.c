#include "server/api/openai_writer.h"

#include <math.h>
#include <sys/random.h>

#include "server/api/endpoint.h"

void writer_head(Exchange *x, const char *object, Buffer *out) {
    buffer_printf(
        out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object, (long long)x->created);
    json_write_string(out, slice_of(x->model->name));
    buffer_printf(out, ",\"system_fingerprint\":\"%s\"", x->model->fingerprint);
}

void writer_event_head(Exchange *x, const char *object, Buffer *out) {
    if (x->head.size == 0) {
        buffer_text(&x->head, "data: ");
        writer_head(x, object, &x->head);
    }
    buffer_slice(out, buffer_view(&x->head));
    out->failed |= x->head.failed;
}

const char *writer_finish(Finish finish) { return finish == FINISH_LENGTH ? "length" : "stop"; }

/* Tokens that the client sees: with only_echo, the engine computes one that is not shown. */
static int64_t answer_tokens(const Exchange *x) {
    return x->response_options.only_echo ? 0 : generation_answer_tokens(&x->generation);
}

void writer_usage(const Exchange *x, Buffer *out) {
    const Generation *g = &x->generation;
    const int64_t generated = answer_tokens(x);
    const DraftStats prediction = generation_drafts(g, DRAFT_PREDICTION);
    buffer_printf(out,
        "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"prompt_tokens_details\":"
        "{\"cached_tokens\":%lld,\"audio_tokens\":%d},\"completion_tokens_details\":{\"reasoning_tokens\":%lld,"
        "\"accepted_prediction_"
        "tokens\":%llu,\"rejected_prediction_tokens\":%llu}}",
        (long long)g->prompt_tokens, (long long)generated, (long long)(g->prompt_tokens + generated),
        (long long)generation_cached_tokens(g), x->audio_tokens, (long long)generation_reasoning_tokens(g),
        (unsigned long long)prediction.accepted, (unsigned long long)(prediction.drafted - prediction.accepted));
}

void writer_obfuscation(const Exchange *x, size_t start, Buffer *out) {
    enum { SIZE = 64 };
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    unsigned char random[SIZE];
    if (!x->response_options.obfuscated || getentropy(random, sizeof random)) return;
    const size_t count = SIZE - (out->size - start) % SIZE;
    buffer_text(out, ",\"obfuscation\":\"");
    for (size_t i = 0; i < count; i++) buffer_byte(out, alphabet[random[i] % (sizeof alphabet - 1)]);
    buffer_byte(out, '"');
}

/* Sums over all requests of the exchange. */
static RequestStats stats_of(const Generation *g) {
    RequestStats all = {0};
    for (int i = 0; i < g->request_count; i++) {
        const RequestStats one = request_stats(g->requests[i]);
        all.prompt_tokens += one.prompt_tokens;
        all.cached_tokens += one.cached_tokens;
        all.read_tokens += one.read_tokens;
        all.kv_full_bytes += one.kv_full_bytes;
        all.kv_quantised_bytes += one.kv_quantised_bytes;
        all.kv_f16_bytes += one.kv_f16_bytes;
        all.kv_raised = one.kv_raised > all.kv_raised ? one.kv_raised : all.kv_raised;
        all.kv_noise = fmaxf(all.kv_noise, one.kv_noise);
        all.expert_hits += one.expert_hits;
        all.expert_misses += one.expert_misses;
        all.expert_read_bytes += one.expert_read_bytes;
        all.expert_stall_s += one.expert_stall_s;
        all.queued_s = fmax(all.queued_s, one.queued_s);
        all.prefill_s = fmax(all.prefill_s, one.prefill_s);
        all.decode_s = fmax(all.decode_s, one.decode_s);
    }
    return all;
}

/* Under names that begin with `what`. */
static void write_rate(const char *what, int64_t tokens, double seconds, Buffer *out) {
    const double each_ms = tokens > 0 ? seconds * 1e3 / (double)tokens : 0;
    buffer_printf(out, ",\"%s_n\":%lld,\"%s_ms\":%.3f,\"%s_per_token_ms\":%.3f,\"%s_per_second\":%.3f", what,
        (long long)tokens, what, seconds * 1e3, what, each_ms, what, each_ms > 0 ? 1e3 / each_ms : 0);
}

/* Under llama.cpp's names. */
static void write_drafts(const Generation *g, Buffer *out) {
    DraftStats all = {0};
    for (int source = 0; source < DRAFT_SOURCES; source++) {
        const DraftStats one = generation_drafts(g, (DraftSource)source);
        all.drafted += one.drafted;
        all.accepted += one.accepted;
    }
    buffer_printf(out, ",\"draft_n\":%llu,\"draft_n_accepted\":%llu", (unsigned long long)all.drafted,
        (unsigned long long)all.accepted);
}

static const char *exact_name(const Engine *engine) {
    const DType dtype = engine_kv_dtype(engine);
    return dtype == DTYPE_BF16 ? "bf16" : dtype == DTYPE_F32 ? "f32" : "f16";
}

static void write_cache(const Exchange *x, const RequestStats *stats, Buffer *out) {
    const Engine *engine = x->model->engine;
    char name[KV_FORMAT_NAME_MAX];
    kv_format_name(&x->kv_format, name, sizeof name);
    buffer_printf(out, ",\"kv_cache\":{\"format\":\"%s\",\"exact_bytes\":%zu,\"coded_bytes\":%zu,\"f16_bytes\":%zu",
        x->kv_format.k == KV_FULL ? exact_name(engine) : name, stats->kv_full_bytes, stats->kv_quantised_bytes,
        stats->kv_f16_bytes);
    if (stats->kv_quantised_bytes > 0)
        buffer_printf(out, ",\"layers_raised\":%d,\"noise\":%.4f", stats->kv_raised, (double)stats->kv_noise);
    if (x->kv_bits == 4 && engine_kv_biased(engine)) /* KL 4 nats and more, where centred codes have .001 */
        buffer_text(out,
            ",\"note\":\"the keys of this model hold biases, which affine codes of 4 bits do not survive: rotated "
            "codes "
            "without the biases are used\"");
    buffer_byte(out, '}');
}

/* What streamed experts cost, and whether all were used that the model was made for. */
static void write_experts(const Model *model, const RequestStats *stats, Buffer *out) {
    int used, made_for;
    const bool streamed = model_experts(model), cut = model_experts_cut(model, &used, &made_for);
    if (streamed)
        buffer_printf(out, ",\"experts\":{\"hits\":%llu,\"misses\":%llu,\"read_bytes\":%llu,\"stall_ms\":%.3f",
            (unsigned long long)stats->expert_hits, (unsigned long long)stats->expert_misses,
            (unsigned long long)stats->expert_read_bytes, stats->expert_stall_s * 1e3);
    if (cut)
        buffer_printf(
            out, "%s\"used\":%d,\"made_for\":%d,\"lossy\":true", streamed ? "," : ",\"experts\":{", used, made_for);
    if (streamed || cut) buffer_byte(out, '}');
}

void writer_timings(const Exchange *x, Buffer *out) {
    const Generation *g = &x->generation;
    const RequestStats stats = stats_of(g);
    buffer_printf(out, ",\"timings\":{\"cache_n\":%d,\"queued_ms\":%.3f", stats.cached_tokens, stats.queued_s * 1e3);
    write_rate("prompt", stats.prompt_tokens - stats.cached_tokens, stats.prefill_s, out);
    write_rate("predicted", answer_tokens(x), stats.decode_s, out);
    write_drafts(g, out);
    write_cache(x, &stats, out);
    write_experts(engine_model(x->model->engine), &stats, out);
    buffer_byte(out, '}');
}

void writer_progress(Exchange *x, Buffer *out) {
    if (!x->response_options.progress) return;
    const RequestStats stats = stats_of(&x->generation);
    if (stats.read_tokens <= x->read_told) return;
    x->read_told = stats.read_tokens;
    writer_event_head(x, x->endpoint->event_object, out);
    buffer_printf(out,
        ",\"choices\":[],\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,\"time_ms\":%.3f}%s}\n\n",
        stats.prompt_tokens, stats.cached_tokens, stats.read_tokens, stats.prefill_s * 1e3,
        x->response_options.include_usage ? ",\"usage\":null" : "");
}

/* An id outside the vocabulary has no bytes; memory that ends must not look like that. */
static void token_bytes(const Exchange *x, int32_t id, Buffer *bytes, Buffer *out) {
    Error why;
    if (!tokenizer_bytes(x->model->tokenizer, id, bytes, &why)) {
        out->failed |= why.code == ERROR_MEMORY;
        buffer_clear(bytes);
    }
}

int64_t writer_token(const Exchange *x, int32_t id, Buffer *out) {
    Buffer bytes = {0};
    token_bytes(x, id, &bytes, out);
    json_write_string(out, buffer_view(&bytes));
    int64_t characters = 0;
    for (size_t i = 0; i < bytes.size; i++) characters += ((unsigned char)bytes.data[i] & 0xC0) != 0x80;
    buffer_free(&bytes);
    return characters;
}

void writer_logprob(float logprob, Buffer *out) {
    json_write_number(out, isfinite(logprob) ? logprob : -9999.0); /* OpenAI's value for "impossible" */
}

/* Without the closing brace. */
static void chat_entry(const Exchange *x, int32_t id, float logprob, Buffer *out) {
    Buffer bytes = {0};
    token_bytes(x, id, &bytes, out);
    buffer_text(out, "{\"token\":");
    json_write_string(out, buffer_view(&bytes));
    buffer_text(out, ",\"logprob\":");
    writer_logprob(logprob, out);
    buffer_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.size; i++) buffer_printf(out, "%s%d", i ? "," : "", (unsigned char)bytes.data[i]);
    buffer_byte(out, ']');
    buffer_free(&bytes);
}

void writer_chat_logprobs(const Exchange *x, Choice *choice, Buffer *out) {
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
