#include "text/tokenizer/sentencepiece_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer/protobuf.h"

enum { PIECES_MAX = 1 << 20, PIECE_BYTES_MAX = 1024, MERGES_MAX = 1 << 23, BYTES = 256 };
static const size_t MEMORY_MAX = (size_t)2 << 30;

static bool broken(const PieceModel *m, const char *where) {
    return fail(m->error, ERROR_FORMAT, "%s: the protocol buffer is broken", where);
}

static bool piece_check(PieceModel *m, const Piece *piece) {
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

static bool read_piece(PieceModel *m, Slice in) {
    Piece piece = {.type = PIECE_NORMAL};
    ProtobufField field;
    while (in.size) {
        if (!protobuf_take(&in, &field)) return fail(m->error, ERROR_FORMAT, "piece %u is broken", m->count);
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

static bool read_trainer(PieceModel *m, Slice in) {
    enum { FIELD_TYPE = 3, FIELD_SUFFIX = 24, FIELD_FALLBACK = 35, FIELD_BOS = 41, FIELD_EOS = 42 };
    ProtobufField field;
    while (in.size) {
        if (!protobuf_take(&in, &field)) return broken(m, "trainer_spec");
        if (field.wire != WIRE_VARINT) continue;
        if (field.number == FIELD_TYPE) m->type = signed_of(field.value);
        if (field.number == FIELD_SUFFIX) m->suffix = field.value;
        if (field.number == FIELD_FALLBACK) m->byte_fallback = field.value;
        if (field.number == FIELD_BOS) m->bos = signed_of(field.value);
        if (field.number == FIELD_EOS) m->eos = signed_of(field.value);
    }
    return true;
}

static bool read_normalizer(PieceModel *m, Slice in, bool back) {
    enum { FIELD_TABLE = 2, FIELD_PREFIX, FIELD_TRIM, FIELD_MARKED };
    ProtobufField field;
    while (in.size) {
        if (!protobuf_take(&in, &field)) return broken(m, back ? "denormalizer_spec" : "normalizer_spec");
        if (field.number == FIELD_TABLE && field.wire == WIRE_LENGTH)
            *(back ? &m->back_table : &m->table) = field.bytes;
        if (back || field.wire != WIRE_VARINT) continue;
        if (field.number == FIELD_PREFIX) m->prefix = field.value;
        if (field.number == FIELD_TRIM) m->trim = field.value;
        if (field.number == FIELD_MARKED) m->marked = field.value;
    }
    return true;
}

static bool read_model(PieceModel *m, Slice in) {
    enum { FIELD_PIECE = 1, FIELD_TRAINER, FIELD_NORMALIZER, FIELD_DENORMALIZER = 5 };
    ProtobufField field;
    if (!in.size) return fail(m->error, ERROR_FORMAT, "the file is empty");
    while (in.size) {
        if (!protobuf_take(&in, &field))
            return m->count ? broken(m, "the model") : fail(m->error, ERROR_FORMAT, "this is no SentencePiece model");
        if (field.wire != WIRE_LENGTH) continue;
        if (field.number == FIELD_PIECE && !read_piece(m, field.bytes)) return false;
        if (field.number == FIELD_TRAINER && !read_trainer(m, field.bytes)) return false;
        if (field.number == FIELD_NORMALIZER && !read_normalizer(m, field.bytes, false)) return false;
        if (field.number == FIELD_DENORMALIZER && !read_normalizer(m, field.bytes, true)) return false;
    }
    return m->count || fail(m->error, ERROR_FORMAT, "this is no SentencePiece model: it has no piece");
}

static bool check_bytes(const PieceModel *m) {
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

static bool check_model(const PieceModel *m) {
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
static bool part_of(const PieceModel *m, Slice text, uint32_t *id) {
    uint64_t found;
    if (!map_get(&m->by_text, text, &found)) return false;
    *id = (uint32_t)found;
    return m->pieces[found].type == PIECE_NORMAL || m->pieces[found].type == PIECE_UNUSED;
}

static bool add_merge(PieceModel *m, Merge merge) {
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

static bool make_merges(PieceModel *m) {
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

static bool sort_merges(PieceModel *m) {
    Ranked *ranked = malloc((m->merge_count + 1) * sizeof *ranked);
    if (!ranked) return fail(m->error, ERROR_MEMORY, "no memory for the merges");
    for (size_t i = 0; i < m->merge_count; i++) ranked[i] = (Ranked){m->pieces[m->merges[i].piece].score, m->merges[i]};
    if (m->merge_count) qsort(ranked, m->merge_count, sizeof *ranked, compare_ranked);
    for (size_t i = 0; i < m->merge_count; i++) m->merges[i] = ranked[i].merge;
    free(ranked);
    return true;
}

bool sentencepiece_model_merge(PieceModel *m) { return make_merges(m) && sort_merges(m); }

bool sentencepiece_model_read(PieceModel *m, Slice bytes) {
    *m = (PieceModel){.arena.limit = MEMORY_MAX,
        .type = TYPE_UNIGRAM,
        .unknown = -1,
        .bos = 1,
        .eos = 2,
        .prefix = true,
        .trim = true,
        .marked = true,
        .error = m->error};
    return read_model(m, bytes) && check_model(m);
}

void sentencepiece_model_close(PieceModel *m) {
    free(m->merges);
    map_free(&m->by_text);
    arena_free(&m->arena);
}
