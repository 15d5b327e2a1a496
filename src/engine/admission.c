#include "engine/admission.h"

#include "base/digest.h"
#include "base/math.h"
#include "engine/check.h"
#include "model/spec.h"

static const VisionSpec *vision_of(const Admission *a) { return a->media ? media_cache_vision(a->media) : NULL; }

/* Images that must be read whole fit a step. */
static bool check_media(const Admission *a, const RequestOptions *o, Error *error) {
    const VisionSpec *vision = vision_of(a);
    const int most = min_int(a->scheduler->prefill_size, a->span_rows_max);
    if (o->media_count > 0 && !a->media)
        return fail(error, ERROR_UNSUPPORTED, "this model takes neither images nor audio");
    for (int i = 0; i < o->media_count; i++) {
        const int tokens = o->media[i].rows;
        const int before = i > 0 ? o->media[i - 1].begin + o->media[i - 1].rows : 0;
        CHECK(o->media[i].first >= 0 && tokens <= o->media[i].item->tokens - o->media[i].first);
        if (o->media[i].begin < before || o->media[i].begin > o->prompt_count - tokens)
            return fail(
                error, ERROR_USAGE, "item %d at token %d of a prompt of %d", i, o->media[i].begin, o->prompt_count);
        if (vision && vision->bidirectional && !media_item_is_audio(o->media[i].item) && tokens > most)
            return fail(error, ERROR_LIMIT,
                "An image of %d tokens must be read in one step, which has at most %d (--prefill-size)", tokens, most);
    }
    if (o->media_count > 0 && vision && vision->whole_prompt && o->prompt_count > most)
        return fail(error, ERROR_LIMIT,
            "A prompt of %d tokens with images must be read in one step, which has at most %d (--prefill-size)",
            o->prompt_count, most);
    return true;
}

static bool check_encoded(const Admission *a, const RequestOptions *o, Error *error) {
    const int positions = model_spec(a->model)->positions, most = a->scheduler->prefill_size;
    if (!o->embeds) return fail(error, ERROR_UNSUPPORTED, "this model makes embeddings, no answers");
    if (o->prompt_count > positions)
        return fail(
            error, ERROR_LIMIT, "the prompt has %d tokens, the model has %d positions", o->prompt_count, positions);
    return o->prompt_count <= most ||
        fail(error, ERROR_LIMIT, "a text of %d tokens must be read in one step, which has at most %d (--prefill-size)",
            o->prompt_count, most);
}

/* Pages of a sequence hold what its adapter made of the text. */
static bool settle_adapter(const Admission *a, RequestOptions *o, Error *error) {
    const Spec *spec = model_spec(a->model);
    if (o->adapter < 0 || o->adapter > spec->adapter_count)
        return fail(error, ERROR_USAGE, "adapter %d, the model has %d", o->adapter, spec->adapter_count);
    if (o->adapter > 0)
        o->cache_salt =
            checksum64_seeded(spec->adapters[o->adapter - 1].checksum, &o->cache_salt, sizeof o->cache_salt);
    return true;
}

Request *admission_take(const Admission *a, const RequestOptions *asked, Error *error) {
    static const KvFormat full_precision;
    const int vocab = model_vocab(a->model);
    const VisionSpec *vision = vision_of(a);
    RequestOptions own = *asked;
    if (!own.kv_format) own.kv_format = a->kv_format;
    if (!check_request_options(&own, vocab, error) || !check_media(a, &own, error) || !settle_adapter(a, &own, error))
        return NULL;
    const bool media_whole = own.media_count > 0 && vision && vision->bidirectional;
    if (media_whole) own.kv_format = &full_precision; /* the steps of other formats end at places of their own */
    const bool encoded = model_spec(a->model)->encoder;
    if (encoded && !check_encoded(a, &own, error)) return NULL;
    if (own.embeds && !a->pooling) {
        fail(error, ERROR_UNSUPPORTED, "this model makes no embeddings");
        return NULL;
    }
    const int max_tokens = scheduler_fit(a->scheduler, &own, error);
    if (max_tokens == 0 || !check_token_ids(own.prompt, own.prompt_count, vocab, "prompt", error)) return NULL;
    const RequestShape shape = {.vocab = vocab,
        .hidden = model_hidden(a->model),
        .pooling = a->pooling,
        .media_whole = media_whole,
        .whole_prompt = encoded || (media_whole && vision->whole_prompt),
        .lookup = a->scheduler->speculation.options.lookup};
    return request_new(&own, &shape, max_tokens, error);
}
