/* One small JSON file per machine, backend and model. Its name is a hash of the three, and it contains them, so that a
 * file of another machine on a shared disk, of a model of the same name or of a replaced model is recognised. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/json.h"
#include "fit/fit.h"

enum { VERSION = 1, FILE_BYTES_MAX = 1 << 16 };

void fit_describe_machine(Buffer *out) {
    Buffer text = {0};
    const char *name = "unknown";
    int length = 7;
    if (file_read("/proc/cpuinfo", 0, &text, NULL) && text.data) {
        const char *line = strstr(text.data, "model name"), *colon = line ? strchr(line, ':') : NULL;
        if (colon) {
            name = colon + 1 + (colon[1] == ' ');
            length = (int)strcspn(name, "\n");
        }
    }
    const long long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    buffer_printf(out, "%.*s, %lld MB", length, name, pages * page >> 20);
    buffer_free(&text);
}

/* machine, backend and model as one text. */
static bool identify(const CalibrationKey *key, const FitModel *model, Buffer *identity, Buffer *path, Error *error) {
    fit_describe_machine(identity);
    buffer_printf(identity, "; %s; %s; %" PRIu64 " bytes, %d experts", key->backend, key->checkpoint,
        model->weight_bytes, model->experts);
    for (int k = 0; k < model->kind_count; k++) {
        const Weight *like = &model->kind[k].like;
        buffer_printf(identity, "; %s %d/%d %lldx%lld", quant_name(like->quant), like->bits, like->group,
            (long long)like->rows, (long long)like->cols);
    }
    if (!identity->failed)
        buffer_printf(path, "%s/%016" PRIx64 ".json", key->directory, checksum64(identity->data, identity->size));
    return (!identity->failed && !path->failed) || fail(error, ERROR_MEMORY, "no memory for the path of a calibration");
}

/* ---- the fields ---- */

typedef struct Field {
    const char *name;
    double *value;
} Field;
enum { FIELDS = 5 };

static void list_fields(FitMachine *m, Field out[FIELDS]) {
    const Field fields[FIELDS] = {{"memory_read_bytes_per_s", &m->read},
        {"disk_buffered_bytes_per_s", &m->disk.buffered}, {"disk_large_bytes_per_s", &m->disk.large},
        {"measured_decode_tok_s", &m->measured_decode}, {"measured_prompt_tok_s", &m->measured_prompt}};
    memcpy(out, fields, sizeof fields);
}

static void write_array(Buffer *out, const char *name, const double *values, int count) {
    buffer_printf(out, ",\n \"%s\":[", name);
    for (int i = 0; i < count; i++) buffer_printf(out, "%s%.6g", i ? "," : "", values[i]);
    buffer_byte(out, ']');
}

static bool read_array(const Json *root, const char *name, double *values, int count) {
    const Json *array = json_get(root, name);
    if (!array || array->type != JSON_ARRAY || array->size != (uint32_t)count) return false;
    int i = 0;
    for (JSON_EACH(value, array)) {
        if (!json_is_number(value) || !(json_number(value) >= 0) || json_number(value) > 1e18) return false;
        values[i++] = json_number(value);
    }
    return true;
}

static bool read_number(const Json *root, const char *name, double most, double *out) {
    const Json *value = json_get(root, name);
    if (!json_is_number(value) || !(json_number(value) >= 0) || json_number(value) > most) return false;
    *out = json_number(value);
    return true;
}

/* Speeds that others are divided by are not 0. */
static bool usable(const FitMachine *m, int kinds) {
    bool ok = m->read > 0 && m->threads > 0;
    for (int k = 0; k < kinds; k++) ok = ok && m->rows[k] > 0 && m->prompts[k] > 0;
    for (int i = 0; m->disk.block_bytes > 0 && i < DISK_DEPTHS; i++) ok = ok && m->disk.rate[i] > 0;
    return ok;
}

static bool read_all(const Json *root, const FitModel *model, FitMachine *m) {
    Field fields[FIELDS];
    double threads, depth, block, large;
    list_fields(m, fields);
    for (int i = 0; i < FIELDS; i++)
        if (!read_number(root, fields[i].name, 1e18, fields[i].value)) return false;
    const Json *direct = json_get(root, "disk_direct");
    if (!direct || direct->type != JSON_BOOL || !read_number(root, "threads", 1e4, &threads) ||
        !read_number(root, "disk_depth", 1e4, &depth) || !read_number(root, "disk_block_bytes", 1e12, &block) ||
        !read_number(root, "disk_large_bytes", 1e12, &large) ||
        !read_array(root, "row_bytes_per_s", m->rows, model->kind_count) ||
        !read_array(root, "prompt_operations_per_s", m->prompts, model->kind_count) ||
        !read_array(root, "disk_bytes_per_s", m->disk.rate, DISK_DEPTHS))
        return false;
    m->threads = (int)threads;
    m->disk.direct = direct->boolean;
    m->disk.depth = (int)depth;
    m->disk.block_bytes = (int64_t)block;
    m->disk.large_bytes = (int64_t)large;
    return usable(m, model->kind_count);
}

/* ---- the file ---- */

static bool read_file(const char *path, Slice identity, const FitModel *model, FitMachine *out, Error *why) {
    Buffer text = {0};
    Arena arena = {0};
    bool ok = file_read(path, FILE_BYTES_MAX, &text, why);
    const Json *root = ok ? json_parse(&arena, buffer_view(&text), why) : NULL;
    double version = 0;
    const Json *of = json_get(root, "of");
    ok = root && read_number(root, "apus_calibration", 1e9, &version);
    if (root && (!ok || version != VERSION))
        ok = fail(why, ERROR_FORMAT, "is no calibration of version %d", VERSION);
    else if (ok && !(of && of->type == JSON_STRING && slice_equal(json_slice(of), identity)))
        ok = fail(why, ERROR_FORMAT, "is of another machine or model");
    else if (ok && !read_all(root, model, out))
        ok = fail(why, ERROR_FORMAT, "lacks a figure, or has one that cannot be");
    arena_free(&arena);
    buffer_free(&text);
    return ok || fail_while(why, "%s", path);
}

bool calibration_load(const CalibrationKey *key, const FitModel *model, FitMachine *out, Error *why) {
    Buffer identity = {0}, path = {0};
    *out = (FitMachine){0};
    *why = (Error){0};
    const bool ok = identify(key, model, &identity, &path, why) && file_exists(path.data) &&
        read_file(path.data, buffer_view(&identity), model, out, why);
    if (!ok) *out = (FitMachine){0};
    buffer_free(&identity);
    buffer_free(&path);
    return ok;
}

bool calibration_save(const CalibrationKey *key, const FitModel *model, const FitMachine *machine, Error *error) {
    Buffer identity = {0}, path = {0}, text = {0};
    FitMachine copy = *machine;
    Field fields[FIELDS];
    list_fields(&copy, fields);
    bool ok = identify(key, model, &identity, &path, error);
    if (ok) {
        buffer_printf(&text, "{\"apus_calibration\":%d,\n \"of\":", VERSION);
        json_write_string(&text, buffer_view(&identity));
        buffer_printf(&text, ",\n \"threads\":%d", copy.threads);
        for (int i = 0; i < FIELDS; i++) buffer_printf(&text, ",\n \"%s\":%.6g", fields[i].name, *fields[i].value);
        write_array(&text, "row_bytes_per_s", copy.rows, model->kind_count);
        write_array(&text, "prompt_operations_per_s", copy.prompts, model->kind_count);
        buffer_printf(&text,
            ",\n \"disk_direct\":%s,\"disk_depth\":%d,\"disk_block_bytes\":%" PRId64 ",\"disk_large_bytes\":%" PRId64,
            copy.disk.direct ? "true" : "false", copy.disk.depth, copy.disk.block_bytes, copy.disk.large_bytes);
        write_array(&text, "disk_bytes_per_s", copy.disk.rate, DISK_DEPTHS);
        buffer_text(&text, "}\n");
        ok = !text.failed || fail(error, ERROR_MEMORY, "no memory for a calibration");
    }
    ok = ok && file_make_directories(key->directory, error) && file_write_atomic(path.data, buffer_view(&text), error);
    buffer_free(&identity);
    buffer_free(&path);
    buffer_free(&text);
    return ok;
}
