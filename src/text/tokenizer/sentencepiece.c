#include "text/tokenizer/sentencepiece.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/base64.h"
#include "base/file.h"
#include "base/json.h"
#include "base/map.h"
#include "base/utf8.h"

enum { FILE_BYTES_MAX = 128 << 20, PIECES_MAX = 1 << 20, PIECE_BYTES_MAX = 1024, MERGES_MAX = 1 << 23, BYTES = 256 };
static const size_t MEMORY_MAX = (size_t)2 << 30;

typedef enum PieceType {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER,
    PIECE_UNUSED,
    PIECE_BYTE
} PieceType;
typedef enum ModelType { TYPE_UNIGRAM = 1, TYPE_BPE, TYPE_WORD, TYPE_CHARACTER } ModelType;

typedef struct Piece {
    Slice text;
    float score;
    PieceType type;
} Piece;

typedef struct Merge {
    uint32_t left, right, piece; /* ids */
} Merge;

typedef struct Model {
    Arena arena;
    Piece *pieces;
    uint32_t count, capacity;
    Map by_text; /* → id */
    Merge *merges;
    size_t merge_count, merge_capacity;
    int64_t type, unknown, bos, eos; /* ids; below zero: none */
    bool byte_fallback, suffix, prefix, trim, marked;
    Slice table, back_table;
    Error *error;
} Model;

/* --- Protocol buffers ------------------------------------------------------------------------------------------- */

typedef struct Field {
    uint32_t number, wire;
    uint64_t value; /* the number of VARINT, FIXED32 and FIXED64 */
    Slice bytes;    /* the text of LENGTH; the number itself of FIXED32 and FIXED64 */
} Field;
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_LENGTH = 2, WIRE_FIXED32 = 5 };

static bool take_varint(Slice *in, uint64_t *value) {
    enum { BITS = 7, MORE = 0x80, SHIFT_MAX = 63 };
    *value = 0;
    for (int shift = 0; shift <= SHIFT_MAX && in->size; shift += BITS) {
        const uint8_t byte = (uint8_t)in->data[0];
        *in = (Slice){in->data + 1, in->size - 1};
        *value |= (uint64_t)(byte & ~MORE) << shift;
        if (!(byte & MORE)) return true;
    }
    return false;
}

static bool take_bytes(Slice *in, uint64_t size, Slice *bytes) {
    if (size > in->size) return false;
    *bytes = (Slice){in->data, (size_t)size};
    *in = (Slice){in->data + size, in->size - (size_t)size};
    return true;
}

/* The next field of a message that has one. */
static bool take_field(Slice *in, Field *field) {
    enum { WIRE_BITS = 3, NUMBER_MAX = (1 << 29) - 1 };
    uint64_t key, size;
    *field = (Field){0};
    if (!take_varint(in, &key) || key >> WIRE_BITS == 0 || key >> WIRE_BITS > NUMBER_MAX) return false;
    field->number = (uint32_t)(key >> WIRE_BITS);
    field->wire = key & ((1 << WIRE_BITS) - 1);
    if (field->wire == WIRE_VARINT) return take_varint(in, &field->value);
    if (field->wire == WIRE_LENGTH) return take_varint(in, &size) && take_bytes(in, size, &field->bytes);
    if (field->wire != WIRE_FIXED32 && field->wire != WIRE_FIXED64) return false;
    if (!take_bytes(in, field->wire == WIRE_FIXED32 ? sizeof(uint32_t) : sizeof(uint64_t), &field->bytes)) return false;
    memcpy(&field->value, field->bytes.data, field->bytes.size);
    return true;
}

static bool broken(const Model *m, const char *where) {
    return fail(m->error, ERROR_FORMAT, "%s: the protocol buffer is broken", where);
}

/* --- Reading ---------------------------------------------------------------------------------------------------- */

static bool piece_check(Model *m, const Piece *piece) {
    const uint32_t id = m->count;
    uint64_t other;
    if (piece->text.size == 0 || piece->text.size > PIECE_BYTES_MAX)
        return fail(
            m->error, ERROR_FORMAT, "piece %u has %zu bytes, must have 1 to %d", id, piece->text.size, PIECE_BYTES_MAX);
    if (!utf8_valid(piece->text)) return fail(m->error, ERROR_FORMAT, "piece %u is not UTF-8", id);
    if (!isfinite(piece->score)) return fail(m->error, ERROR_FORMAT, "piece %u has no finite score", id);
    if (piece->type < PIECE_NORMAL || piece->type > PIECE_BYTE)
        return fail(m->error, ERROR_UNSUPPORTED, "piece %u has the unknown type %d", id, (int)piece->type);
    if (map_get(&m->by_text, piece->text, &other))
        return fail(m->error, ERROR_FORMAT, "the pieces %u and %u are the same, \"%.*s\"", (uint32_t)other, id,
            SLICE_SHOWN(piece->text));
    if (piece->type != PIECE_UNKNOWN) return true;
    if (m->unknown >= 0)
        return fail(
            m->error, ERROR_FORMAT, "the pieces %lld and %u are both the unknown one", (long long)m->unknown, id);
    m->unknown = id;
    return true;
}

static bool read_piece(Model *m, Slice in) {
    Piece piece = {.type = PIECE_NORMAL};
    Field field;
    while (in.size) {
        if (!take_field(&in, &field)) return fail(m->error, ERROR_FORMAT, "piece %u is broken", m->count);
        if (field.number == 1 && field.wire == WIRE_LENGTH) piece.text = field.bytes;
        if (field.number == 2 && field.wire == WIRE_FIXED32) memcpy(&piece.score, field.bytes.data, sizeof piece.score);
        if (field.number == 3 && field.wire == WIRE_VARINT)
            piece.type = field.value <= PIECE_BYTE ? (PieceType)field.value : 0;
    }
    if (m->count == PIECES_MAX) return fail(m->error, ERROR_LIMIT, "more than %d pieces", PIECES_MAX);
    if (!piece_check(m, &piece)) return false;
    if (m->count == m->capacity) {
        const uint32_t capacity = m->capacity ? 2 * m->capacity : 1 << 12;
        Piece *grown = arena_alloc(&m->arena, capacity, sizeof *grown);
        if (!grown) return fail(m->error, ERROR_MEMORY, "no memory for the pieces");
        if (m->count) memcpy(grown, m->pieces, m->count * sizeof *grown);
        m->pieces = grown;
        m->capacity = capacity;
    }
    m->pieces[m->count] = piece;
    return map_put(&m->by_text, piece.text, m->count++) || fail(m->error, ERROR_MEMORY, "no memory for the pieces");
}

/* A negative int32 has ten bytes. */
static int64_t signed_of(uint64_t value) { return (int32_t)(uint32_t)value; }

static bool read_trainer(Model *m, Slice in) {
    enum { FIELD_TYPE = 3, FIELD_SUFFIX = 24, FIELD_FALLBACK = 35, FIELD_BOS = 41, FIELD_EOS = 42 };
    Field field;
    while (in.size) {
        if (!take_field(&in, &field)) return broken(m, "trainer_spec");
        if (field.wire != WIRE_VARINT) continue;
        if (field.number == FIELD_TYPE) m->type = signed_of(field.value);
        if (field.number == FIELD_SUFFIX) m->suffix = field.value;
        if (field.number == FIELD_FALLBACK) m->byte_fallback = field.value;
        if (field.number == FIELD_BOS) m->bos = signed_of(field.value);
        if (field.number == FIELD_EOS) m->eos = signed_of(field.value);
    }
    return true;
}

static bool read_normalizer(Model *m, Slice in, bool back) {
    enum { FIELD_TABLE = 2, FIELD_PREFIX, FIELD_TRIM, FIELD_MARKED };
    Field field;
    while (in.size) {
        if (!take_field(&in, &field)) return broken(m, back ? "denormalizer_spec" : "normalizer_spec");
        if (field.number == FIELD_TABLE && field.wire == WIRE_LENGTH)
            *(back ? &m->back_table : &m->table) = field.bytes;
        if (back || field.wire != WIRE_VARINT) continue;
        if (field.number == FIELD_PREFIX) m->prefix = field.value;
        if (field.number == FIELD_TRIM) m->trim = field.value;
        if (field.number == FIELD_MARKED) m->marked = field.value;
    }
    return true;
}

static bool read_model(Model *m, Slice in) {
    enum { FIELD_PIECE = 1, FIELD_TRAINER, FIELD_NORMALIZER, FIELD_DENORMALIZER = 5 };
    Field field;
    if (!in.size) return fail(m->error, ERROR_FORMAT, "the file is empty");
    while (in.size) {
        if (!take_field(&in, &field))
            return m->count ? broken(m, "the model") : fail(m->error, ERROR_FORMAT, "this is no SentencePiece model");
        if (field.wire != WIRE_LENGTH) continue;
        if (field.number == FIELD_PIECE && !read_piece(m, field.bytes)) return false;
        if (field.number == FIELD_TRAINER && !read_trainer(m, field.bytes)) return false;
        if (field.number == FIELD_NORMALIZER && !read_normalizer(m, field.bytes, false)) return false;
        if (field.number == FIELD_DENORMALIZER && !read_normalizer(m, field.bytes, true)) return false;
    }
    return m->count || fail(m->error, ERROR_FORMAT, "this is no SentencePiece model: it has no piece");
}

static bool check_bytes(const Model *m) {
    uint32_t count = 0;
    for (uint32_t id = 0; id < m->count; id++) {
        char name[8];
        if (m->pieces[id].type != PIECE_BYTE) continue;
        for (uint32_t byte = 0; byte < BYTES; byte++) {
            snprintf(name, sizeof name, "<0x%02X>", byte);
            if (!slice_is(m->pieces[id].text, name)) continue;
            count++;
            break;
        }
    }
    return !m->byte_fallback || count == BYTES ||
        fail(m->error, ERROR_FORMAT, "trainer_spec.byte_fallback with %u pieces for bytes, must be %d", count, BYTES);
}

static bool check_model(const Model *m) {
    static const char *const names[] = {"WORD", "CHAR"};
    if (m->type == TYPE_WORD || m->type == TYPE_CHARACTER)
        return fail(m->error, ERROR_UNSUPPORTED, "trainer_spec.model_type %s is not supported: UNIGRAM and BPE are",
            names[m->type - TYPE_WORD]);
    if (m->type != TYPE_UNIGRAM && m->type != TYPE_BPE)
        return fail(m->error, ERROR_FORMAT, "trainer_spec.model_type is %lld", (long long)m->type);
    if (m->suffix) return fail(m->error, ERROR_UNSUPPORTED, "trainer_spec.treat_whitespace_as_suffix is not supported");
    if (!m->marked)
        return fail(m->error, ERROR_UNSUPPORTED, "normalizer_spec.escape_whitespaces = false is not supported");
    if (m->back_table.size) return fail(m->error, ERROR_UNSUPPORTED, "denormalizer_spec is not supported");
    if (m->unknown < 0) return fail(m->error, ERROR_FORMAT, "there is no unknown piece");
    return check_bytes(m);
}

/* --- Merges ----------------------------------------------------------------------------------------------------- */

/* A piece that may come of merging: another one's part. */
static bool part_of(const Model *m, Slice text, uint32_t *id) {
    uint64_t found;
    if (!map_get(&m->by_text, text, &found)) return false;
    *id = (uint32_t)found;
    return m->pieces[found].type == PIECE_NORMAL || m->pieces[found].type == PIECE_UNUSED;
}

static bool add_merge(Model *m, Merge merge) {
    if (m->merge_count == MERGES_MAX)
        return fail(m->error, ERROR_LIMIT, "more than %d ways to make pieces of others", MERGES_MAX);
    if (m->merge_count == m->merge_capacity) {
        const size_t capacity = m->merge_capacity ? 2 * m->merge_capacity : 1 << 14;
        Merge *grown = realloc(m->merges, capacity * sizeof *grown);
        if (!grown) return fail(m->error, ERROR_MEMORY, "no memory for the merges");
        m->merges = grown;
        m->merge_capacity = capacity;
    }
    m->merges[m->merge_count++] = merge;
    return true;
}

static bool make_merges(Model *m) {
    for (uint32_t id = 0; id < m->count; id++) {
        const Piece *piece = &m->pieces[id];
        Merge merge = {.piece = id};
        if (piece->type != PIECE_NORMAL && piece->type != PIECE_UNUSED) continue;
        for (size_t at = 1; at < piece->text.size; at++) {
            const Slice left = {piece->text.data, at}, right = {piece->text.data + at, piece->text.size - at};
            if (((uint8_t)right.data[0] & 0xC0) == 0x80) continue;
            if (!part_of(m, left, &merge.left) || !part_of(m, right, &merge.right)) continue;
            if (piece->type == PIECE_UNUSED)
                return fail(m->error, ERROR_UNSUPPORTED, "piece %u of a BPE model is unused and of other pieces", id);
            if (!add_merge(m, merge)) return false;
        }
    }
    return true;
}

typedef struct Ranked {
    float score;
    Merge merge;
} Ranked;

static int compare_ranked(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->merge.piece != y->merge.piece) return x->merge.piece < y->merge.piece ? -1 : 1;
    if (x->merge.left != y->merge.left) return x->merge.left < y->merge.left ? -1 : 1;
    return (x->merge.right > y->merge.right) - (x->merge.right < y->merge.right);
}

static bool sort_merges(Model *m) {
    Ranked *ranked = malloc((m->merge_count + 1) * sizeof *ranked);
    if (!ranked) return fail(m->error, ERROR_MEMORY, "no memory for the merges");
    for (size_t i = 0; i < m->merge_count; i++) ranked[i] = (Ranked){m->pieces[m->merges[i].piece].score, m->merges[i]};
    if (m->merge_count) qsort(ranked, m->merge_count, sizeof *ranked, compare_ranked);
    for (size_t i = 0; i < m->merge_count; i++) m->merges[i] = ranked[i].merge;
    free(ranked);
    return true;
}

/* --- Writing ---------------------------------------------------------------------------------------------------- */

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
static bool write_added(const Model *m, const Json *config, const Json *added, Buffer *out) {
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

static void write_normalizer(const Model *m, bool once, Buffer *out) {
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

static void write_decoder(const Model *m, Buffer *out) {
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
static void write_template(const Model *m, int64_t bos, int64_t eos, Buffer *out) {
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

static void write_bpe(const Model *m, Buffer *out) {
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
static void write_unigram(const Model *m, Buffer *out) {
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
static int64_t token_named(const Model *m, const Json *config, const char *name, int64_t own) {
    const Json *value = json_get(config, name);
    uint64_t id;
    if (value && value->type == JSON_OBJECT) value = json_get(value, "content");
    if (value && value->type == JSON_STRING && map_get(&m->by_text, json_slice(value), &id)) return (int64_t)id;
    return own >= 0 && own < m->count && m->pieces[own].type == PIECE_CONTROL ? own : -1;
}

/* The library's classes whose ids are not the model's. */
static bool check_class(const Model *m, const Json *config) {
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

static bool write_all(Model *m, Slice settings, Slice further, Buffer *out) {
    const Json *config = settings.size ? json_parse(&m->arena, settings, m->error) : NULL;
    if (settings.size && !config) return fail_while(m->error, "tokenizer_config.json");
    const Json *added = further.size ? json_parse(&m->arena, further, m->error) : NULL;
    if (further.size && !added) return fail_while(m->error, "added_tokens.json");
    if (!check_class(m, config)) return false;
    if (m->type == TYPE_BPE && (!make_merges(m) || !sort_merges(m))) return false;
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
    Model m = {.arena.limit = MEMORY_MAX,
        .type = TYPE_UNIGRAM,
        .unknown = -1,
        .bos = 1,
        .eos = 2,
        .prefix = true,
        .trim = true,
        .marked = true,
        .error = error};
    const bool ok = read_model(&m, model) && check_model(&m) && write_all(&m, config, added, out);
    free(m.merges);
    map_free(&m.by_text);
    arena_free(&m.arena);
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
