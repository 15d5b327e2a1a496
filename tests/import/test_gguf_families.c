/* Every family in both formats. Each golden checkpoint of tests/family that GGUF can express is written as a GGUF file
 * by walking the family's rows (family/gguf.h) backwards, converted, and must give the same logits bit for bit. That
 * the names are llama.cpp's is what the fixture says, where tools/oracle asked gguf-py. Every model that has
 * rows must have such a checkpoint, and every name must occur in one, except those that check_gguf_families.py, or
 * check_encoders.py, writes as llama.cpp's converter does. */
#include "family/fixture.h"

#include <math.h>
#include <unistd.h>

#include "base/digest.h"

#include "import/gguf_builder.h"

enum { MODELS_MAX = 128, ROWS_MAX = 512, F32 = 0, F16 = 1, BF16 = 30, TYPES_STEP = 4 };
/* Sums in another order: products of groups instead of those of elements. */
static const float TYPES_OFF_MAX = 2e-5f;

typedef struct Case {
    Fixture *f;
    const GgufModel *model;
    const Json *config;
    Builder file;
    char why[256];   /* GGUF cannot express it */
    int spoilt;      /* 1 + the layer whose kind the metadata tells wrongly; 0: none */
    bool short_list; /* the list of kinds in the metadata lacks the last layer */
} Case;

static const char *const written_elsewhere[] = {"afmoe", "apertus", "bailingmoe", "bailingmoe2", "bailingmoe3", "bert",
    "bloom", "chatglm", "cohere2moe", "dbrx", "deci", "deepseek32", "deepseek4", "ernie4_5-moe", "exaone-moe", "falcon",
    "gemma3n", "gemma4", "gemma4-assistant", "glm-dsa", "granite_swa", "gpt2", "gptneox", "hunyuan-dense",
    "hunyuan-moe", "hy_v3", "internlm2", "kimi-linear", "laguna", "llama4", "mellum", "mimo2", "minicpm", "minicpm3",
    "minimax-01", "minimax-m2", "minimax-m3", "mistral3", "mistral4", "mpt", "muse-glimmer", "nanbeige", "nomic-bert",
    "openelm", "phimoe", "qwen", "qwen2vl", "qwen3vl", "qwen3vlmoe", "spark2_5", "starcoder", "step35", "xverse"};

static bool is_written_elsewhere(const GgufModel *model) {
    for (size_t i = 0; i < COUNT_OF(written_elsewhere); i++)
        if (strcmp(model->architecture, written_elsewhere[i]) == 0) return true;
    static const char *const classes[] = {"BambaForCausalLM", "GraniteMoeSharedForCausalLM"};
    for (size_t i = 0; i < COUNT_OF(classes); i++)
        if (strcmp(model->class_name, classes[i]) == 0) return true;
    return model->with_text; /* of another model's architecture */
}

static const GgufName *used[ROWS_MAX]; /* in files that were compared */
static int used_count;

static bool name_used(const GgufName *name) {
    for (int i = 0; i < used_count; i++) {
        if (used[i] == name) return true;
    }
    return false;
}

/* ---- reading the fixture's config ---- */

static const Json *value_of(const Json *object, const char *name) {
    const Json *value = json_get(object, name);
    return value && value->type != JSON_NULL ? value : NULL;
}

static int64_t size_of(const Case *c, const char *name, const char *otherwise) {
    const Json *value = value_of(c->config, name);
    value = value ? value : value_of(c->config, otherwise);
    return value ? (int64_t)json_number(value) : 0;
}

static int64_t head_dim(const Case *c) {
    const Json *value = value_of(c->config, "head_dim");
    return value ? value->integer : size_of(c, "hidden_size", "") / size_of(c, "num_attention_heads", "");
}

static bool cannot(Case *c, const char *what, const char *why) {
    snprintf(c->why, sizeof c->why, "%s: %s %s", c->f->name, what, why);
    return false;
}

static bool values_equal(const Json *a, const Json *b) {
    if (a->type == JSON_ARRAY) {
        bool equal = b && b->type == JSON_ARRAY && a->size == b->size;
        const Json *other = equal ? json_first(b) : NULL;
        for (const Json *item = json_first(a); equal && item != a->end;
             item = json_next(item), other = json_next(other))
            equal = values_equal(item, other);
        return equal;
    }
    if (!b) return json_is_number(a) ? json_number(a) == 0 : a->type == JSON_BOOL && !a->boolean;
    if (json_is_number(a) && json_is_number(b)) return (float)json_number(a) == (float)json_number(b);
    if (a->type == JSON_BOOL && b->type == JSON_BOOL) return a->boolean == b->boolean;
    return a->type == JSON_STRING && b->type == JSON_STRING && slice_equal(json_slice(a), json_slice(b));
}

/* ---- metadata ---- */

static const char *key_of(Case *c, const char *key) {
    return arena_printf(&c->f->arena, "%s%s", key[0] == '.' ? c->model->architecture : "", key);
}

/* ---- layers of several kinds ---- */

static const GgufField *kinds_field(const GgufModel *model) {
    for (const GgufField *const *list = model->fields; *list; list++)
        for (const GgufField *field = *list; field->name; field++)
            if (field->kinds) return field;
    return NULL;
}

static const GgufLayerKind *kind_with(const GgufModel *model, const char *key) {
    const GgufField *field = kinds_field(model);
    for (const GgufLayerKind *kind = field ? field->kinds : NULL; kind && kind->name; kind++)
        if (key && kind->key && strcmp(kind->key, key) == 0) return kind;
    return NULL;
}

/* Whether layer i is of the kind. pattern: the field's value. */
static bool is_kind(const Json *pattern, int i, const GgufLayerKind *kind) {
    if (pattern->type == JSON_STRING) return json_slice(pattern).data[i] == kind->name[0];
    const Json *item = json_first(pattern);
    while (i-- > 0) item = json_next(item);
    return slice_is(json_slice(item), kind->name);
}

/* Of each key an array: key heads of layers with attention, widths of layers with a feed-forward network. */
static bool write_kinds(Case *c, const GgufField *field) {
    const Json *pattern = value_of(c->config, field->name);
    if (!pattern) return cannot(c, field->name, "is missing");
    const int layers = (int)(pattern->type == JSON_STRING ? json_slice(pattern).size : pattern->size);
    for (const GgufLayerKind *kind = field->kinds; kind->name; kind++) {
        uint32_t numbers[64] = {0};
        if (!kind->key || kind_with(c->model, kind->key) != kind) continue; /* an earlier kind has the same key */
        const bool heads = strcmp(kind->key, ".attention.head_count_kv") == 0;
        const int64_t number = heads ? size_of(c, "num_key_value_heads", "num_attention_heads")
                                     : size_of(c, "intermediate_size", "hidden_size");
        for (const GgufLayerKind *other = field->kinds; other->name; other++)
            for (int i = 0; i < layers && other->key && strcmp(other->key, kind->key) == 0; i++)
                if (is_kind(pattern, i, other)) numbers[i] = (uint32_t)number;
        if (c->spoilt && heads) numbers[c->spoilt - 1] = numbers[c->spoilt - 1] ? 0 : (uint32_t)number;
        build_words(&c->file, key_of(c, kind->key), GGUF_U32, numbers, (size_t)(layers - c->short_list));
    }
    return true;
}

static int64_t mamba_heads(const Case *c) {
    const int64_t heads = size_of(c, "mamba_num_heads", "mamba_n_heads");
    return heads ? heads : size_of(c, "num_heads", "");
}

static int64_t mamba_groups(const Case *c) { return size_of(c, "mamba_n_groups", "n_groups"); }

/* A width of heads or a factor of the hidden size, from which the file has the inner size. */
static void write_inner(Case *c, const GgufField *field, const Json *value) {
    const bool expand = strcmp(field->name, "mamba_expand") == 0;
    const int64_t factor = expand ? size_of(c, "hidden_size", "") : mamba_heads(c);
    if (!value_of(c->config, "mamba_d_ssm"))
        build_u32(&c->file, key_of(c, field->key), (uint32_t)(value->integer * factor));
}

static bool write_field(Case *c, const GgufField *field) {
    if (field->kinds) return write_kinds(c, field);
    if (kind_with(c->model, field->key)) return true; /* written as an array */
    const Json *nested = value_of(value_of(c->config, "rope_parameters"), field->name);
    const Json *value = nested ? nested : value_of(c->config, field->name);
    const bool from_key = field->key && field->kind <= GGUF_FIELD_NUMBER;
    if (field->kind == GGUF_FIELD_BOOL && field->key && value)
        build_bool(&c->file, key_of(c, field->key), value->boolean);
    if (field->kind == GGUF_FIELD_CHOICE && value)
        build_bool(&c->file, key_of(c, field->key), slice_is(json_slice(value), field->text));
    const bool named = value || value_of(c->config, "hidden_act");
    if (field->kind == GGUF_FIELD_TEXT && !named && strncmp(field->text, "gelu", strlen("gelu")) == 0)
        return cannot(c, field->name, "is a constant in GGUF, which the config lacks");
    if (field->kind == GGUF_FIELD_TEXT && field->key)
        build_u32(&c->file, key_of(c, field->key), (uint32_t)field->absent);
    if (!from_key || (!value && (field->compute || field->or_key || field->absent != 0 || field->optional)))
        return true;
    if (!value) return cannot(c, field->name, "is missing");
    if (strcmp(field->name, "partial_rotary_factor") == 0) {
        build_u32(&c->file, key_of(c, field->key), (uint32_t)(json_number(value) * (double)head_dim(c)));
    } else if (strcmp(field->name, "linear_value_head_dim") == 0) {
        build_u32(
            &c->file, key_of(c, field->key), (uint32_t)(value->integer * size_of(c, "linear_num_value_heads", "")));
    } else if (field->compute && strcmp(field->key, ".ssm.inner_size") == 0) {
        write_inner(c, field, value);
        return true;
    } else if (strcmp(field->name, "qk_nope_head_dim") == 0) {
        const int64_t turning = size_of(c, "qk_rope_head_dim", ""), latent = size_of(c, "kv_lora_rank", "");
        build_u32(&c->file, key_of(c, field->key), (uint32_t)(value->integer + turning));
        build_u32(&c->file, key_of(c, ".attention.key_length"), (uint32_t)(latent + turning));
        build_u32(&c->file, key_of(c, ".attention.value_length"), (uint32_t)latent);
    } else if (field->kind == GGUF_FIELD_NUMBER) {
        build_f32(&c->file, key_of(c, field->key), (float)json_number(value));
    } else {
        build_u32(&c->file, key_of(c, field->key), (uint32_t)value->integer);
    }
    if (strcmp(field->name, "head_dim") == 0)
        build_u32(&c->file, key_of(c, ".attention.value_length"), (uint32_t)value->integer);
    return true;
}

static void write_factors(Case *c, const char *name, const Json *list) {
    float factors[64];
    int count = 0;
    for (JSON_EACH(item, list)) factors[count++] = (float)json_number(item);
    build_tensor(&c->file, name, F32, count, 0, factors);
}

static void write_number(Case *c, const char *key, const Json *value) {
    if (value) build_f32(&c->file, key_of(c, key), (float)json_number(value));
}

static bool write_scaling(Case *c, const Json *rope) {
    const Json *type = value_of(rope, "rope_type") ? value_of(rope, "rope_type") : value_of(rope, "type");
    const Json *original = value_of(rope, "original_max_position_embeddings");
    const Slice kind = type ? json_slice(type) : SLICE("default");
    if (slice_is(kind, "default")) return true;
    const Json *mscale = value_of(rope, "mscale");
    if ((mscale && !values_equal(mscale, value_of(rope, "mscale_all_dim"))) ||
        !(slice_is(kind, "linear") || slice_is(kind, "yarn") || slice_is(kind, "longrope"))) {
        return cannot(c, "rope_scaling", "has no keys");
    }
    const Json *truncate = value_of(rope, "truncate");
    if (slice_is(kind, "yarn") && (truncate && !truncate->boolean) != c->model->yarn_bounds_exact)
        return cannot(c, "truncate", "has no key");
    if (slice_is(kind, "longrope")) {
        write_factors(c, "rope_factors_long.weight", value_of(rope, "long_factor"));
        write_factors(c, "rope_factors_short.weight", value_of(rope, "short_factor"));
    } else {
        build_string(&c->file, key_of(c, ".rope.scaling.type"), slice_is(kind, "yarn") ? "yarn" : "linear");
        write_number(c, ".rope.scaling.factor", value_of(rope, "factor"));
        write_number(c, ".rope.scaling.yarn_beta_fast", value_of(rope, "beta_fast"));
        write_number(c, ".rope.scaling.yarn_beta_slow", value_of(rope, "beta_slow"));
        if (mscale)
            build_f32(&c->file, key_of(c, ".rope.scaling.yarn_log_multiplier"), 0.1f * (float)json_number(mscale));
    }
    original = original ? original : value_of(c->config, "original_max_position_embeddings");
    if (original) build_u32(&c->file, key_of(c, ".rope.scaling.original_context_length"), (uint32_t)original->integer);
    return true;
}

static bool is_rope_field(Slice name) {
    return slice_is(name, "rope_theta") || slice_is(name, "rope_scaling") || slice_is(name, "rope_parameters") ||
        slice_is(name, "original_max_position_embeddings");
}

static bool write_metadata(Case *c) {
    const Json *parameters = value_of(c->config, "rope_parameters");
    /* GGUF has one rope: of full attention, where the windows differ in its scaling alone. */
    const Json *full = value_of(parameters, "full_attention"), *sliding = value_of(parameters, "sliding_attention");
    if (full && sliding && values_equal(value_of(full, "rope_theta"), value_of(sliding, "rope_theta")))
        parameters = full;
    const Json *rope = parameters ? parameters : value_of(c->config, "rope_scaling");
    const Json *inner = value_of(parameters, "rope_theta");
    build_string(&c->file, "general.architecture", c->model->architecture);
    for (const GgufField *const *list = c->model->fields; *list; list++) {
        for (const GgufField *field = *list; field->name; field++) {
            if (!write_field(c, field)) return false;
        }
    }
    const char *key = c->model->with_key;
    const bool named = key && !value_of(c->config, "use_bcdt_rms") && strcmp(key, ".ssm.dt_b_c_rms") == 0;
    if (named) build_bool(&c->file, key_of(c, key), true);
    write_number(c, ".rope.freq_base", inner ? inner : value_of(c->config, "rope_theta"));
    return !rope || write_scaling(c, rope);
}

/* ---- tensors ---- */

static const GgufName *name_of(const Case *c, Slice stem, int *block) {
    const Slice wrapper = SLICE("language_model.");
    if (slice_starts(stem, wrapper)) stem = (Slice){stem.data + wrapper.size, stem.size - wrapper.size};
    for (const GgufName *const *list = c->model->names; *list; list++) {
        for (const GgufName *name = *list; name->gguf; name++) {
            if (gguf_name_match(stem, name->module, block)) return name;
        }
    }
    return NULL;
}

/* As the converter does: of each head the first half's rows to even places, the second half's to odd ones. */
static void pair_rows(uint8_t *bytes, size_t row_bytes, int64_t rows, int64_t heads) {
    uint8_t *from = malloc((size_t)rows * row_bytes);
    const int64_t size = rows / heads;
    memcpy(from, bytes, (size_t)rows * row_bytes);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t within = row % size, to = within < size / 2 ? 2 * within : 2 * (within - size / 2) + 1;
        memcpy(bytes + (size_t)(row - within + to) * row_bytes, from + (size_t)row * row_bytes, row_bytes);
    }
    free(from);
}

static void pair_heads(const Case *c, const GgufName *name, uint8_t *bytes, size_t row_bytes, int64_t rows) {
    const bool kv = name->change == GGUF_KV_HEADS_PAIRED;
    if (!kv && name->change != GGUF_HEADS_PAIRED) return;
    pair_rows(
        bytes, row_bytes, rows, size_of(c, kv ? "num_key_value_heads" : "num_attention_heads", "num_attention_heads"));
}

/* ---- delta nets ---- */

/* Whether the converter puts the first value heads of all key heads first, then the second ones. */
static bool is_tiled(const Case *c) {
    return gguf_field(c->model, "linear_value_heads_tiled") &&
        size_of(c, "linear_num_value_heads", "") != size_of(c, "linear_num_key_heads", "");
}

/* Orders what belongs to value heads so: count · heads pieces of `bytes`, `count` of them for each head. */
static void tile(const Case *c, uint8_t *at, int64_t count, size_t bytes) {
    const int64_t heads = size_of(c, "linear_num_value_heads", ""), keys = size_of(c, "linear_num_key_heads", "");
    const int64_t each = heads / keys;
    const size_t size = (size_t)count * bytes;
    uint8_t *from = malloc((size_t)heads * size);
    memcpy(from, at, (size_t)heads * size);
    for (int64_t h = 0; h < heads; h++)
        memcpy(at + (size_t)(h % each * keys + h / each) * size, from + (size_t)h * size, size);
    free(from);
}

static void tile_tensor(const Case *c, const char *module, uint8_t *bytes, size_t row_bytes, int64_t rows) {
    const int64_t dim = size_of(c, "linear_value_head_dim", ""), heads = size_of(c, "linear_num_value_heads", "");
    const int64_t keys = 2 * size_of(c, "linear_num_key_heads", "") * size_of(c, "linear_key_head_dim", "");
    if (!strstr(module, "linear_attn.") || !is_tiled(c)) return;
    if (strstr(module, "in_proj_qkv") || strstr(module, "conv1d"))
        tile(c, bytes + (size_t)keys * row_bytes, dim, row_bytes);
    else if (strstr(module, "in_proj_z"))
        tile(c, bytes, dim, row_bytes);
    else if (rows == heads)
        tile(c, bytes, 1, row_bytes);
    for (int64_t row = 0; strstr(module, "out_proj") && row < rows; row++)
        tile(c, bytes + (size_t)row * row_bytes, dim, row_bytes / (size_t)(dim * heads));
}

static bool write_tensor(Case *c, const TensorHeader *header, const uint8_t *bytes);

/* The converter puts the parts of in_proj_qkvz, which lie there by key heads, one behind the other, z into another
 * tensor. */
static bool write_qkvz(Case *c, const TensorHeader *header, const uint8_t *bytes) {
    const int64_t heads = size_of(c, "linear_num_key_heads", ""), key = size_of(c, "linear_key_head_dim", "");
    const int64_t value = size_of(c, "linear_num_value_heads", "") / heads * size_of(c, "linear_value_head_dim", "");
    const int64_t size[4] = {key, key, value, value}, all = 2 * key + 2 * value;
    const size_t row = (size_t)header->shape[1] * dtype_bytes(header->dtype);
    const int stem = (int)(strlen(header->name) - strlen("qkvz.weight"));
    uint8_t *out = malloc((size_t)(heads * all) * row), *to = out;
    for (int64_t part = 0, first = 0; part < 4; first += size[part++])
        for (int64_t h = 0; h < heads; h++, to += (size_t)size[part] * row)
            memcpy(to, bytes + (size_t)(h * all + first) * row, (size_t)size[part] * row);
    TensorHeader qkv = *header, z = *header;
    qkv.name = arena_printf(&c->f->arena, "%.*sqkv.weight", stem, header->name);
    z.name = arena_printf(&c->f->arena, "%.*sz.weight", stem, header->name);
    qkv.shape[0] = heads * (2 * key + value);
    z.shape[0] = heads * value;
    const bool ok = write_tensor(c, &qkv, out) && write_tensor(c, &z, out + (size_t)qkv.shape[0] * row);
    free(out);
    return ok;
}

/* The converter divides a matrix of gates and one of ups. */
static bool write_gate_and_up(Case *c, const TensorHeader *header, const uint8_t *bytes) {
    const int64_t rows = header->shape[0] / 2;
    const int stem = (int)(strlen(header->name) - strlen("input_linear.weight"));
    TensorHeader half = *header;
    half.shape[0] = rows;
    half.name = arena_printf(&c->f->arena, "%.*sgate_proj.weight", stem, header->name);
    if (!write_tensor(c, &half, bytes)) return false;
    half.name = arena_printf(&c->f->arena, "%.*sup_proj.weight", stem, header->name);
    return write_tensor(c, &half, bytes + (size_t)(rows * header->shape[1]) * dtype_bytes(header->dtype));
}

/* Rows of a vector that the converter keeps as a matrix: of Mamba-2 a head each, or a group of the norm; 0: none. */
static int64_t matrix_rows(const Case *c, const GgufName *name, int64_t count) {
    const int64_t heads = mamba_heads(c);
    if (!heads) return 0;
    if (strcmp(name->gguf, "blk.*.ssm_a") == 0 || strcmp(name->gguf, "blk.*.ssm_d") == 0) return count;
    return strcmp(name->gguf, "blk.*.ssm_norm") == 0 ? mamba_groups(c) : 0;
}

static const char *name_in_file(Case *c, const GgufName *name, int block, const char *part) {
    const char *star = strchr(name->gguf, '*');
    if (!star) return arena_printf(&c->f->arena, "%s%s", name->gguf, part);
    return arena_printf(&c->f->arena, "%.*s%d%s%s", (int)(star - name->gguf), name->gguf, block, star + 1, part);
}

static bool write_tensor(Case *c, const TensorHeader *given, const uint8_t *bytes) {
    if (strstr(given->name, "in_proj_qkvz")) return write_qkvz(c, given, bytes);
    if (strstr(given->name, "shared_mlp.input_linear")) return write_gate_and_up(c, given, bytes);
    TensorHeader own = *given, *header = &own;
    const bool conv = own.rank == 3 && own.shape[2] == 1; /* f32, without the dimension of 1 */
    if (conv) own.rank = 2;
    const char *dot = strrchr(header->name, '.');
    const Slice stem = {header->name, (size_t)(dot - header->name)};
    int block;
    const GgufName *name = name_of(c, slice_of(header->name), &block); /* named so as a whole */
    if (name) {
        const bool bare = name->change == GGUF_RATE || strstr(name->gguf, "ssm_d") || strstr(name->gguf, "ffn_norm");
        dot = bare ? "" : ".weight";
        if (strstr(name->gguf, "exp_probs_b") || strstr(name->gguf, "ssm_dt")) dot = ".bias";
    }
    name = name ? name : name_of(c, stem, &block);
    const bool flat = name && name->change == GGUF_FLAT, vector = header->rank == 1 || flat;
    const int64_t stack = header->rank == 3 ? header->shape[0] : 0;
    const int64_t rows = flat ? header->shape[1] : header->shape[0] * (stack ? header->shape[1] : 1);
    const int64_t cols = vector ? 1 : header->shape[stack ? 2 : 1], count = rows * cols;
    if (!name) return cannot(c, header->name, "has no row");
    /* what gguf-py does not know, but the fixture: its norms lie about 0 where the converter adds 1 */
    const bool norm = header->rank == 1 && strcmp(dot, ".weight") == 0,
               about_0 = json_number(json_get(c->f->root, "norm_offset")) == 0;
    const bool plus_one = name->change == GGUF_PLUS_ONE && strcmp(dot, ".bias") != 0;
    TEST_MSG(plus_one == (norm && about_0), "%s: %s and its 1", c->f->name, header->name);
    /* vectors are F32 in such files, whatever the matrices are */
    const bool floats = vector || conv || name->change == GGUF_RATE;
    const DType dtype = floats ? DTYPE_F32 : header->dtype;
    uint8_t *out = malloc((size_t)count * sizeof(float));
    if (floats)
        floats_to_f32((float *)(void *)out, bytes, header->dtype, count);
    else
        memcpy(out, bytes, (size_t)count * dtype_bytes(dtype));
    for (int64_t i = 0; i < count && plus_one; i++) ((float *)(void *)out)[i] += 1;
    for (int64_t i = 0; i < count && name->change == GGUF_RATE; i++)
        ((float *)(void *)out)[i] = -expf(((float *)(void *)out)[i]);
    pair_heads(c, name, out, (size_t)cols * dtype_bytes(dtype), rows);
    tile_tensor(c, name->module, out, (size_t)cols * dtype_bytes(dtype), rows);
    const char *to = name_in_file(c, name, block, dot);
    const uint32_t type = dtype == DTYPE_F32 ? F32 : dtype == DTYPE_F16 ? F16 : BF16;
    const int64_t parts = vector && !flat ? matrix_rows(c, name, rows) : 0;
    if (parts)
        build_tensor(&c->file, to, type, rows / parts, parts, out);
    else
        build_stack(&c->file, to, type, vector ? rows : cols, vector ? 0 : rows, stack, out);
    free(out);
    return true;
}

/* A matrix, or a stack of them, of blocks of 32 elements. Takes them over. */
static bool write_blocks(
    Case *c, const TensorHeader *header, int64_t cols, uint32_t type, size_t block_bytes, uint8_t *blocks) {
    const int64_t stack = header->rank == 3 ? header->shape[0] : 0;
    const int64_t rows = header->shape[0] * (stack ? header->shape[1] : 1);
    const Slice stem = {header->name, strlen(header->name) - strlen(".weight")};
    int block;
    const GgufName *name = name_of(c, stem, &block);
    if (name) {
        pair_heads(c, name, blocks, (size_t)(cols / GGUF_GROUP) * block_bytes, rows);
        build_stack(&c->file, name_in_file(c, name, block, ".weight"), type, cols, rows, stack, blocks);
    }
    free(blocks);
    return name || cannot(c, header->name, "has no row");
}

static int64_t elements_of(const TensorHeader *header) {
    return header->shape[0] * header->shape[1] * (header->rank == 3 ? header->shape[2] : 1);
}

/* Codes and scales of mxfp4: a block is the scale, then the first 16 codes in low nibbles and the others in high ones.
 */
static bool write_mxfp4(Case *c, const TensorHeader *header, const uint8_t *codes, const uint8_t *scales) {
    enum { TYPE = 39, BLOCK = 17 };
    const int64_t blocks = elements_of(header) * 8 / GGUF_GROUP;
    uint8_t *out = malloc((size_t)blocks * BLOCK);
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t *from = codes + b * GGUF_GROUP / 2;
        out[b * BLOCK] = scales[b];
        for (int i = 0; i < GGUF_GROUP / 2; i++) {
            const int low = from[i / 2] >> i % 2 * 4 & 15, high = from[(i + 16) / 2] >> i % 2 * 4 & 15;
            out[b * BLOCK + 1 + i] = (uint8_t)(low | high << 4);
        }
    }
    return write_blocks(c, header, header->shape[header->rank - 1] * 8, TYPE, BLOCK, out);
}

/* f32 values as Q8_0, which they become: a block is a half, then 32 codes. */
static bool write_q8_0(Case *c, const TensorHeader *header, float *values) {
    enum { TYPE = 8, BLOCK = 34 };
    const int64_t blocks = elements_of(header) / GGUF_GROUP;
    uint8_t *out = malloc((size_t)blocks * BLOCK);
    for (int64_t b = 0; b < blocks; b++) {
        float *x = values + b * GGUF_GROUP, most = 0;
        for (int i = 0; i < GGUF_GROUP; i++) most = fmaxf(most, fabsf(x[i]));
        const uint16_t half = f32_to_f16(most / 127);
        const float d = f16_to_f32(half);
        memcpy(out + b * BLOCK, &half, sizeof half);
        for (int i = 0; i < GGUF_GROUP; i++) {
            const float code = d > 0 ? fminf(fmaxf(rintf(x[i] / d), -127), 127) : 0;
            out[b * BLOCK + 2 + i] = (uint8_t)(int8_t)code;
            x[i] = d * code;
        }
    }
    return write_blocks(c, header, header->shape[header->rank - 1], TYPE, BLOCK, out);
}

static bool write_tensors(Case *c, int variant) {
    FixtureFile *file = fixture_tensors(c->f, variant);
    bool ok = true;
    for (int i = 0; i < file->count; i++) {
        if (file->header[i].dtype == DTYPE_U32) { /* its scales follow */
            ok = ok && write_mxfp4(c, &file->header[i], file->bytes[i], file->bytes[i + 1]);
            free(file->bytes[i++]);
        } else {
            ok = ok && write_tensor(c, &file->header[i], file->bytes[i]);
        }
        free(file->bytes[i]);
    }
    free(file);
    return ok;
}

/* ---- comparing ---- */

/* NULL, and failed tests, when it cannot be run. */
/* refused: set where the model is refused, which is a failure if it is NULL. */
static float *logits_of(const Fixture *f, const char *directory, bool *refused) {
    const ModelOptions options = {.context = f->count, .strict_config = true};
    const RunnerOptions runs = {.backend = {.cpu = "ref", .threads = 1, .rows_max = FIXTURE_TOKENS_MAX}};
    FixtureRun run;
    Error error = {0};
    if (refused && (*refused = !fixture_run_try(&run, directory, &options, &runs, &error))) return NULL;
    if (!refused && !fixture_run_open(&run, directory, &options, &runs)) return NULL;
    float *logits = calloc((size_t)(f->count * f->vocab), sizeof *logits);
    TEST(run.vocab == f->vocab);
    if (run.vocab != f->vocab || !fixture_walk(run.runner, f->tokens, f->count, f->count, f->steps, logits)) {
        free(logits);
        logits = NULL;
    }
    fixture_run_close(&run);
    return logits;
}

/* Whether config.json came back as it was, as far as there are rows for it; what GGUF has no key for may differ, then
 * the fixture cannot be expressed. left: the fields without a row. */
static bool compare_configs(Case *c, const Json *made, const char **left) {
    for (JSON_EACH_PAIR(key, value, c->config)) {
        const char *name = arena_copy(&c->f->arena, json_slice(key));
        const GgufField *field = gguf_field(c->model, name);
        if (value->type == JSON_NULL || is_rope_field(json_slice(key)) || strcmp(name, "model_type") == 0) continue;
        if (!field) {
            *left = name;
            continue;
        }
        if (values_equal(value, json_get(made, name))) continue;
        TEST_MSG(!field->key, "%s: %s came back as another", c->f->name, name);
        return cannot(c, name, "is a constant or computed in GGUF");
    }
    return true;
}

/* The same checkpoint without the fields that have no row: do they matter? It may not load without them. */
static bool fields_matter(const Case *c, int variant, const float *golden) {
    Buffer config = {0};
    char directory[64], separator = '{';
    for (JSON_EACH_PAIR(key, value, c->config)) {
        const char *name = arena_copy(&c->f->arena, json_slice(key));
        if (!gguf_field(c->model, name) && !is_rope_field(json_slice(key)) && strcmp(name, "model_type") != 0) continue;
        buffer_byte(&config, separator);
        json_write(&config, key);
        buffer_byte(&config, ':');
        json_write(&config, value);
        separator = ',';
    }
    buffer_byte(&config, '}');
    bool matter = true;
    if (fixture_write(fixture_tensors(c->f, variant), buffer_view(&config), directory)) {
        bool refused;
        float *logits = logits_of(c->f, directory, &refused);
        TEST(logits || refused);
        matter = !logits || memcmp(logits, golden, sizeof(float) * (size_t)(c->f->count * c->f->vocab)) != 0;
        free(logits);
    }
    fixture_remove(directory);
    buffer_free(&config);
    return matter;
}

/* As near as sums in another order are. */
static bool nearly_equal(const Fixture *f, const float *golden, const float *logits) {
    float worst = 0, top = 0;
    for (int i = 0; i < f->count * f->vocab; i++) {
        worst = fmaxf(worst, fabsf(golden[i] - logits[i]));
        top = fmaxf(top, fabsf(golden[i]));
    }
    return worst <= 2e-5f * top;
}

/* Whether the converted file was compared. */
static bool compare(Case *c, int variant, const char *converted) {
    Buffer text = {0};
    Error error = {0};
    char path[128], directory[64];
    const char *left = NULL;
    snprintf(path, sizeof path, "%s/config.json", converted);
    const bool read = file_read(path, 0, &text, &error);
    const Json *made = read ? json_parse(&c->f->arena, buffer_view(&text), &error) : NULL;
    TEST_MSG(made, "%s", error.text);
    bool compared = made && compare_configs(c, made, &left);
    if (compared && fixture_write_variant(c->f, variant, directory)) {
        float *golden = logits_of(c->f, directory, NULL), *logits = NULL;
        if (golden && left && fields_matter(c, variant, golden)) {
            compared = cannot(c, left, "has no row");
        } else {
            logits = logits_of(c->f, converted, NULL);
            const size_t bytes = sizeof(float) * (size_t)(c->f->count * c->f->vocab);
            const bool near = is_tiled(c) && golden && logits && nearly_equal(c->f, golden, logits);
            TEST_MSG(near || (golden && logits && memcmp(golden, logits, bytes) == 0),
                "%s variant %d: other logits from GGUF", c->f->name, variant);
        }
        free(golden);
        free(logits);
        fixture_remove(directory);
    }
    buffer_free(&text);
    return compared;
}

static bool test_variant(Case *c, int variant) {
    char root[] = "/tmp/apus-families-XXXXXX", source[64], target[64], marker[96];
    Buffer bytes = {0};
    Error error = {0};
    TEST(mkdtemp(root));
    snprintf(source, sizeof source, "%s/model.gguf", root);
    snprintf(target, sizeof target, "%s/model", root);
    snprintf(marker, sizeof marker, "%s/gguf-source.json", target);
    c->file = (Builder){0};
    bool written = write_metadata(c) && write_tensors(c, variant), compared = false;
    build_file(&c->file, &bytes);
    written = written && fixture_write_text(root, "model.gguf", buffer_view(&bytes));
    if (written) {
        const bool converted = gguf_convert(source, target, &(GgufOptions){0}, &error);
        TEST_MSG(converted, "%s: %s", c->f->name, error.text);
        compared = converted && compare(c, variant, target);
    }
    unlink(marker);
    fixture_remove(target);
    unlink(source);
    TEST(rmdir(root) == 0);
    buffer_free(&bytes);
    return compared;
}

/* Whether a convolution is as publishers have it: [channels, 1, taps]. */
static bool is_unconverted(const Fixture *f) {
    for (JSON_EACH_PAIR(name, shape, json_get(f->root, "tensors")))
        if (shape->size == 3 && json_next(json_first(shape))->integer == 1) return true;
    return false;
}

/* Whether the model has a row for every tensor of the fixture. */
static bool names_all(const Fixture *f, const GgufModel *model) {
    const Case c = {.model = model};
    int block;
    for (JSON_EACH_PAIR(name, shape, json_get(f->root, "tensors"))) {
        const Slice whole = json_slice(name);
        Slice stem = whole;
        while (stem.size > 0 && stem.data[stem.size - 1] != '.') stem.size--;
        stem.size -= stem.size > 0;
        if (!name_of(&c, whole, &block) && !name_of(&c, stem, &block)) return false;
    }
    return true;
}

/* The model of the config's model_type; of several the one that has rows for the fixture's tensors, or the last. */
static const GgufModel *model_of(const Fixture *f, const Json *config, size_t *index) {
    const char *type;
    const GgufModel *found = NULL;
    size_t i = 0;
    for (const GgufModel *model; (model = family_gguf(i, &type)); i++) {
        if (is_written_elsewhere(model)) continue;
        if (!slice_is(json_slice(json_get(config, "model_type")), type) || (found && names_all(f, found))) continue;
        found = model;
        *index = i;
    }
    if (!found) *index = i;
    return found;
}

/* ---- blocks ---- */

static bool same_logits(const Fixture *f, const char *directory, const float *expected) {
    float *logits = logits_of(f, directory, NULL);
    const bool same = logits && !memcmp(logits, expected, sizeof(float) * (size_t)(f->count * f->vocab));
    free(logits);
    return same;
}

/* A mixture's experts may stay in the converted file, however few there is room for. */
static void check_streamed(const Fixture *f, const char *directory, const float *expected) {
    static const double shares[] = {0, 0.5, 1};
    const RunnerOptions runs = {.backend = {.cpu = "ref", .threads = 1, .rows_max = FIXTURE_TOKENS_MAX}};
    const size_t bytes = sizeof(float) * (size_t)(f->count * f->vocab);
    float *logits = malloc(bytes);
    for (size_t i = 0; logits && i < COUNT_OF(shares); i++) {
        const ModelOptions options = {.context = f->count, .strict_config = true, .experts.stream = true};
        FixtureRun run;
        Error error = {0};
        if (!fixture_run_open(&run, directory, &options, &runs)) continue;
        const uint64_t least = model_expert_floor(run.model);
        const uint64_t share = (uint64_t)(shares[i] * (double)model_expert_bytes(run.model));
        TEST_MSG(model_hold_experts(run.model, share > least ? share : least, &error), "%s", error.text);
        TEST_MSG(fixture_walk(run.runner, f->tokens, f->count, f->count, f->steps, logits) &&
                !memcmp(logits, expected, bytes),
            "%s from GGUF: other logits with %g of the experts", f->name, shares[i]);
        fixture_run_close(&run);
    }
    free(logits);
}

/* Whether it can be in blocks: convolutions and the rates of Mamba are not. */
static bool is_matrix(const TensorHeader *header) {
    return header->rank > 1 && header->shape[header->rank - 1] % GGUF_GROUP == 0 && !strstr(header->name, ".bias");
}

/* Every matrix, stacks of experts as well, as Q8_0: in our form and in MLX's it must give what a checkpoint of the same
 * numbers in f32 gives. */
static void test_quantised(const char *name) {
    char root[] = "/tmp/apus-families-XXXXXX", source[64], plain[64];
    Fixture f;
    Buffer bytes = {0}, config = {0};
    Error error = {0};
    size_t index;
    TEST(fixture_open(&f, name) && mkdtemp(root));
    Case c = {.f = &f, .config = json_get(f.root, "config")};
    c.model = model_of(&f, c.config, &index);
    FixtureFile *file = fixture_tensors(&f, 0);
    bool ok = write_metadata(&c);
    for (int i = 0; ok && i < file->count; i++)
        ok = is_matrix(&file->header[i]) ? write_q8_0(&c, &file->header[i], file->bytes[i])
                                         : write_tensor(&c, &file->header[i], file->bytes[i]);
    TEST_MSG(ok, "%s", c.why);
    build_file(&c.file, &bytes);
    snprintf(source, sizeof source, "%s/model.gguf", root);
    fixture_config(&f, 0, &config);
    ok =
        fixture_write(file, buffer_view(&config), plain) && fixture_write_text(root, "model.gguf", buffer_view(&bytes));
    float *expected = ok ? logits_of(&f, plain, NULL) : NULL;
    for (int compact = 0; expected && compact < 2; compact++) {
        char target[64], marker[96];
        snprintf(target, sizeof target, "%s/model%d", root, compact);
        snprintf(marker, sizeof marker, "%s/gguf-source.json", target);
        const bool converted = gguf_convert(source, target, &(GgufOptions){.compact = compact}, &error);
        TEST_MSG(converted, "%s: %s", name, error.text);
        TEST_MSG(same_logits(&f, target, expected), "%s, compact %d: other logits from Q8_0", name, compact);
        check_streamed(&f, target, expected);
        unlink(marker);
        fixture_remove(target);
    }
    unlink(source);
    TEST(rmdir(root) == 0);
    fixture_remove(plain);
    free(expected);
    buffer_free(&bytes);
    buffer_free(&config);
    fixture_close(&f);
}

/* ---- block types ---- */

/* Exact in both forms; d: where its f16 scales are. */
static const struct BlockType {
    uint32_t type;
    int elements, bytes, d[2];
    float scale;
} block_types[] = {{2, 32, 18, {0, -1}, 0.01f}, {3, 32, 20, {0, 2}, 0.01f}, {6, 32, 22, {0, -1}, 0.005f},
    {7, 32, 24, {0, 2}, 0.005f}, {8, 32, 34, {0, -1}, 0.001f}, {20, 32, 18, {0, -1}, 0.001f}, {39, 32, 17, {-1, -1}, 0},
    {11, 256, 110, {108, -1}, 0.0005f}, {12, 256, 144, {0, 2}, 0.0002f}, {13, 256, 176, {0, 2}, 0.0001f},
    {23, 256, 136, {0, -1}, 0.00005f}, {18, 256, 98, {0, -1}, 0.0005f}, {35, 256, 66, {64, -1}, 0.05f}};

/* Whether llama-quantize (llama-quant.cpp) would give it blocks. */
static bool takes_blocks(const GgufTensor *t) {
    static const char *const plain[] = {"_norm.weight", "ffn_gate_inp", "altup", "laurel", "per_layer_model_proj",
        "position_embd", "token_types", "ssm_conv1d", "shortconv.conv", "attn_rel_b"};
    char name[128];
    snprintf(name, sizeof name, "%.*s", SLICE_ARGS(t->name));
    for (size_t i = 0; i < COUNT_OF(plain); i++)
        if (strstr(name, plain[i])) return false;
    const size_t size = strlen(name);
    return t->type == F32 && t->rank == 2 && t->cols % 32 == 0 && size > 7 && !strcmp(name + size - 7, ".weight");
}

/* Blocks of random codes, and what they are in f32. */
static void fill_blocks(const struct BlockType *type, int64_t count, uint64_t *seed, uint8_t *blocks, float *numbers) {
    for (int64_t b = 0; b < count / type->elements; b++) {
        uint8_t *block = blocks + b * type->bytes;
        for (int i = 0; i < type->bytes; i++) block[i] = (uint8_t)test_random(seed);
        for (int i = 0; i < 2 && type->d[i] >= 0; i++) {
            const float part = (float)(test_random(seed) % 64 + 64) / 128;
            const uint16_t d = f32_to_f16(type->scale * part * (i == 1 && type->type < 11 ? -8 : 1));
            memcpy(block + type->d[i], &d, sizeof d);
        }
        if (type->d[0] < 0) block[0] = (uint8_t)(118 + test_random(seed) % 4); /* MXFP4 */
    }
    uint8_t *codes = malloc((size_t)count);
    float *scales = malloc((size_t)count), *biases = malloc((size_t)count);
    const GgufType *info = gguf_type(type->type);
    if (info->dtype == DTYPE_U8 || type->type == 39) {
        static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
        for (int64_t i = 0; i < count; i++) {
            const uint8_t *block = blocks + i / 32 * 17;
            numbers[i] = values[block[1 + i % 16] >> (i % 32 / 16 * 4) & 15] * ldexpf(1, block[0] - 127);
        }
    } else {
        gguf_blocks_convert(type->type, blocks, count, codes, scales, biases);
        for (int64_t i = 0; i < count; i++)
            numbers[i] = scales[i / info->group] * (float)codes[i] + biases[i / info->group];
    }
    free(codes);
    free(scales);
    free(biases);
}

/* The file with a type of blocks for each matrix, as if drawn by lot, and the file with the same numbers in f32. */
static int write_types(const GgufFile *file, uint64_t seed, Buffer *quantised, Buffer *plain) {
    Builder with = {0}, without = {0};
    int count = 0;
    for (size_t i = 0; i < file->tensor_count; i++) {
        const GgufTensor *t = &file->tensors[i];
        char name[128];
        snprintf(name, sizeof name, "%.*s", SLICE_ARGS(t->name));
        const int64_t rows = t->rank == 1 ? 0 : t->rows;
        if (!takes_blocks(t)) {
            build_stack(&with, name, t->type, t->cols, rows, t->stack, t->data);
            build_stack(&without, name, t->type, t->cols, rows, t->stack, t->data);
            continue;
        }
        const struct BlockType *type;
        do type = &block_types[test_random(&seed) % COUNT_OF(block_types)];
        while (t->cols % type->elements);
        uint8_t *blocks = malloc((size_t)(t->cols * rows / type->elements) * (size_t)type->bytes);
        float *numbers = malloc((size_t)(t->cols * rows) * sizeof *numbers);
        fill_blocks(type, t->cols * rows, &seed, blocks, numbers);
        build_stack(&with, name, type->type, t->cols, rows, t->stack, blocks);
        build_stack(&without, name, F32, t->cols, rows, t->stack, numbers);
        free(blocks);
        free(numbers);
        count++;
    }
    /* the metadata as they are */
    const char *begin = (const char *)file->map.data + 24, *end = file->tensors[0].name.data - 8;
    buffer_append(&with.values, begin, (size_t)(end - begin));
    buffer_append(&without.values, begin, (size_t)(end - begin));
    with.value_count = without.value_count = file->value_count;
    build_file(&with, quantised);
    build_file(&without, plain);
    return count;
}

static float *logits_of_file(const Case *c, const char *root, const Buffer *bytes, bool compact) {
    char source[64], target[64], marker[96];
    Error error = {0};
    snprintf(source, sizeof source, "%s/model.gguf", root);
    snprintf(target, sizeof target, "%s/model", root);
    snprintf(marker, sizeof marker, "%s/gguf-source.json", target);
    if (!fixture_write_text(root, "model.gguf", buffer_view(bytes))) return NULL;
    const bool ok = gguf_convert(source, target, &(GgufOptions){.compact = compact}, &error);
    TEST_MSG(ok, "%s: %s", c->f->name, error.text);
    float *logits = ok ? logits_of(c->f, target, NULL) : NULL;
    unlink(marker);
    fixture_remove(target);
    unlink(source);
    return logits;
}

/* Each matrix in blocks of another type, as files of mixed types have them: in both forms the numbers are those of the
 * same matrices in f32. */
static void test_types(Case *c) {
    char root[] = "/tmp/apus-families-XXXXXX", source[64];
    Buffer bytes = {0}, quantised = {0}, plain = {0};
    GgufFile file;
    Error error = {0};
    TEST(mkdtemp(root));
    snprintf(source, sizeof source, "%s/model.gguf", root);
    c->file = (Builder){0};
    bool ok = write_metadata(c) && write_tensors(c, 0);
    build_file(&c->file, &bytes);
    ok = ok && fixture_write_text(root, "model.gguf", buffer_view(&bytes)) && gguf_open(&file, source, &error);
    if (ok) {
        const int count = write_types(&file, checksum64(c->f->name, strlen(c->f->name)), &quantised, &plain);
        gguf_close(&file);
        unlink(source);
        float *expected = count ? logits_of_file(c, root, &plain, false) : NULL;
        for (int compact = 0; expected && compact < 2; compact++) {
            float *logits = logits_of_file(c, root, &quantised, compact), most = 0, off = 0;
            for (int i = 0; logits && i < c->f->count * c->f->vocab; i++) {
                most = fmaxf(most, fabsf(expected[i]));
                off = fmaxf(off, fabsf(expected[i] - logits[i]));
            }
            TEST_MSG(logits && isfinite(most) && off <= TYPES_OFF_MAX * most, "%s, compact %d: logits off by %g of %g",
                c->f->name, compact, (double)off, (double)most);
            free(logits);
        }
        free(expected);
    }
    unlink(source);
    TEST(rmdir(root) == 0);
    buffer_free(&bytes);
    buffer_free(&quantised);
    buffer_free(&plain);
}

/* ---- kinds of layers ---- */

static void refuse_kinds(const char *name, int spoilt, bool short_list, const char *expected) {
    char root[] = "/tmp/apus-families-XXXXXX", source[64], target[64];
    Fixture f;
    Buffer bytes = {0};
    Error error = {0};
    size_t index;
    TEST(fixture_open(&f, name) && mkdtemp(root));
    Case c = {.f = &f, .config = json_get(f.root, "config"), .spoilt = spoilt, .short_list = short_list};
    c.model = model_of(&f, c.config, &index);
    TEST_MSG(write_metadata(&c) && write_tensors(&c, 0), "%s", c.why);
    build_file(&c.file, &bytes);
    snprintf(source, sizeof source, "%s/model.gguf", root);
    snprintf(target, sizeof target, "%s/model", root);
    TEST(fixture_write_text(root, "model.gguf", buffer_view(&bytes)));
    TEST_MSG(!gguf_convert(source, target, &(GgufOptions){0}, &error) && strstr(error.text, expected), "%s: %s", name,
        error.text);
    unlink(source);
    TEST(rmdir(root) == 0);
    buffer_free(&bytes);
    fixture_close(&f);
}

/* Metadata that disagree with the tensors. */
static void test_kinds(void) {
    refuse_kinds("lfm2-moe", 4, false, "layer 3 has blk.*.attn_q.weight, but lfm2moe.attention.head_count_kv says 0");
    refuse_kinds(
        "nemotron-h", 1, false, "layer 0 has blk.*.ssm_in.weight, but nemotron_h.attention.head_count_kv says 2");
    refuse_kinds("nemotron-h", 0, true, "head_count_kv is missing, or not one number for each layer");
}

/* The rows of a fixture's modules, against gguf-py's names. */
static void check_names(const Case *c) {
    const Json *names = json_get(c->f->root, "gguf");
    TEST_MSG(names, "%s: no names from gguf-py", c->f->name);
    if (!names) return;
    for (JSON_EACH_PAIR(module, gguf, names)) {
        const GgufName *found = NULL;
        for (const GgufName *const *list = c->model->names; *list; list++) {
            for (const GgufName *name = *list; name->gguf; name++) {
                if (slice_is(json_slice(module), name->module)) found = name;
            }
        }
        TEST_MSG(found && slice_is(json_slice(gguf), found->gguf), "%s: %.*s is %s, for gguf-py %.*s", c->f->name,
            SLICE_ARGS(json_slice(module)), found ? found->gguf : "nothing", SLICE_ARGS(json_slice(gguf)));
        if (found && !name_used(found) && used_count < ROWS_MAX) used[used_count++] = found;
    }
}

int main(void) {
    static char names[FIXTURE_NAMES_MAX][64], why[MODELS_MAX][256];
    int compared[MODELS_MAX] = {0};
    const int total = fixture_names(names, FIXTURE_NAMES_MAX);
    for (int i = 0; i < total; i++) {
        Fixture f;
        size_t index;
        if (!fixture_open(&f, names[i])) continue;
        Case c = {.f = &f, .config = json_get(f.root, "config")};
        c.model = model_of(&f, c.config, &index);
        TEST(index < MODELS_MAX);
        bool whole = false;                     /* the first variant is in GGUF */
        if (is_unconverted(&f)) c.model = NULL; /* rows have the names and norms of MLX's files */
        for (int v = 0; c.model && v < (int)f.variants->size; v++) {
            /* Block types have a test of their own; mxfp4 is in both formats. */
            const Json *block = json_get(fixture_variant(&f, v), "quantization"), *mode = json_get(block, "mode");
            if (block && !(mode && slice_is(json_slice(mode), "mxfp4"))) continue;
            if (test_variant(&c, v)) {
                compared[index]++;
                whole |= v == 0;
                check_names(&c);
            }
            memcpy(why[index], c.why, sizeof c.why);
            if (c.why[0]) fprintf(stderr, "  not in GGUF: %s\n", c.why);
        }
        if (whole && (!test_sampled() || i % TYPES_STEP == 0)) test_types(&c);
        fixture_close(&f);
    }
    test_quantised("olmoe");
    test_quantised("mixtral");
    test_quantised("deepseek-v3");
    test_quantised("nemotron-h-experts");
    test_quantised("lfm2-moe");
    test_quantised("jamba-experts");
    test_kinds();
    const char *type;
    const GgufModel *model;
    for (size_t i = 0; (model = family_gguf(i, &type)); i++) {
        if (is_written_elsewhere(model)) continue;
        TEST_MSG(compared[i], "%s: no fixture can be a GGUF file (%s)", type, why[i]);
        for (const GgufName *const *list = model->names; *list; list++) {
            for (const GgufName *name = *list; name->gguf; name++)
                TEST_MSG(name_used(name), "%s: no fixture has %s", type, name->module);
        }
    }
    return test_done();
}
