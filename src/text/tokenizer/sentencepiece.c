#include "text/tokenizer/sentencepiece.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer/sentencepiece_model.h"

enum { FILE_BYTES_MAX = 128 << 20 };

static const char *yes_no(bool flag) { return flag ? "true" : "false"; }

static void write_token(int64_t id, Slice text, bool normalized, bool special, bool first, Buffer *out) {
    buffer_printf(out, "%s{\"id\":%lld,\"content\":", first ? "" : ",", (long long)id);
    json_write_string(out, text);
    buffer_printf(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":%s,\"special\":%s}",
        yes_no(normalized), yes_no(special));
}

/* Whether the configuration names it as a token of a purpose: eos_token, pad_token, additional_special_tokens, … */
static bool has_purpose(const Json *config, Slice text) {
    const Json *more = json_get(config, "additional_special_tokens");
    if (!config || config->type != JSON_OBJECT) return false;
    for (JSON_EACH_PAIR(key, value, config)) {
        const Json *content = value->type == JSON_OBJECT ? json_get(value, "content") : value;
        const bool named = key->size > 6 && !memcmp(key->string + key->size - 6, "_token", 6);
        if (named && content && content->type == JSON_STRING && slice_equal(json_slice(content), text)) return true;
    }
    if (!more || more->type != JSON_ARRAY) return false;
    for (JSON_EACH(value, more))
        if (value->type == JSON_STRING && slice_equal(json_slice(value), text)) return true;
    return false;
}

/* Control tokens are cut off before all else; the user's are found in the normalised text, those of a Unigram model by
 * their scores. added_tokens.json is of older libraries; newer ones have all in the configuration. */
static bool write_added(const PieceModel *m, const Json *config, const Json *added, Buffer *out) {
    bool first = true;
    buffer_text(out, "\"added_tokens\":[");
    for (uint32_t id = 0; id < m->count; id++) {
        const Piece *piece = &m->pieces[id];
        const bool user = piece->type == PIECE_USER;
        if (user ? m->type == TYPE_UNIGRAM : piece->type != PIECE_CONTROL && piece->type != PIECE_UNKNOWN) continue;
        write_token(id, piece->text, user, !user, first, out);
        first = false;
    }
    if (added && added->type != JSON_OBJECT)
        return fail(m->error, ERROR_FORMAT, "added_tokens.json: an object is expected, not %s", json_type_name(added));
    if (added && !json_get(config, "added_tokens_decoder")) {
        for (JSON_EACH_PAIR(key, value, added)) {
            if (value->type != JSON_INTEGER)
                return fail(m->error, ERROR_FORMAT, "added_tokens.json: the id of \"%.*s\" is %s",
                    SLICE_SHOWN(json_slice(key)), json_type_name(value));
            if (map_get(&m->by_text, json_slice(key), NULL)) continue;
            write_token(value->integer, json_slice(key), false, has_purpose(config, json_slice(key)), first, out);
            first = false;
        }
    }
    buffer_text(out, "]");
    return true;
}

static void write_normalizer(const PieceModel *m, bool once, Buffer *out) {
    const char *separator = "";
    buffer_printf(out, ",\"normalizer\":{\"type\":\"SentencePiece\",\"prefix\":%s,\"prefix_once\":%s,\"trim\":%s",
        yes_no(m->prefix), yes_no(once), yes_no(m->trim));
    if (m->table.size) {
        buffer_text(out, ",\"precompiled_charsmap\":\"");
        base64_encode(m->table, out);
        buffer_byte(out, '"');
    }
    buffer_text(out, ",\"kept\":[");
    for (uint32_t id = 0; id < m->count; id++) {
        if (m->pieces[id].type != PIECE_USER) continue;
        buffer_text(out, separator);
        json_write_string(out, m->pieces[id].text);
        separator = ",";
    }
    buffer_text(out, "]},\"pre_tokenizer\":null");
}

static void write_decoder(const PieceModel *m, Buffer *out) {
    enum { BLANKS_MAX = 1000000 }; /* that the text begins with, all of which go */
    buffer_text(out,
        ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"\xE2\x96\x81\"},"
        "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (m->prefix || m->trim)
        buffer_printf(out, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":%d,\"stop\":0}", m->trim ? BLANKS_MAX : 1);
    buffer_text(out, "]}");
}

static void write_special(Buffer *out, Slice text) {
    buffer_text(out, "{\"SpecialToken\":{\"type_id\":0,\"id\":");
    json_write_string(out, text);
    buffer_text(out, "}}");
}

/* bos, eos: ids; below zero: not added. */
static void write_template(const PieceModel *m, int64_t bos, int64_t eos, Buffer *out) {
    const int64_t ids[] = {bos, eos != bos ? eos : -1};
    const char *separator = "";
    buffer_text(out, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (bos >= 0) write_special(out, m->pieces[bos].text);
    buffer_printf(out, "%s{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}%s", bos >= 0 ? "," : "", eos >= 0 ? "," : "");
    if (eos >= 0) write_special(out, m->pieces[eos].text);
    buffer_text(out, "],\"pair\":[],\"special_tokens\":{");
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        if (ids[i] < 0) continue;
        buffer_text(out, separator);
        json_write_string(out, m->pieces[ids[i]].text);
        buffer_text(out, ":{\"id\":");
        json_write_string(out, m->pieces[ids[i]].text);
        buffer_printf(out, ",\"ids\":[%lld],\"tokens\":[", (long long)ids[i]);
        json_write_string(out, m->pieces[ids[i]].text);
        buffer_text(out, "]}");
        separator = ",";
    }
    buffer_text(out, "}}");
}

static void write_bpe(const PieceModel *m, Buffer *out) {
    buffer_text(out, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    json_write_string(out, m->pieces[m->unknown].text);
    buffer_printf(
        out, ",\"fuse_unk\":true,\"byte_fallback\":%s,\"ignore_merges\":false,\"vocab\":{", yes_no(m->byte_fallback));
    for (uint32_t id = 0; id < m->count; id++) {
        if (id) buffer_byte(out, ',');
        json_write_string(out, m->pieces[id].text);
        buffer_printf(out, ":%u", id);
    }
    buffer_text(out, "},\"merges\":[");
    for (size_t i = 0; i < m->merge_count; i++) {
        buffer_text(out, i ? ",[" : "[");
        json_write_string(out, m->pieces[m->merges[i].left].text);
        buffer_byte(out, ',');
        json_write_string(out, m->pieces[m->merges[i].right].text);
        buffer_byte(out, ']');
    }
    buffer_text(out, "]}}");
}

static uint32_t characters(Slice text) {
    uint32_t count = 0;
    for (size_t i = 0; i < text.size; i++) count += ((uint8_t)text.data[i] & 0xC0) != 0x80;
    return count;
}

/* unigram_model.cc: the user's pieces score by their length. (Where several of them fill the same stretch, sums are
 * equal but for rounding, and the choice may differ from the library's.) */
static void write_unigram(const PieceModel *m, Buffer *out) {
    static const float user_less = 0.1F;
    float most = -INFINITY;
    for (uint32_t id = 0; id < m->count; id++)
        if (m->pieces[id].type == PIECE_NORMAL && m->pieces[id].score > most) most = m->pieces[id].score;
    if (!isfinite(most)) most = 0;
    buffer_printf(out,
        ",\"model\":{\"type\":\"Unigram\",\"single\":true,\"unk_id\":%lld,\"byte_fallback\":%s,\"vocab\":[",
        (long long)m->unknown, yes_no(m->byte_fallback));
    for (uint32_t id = 0; id < m->count; id++) {
        const Piece *piece = &m->pieces[id];
        const bool user = piece->type == PIECE_USER;
        const float score = user ? (float)characters(piece->text) * most - user_less : piece->score;
        buffer_text(out, id ? ",[" : "[");
        json_write_string(out, piece->text);
        buffer_printf(out, ",%.17g%s]", score, user || piece->type == PIECE_NORMAL ? "" : ",true");
    }
    buffer_text(out, "]}}");
}

/* --- tokenizer_config.json -------------------------------------------------------------------------------------- */

static bool flag(const Json *config, const char *name, bool fallback) {
    const Json *value = json_get(config, name);
    return value && value->type == JSON_BOOL ? value->boolean : fallback;
}

/* The configuration's name of a token, or the model's own id. */
static int64_t token_named(const PieceModel *m, const Json *config, const char *name, int64_t own) {
    const Json *value = json_get(config, name);
    uint64_t id;
    if (value && value->type == JSON_OBJECT) value = json_get(value, "content");
    if (value && value->type == JSON_STRING && map_get(&m->by_text, json_slice(value), &id)) return (int64_t)id;
    return own >= 0 && own < m->count && m->pieces[own].type == PIECE_CONTROL ? own : -1;
}

/* The library's classes whose ids are not the model's. */
static bool check_class(const PieceModel *m, const Json *config) {
    static const char *const shifted[] = {"XLMRoberta", "Camembert", "Barthez", "MBart", "Nllb", "M2M100", "XGLM",
        "Pegasus", "PLBart", "SeamlessM4T", "XLMProphetNet", "Xglm"};
    const Json *value = json_get(config, "tokenizer_class");
    if (!value || value->type != JSON_STRING) return true;
    for (size_t i = 0; i < COUNT_OF(shifted); i++)
        if (slice_starts(json_slice(value), slice_of(shifted[i])))
            return fail(m->error, ERROR_UNSUPPORTED,
                "a %.*s has other ids than this file; its tokenizer.json is needed", SLICE_SHOWN(json_slice(value)));
    return true;
}

static bool write_all(PieceModel *m, Slice settings, Slice further, Buffer *out) {
    const Json *config = settings.size ? json_parse(&m->arena, settings, m->error) : NULL;
    if (settings.size && !config) return fail_while(m->error, "tokenizer_config.json");
    const Json *added = further.size ? json_parse(&m->arena, further, m->error) : NULL;
    if (further.size && !added) return fail_while(m->error, "added_tokens.json");
    if (!check_class(m, config)) return false;
    if (m->type == TYPE_BPE && !sentencepiece_model_merge(m)) return false;
    const int64_t bos = flag(config, "add_bos_token", true) ? token_named(m, config, "bos_token", m->bos) : -1;
    const int64_t eos = flag(config, "add_eos_token", false) ? token_named(m, config, "eos_token", m->eos) : -1;
    buffer_text(out, "{\"version\":\"1.0\",");
    if (!write_added(m, config, added, out)) return false;
    write_normalizer(m, !flag(config, "legacy", true), out);
    write_template(m, bos, eos, out);
    write_decoder(m, out);
    if (m->type == TYPE_BPE)
        write_bpe(m, out);
    else
        write_unigram(m, out);
    return !out->failed || fail(m->error, ERROR_MEMORY, "no memory for the vocabulary");
}

bool sentencepiece_json(Slice model, Slice config, Slice added, Buffer *out, Error *error) {
    PieceModel m = {.error = error};
    const bool ok = sentencepiece_model_read(&m, model) && write_all(&m, config, added, out);
    sentencepiece_model_close(&m);
    return ok;
}

bool sentencepiece_read(const char *directory, Slice config, Buffer *out, bool *found, Error *error) {
    char path[4096], added_path[4096];
    const int length = snprintf(path, sizeof path, "%s/tokenizer.model", directory);
    snprintf(added_path, sizeof added_path, "%s/added_tokens.json", directory);
    *found = length > 0 && (size_t)length < sizeof path && file_exists(path);
    if (!*found) return true;
    Buffer text = {0}, added = {0};
    const bool ok = file_read(path, FILE_BYTES_MAX, &text, error) &&
        (!file_exists(added_path) || file_read(added_path, FILE_BYTES_MAX, &added, error)) &&
        (sentencepiece_json(buffer_view(&text), config, buffer_view(&added), out, error) ||
            fail_while(error, "%s", path));
    buffer_free(&text);
    buffer_free(&added);
    return ok;
}
