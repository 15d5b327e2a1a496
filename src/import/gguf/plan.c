/* What becomes what: GGUF tensor names to Hugging Face ones, and the changes that llama.cpp's converter made undone
 * (github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py and the converter's model classes). */
#include <stdio.h>
#include <string.h>

#include "import/gguf/internal.h"

enum {
    LLAMA = 1 << GGUF_LLAMA,
    QWEN2 = 1 << GGUF_QWEN2,
    QWEN3 = 1 << GGUF_QWEN3,
    GEMMA3 = 1 << GGUF_GEMMA3,
    PHI3 = 1 << GGUF_PHI3,
    SMOLLM3 = 1 << GGUF_SMOLLM3,
    SPLIT = LLAMA | QWEN2 | QWEN3 | GEMMA3 | SMOLLM3, /* q, k, v and gate, up apart */
    ALL = SPLIT | PHI3,
    BLOCKS_MAX = 4096,
};

static const char *const family_names[GGUF_FAMILY_COUNT] = {"llama", "qwen2", "qwen3", "gemma3", "phi3", "smollm3"};

typedef struct Name {
    const char *from, *to;
    int families;
} Name;

static const Name whole_names[] = {
    {"token_embd", "model.embed_tokens", ALL},
    {"output_norm", "model.norm", ALL},
    {"output", "lm_head", ALL},
};

/* Behind "blk.N." and "model.layers.N.". */
static const Name block_names[] = {
    {"attn_norm", "input_layernorm", ALL},
    {"attn_q", "self_attn.q_proj", SPLIT},
    {"attn_k", "self_attn.k_proj", SPLIT},
    {"attn_v", "self_attn.v_proj", SPLIT},
    {"attn_qkv", "self_attn.qkv_proj", PHI3},
    {"attn_output", "self_attn.o_proj", ALL},
    {"attn_q_norm", "self_attn.q_norm", QWEN3 | GEMMA3},
    {"attn_k_norm", "self_attn.k_norm", QWEN3 | GEMMA3},
    {"post_attention_norm", "post_attention_layernorm", GEMMA3},
    {"ffn_norm", "pre_feedforward_layernorm", GEMMA3},
    {"post_ffw_norm", "post_feedforward_layernorm", GEMMA3},
    {"ffn_norm", "post_attention_layernorm", ALL & ~GEMMA3},
    {"ffn_gate", "mlp.gate_proj", SPLIT},
    {"ffn_up", "mlp.up_proj", SPLIT},
    {"ffn_up", "mlp.gate_up_proj", PHI3},
    {"ffn_down", "mlp.down_proj", ALL},
};

/* Frequencies and their factors: config.json says them, or they follow from the base. */
static const char *const dropped_names[] = {"rope_freqs", "rope_factors_long", "rope_factors_short"};

/* Every key of the architecture that is understood, here or by the writer of config.json. A key beyond these may change
 * what the model computes, so it is refused. */
static const char *const known_keys[] = {
    ".context_length",
    ".embedding_length",
    ".block_count",
    ".feed_forward_length",
    ".vocab_size",
    ".attention.head_count",
    ".attention.head_count_kv",
    ".attention.layer_norm_rms_epsilon",
    ".attention.layer_norm_epsilon",
    ".attention.key_length",
    ".attention.value_length",
    ".attention.sliding_window",
    ".attention.sliding_window_pattern",
    ".attention.causal",
    ".rope.dimension_count",
    ".rope.freq_base",
    ".rope.freq_base_swa",
    ".rope.scale_linear",
    ".rope.scaling.type",
    ".rope.scaling.factor",
    ".rope.scaling.original_context_length",
    ".rope.scaling.attn_factor",
    ".rope.scaling.finetuned",
    ".rope.scaling.yarn_beta_fast",
    ".rope.scaling.yarn_beta_slow",
    ".rope.scaling.yarn_ext_factor",
    ".rope.scaling.yarn_attn_factor",
    ".expert_count",
    ".expert_used_count",
    ".use_parallel_residual",
    ".tensor_data_layout",
    ".pooling_type",
};

static bool keys_check(const GgufFile *file, Error *error) {
    for (size_t i = 0; i < file->value_count; i++) {
        Slice key = file->values[i].key;
        if (!slice_starts(key, file->architecture) || key.size <= file->architecture.size ||
            key.data[file->architecture.size] != '.') {
            continue;
        }
        Slice rest = {key.data + file->architecture.size, key.size - file->architecture.size};
        bool known = false;
        for (size_t k = 0; k < COUNT_OF(known_keys); k++) known = known || slice_is(rest, known_keys[k]);
        if (!known) return fail(error, ERROR_UNSUPPORTED, "%.*s: what it means here is not known", SLICE_ARGS(key));
    }
    int64_t number;
    bool causal;
    if (gguf_integer(file, ".expert_count", &number) && number > 0) {
        return fail(error, ERROR_UNSUPPORTED, "%.*s.expert_count is %lld: models with experts cannot be converted",
            SLICE_ARGS(file->architecture), (long long)number);
    }
    if (gguf_bool(file, ".attention.causal", &causal) && !causal) {
        return fail(error, ERROR_UNSUPPORTED, "%.*s.attention.causal is false", SLICE_ARGS(file->architecture));
    }
    if (gguf_integer(file, "split.count", &number) && number > 1) {
        return fail(error, ERROR_UNSUPPORTED, "split.count is %lld: join the parts first", (long long)number);
    }
    return true;
}

/* --- Names ----------------------------------------------------------------------------------------------------- */

static bool name_dropped(Slice stem) {
    for (size_t i = 0; i < COUNT_OF(dropped_names); i++) {
        if (slice_is(stem, dropped_names[i])) return true;
    }
    Slice end = SLICE(".attn_rot_embd"); /* written by early converters */
    return stem.size > end.size && memcmp(stem.data + stem.size - end.size, end.data, end.size) == 0;
}

static const Name *name_find(const Name *names, size_t count, Slice stem, GgufFamily family) {
    for (size_t i = 0; i < count; i++) {
        if ((names[i].families >> family & 1) && slice_is(stem, names[i].from)) return &names[i];
    }
    return NULL;
}

/* Takes "blk.N." off. */
static bool block_parse(Slice *stem, int *block) {
    Slice prefix = SLICE("blk.");
    if (!slice_starts(*stem, prefix)) return false;
    size_t at = prefix.size, digits = at;
    *block = 0;
    while (at < stem->size && stem->data[at] >= '0' && stem->data[at] <= '9' && *block < BLOCKS_MAX) {
        *block = *block * 10 + (stem->data[at++] - '0');
    }
    if (at == digits || (at > digits + 1 && stem->data[digits] == '0') || *block >= BLOCKS_MAX || at == stem->size ||
        stem->data[at] != '.')
        return false;
    *stem = (Slice){stem->data + at + 1, stem->size - at - 1};
    return true;
}

/* "blk.3.attn_q.weight" to module "model.layers.3.self_attn.q_proj" and part "weight". module is NULL when no memory.
 */
static bool name_convert(GgufOutput *output, GgufFile *file, GgufFamily family, bool *dropped, Error *error) {
    Slice stem = output->source->name;
    const char *dot = stem.size ? memrchr(stem.data, '.', stem.size) : NULL;
    Slice part = dot ? (Slice){dot + 1, (size_t)(stem.data + stem.size - dot - 1)} : (Slice){0};
    output->part = slice_is(part, "weight") ? "weight" : slice_is(part, "bias") ? "bias" : NULL;
    if (output->part) stem.size -= part.size + 1;
    *dropped = name_dropped(stem);
    if (*dropped) return true;
    int block = -1;
    bool in_block = block_parse(&stem, &block);
    const Name *name = in_block ? name_find(block_names, COUNT_OF(block_names), stem, family)
                                : name_find(whole_names, COUNT_OF(whole_names), stem, family);
    if (!name || !output->part) {
        return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is not one that a %s model has",
            SLICE_ARGS(output->source->name), family_names[family]);
    }
    output->module = in_block ? arena_printf(&file->arena, "model.layers.%d.%s", block, name->to)
                              : arena_copy(&file->arena, slice_of(name->to));
    return output->module || fail(error, ERROR_MEMORY, "no memory for the names");
}

/* --- What happens to the elements ------------------------------------------------------------------------------ */

/* The converter interleaves the two halves of each head of q and k for families whose rotary embedding llama.cpp
 * computes on neighbouring pairs. */
static bool heads_plan(GgufOutput *output, const GgufFile *file, GgufFamily family, Error *error) {
    const char *end = strrchr(output->module, '.');
    bool q = end && strcmp(end, ".q_proj") == 0, k = end && strcmp(end, ".k_proj") == 0;
    if ((!q && !k) || (family != GGUF_LLAMA && family != GGUF_SMOLLM3)) return true;
    const GgufTensor *tensor = output->source;
    int64_t heads = 0, rows = tensor->rank == 1 ? tensor->cols : tensor->rows;
    bool found = k && gguf_integer(file, ".attention.head_count_kv", &heads);
    if (!found && !gguf_integer(file, ".attention.head_count", &heads)) {
        return fail(error, ERROR_FORMAT, "%.*s.attention.head_count is missing", SLICE_ARGS(file->architecture));
    }
    if (heads <= 0 || rows % heads || rows / heads % 2) {
        return fail(error, ERROR_FORMAT, "tensor %.*s: %lld rows are not %lld heads of an even size",
            SLICE_ARGS(tensor->name), (long long)rows, (long long)heads);
    }
    output->interleaved = rows / heads;
    return true;
}

/* True when every scale and bias of the tensor is a half exactly. */
static bool scales_fit_half(const GgufTensor *tensor) {
    uint8_t codes[GGUF_SUPERBLOCK];
    float scales[2][GGUF_SUPERBLOCK / GGUF_GROUP];
    size_t blocks = tensor->bytes / (size_t)tensor->info->bytes;
    int groups = tensor->info->elements / GGUF_GROUP;
    for (size_t i = 0; i < blocks; i++) {
        gguf_blocks_convert(tensor->type, tensor->data + i * (size_t)tensor->info->bytes, tensor->info->elements, codes,
            scales[0], scales[1]);
        for (int k = 0; k < 2 * groups; k++) {
            float value = scales[k / groups][k % groups];
            if (f16_to_f32(f32_to_f16(value)) != value) return false;
        }
    }
    return true;
}

static bool output_plan(GgufOutput *output, GgufFile *file, GgufFamily family, bool compact, Error *error) {
    const GgufTensor *tensor = output->source;
    if (!heads_plan(output, file, family, error)) return false;
    size_t length = strlen(output->module);
    output->minus_one = family == GGUF_GEMMA3 && length > 4 && strcmp(output->module + length - 4, "norm") == 0;
    if (!tensor->info->bits) return true;
    if (tensor->rank != 2 || strcmp(output->part, "weight") != 0 || output->minus_one) {
        return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is not a matrix, but of type %s", SLICE_ARGS(tensor->name),
            tensor->info->name);
    }
    const Quant form = compact ? tensor->info->compact : QUANT_NONE;
    output->form = (Weight){.rows = tensor->rows, .cols = tensor->cols, .group = GGUF_GROUP};
    if (form != QUANT_NONE) {
        output->form.quant = form;
        output->form.bits = tensor->info->compact_bits;
        output->form.group = form == QUANT_K_SYMMETRIC ? 16 : GGUF_GROUP;
        output->form.dtype = form == QUANT_SYMMETRIC ? DTYPE_F16 : DTYPE_U8;
        return true;
    }
    output->form.quant = QUANT_AFFINE;
    output->form.bits = tensor->info->bits;
    output->form.dtype = scales_fit_half(tensor) ? DTYPE_F16 : DTYPE_F32;
    gguf_release(tensor->data, tensor->data + tensor->bytes);
    return true;
}

int64_t gguf_source_row(const GgufOutput *output, int64_t row) {
    int64_t size = output->interleaved;
    if (!size) return row;
    int64_t head = row / size, within = row % size, half = within / (size / 2), pair = within % (size / 2);
    return head * size + 2 * pair + half;
}

bool gguf_plan(GgufPlan *plan, GgufFile *file, bool compact, Error *error) {
    *plan = (GgufPlan){.family = GGUF_FAMILY_COUNT};
    for (int i = 0; i < GGUF_FAMILY_COUNT; i++) {
        if (slice_is(file->architecture, family_names[i])) plan->family = (GgufFamily)i;
    }
    if (plan->family == GGUF_FAMILY_COUNT) {
        return fail(error, ERROR_UNSUPPORTED,
            "architecture %.*s cannot be converted (llama, qwen2, qwen3, gemma3, phi3 and smollm3 can)",
            SLICE_ARGS(file->architecture));
    }
    if (!keys_check(file, error)) return false;
    if (!gguf_tensor(file, "token_embd.weight"))
        return fail(error, ERROR_NOT_FOUND, "there is no tensor token_embd.weight");
    plan->outputs = arena_alloc(&file->arena, file->tensor_count, sizeof *plan->outputs);
    if (!plan->outputs) return fail(error, ERROR_MEMORY, "no memory for %zu tensors", file->tensor_count);
    for (size_t i = 0; i < file->tensor_count; i++) {
        GgufOutput *output = &plan->outputs[plan->count];
        bool dropped = false;
        output->source = &file->tensors[i];
        if (!name_convert(output, file, plan->family, &dropped, error)) return false;
        if (dropped) continue;
        if (!output_plan(output, file, plan->family, compact, error)) return false;
        plan->count++;
    }
    return true;
}
