/* The reader's half of a request: a record per token, written once, read once. */
#include "engine/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/clock.h"

/* A token's record: id; with logprobs also its logprob, the number of alternatives, and pairs of id and logprob. */
typedef struct Record {
    int32_t id;
    float logprob;
    int32_t top_count;
    struct {
        int32_t id;
        float logprob;
    } top[];
} Record;

/* ---- memory ---- */

typedef struct Layout {
    size_t size;
    bool overflow;
} Layout;

static size_t layout_add(Layout *layout, size_t count, size_t size) {
    const size_t at = layout->size;
    size_t bytes;
    layout->overflow |= !size_mul(count, size, &bytes) || !size_add(at, bytes, &layout->size) ||
        !size_add(layout->size, 63, &layout->size);
    layout->size -= layout->size % 64;
    return at;
}

/* The constraint writes its words, the sampler looks at those of the vocabulary. */
static size_t mask_words(const Constraint *constraint, int vocab) {
    const size_t least = ((size_t)vocab + 63) / 64;
    return constraint->mask_words > least ? constraint->mask_words : least;
}

static bool request_map(Request *request, const RequestOptions *options, const RequestShape *shape, Error *error) {
    const int vocab = shape->vocab;
    const size_t hidden = request->pooling ? (size_t)shape->hidden : 0;
    const SamplingOptions *sampling = &request->sampling; /* its arrays are still the caller's */
    const size_t choices = (size_t)options->choices, answer = (size_t)request->max_tokens;
    const size_t prompt = (size_t)options->prompt_count, biases = (size_t)sampling->bias_count;
    const size_t mask = options->constraint ? mask_words(options->constraint, vocab) : 0;
    const size_t history = sampler_bytes(sampling, vocab, options->prompt_count + request->max_tokens);
    request->top_max = sampling->logprobs > 0 ? sampling->logprobs : 0;
    request->record_bytes = sampling->logprobs < 0
        ? sizeof(int32_t)
        : sizeof(Record) + (size_t)request->top_max * sizeof(((Record *)NULL)->top[0]);
    Layout layout = {0};
    const size_t prompt_at = layout_add(&layout, prompt, sizeof(int32_t));
    const size_t content = options->content_ids ? prompt : 0;
    const size_t positions = options->positions ? POSITION_DIMS_MAX * prompt : 0;
    const size_t content_at = layout_add(&layout, content, sizeof(uint64_t));
    const size_t positions_at = layout_add(&layout, positions, sizeof(int32_t));
    const size_t media_at = layout_add(&layout, (size_t)options->media_count, sizeof(MediaSpan));
    const size_t ids_at = layout_add(&layout, biases, sizeof(int32_t));
    const size_t values_at = layout_add(&layout, biases, sizeof(float));
    const size_t echo_at = layout_add(&layout, options->echo_logprobs ? prompt : 0, request->record_bytes);
    const size_t logits_at = layout_add(&layout, choices > 1 ? (size_t)vocab : 0, sizeof(float));
    const size_t embedding_at = layout_add(&layout, hidden, sizeof(float));
    const size_t sums_at = layout_add(&layout, hidden, sizeof(double));
    const size_t predicted = (size_t)options->prediction_count;
    const size_t prediction_at = layout_add(&layout, predicted, sizeof(int32_t));
    const LookupShape texts = {options->prediction_count, options->prompt_count, request->max_tokens, options->choices};
    size_t lookup = 0;
    const bool looks_up = shape->lookup && !options->embeds && lookup_bytes(&texts, &lookup);
    const size_t lookup_at = layout_add(&layout, lookup, 1);
    Layout one = {0};
    const size_t records_at = layout_add(&one, answer, request->record_bytes);
    const size_t history_at = layout_add(&one, history, 1);
    const size_t mask_at = layout_add(&one, mask, sizeof(uint64_t));
    const size_t choices_at = layout_add(&layout, choices, one.size);
    if (layout.overflow || one.overflow) return fail(error, ERROR_LIMIT, "the answer is too large");

    void *memory = mmap(NULL, layout.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return fail(error, ERROR_MEMORY, "no memory for %zu bytes of tokens", layout.size);
    request->memory = memory;
    request->memory_bytes = layout.size;
    uint8_t *base = memory;
    memcpy(base + prompt_at, options->prompt, prompt * sizeof(int32_t));
    request->prompt = (const int32_t *)(base + prompt_at);
    if (content > 0) {
        memcpy(base + content_at, options->content_ids, content * sizeof(uint64_t));
        request->content_ids = (const uint64_t *)(const void *)(base + content_at);
    }
    if (positions > 0) {
        memcpy(base + positions_at, options->positions, positions * sizeof(int32_t));
        request->positions = (const int32_t *)(const void *)(base + positions_at);
    }
    MediaSpan *media = (MediaSpan *)(void *)(base + media_at);
    request->media = media;
    for (int i = 0; i < options->media_count; i++) {
        media[i] = options->media[i];
        media[i].whole = shape->media_whole && !media_item_is_audio(media[i].item);
        media_item_retain(media[i].item);
        request->media_count++;
    }
    if (biases > 0) {
        memcpy(base + ids_at, sampling->bias_ids, biases * sizeof(int32_t));
        memcpy(base + values_at, sampling->bias_values, biases * sizeof(float));
    }
    if (predicted > 0) memcpy(base + prediction_at, options->prediction, predicted * sizeof(int32_t));
    request->prediction = (const int32_t *)(base + prediction_at);
    if (looks_up) lookup_init(&request->lookup, &texts, base + lookup_at);
    request->sampling.bias_ids = (const int32_t *)(base + ids_at);
    request->sampling.bias_values = (const float *)(base + values_at);
    request->prompt_records = options->echo_logprobs ? base + echo_at : NULL;
    request->embedding = (float *)(void *)(base + embedding_at);
    request->sums = (double *)(void *)(base + sums_at);
    request->logits = choices > 1 ? (float *)(base + logits_at) : NULL;
    for (int i = 0; i < request->choice_count; i++) {
        AnswerChoice *choice = &request->choices[i];
        uint8_t *own = base + choices_at + (size_t)i * one.size;
        choice->records = own + records_at;
        choice->mask = (uint64_t *)(void *)(own + mask_at);
        draft_rule_init(&choice->draft.rule);
        sampler_init(&choice->sampler, &request->sampling, vocab, i, own + history_at);
    }
    return true;
}

Request *request_new(const RequestOptions *options, const RequestShape *shape, int max_tokens, Error *error) {
    Request *request = calloc(1, sizeof *request);
    AnswerChoice *choices = calloc((size_t)options->choices, sizeof *choices);
    if (!request || !choices) {
        free(request);
        free(choices);
        fail(error, ERROR_MEMORY, "no memory for a request");
        return NULL;
    }
    request->sampling = options->sampling;
    request->prompt_count = options->prompt_count;
    request->position_offset = options->position_offset;
    request->whole_prompt = shape->whole_prompt;
    request->prediction_count = options->prediction_count;
    request->max_tokens = max_tokens;
    request->choice_count = options->choices;
    request->choices = choices;
    request->first = -1;
    request->waiting = options->choices;
    request->echo = options->echo_logprobs;
    request->pooling = options->embeds ? shape->pooling : POOLING_NONE;
    request->whole = request->echo || request->pooling == POOLING_MEAN || request->pooling == POOLING_FIRST;
    request->format = *options->kv_format;
    request->adapter = options->adapter;
    request->salt = options->cache_salt;
    /* What is kept of a prompt that was read whole depends on its end, which the keys of the caches do not tell. */
    request->cache_off = options->cache_off || shape->whole_prompt;
    request->constraint = constraint_retain(options->constraint);
    if (request->echo && request->sampling.logprobs < 0) request->sampling.logprobs = 0;
    request->submitted_ns = clock_ns();
    atomic_init(&request->references, 1);
    mutex_init(&request->mutex);
    condition_init(&request->changed);
    if (request_map(request, options, shape, error)) return request;
    request_release(request);
    return NULL;
}

void request_retain(Request *request) { atomic_fetch_add(&request->references, 1); }

void request_release(Request *request) {
    if (atomic_fetch_sub(&request->references, 1) > 1) return;
    for (int i = 0; i < request->media_count; i++) media_item_release(request->media[i].item);
    if (request->memory) munmap(request->memory, request->memory_bytes);
    constraint_release(request->constraint);
    condition_destroy(&request->changed);
    mutex_destroy(&request->mutex);
    free(request->choices);
    free(request);
}

/* ---- engine thread ---- */

static int media_end(const MediaSpan *span) { return span->begin + span->rows; }

const MediaSpan *request_media_from(const Request *request, int position) {
    for (int i = 0; i < request->media_count; i++)
        if (media_end(&request->media[i]) > position) return &request->media[i];
    return NULL;
}

bool request_span_from(const Request *request, int position, BidirectionalSpan *span) {
    if (request->whole_prompt) {
        *span = (BidirectionalSpan){0, request->prompt_count};
        return position < request->prompt_count;
    }
    for (int i = 0; i < request->media_count; i++) {
        const MediaSpan *media = &request->media[i];
        *span = (BidirectionalSpan){media->begin, media_end(media)};
        if (media->whole && span->end > position) return true;
    }
    return false;
}

bool request_can_cut(const Request *request, int position) {
    BidirectionalSpan span;
    return !request_span_from(request, position, &span) || span.begin >= position;
}

static void record_write(const Request *request, uint8_t *records, int index, const TokenOut *token) {
    uint8_t *at = records + (size_t)index * request->record_bytes;
    if (request->sampling.logprobs < 0) {
        memcpy(at, &token->id, sizeof token->id);
        return;
    }
    Record *record = (Record *)at;
    record->id = token->id;
    record->logprob = token->logprob;
    record->top_count = token->top_count;
    for (int i = 0; i < token->top_count; i++) {
        record->top[i].id = token->top[i].id;
        record->top[i].logprob = token->top[i].logprob;
    }
}

static void record_read(const Request *request, const uint8_t *records, int index, TokenOut *token) {
    const uint8_t *at = records + (size_t)index * request->record_bytes;
    token->logprob = NAN;
    token->top_count = 0;
    if (request->sampling.logprobs < 0) {
        memcpy(&token->id, at, sizeof token->id);
        return;
    }
    const Record *record = (const Record *)at;
    token->id = record->id;
    token->logprob = record->logprob;
    token->top_count = record->top_count;
    for (int i = 0; i < record->top_count; i++) {
        token->top[i].id = record->top[i].id;
        token->top[i].logprob = record->top[i].logprob;
    }
}

int32_t request_answer_id(const Request *request, const AnswerChoice *choice, int index) {
    int32_t id; /* a record's first field, whether it has others or not */
    memcpy(&id, choice->records + (size_t)index * request->record_bytes, sizeof id);
    return id;
}

void request_append(Request *request, AnswerChoice *choice, const TokenOut *token) {
    mutex_lock(&request->mutex);
    CHECK(choice->written < request->max_tokens && token->top_count <= request->top_max);
    record_write(request, choice->records, choice->written++, token);
    mutex_unlock(&request->mutex);
    condition_broadcast(&request->changed); /* behind the lock, or the reader wakes only to wait for it */
}

void request_append_prompt(Request *request, const TokenOut *token) {
    mutex_lock(&request->mutex);
    CHECK(request->prompt_written < request->prompt_count && token->top_count <= request->top_max);
    record_write(request, request->prompt_records, request->prompt_written++, token);
    mutex_unlock(&request->mutex);
}

void request_end_choice(Request *request, AnswerChoice *choice, Finish finish) {
    mutex_lock(&request->mutex);
    choice->finish = finish;
    bool all = true;
    for (int i = 0; i < request->choice_count; i++) all = all && request->choices[i].finish != FINISH_NONE;
    if (all) request->ended_ns = clock_ns();
    mutex_unlock(&request->mutex);
    condition_broadcast(&request->changed);
}

void request_fail(Request *request, const Error *error) {
    request->failed = true;
    mutex_lock(&request->mutex);
    if (request->error.code == ERROR_NONE) request->error = *error;
    mutex_unlock(&request->mutex);
}

void request_set_admitted(Request *request, int cached) {
    mutex_lock(&request->mutex);
    request->admitted_ns = clock_ns();
    request->cached = cached;
    atomic_store(&request->prompt_read, cached);
    mutex_unlock(&request->mutex);
}

int request_note_found(Request *request, int tokens) {
    const int more = tokens - atomic_load(&request->prompt_read);
    if (more <= 0) return 0;
    mutex_lock(&request->mutex);
    request->cached += more;
    atomic_store(&request->prompt_read, tokens);
    mutex_unlock(&request->mutex);
    return more;
}

void request_count_preemption(Request *request) {
    mutex_lock(&request->mutex);
    request->preemptions++;
    mutex_unlock(&request->mutex);
}

void request_add_experts(Request *request, const ExpertProviderStats *before, const ExpertProviderStats *after) {
    mutex_lock(&request->mutex);
    request->experts.hits += after->hits - before->hits;
    request->experts.misses += after->misses - before->misses;
    request->experts.read_bytes += after->read_bytes - before->read_bytes;
    request->experts.stall_s += after->stall_s - before->stall_s;
    mutex_unlock(&request->mutex);
}

void request_add_drafts(Request *request, DraftSource source, int drafted, int accepted) {
    mutex_lock(&request->mutex);
    request->drafts[source].drafted += (uint64_t)drafted;
    request->drafts[source].accepted += (uint64_t)accepted;
    mutex_unlock(&request->mutex);
}

/* Sums are in the order of the tokens, however the prompt was cut: the mean depends on the text alone. */
void request_pool(Request *request, int first, int count, int hidden, const float *states) {
    for (int t = 0; t < count; t++) {
        const float *state = states + (size_t)t * (size_t)hidden;
        if (first + t < request->pooled) continue; /* it is read again */
        request->pooled = first + t + 1;
        for (int i = 0; i < hidden && request->pooling == POOLING_MEAN; i++) request->sums[i] += (double)state[i];
        const int wanted = request->pooling == POOLING_FIRST ? 1 : request->prompt_count;
        for (int i = 0; i < hidden && request->pooled == wanted; i++)
            request->embedding[i] =
                request->pooling == POOLING_MEAN ? (float)(request->sums[i] / request->prompt_count) : state[i];
    }
}

void request_set_kv_use(Request *request, const KvUse *use, size_t f16_bytes) {
    mutex_lock(&request->mutex);
    request->kv_use = *use;
    request->kv_f16_bytes = f16_bytes;
    mutex_unlock(&request->mutex);
}

void request_set_answering(Request *request) {
    mutex_lock(&request->mutex);
    request->answering_ns = clock_ns();
    mutex_unlock(&request->mutex);
}

/* ---- reader ---- */

static bool choice_ready(const AnswerChoice *choice) {
    return choice->read < choice->written || (choice->finish != FINISH_NONE && !choice->finish_read);
}

/* False when the time is over. deadline_ns is set by the first call. */
static bool wait_changed(Request *request, int timeout_ms, int64_t *deadline_ns) {
    const int64_t now = clock_ns();
    if (*deadline_ns == 0) *deadline_ns = now + (int64_t)timeout_ms * 1000000;
    if (now >= *deadline_ns) return false;
    condition_wait_ms(&request->changed, &request->mutex, (*deadline_ns - now + 999999) / 1000000);
    return true;
}

int request_read(Request *request, int index, TokenOut *out, int capacity, int timeout_ms, Finish *finish) {
    CHECK(index >= 0 && index < request->choice_count && capacity >= 0);
    AnswerChoice *choice = &request->choices[index];
    int64_t deadline_ns = 0;
    *finish = FINISH_NONE;
    mutex_lock(&request->mutex);
    while (choice->read == choice->written && choice->finish == FINISH_NONE) {
        if (!wait_changed(request, timeout_ms, &deadline_ns)) break;
    }
    int count = 0;
    while (count < capacity && choice->read < choice->written)
        record_read(request, choice->records, choice->read++, &out[count++]);
    if (choice->read == choice->written && choice->finish != FINISH_NONE) {
        *finish = choice->finish;
        choice->finish_read = true;
    }
    mutex_unlock(&request->mutex);
    return count;
}

int request_wait(Request *request, int timeout_ms) {
    int64_t deadline_ns = 0;
    mutex_lock(&request->mutex);
    int ready = -1;
    for (;;) {
        bool more = false;
        for (int i = 0; i < request->choice_count && ready < 0; i++) {
            if (choice_ready(&request->choices[i])) ready = i;
            more |= request->choices[i].finish == FINISH_NONE;
        }
        if (ready >= 0 || !more || !wait_changed(request, timeout_ms, &deadline_ns)) break;
    }
    mutex_unlock(&request->mutex);
    return ready;
}

bool request_prompt_logprob(Request *request, int position, TokenOut *out) {
    if (!request->echo || position < 0 || position >= request->prompt_count) return false;
    mutex_lock(&request->mutex);
    const bool known = position < request->prompt_written;
    if (known) record_read(request, request->prompt_records, position, out);
    mutex_unlock(&request->mutex);
    return known;
}

const float *request_embedding(const Request *request) { return request->embedding; }

void request_cancel(Request *request) { atomic_store(&request->cancel, true); }

void request_stop_choice(Request *request, int choice) {
    CHECK(choice >= 0 && choice < request->choice_count);
    atomic_store(&request->choices[choice].stop, true);
}

static double seconds(int64_t from_ns, int64_t to_ns) { return (double)(to_ns - from_ns) * 1e-9; }

RequestStats request_stats(Request *request) {
    mutex_lock(&request->mutex);
    const int64_t end = request->ended_ns ? request->ended_ns : clock_ns();
    const int64_t admitted = request->admitted_ns ? request->admitted_ns : end;
    const int64_t answering = request->answering_ns ? request->answering_ns : end;
    size_t quantised = 0;
    for (int form = KV_FULL + 1; form < KV_FORMS; form++) quantised += request->kv_use.bytes[form];
    RequestStats stats = {
        .prompt_tokens = request->prompt_count,
        .cached_tokens = request->cached,
        .read_tokens = atomic_load(&request->prompt_read),
        .preempted = request->preemptions,
        .kv_full_bytes = request->kv_use.bytes[KV_FULL],
        .kv_quantised_bytes = quantised,
        .kv_raised = request->kv_use.raised,
        .kv_noise = request->kv_use.noise,
        .kv_f16_bytes = request->kv_f16_bytes,
        .expert_hits = request->experts.hits,
        .expert_misses = request->experts.misses,
        .expert_read_bytes = request->experts.read_bytes,
        .expert_stall_s = request->experts.stall_s,
        .admitted = request->admitted_ns != 0,
        .queued_s = seconds(request->submitted_ns, admitted),
        .prefill_s = seconds(admitted, answering),
        .decode_s = seconds(answering, end),
    };
    memcpy(stats.drafts, request->drafts, sizeof stats.drafts);
    mutex_unlock(&request->mutex);
    return stats;
}

void request_error(Request *request, Error *out) {
    mutex_lock(&request->mutex);
    *out = request->error;
    mutex_unlock(&request->mutex);
}

void request_free(Request *request) {
    request_cancel(request);
    request_release(request);
}
