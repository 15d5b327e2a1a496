/* The part of the Loader that reads which tokens end a text. */
#include "model/loader/internal.h"

/* One file's eos_token_id: an id or an array of ids. where: the file, and the object in it. */
static int read_ids(Loader *ld, const char *where, const Json *value, int vocab, int32_t out[EOS_MAX]) {
    int count = 0, strangers = 0;
    long long stranger = 0;
    const bool list = value->type == JSON_ARRAY;
    const Json *end = list ? value->end : value + 1;
    for (const Json *id = list ? json_first(value) : value; id != end; id = json_next(id)) {
        if (id->type != JSON_INTEGER) {
            char shown[64];
            loader_fail(ld, ERROR_FORMAT, "%seos_token_id %s %s, must be a token id or an array of them", where,
                list ? "has" : "is", loader_show(id, shown));
            return 0;
        }
        if (id->integer < 0 || id->integer >= vocab) {
            stranger = strangers++ ? stranger : id->integer;
        } else if (count < EOS_MAX) {
            out[count++] = (int32_t)id->integer;
        } else {
            loader_fail(ld, ERROR_UNSUPPORTED, "%seos_token_id has more than %d ids", where, EOS_MAX);
            return 0;
        }
    }
    if (strangers) {
        loader_warn(ld, "%seos_token_id has %lld, which is no token of a vocabulary of %d; left out (%d such)", where,
            stranger, vocab, strangers);
    }
    return count;
}

int loader_eos(Loader *ld, const Json *generation, int vocab, int32_t out[EOS_MAX]) {
    const struct {
        const char *where;
        const Json *fields;
    } places[] = {{"generation_config.json: ", generation}, {"config.json: ", ld->root},
        {"config.json: text_config.", json_get(ld->root, "text_config")}};
    int count = 0;
    for (size_t i = 0; i < COUNT_OF(places) && count == 0 && !ld->failed; i++) {
        const Json *value = json_get(places[i].fields, "eos_token_id");
        if (value && value->type != JSON_NULL) {
            count = read_ids(ld, places[i].where, value, vocab, out);
        }
    }
    return count;
}
