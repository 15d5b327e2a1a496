/* The part of the Loader that reads which tokens end a text. */
#include "model/loader/internal.h"

/* One file's eos_token_id: an id or an array of ids. where: the file, and the object in it. */
static void read_ids(Loader *ld, const char *where, const Json *value, LoadTarget *target) {
    const int vocab = target->spec->vocab;
    int strangers = 0;
    long long stranger = 0;
    const bool list = value->type == JSON_ARRAY;
    const Json *end = list ? value->end : value + 1;
    for (const Json *id = list ? json_first(value) : value; id != end; id = json_next(id)) {
        if (id->type != JSON_INTEGER) {
            char shown[64];
            loader_fail(ld, ERROR_FORMAT, "%seos_token_id %s %s, must be a token id or an array of them", where,
                list ? "has" : "is", loader_show(id, shown));
            return;
        }
        if (id->integer < 0 || id->integer >= vocab) {
            stranger = strangers++ ? stranger : id->integer;
        } else if (target->eos_count < target->eos_max) {
            target->eos[target->eos_count++] = (int32_t)id->integer;
        } else {
            loader_fail(ld, ERROR_UNSUPPORTED, "%seos_token_id has more than %d ids", where, target->eos_max);
            return;
        }
    }
    if (strangers) {
        loader_warn(ld, "%seos_token_id has %lld, which is no token of a vocabulary of %d; left out (%d such)", where,
            stranger, vocab, strangers);
    }
}

void loader_eos(Loader *ld, LoadTarget *target) {
    const struct {
        const char *where;
        const Json *fields;
    } places[] = {{"generation_config.json: ", ld->source->generation}, {"config.json: ", ld->root},
        {"config.json: text_config.", json_get(ld->root, "text_config")}};
    target->eos_count = 0;
    for (size_t i = 0; i < COUNT_OF(places) && target->eos_count == 0 && !ld->failed; i++) {
        const Json *value = json_get(places[i].fields, "eos_token_id");
        if (value && value->type != JSON_NULL) {
            read_ids(ld, places[i].where, value, target);
        }
    }
}
