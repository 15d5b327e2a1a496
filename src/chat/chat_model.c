#include "chat/chat_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/digest.h"
#include "base/log.h"
#include "base/math.h"
#include "chat/pooling.h"
#include "model/spec.h"

static void take_number(const Json *config, const char *name, double min, double max, float *out) {
    const Json *value = json_get(config, name);
    if (json_is_number(value) && json_number(value) >= min && json_number(value) <= max)
        *out = (float)json_number(value);
}

static SamplingOptions recommended_sampling(const Model *model) {
    SamplingOptions o = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    const Json *config = model_generation_config(model);
    take_number(config, "temperature", 0, 2, &o.temperature);
    take_number(config, "top_p", 0, 1, &o.top_p);
    take_number(config, "min_p", 0, 1, &o.min_p);
    take_number(config, "repetition_penalty", 0.01, 2, &o.repetition_penalty);
    float top_k = 0;
    take_number(config, "top_k", 0, 1e6, &top_k);
    o.top_k = (int)top_k;
    return o;
}

static void make_fingerprint(ChatModel *m) {
    char text[256];
    uint64_t bytes, operations; /* without a multi-token prediction head, which changes no result */
    model_step_cost(engine_model(m->engine), &bytes, &operations);
    const int length = snprintf(text, sizeof text, "apus 0.1 %s %llu %llu %s", m->name, (unsigned long long)bytes,
        (unsigned long long)operations, engine_backend(m->engine));
    const uint64_t hash = checksum64(text, (size_t)min_int(length, (int)sizeof text - 1));
    snprintf(m->fingerprint, sizeof m->fingerprint, "fp_%010llx", (unsigned long long)(hash & 0xFFFFFFFFFFu));
}

/* Whether the template shows the three texts of a conversation whose contents have this form. pairs: of the special
 * tokens. False with ERROR_MEMORY in `error`: not known. */
static bool shows_texts(const Template *template, const char *before, const char *behind, Slice pairs, Error *error) {
    static const char *const texts[] = {"first probe", "second probe", "third probe"};
    Arena arena = {0};
    Buffer text = {0};
    Rendered rendered = {0};
    Error why = {0};
    buffer_text(&text, "{\"messages\":[");
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        buffer_printf(&text, "%s{\"role\":\"%s\",\"content\":%s\"%s\"%s}", i ? "," : "", i % 2 ? "assistant" : "user",
            before, texts[i], behind);
    buffer_text(&text, "],\"add_generation_prompt\":true");
    buffer_append(&text, pairs.data, pairs.size);
    buffer_byte(&text, '}');
    const Json *variables = text.failed ? NULL : json_parse(&arena, buffer_view(&text), &why);
    bool shown = variables && template_render(template, variables, &rendered, &why);
    for (size_t i = 0; shown && i < COUNT_OF(texts); i++)
        shown = memmem(rendered.text.data, rendered.text.size, texts[i], strlen(texts[i]));
    if (text.failed || why.code == ERROR_MEMORY) fail(error, ERROR_MEMORY, "no memory for a chat template");
    rendered_free(&rendered);
    buffer_free(&text);
    arena_free(&arena);
    return shown;
}

/* Whether texts are shown as lists of parts, and not as strings. False with an error: no memory. */
static bool find_text_parts(ChatModel *m, Slice pairs, Error *error) {
    Error why = {0};
    m->text_parts = !shows_texts(m->template, "", "", pairs, &why) && why.code == ERROR_NONE &&
        shows_texts(m->template, "[{\"type\":\"text\",\"text\":", "}]", pairs, &why);
    if (why.code != ERROR_NONE && error) *error = why;
    return why.code == ERROR_NONE;
}

/* The template's part of the directory. */
static bool open_template(ChatModel *m, const char *directory, Error *error) {
    Error why = {0};
    const VisionSpec *vision = engine_vision(m->engine);
    m->template = template_open(directory, &why);
    const bool text_only =
        m->template && !memmem(template_source(m->template).data, template_source(m->template).size, "image", 5);
    if ((text_only || (!m->template && why.code == ERROR_NOT_FOUND)) && vision && vision->chat_template) {
        template_free(m->template);
        m->template = template_compile(slice_of(vision->chat_template), &why);
    }
    if (!m->template && why.code != ERROR_NOT_FOUND) {
        if (error) *error = why;
        return false;
    }
    if (m->template) {
        m->calls = call_format_of(template_source(m->template));
        m->reasoning = reasoning_format_of(template_source(m->template));
    }
    Buffer pairs = {0}, object = {0};
    bool ok = template_token_variables(directory, &pairs, error) &&
        (!m->template || find_text_parts(m, buffer_view(&pairs), error));
    if (ok) {
        buffer_printf(&object, "{%s}", pairs.size ? pairs.data + 1 : ""); /* without the comma in front */
        char *text = object.failed ? NULL : arena_copy(&m->arena, buffer_view(&object));
        ok = text || fail(error, ERROR_MEMORY, "no memory for the special tokens of %s", directory);
        if (ok) m->special_tokens = json_parse(&m->arena, (Slice){text, object.size}, error);
        ok = m->special_tokens;
    }
    buffer_free(&pairs);
    buffer_free(&object);
    return ok;
}

/* The draft model's tokens must be those of the model: ids that only one of them has are allowed. */
static bool check_draft_vocabulary(const ChatModel *m, const char *directory, Error *error) {
    Buffer own = {0}, other = {0};
    Tokenizer *draft = tokenizer_open(directory, error);
    const int count = draft ? min_int(tokenizer_vocab(draft), tokenizer_vocab(m->tokenizer)) : 0;
    bool ok = draft;
    for (int32_t id = 0; ok && id < count; id++) {
        buffer_clear(&own);
        buffer_clear(&other);
        const bool here = tokenizer_bytes(m->tokenizer, id, &own, NULL),
                   there = tokenizer_bytes(draft, id, &other, NULL);
        if (here != there || (here && !slice_equal(buffer_view(&own), buffer_view(&other))))
            ok = fail(error, ERROR_UNSUPPORTED,
                "--draft-model %s: its vocabulary is another one: token %d is '%.*s', here it is '%.*s'", directory, id,
                SLICE_ARGS(buffer_view(&other)), SLICE_ARGS(buffer_view(&own)));
    }
    if (ok && (own.failed || other.failed)) ok = fail(error, ERROR_MEMORY, "no memory to compare vocabularies");
    tokenizer_close(draft);
    buffer_free(&own);
    buffer_free(&other);
    return ok;
}

ChatModel *chat_model_open(const char *name, const EngineOptions *options, Error *error) {
    ChatModel *m = calloc(1, sizeof *m);
    if (!m || !(m->name = strdup(name))) {
        free(m);
        fail(error, ERROR_MEMORY, "no memory for a model");
        return NULL;
    }
    EngineOptions own = *options;
    Error why = {0};
    m->created = (int64_t)time(NULL);
    mutex_init(&m->mutex);
    if (!own.pooling && !pooling_read(options->directory, &own.pooling, &why))
        log_warn("%s: no embeddings: %s", name, why.text);
    m->engine = engine_open(&own, error); /* first: its weights come in while the vocabulary is read */
    m->tokenizer = m->engine ? tokenizer_open(options->directory, error) : NULL;
    const char *draft = options->speculation.draft_directory;
    if (!m->tokenizer || !open_template(m, options->directory, error) ||
        (draft && !engine_has_assistant(m->engine) && !check_draft_vocabulary(m, draft, error))) {
        chat_model_close(m);
        return NULL;
    }
    if (tokenizer_vocab(m->tokenizer) > chat_model_vocab(m))
        log_warn("%s: the tokenizer has %d tokens, the model %d: a text with one of the others is refused", name,
            tokenizer_vocab(m->tokenizer), chat_model_vocab(m));
    if ((engine_vision(m->engine) || engine_audio(m->engine)) && !(m->media_files = media_files_open(error))) {
        chat_model_close(m);
        return NULL;
    }
    m->sampling = recommended_sampling(engine_model(m->engine));
    make_fingerprint(m);
    return m;
}

void chat_model_close(ChatModel *m) {
    if (!m) return;
    engine_close(m->engine);
    media_files_close(m->media_files);
    vocabulary_free(m->vocabulary);
    vocabulary_free(m->call_vocabulary);
    tokens_free(&m->call_openers);
    tokens_free(&m->reasoning_closers);
    mutex_destroy(&m->mutex);
    template_free(m->template);
    tokenizer_close(m->tokenizer);
    arena_free(&m->arena);
    free(m->name);
    free(m);
}

const CallFormat *chat_model_calls(const ChatModel *m) { return m->calls ? m->calls : call_format_named("hermes"); }

static bool spells_marker(const void *context, Slice token) {
    const ChatModel *m = context;
    return call_format_uses(chat_model_calls(m), m->reasoning, token);
}

/* Under the mutex. */
static Vocabulary *make_vocabulary(const ChatModel *m, const SpelledTokens *spelled, Error *error) {
    int32_t ends[EOS_MAX];
    const int count = model_eos(engine_model(m->engine), ends);
    return vocabulary_of(m->tokenizer, ends, (size_t)count, spelled, error);
}

const Vocabulary *chat_model_vocabulary(ChatModel *m, Error *error) {
    mutex_lock(&m->mutex);
    if (!m->vocabulary) m->vocabulary = make_vocabulary(m, NULL, error);
    const Vocabulary *vocabulary = m->vocabulary;
    mutex_unlock(&m->mutex);
    return vocabulary;
}

/* The first byte after a call's marker; 0: a name follows. */
static char opener_of(const CallFormat *calls) {
    const Slice list = call_marker(calls->list_open), head = call_marker(calls->head);
    return list.size ? list.data[0] : head.size ? head.data[0] : 0;
}

static bool look_at_token(ChatModel *m, int32_t id, char opener, Buffer *bytes, bool *special) {
    buffer_clear(bytes);
    if (!tokenizer_bytes(m->tokenizer, id, bytes, NULL)) return true;
    if (tokenizer_is_special(m->tokenizer, id)) {
        *special |= spells_marker(m, buffer_view(bytes));
        return true;
    }
    const Slice rest = call_marker_begin(buffer_view(bytes));
    return rest.size == 0 || rest.data[0] != opener || tokens_push(&m->call_openers, id);
}

/* Under the mutex. */
static bool make_calls(ChatModel *m, Error *error) {
    const SpelledTokens spelled = {spells_marker, m};
    const char opener = opener_of(chat_model_calls(m));
    Buffer bytes = {0};
    bool special = false, ok = true;
    for (int32_t id = 0; ok && id < tokenizer_vocab(m->tokenizer); id++)
        ok = look_at_token(m, id, opener, &bytes, &special);
    buffer_free(&bytes);
    if (!ok) {
        tokens_free(&m->call_openers);
        return fail(error, ERROR_MEMORY, "no memory for the tokens that begin calls");
    }
    if (special) m->call_vocabulary = make_vocabulary(m, &spelled, error);
    m->calls_ready = !special || m->call_vocabulary;
    return m->calls_ready;
}

const Vocabulary *chat_model_call_vocabulary(ChatModel *m, Error *error) {
    mutex_lock(&m->mutex);
    const bool ok = m->calls_ready || make_calls(m, error);
    const Vocabulary *vocabulary = m->call_vocabulary;
    mutex_unlock(&m->mutex);
    return !ok || vocabulary ? vocabulary : chat_model_vocabulary(m, error);
}

/* Whether the last bytes of the marker stand in front of other bytes of the text, with all the marker or with nothing
 * before them. */
static bool goes_beyond(Slice text, Slice marker) {
    for (size_t i = 1; i < text.size; i++) {
        const size_t size = i < marker.size ? i : marker.size;
        if (!memcmp(text.data + i - size, marker.data + marker.size - size, size)) return true;
    }
    return false;
}

/* Under the mutex. */
static bool make_closers(ChatModel *m, Error *error) {
    const Slice marker = slice_of(m->reasoning->close);
    Buffer bytes = {0};
    bool ok = true;
    for (int32_t id = 0; ok && id < tokenizer_vocab(m->tokenizer) && id < chat_model_vocab(m); id++) {
        buffer_clear(&bytes);
        if (tokenizer_bytes(m->tokenizer, id, &bytes, NULL) && goes_beyond(buffer_view(&bytes), marker))
            ok = tokens_push(&m->reasoning_closers, id);
    }
    ok = ok && !bytes.failed;
    buffer_free(&bytes);
    m->closers_ready = ok;
    if (!ok) tokens_free(&m->reasoning_closers);
    return ok || fail(error, ERROR_MEMORY, "no memory for the tokens that end reasoning");
}

const Tokens *chat_model_reasoning_closers(ChatModel *m, Error *error) {
    mutex_lock(&m->mutex);
    const bool ok = m->closers_ready || make_closers(m, error);
    mutex_unlock(&m->mutex);
    return ok ? &m->reasoning_closers : NULL;
}

ModelFacts chat_model_facts(const ChatModel *m) {
    const Model *model = engine_model(m->engine);
    const Spec *spec = model_spec(model);
    ModelFacts facts = {.family = spec && spec->family ? spec->family : "",
        .bytes = model_weight_bytes(model),
        .layers = model_layers(model),
        .width = model_hidden(model)};
    const Tally *main = NULL;
    for (int i = 0; spec && i < spec->tally_count; i++) {
        facts.parameters += spec->tally[i].parameters;
        if (!main || spec->tally[i].parameters > main->parameters) main = &spec->tally[i];
    }
    if (main && main->quant != QUANT_NONE)
        snprintf(facts.weights, sizeof facts.weights, "Q%d", main->bits);
    else if (main)
        snprintf(facts.weights, sizeof facts.weights, "%s",
            main->dtype == DTYPE_F32        ? "F32"
                : main->dtype == DTYPE_BF16 ? "BF16"
                                            : "F16");
    return facts;
}

int chat_model_vocab(const ChatModel *m) { return model_vocab(engine_model(m->engine)); }
int chat_model_context(const ChatModel *m) { return model_context(engine_model(m->engine)); }
