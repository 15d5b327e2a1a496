/* Whole conversions of small GGUF files: names, undone permutations, config.json, and everything that is refused. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "import/gguf_builder.h"
#include "tensor/safetensors.h"
#include "test.h"

enum { F32 = 0, Q4_0 = 2, Q8_0 = 8, Q4_K = 12, Q8_K = 15 };
enum { HIDDEN = 64, HEADS = 4, KV_HEADS = 2, HEAD = 16, FFN = 96, VOCAB = 40 };

static char root[] = "/tmp/apus-gguf-XXXXXX";
static char source[64], target[64], partial[80];
static int progress_calls, progress_limit = -1; /* limit: the conversion is stopped at that call */
static uint64_t progress_last, progress_total;
static bool progress_backwards;

static bool on_progress(void *context, uint64_t done, uint64_t total, const char *tensor) {
    progress_calls++;
    if (done < progress_last) progress_backwards = true;
    progress_last = done;
    progress_total = total;
    TEST(tensor[0]);
    return progress_calls != progress_limit;
}

static const GgufOptions plain, compact = {.compact = true}, watched = {.progress = on_progress};

static void target_remove(void) {
    for (int i = 0; i < 2; i++) {
        DIR *directory = opendir(i ? partial : target);
        for (struct dirent *item; directory && (item = readdir(directory));) {
            char path[400];
            snprintf(path, sizeof path, "%s/%s", i ? partial : target, item->d_name);
            if (item->d_name[0] != '.') unlink(path);
        }
        if (directory) closedir(directory);
        rmdir(i ? partial : target);
    }
}

static void source_write(const Buffer *bytes, size_t size) {
    FILE *file = fopen(source, "wb");
    TEST(file && fwrite(bytes->data, 1, size, file) == size);
    fclose(file);
}

static bool convert(Builder *b, Error *error) {
    Buffer bytes = {0};
    build_file(b, &bytes);
    source_write(&bytes, bytes.size);
    buffer_free(&bytes);
    target_remove();
    progress_calls = 0;
    progress_last = 0;
    *error = (Error){0};
    return gguf_convert(source, target, &watched, error);
}

/* The JSON of one file of the result; NULL when it is not there or wrong. */
static const Json *result_json(Arena *arena, const char *name) {
    char path[128];
    Buffer text = {0};
    Error error = {0};
    snprintf(path, sizeof path, "%s/%s", target, name);
    const Json *json = NULL;
    if (file_read(path, 0, &text, &error)) {
        char *copy = arena_copy(arena, buffer_view(&text));
        json = json_parse(arena, (Slice){copy, text.size}, &error);
    }
    TEST_MSG(json, "%s", error.text);
    buffer_free(&text);
    return json;
}

static double number(const Json *object, const char *key) {
    const Json *value = json_get(object, key);
    return json_is_number(value) ? json_number(value) : -1;
}

static bool text_is(const Json *object, const char *key, const char *expected) {
    const Json *value = json_get(object, key);
    return value && value->type == JSON_STRING && slice_is(json_slice(value), expected);
}

/* Row r of a matrix holds r in every place. */
static float *row_numbers(int64_t rows, int64_t cols) {
    float *values = malloc((size_t)(rows * cols) * sizeof *values);
    for (int64_t i = 0; i < rows * cols; i++) values[i] = (float)(i / cols);
    return values;
}

static void key_u32(Builder *b, const char *architecture, const char *key, uint32_t value) {
    char name[128];
    snprintf(name, sizeof name, "%s.%s", architecture, key);
    build_u32(b, name, value);
}

static void key_f32(Builder *b, const char *architecture, const char *key, float value) {
    char name[128];
    snprintf(name, sizeof name, "%s.%s", architecture, key);
    build_f32(b, name, value);
}

static void common_keys(Builder *b, const char *architecture) {
    build_string(b, "general.architecture", architecture);
    key_u32(b, architecture, "block_count", 1);
    key_u32(b, architecture, "context_length", 4096);
    key_u32(b, architecture, "embedding_length", HIDDEN);
    key_u32(b, architecture, "feed_forward_length", FFN);
    key_u32(b, architecture, "attention.head_count", HEADS);
    key_u32(b, architecture, "attention.head_count_kv", KV_HEADS);
    key_f32(b, architecture, "attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(b, architecture, "rope.freq_base", 500000.0f);
}

/* The part that all tests share: a llama with interleaved q and k. */
static void llama_build(Builder *b) {
    float *q = row_numbers(HEADS * HEAD, HIDDEN), *norm = row_numbers(HIDDEN, 1),
          *bias = row_numbers(KV_HEADS * HEAD, 1);
    uint8_t k[KV_HEADS * HEAD * 2 * 34]; /* Q8_0: two blocks a row, scale 1, every value the row's number */
    for (int i = 0; i < KV_HEADS * HEAD * 2; i++) {
        uint16_t one = f32_to_f16(1);
        memcpy(k + i * 34, &one, 2);
        memset(k + i * 34 + 2, i / 2, 32);
    }
    common_keys(b, "llama");
    build_tensor(b, "token_embd.weight", Q8_0, HIDDEN, VOCAB, NULL);
    build_tensor(b, "output_norm.weight", F32, HIDDEN, 0, norm);
    build_tensor(b, "blk.0.attn_norm.weight", F32, HIDDEN, 0, norm);
    build_tensor(b, "blk.0.attn_q.weight", F32, HIDDEN, HEADS * HEAD, q);
    build_tensor(b, "blk.0.attn_k.weight", Q8_0, HIDDEN, KV_HEADS * HEAD, k);
    build_tensor(b, "blk.0.attn_k.bias", F32, KV_HEADS * HEAD, 0, bias);
    build_tensor(b, "blk.0.attn_v.weight", Q4_0, HIDDEN, KV_HEADS * HEAD, NULL);
    build_tensor(b, "blk.0.ffn_norm.weight", F32, HIDDEN, 0, norm);
    free(q);
    free(norm);
    free(bias);
}

/* Hugging Face's row p of a head (p < half: first half) lies at 2p, the second half's between them. */
static int interleaved_row(int row) {
    int within = row % HEAD;
    return row / HEAD * HEAD + (within < HEAD / 2 ? 2 * within : 2 * (within - HEAD / 2) + 1);
}

static void test_llama(void) {
    Builder b = {0};
    Error error;
    llama_build(&b);
    bool ok = convert(&b, &error);
    TEST_MSG(ok, "%s", error.text);
    TEST(progress_calls > 0 && !progress_backwards && progress_last == progress_total && progress_total > 0);
    Checkpoint c;
    ok = ok && checkpoint_open(&c, target, &error);
    TEST_MSG(ok, "%s", error.text);
    if (!ok) return;
    const TensorEntry *q = checkpoint_find(&c, "model.layers.0.self_attn.q_proj.weight");
    const TensorEntry *k = checkpoint_find(&c, "model.layers.0.self_attn.k_proj.weight");
    const TensorEntry *k_scales = checkpoint_find(&c, "model.layers.0.self_attn.k_proj.scales");
    const TensorEntry *k_biases = checkpoint_find(&c, "model.layers.0.self_attn.k_proj.biases");
    const TensorEntry *bias = checkpoint_find(&c, "model.layers.0.self_attn.k_proj.bias");
    TEST(q && k && k_scales && k_biases && bias && checkpoint_find(&c, "model.embed_tokens.scales"));
    TEST(checkpoint_find(&c, "model.norm.weight") && checkpoint_find(&c, "model.layers.0.input_layernorm.weight"));
    TEST(checkpoint_find(&c, "model.layers.0.post_attention_layernorm.weight"));
    TEST(q->tensor.shape[0] == HEADS * HEAD && q->tensor.shape[1] == HIDDEN && k->tensor.dtype == DTYPE_U32);
    TEST(k->tensor.shape[1] == HIDDEN / 4 && k_scales->tensor.shape[1] == HIDDEN / 32);
    TEST(k_scales->tensor.dtype == DTYPE_F16);
    Weight weight = {.rows = KV_HEADS * HEAD,
        .cols = HIDDEN,
        .quant = QUANT_AFFINE,
        .bits = 8,
        .group = 32,
        .dtype = DTYPE_F16,
        .data = k->tensor.data,
        .scales = k_scales->tensor.data,
        .biases = k_biases->tensor.data};
    for (int row = 0; row < HEADS * HEAD; row++) {
        float value, out[HIDDEN];
        memcpy(&value, (const char *)q->tensor.data + (size_t)row * HIDDEN * sizeof value, sizeof value);
        TEST_MSG(value == (float)interleaved_row(row), "row %d of q is %g", row, (double)value);
        if (row >= KV_HEADS * HEAD) continue;
        weight_dequantize_row(&weight, row, 0, HIDDEN, out);
        TEST(out[0] == (float)interleaved_row(row) && out[HIDDEN - 1] == out[0]);
        memcpy(&value, (const char *)bias->tensor.data + (size_t)row * sizeof value, sizeof value);
        TEST(value == (float)interleaved_row(row));
    }
    checkpoint_close(&c);
}

/* The compact form of the same file: the same numbers, fewer tensors, and config.json names the form. */
static void test_compact(void) {
    Error error = {0};
    Checkpoint c;
    Arena arena = {0};
    target_remove();
    bool ok = gguf_convert(source, target, &compact, &error) && checkpoint_open(&c, target, &error);
    TEST_MSG(ok, "%s", error.text);
    if (!ok) return;
    const TensorEntry *k = checkpoint_find(&c, "model.layers.0.self_attn.k_proj.weight");
    const TensorEntry *scales = checkpoint_find(&c, "model.layers.0.self_attn.k_proj.scales");
    TEST(k && scales && !checkpoint_find(&c, "model.layers.0.self_attn.k_proj.biases"));
    TEST(scales->tensor.dtype == DTYPE_F16 && scales->tensor.shape[1] == HIDDEN / 32);
    const Weight weight = {.rows = KV_HEADS * HEAD,
        .cols = HIDDEN,
        .quant = QUANT_SYMMETRIC,
        .bits = 8,
        .group = 32,
        .dtype = DTYPE_F16,
        .data = k->tensor.data,
        .scales = scales->tensor.data};
    for (int row = 0; row < KV_HEADS * HEAD; row++) {
        float out[HIDDEN];
        weight_dequantize_row(&weight, row, 0, HIDDEN, out);
        TEST(out[0] == (float)interleaved_row(row) && out[HIDDEN - 1] == out[0]);
    }
    const Json *quantization = json_get(result_json(&arena, "config.json"), "quantization");
    TEST(text_is(quantization, "mode", "symmetric") && number(quantization, "bits") == 8);
    TEST(!gguf_convert(source, target, &plain, &error) && error.code == ERROR_USAGE); /* not what it is */
    checkpoint_close(&c);
    arena_free(&arena);
}

static void test_config(void) {
    Arena arena = {0};
    const Json *config = result_json(&arena, "config.json"), *quantization = json_get(config, "quantization");
    TEST(text_is(config, "model_type", "llama") && number(config, "hidden_size") == HIDDEN);
    TEST(number(config, "num_attention_heads") == HEADS && number(config, "num_key_value_heads") == KV_HEADS);
    TEST(number(config, "intermediate_size") == FFN && number(config, "vocab_size") == VOCAB);
    TEST(number(config, "rms_norm_eps") == 1e-5 && number(config, "rope_theta") == 500000);
    TEST(number(config, "max_position_embeddings") == 4096 && number(config, "num_hidden_layers") == 1);
    TEST(json_get(config, "tie_word_embeddings") && json_get(config, "tie_word_embeddings")->boolean);
    TEST(!json_get(config, "head_dim") && !json_get(config, "rope_scaling") && !json_get(config, "eos_token_id"));
    TEST(number(quantization, "bits") == 8 && number(quantization, "group_size") == 32);
    TEST(number(json_get(quantization, "model.layers.0.self_attn.v_proj"), "bits") == 4);
    TEST(!json_get(quantization, "model.layers.0.self_attn.q_proj"));
    arena_free(&arena);
}

/* What HF computes for Llama 3.2: factor 32, low 1, high 4, 8192. */
static void test_llama3_scaling(void) {
    Builder b = {0};
    Error error;
    float factors[HEAD / 2];
    for (int i = 0; i < HEAD / 2; i++) {
        float frequency = 1.0f / powf(500000.0f, (float)(2 * i) / HEAD), wavelength = 2 * (float)M_PI / frequency;
        float smooth = (8192 / wavelength - 1) / 3;
        factors[i] = wavelength < 2048 ? 1 : wavelength > 8192 ? 32 : 1 / ((1 - smooth) / 32 + smooth);
    }
    llama_build(&b);
    build_tensor(&b, "rope_freqs.weight", F32, HEAD / 2, 0, factors);
    bool ok = convert(&b, &error);
    TEST_MSG(ok, "%s", error.text);
    Arena arena = {0};
    const Json *scaling = ok ? json_get(result_json(&arena, "config.json"), "rope_scaling") : NULL;
    TEST(text_is(scaling, "rope_type", "llama3") && number(scaling, "factor") == 32);
    TEST(number(scaling, "original_max_position_embeddings") == 8192 && number(scaling, "high_freq_factor") == 4);
    arena_free(&arena);
    factors[3] *= 1.01f;
    llama_build(&b);
    build_tensor(&b, "rope_freqs.weight", F32, HEAD / 2, 0, factors);
    TEST(!convert(&b, &error) && strstr(error.text, "rope_freqs.weight"));
    factors[3] = NAN;
    llama_build(&b);
    build_tensor(&b, "rope_freqs.weight", F32, HEAD / 2, 0, factors);
    TEST(!convert(&b, &error) && strstr(error.text, "rope_freqs.weight"));
}

static void test_gemma3(void) {
    Builder b = {0};
    Error error;
    float *norm = row_numbers(HIDDEN, 1);
    common_keys(&b, "gemma3");
    build_u32(&b, "gemma3.attention.key_length", 32);
    build_u32(&b, "gemma3.attention.value_length", 32);
    build_u32(&b, "gemma3.attention.sliding_window", 512);
    build_string(&b, "gemma3.rope.scaling.type", "linear");
    build_f32(&b, "gemma3.rope.scaling.factor", 8);
    build_tensor(&b, "token_embd.weight", Q8_0, HIDDEN, VOCAB, NULL);
    build_tensor(&b, "blk.0.ffn_norm.weight", F32, HIDDEN, 0, norm);
    build_tensor(&b, "blk.0.post_attention_norm.weight", F32, HIDDEN, 0, norm);
    build_tensor(&b, "blk.0.post_ffw_norm.weight", F32, HIDDEN, 0, norm);
    free(norm);
    bool ok = convert(&b, &error);
    TEST_MSG(ok, "%s", error.text);
    Checkpoint c;
    ok = ok && checkpoint_open(&c, target, &error);
    if (!ok) return;
    const TensorEntry *entry = checkpoint_find(&c, "model.layers.0.pre_feedforward_layernorm.weight");
    TEST(entry && checkpoint_find(&c, "model.layers.0.post_attention_layernorm.weight"));
    TEST(checkpoint_find(&c, "model.layers.0.post_feedforward_layernorm.weight"));
    float values[HIDDEN];
    if (entry) memcpy(values, entry->tensor.data, sizeof values);
    for (int i = 0; entry && i < HIDDEN; i++) TEST(values[i] == (float)(i - 1));
    checkpoint_close(&c);
    Arena arena = {0};
    const Json *config = result_json(&arena, "config.json");
    TEST(text_is(config, "model_type", "gemma3_text") && number(config, "head_dim") == 32);
    TEST(number(config, "query_pre_attn_scalar") == 32 && number(config, "sliding_window") == 512);
    TEST(number(config, "sliding_window_pattern") == 6 && number(config, "rope_local_base_freq") == 10000);
    TEST(number(json_get(config, "rope_scaling"), "factor") == 8);
    arena_free(&arena);
}

static void test_phi3(void) {
    Builder b = {0};
    Error error;
    float factors[6] = {1, 1.5f, 2, 3.25f, 4, 1e-3f};
    common_keys(&b, "phi3");
    build_u32(&b, "phi3.rope.dimension_count", 12);
    build_u32(&b, "phi3.rope.scaling.original_context_length", 512);
    build_u32(&b, "phi3.attention.sliding_window", 0);
    build_tensor(&b, "token_embd.weight", Q8_0, HIDDEN, VOCAB, NULL);
    build_tensor(&b, "blk.0.attn_qkv.weight", Q4_0, HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD, NULL);
    build_tensor(&b, "blk.0.ffn_up.weight", Q4_0, HIDDEN, 2 * FFN, NULL);
    build_tensor(&b, "rope_factors_long.weight", F32, 6, 0, factors);
    build_tensor(&b, "rope_factors_short.weight", F32, 6, 0, factors);
    bool ok = convert(&b, &error);
    TEST_MSG(ok, "%s", error.text);
    if (!ok) return;
    Arena arena = {0};
    Checkpoint c;
    const Json *config = result_json(&arena, "config.json"), *scaling = json_get(config, "rope_scaling");
    const Json *list = json_get(scaling, "long_factor");
    TEST(text_is(scaling, "type", "longrope") && list && list->type == JSON_ARRAY && list->size == 6);
    TEST(list && json_number(list + 4) == 3.25 && json_number(list + 6) == 1e-3);
    TEST(number(config, "original_max_position_embeddings") == 512 && number(config, "partial_rotary_factor") == 0.75);
    TEST(checkpoint_open(&c, target, &error));
    TEST(checkpoint_find(&c, "model.layers.0.self_attn.qkv_proj.scales"));
    TEST(checkpoint_find(&c, "model.layers.0.mlp.gate_up_proj.scales") &&
        !checkpoint_find(&c, "rope_factors_long.weight"));
    TEST(!json_get(config, "sliding_window"));
    checkpoint_close(&c);
    common_keys(&b, "phi3");
    build_u32(&b, "phi3.attention.sliding_window", 2047);
    build_tensor(&b, "token_embd.weight", Q8_0, HIDDEN, VOCAB, NULL);
    TEST_MSG(convert(&b, &error), "%s", error.text);
    config = result_json(&arena, "config.json");
    TEST(number(config, "sliding_window") == 2047 && !json_get(config, "rope_scaling"));
    TEST(!json_get(config, "partial_rotary_factor"));
    arena_free(&arena);
}

static void expect_refused(Builder *b, const char *what, const char *part) {
    Error error;
    bool ok = convert(b, &error);
    TEST_MSG(!ok, "%s was converted", what);
    TEST_MSG(ok || strstr(error.text, part), "%s gave \"%s\", without \"%s\"", what, error.text, part);
    TEST_MSG(!file_exists(target) && !file_exists(partial), "%s left something behind", what);
}

static void test_refused(void) {
    Builder b = {0};
    llama_build(&b);
    build_tensor(&b, "blk.0.ffn_up.weight", Q8_K, 256, 2, NULL);
    expect_refused(&b, "Q8_K", "tensor blk.0.ffn_up.weight: type Q8_K cannot be converted (these can: F32 F16 Q4_0 ");
    llama_build(&b);
    build_tensor(&b, "blk.0.ffn_up.weight", 77, 256, 2, NULL);
    expect_refused(&b, "type 77", "tensor blk.0.ffn_up.weight: type number 77");
    llama_build(&b);
    build_tensor(&b, "blk.0.surprise.weight", F32, 8, 2, NULL);
    expect_refused(&b, "an unknown tensor", "tensor blk.0.surprise.weight");
    llama_build(&b);
    build_tensor(&b, "blk.00.attn_norm.weight", F32, HIDDEN, 0, NULL);
    expect_refused(&b, "another name of block 0", "tensor blk.00.attn_norm.weight");
    llama_build(&b);
    build_tensor(&b, "output_norm.weight", F32, 8, 2, NULL);
    expect_refused(&b, "a tensor twice", "tensor output_norm.weight occurs twice");
    llama_build(&b);
    build_tensor(&b, "blk.0.attn_norm_2.weight", F32, 0, 2, NULL);
    expect_refused(&b, "an empty tensor", "tensor blk.0.attn_norm_2.weight: a dimension of 0");
    llama_build(&b);
    build_u32(&b, "llama.expert_count", 8);
    expect_refused(&b, "half a Mixtral", "llama.expert_used_count is missing");
    build_string(&b, "general.architecture", "qwen2");
    build_u32(&b, "qwen2.expert_count", 8);
    expect_refused(&b, "experts", "qwen2.expert_count is 8");
    llama_build(&b);
    build_f32(&b, "llama.attn_logit_softcapping", 50);
    expect_refused(&b, "an unknown key", "llama.attn_logit_softcapping");
    char name[4096];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    build_string(&b, "general.architecture", name);
    expect_refused(&b, "a long name", "xxx cannot be converted (these can: ");
    llama_build(&b);
    build_string(&b, "llama.rope.scaling.type", name);
    expect_refused(&b, "a long type", "llama.rope.scaling.type is xxx");
    common_keys(&b, "qwen2");
    build_u32(&b, "qwen2.attention.sliding_window", 4096);
    build_tensor(&b, "token_embd.weight", Q8_0, HIDDEN, VOCAB, NULL);
    expect_refused(&b, "a key of other families", "qwen2.attention.sliding_window: what it means");
    llama_build(&b);
    build_u32(&b, "llama.block_count", 2);
    expect_refused(&b, "a key twice", "llama.block_count: the key occurs twice");
    llama_build(&b);
    build_u32(&b, "split.count", 3);
    expect_refused(&b, "a split file", "one of 3 parts");
    llama_build(&b);
    build_u32(&b, "general.alignment", 48);
    expect_refused(&b, "an odd alignment", "general.alignment is 48");
    llama_build(&b);
    build_string(&b, "llama.rope.scaling.type", "wobbly");
    expect_refused(&b, "an unknown scaling", "rope.scaling.type is wobbly");
    llama_build(&b);
    build_u32(&b, "llama.rope.dimension_count", 8);
    expect_refused(&b, "a partial rotation", "llama.rope.dimension_count");
    llama_build(&b);
    build_string(&b, "tokenizer.ggml.model", "plamo2");
    expect_refused(&b, "a vocabulary of another kind", "tokenizer.ggml.model plamo2");
    llama_build(&b);
    build_string(&b, "tokenizer.ggml.model", "bert");
    expect_refused(&b, "a WordPiece vocabulary without tokens", "tokenizer.ggml.tokens is not an array");
    static const char *const tokens[] = {"[UNK]",
        "\xE2\x96\x81"
        "a"};
    llama_build(&b);
    build_string(&b, "tokenizer.ggml.model", "bert");
    build_strings(&b, "tokenizer.ggml.tokens", tokens, 2);
    expect_refused(&b, "a WordPiece vocabulary without special tokens", "tokenizer.ggml.unknown_token_id is missing");
    llama_build(&b);
    build_string(&b, "tokenizer.ggml.model", "bert");
    build_strings(&b, "tokenizer.ggml.tokens", tokens, 2);
    build_u32(&b, "tokenizer.ggml.unknown_token_id", 2);
    expect_refused(&b, "an unknown token that is none", "unknown_token_id is 2, which is no token");
    llama_build(&b);
    build_string(&b, "tokenizer.ggml.model", "t5");
    build_strings(&b, "tokenizer.ggml.tokens", tokens, 2);
    expect_refused(&b, "a Unigram vocabulary without scores", "tokenizer.ggml.scores is not one number per token");
    build_string(&b, "general.architecture", "rwkv7");
    expect_refused(&b, "another architecture", "architecture rwkv7");
    build_u32(&b, "x", 1);
    expect_refused(&b, "no architecture", "general.architecture is missing");
    common_keys(&b, "llama");
    expect_refused(&b, "no tensors", "token_embd.weight");
    build_string(&b, "general.architecture", "llama");
    build_tensor(&b, "token_embd.weight", Q8_0, HIDDEN, VOCAB, NULL);
    expect_refused(&b, "no sizes", "llama.embedding_length is missing");
    build_key(&b, "x", GGUF_ARRAY);
    put_u32(&b.values, GGUF_ARRAY);
    put_u64(&b.values, 1);
    expect_refused(&b, "an array of arrays", "x: an array of arrays");
    build_array(&b, "x", GGUF_U64, UINT64_MAX / 4);
    expect_refused(&b, "a huge array", "x: the file ends within its values");
}

/* A file that ends anywhere too early is an error and leaves nothing. */
static void test_truncated(void) {
    Builder b = {0};
    Buffer bytes = {0};
    int accepted = 0, left = 0;
    llama_build(&b);
    build_file(&b, &bytes);
    for (size_t size = 0; size < bytes.size; size += size < 1500 ? 7 : 997) {
        Error error = {0};
        source_write(&bytes, size);
        accepted += gguf_convert(source, target, &plain, &error);
        left += file_exists(target) || file_exists(partial);
    }
    TEST(accepted == 0 && left == 0);
    for (uint32_t type = 0; type < 64; type++) { /* a matrix without its last byte; a row of half a block */
        const GgufType *info = gguf_type(type);
        if (!info || info->elements <= 1) continue;
        uint64_t random = type;
        uint8_t block[GGUF_SUPERBLOCK];
        for (size_t i = 0; i < sizeof block; i++) block[i] = (uint8_t)(test_random(&random) >> 32);
        buffer_clear(&bytes);
        common_keys(&b, "llama");
        build_tensor(&b, "token_embd.weight", Q8_0, HIDDEN, VOCAB, NULL);
        build_tensor(&b, "blk.0.ffn_up.weight", type, info->elements, 1, block);
        build_file(&b, &bytes);
        const size_t end = bytes.size - (size_t)(31 - (info->bytes - 1) % 32); /* the rest is alignment */
        Error error = {0};
        source_write(&bytes, end - 1);
        TEST_MSG(!gguf_convert(source, target, &compact, &error) && strstr(error.text, "blk.0.ffn_up.weight"), "%s: %s",
            info->name, error.text);
        left += file_exists(target) || file_exists(partial);
        source_write(&bytes, end);
        target_remove();
        TEST_MSG(gguf_convert(source, target, &compact, &error), "%s: %s", info->name, error.text);
        target_remove();
        buffer_clear(&bytes);
        common_keys(&b, "llama");
        build_tensor(&b, "blk.0.ffn_up.weight", type, info->elements + info->elements / 2, 1, NULL);
        build_file(&b, &bytes);
        source_write(&bytes, bytes.size);
        TEST_MSG(!gguf_convert(source, target, &compact, &error) && strstr(error.text, "do not fill"), "%s: %s",
            info->name, error.text);
    }
    TEST(accepted == 0 && left == 0);
    source_write(&bytes, 3);
    memcpy(bytes.data, "GGML", 4);
    Error error = {0};
    source_write(&bytes, bytes.size);
    TEST(!gguf_convert(source, target, &plain, &error) && strstr(error.text, "not a GGUF file"));
    buffer_free(&bytes);
}

static void test_finished(void) {
    Builder b = {0};
    Error error;
    target_remove();
    mkdir(partial, 0755); /* as a process that died leaves it */
    char stale[128], now[128];
    snprintf(stale, sizeof stale, "%s/stale", partial);
    snprintf(now, sizeof now, "%s/stale", target);
    TEST(file_write_atomic(stale, SLICE("x"), &error));
    llama_build(&b);
    Buffer bytes = {0};
    build_file(&b, &bytes);
    source_write(&bytes, bytes.size);
    progress_calls = 0;
    TEST_MSG(gguf_convert(source, target, &watched, &error), "%s", error.text);
    TEST(progress_calls > 0 && !file_exists(partial) && !file_exists(now));
    progress_calls = 0;
    TEST_MSG(gguf_convert(source, target, &watched, &error), "%s", error.text);
    TEST_MSG(progress_calls == 0, "a finished conversion was done again");
    bytes.data[bytes.size - 1] ^= 1;
    source_write(&bytes, bytes.size);
    TEST(!gguf_convert(source, target, &plain, &error) && error.code == ERROR_USAGE);
    target_remove();
    mkdir(target, 0755);
    TEST(!gguf_convert(source, target, &plain, &error) && strstr(error.text, "exists and is not a conversion"));
    target_remove();
    TEST(!gguf_convert("/nonexistent.gguf", target, &plain, &error) && error.code == ERROR_NOT_FOUND);
    TEST(!gguf_convert(source, "/nonexistent/directory/x", &plain, &error) && !file_exists(partial));
    source_write(&bytes, bytes.size);
    progress_calls = 0;
    progress_limit = 2;
    TEST(!gguf_convert(source, target, &watched, &error) && error.code == ERROR_CANCELLED && progress_calls == 2);
    TEST(!file_exists(target) && !file_exists(partial));
    progress_limit = -1;
    buffer_free(&bytes);
}

/* What a cache does with a conversion of the file as it was, and with what is no conversion. */
static void test_replaced(void) {
    const GgufOptions replace = {.replace = true, .progress = on_progress};
    Builder b = {0};
    Buffer bytes = {0};
    Error error;
    char old[80], marker[128];
    snprintf(old, sizeof old, "%s.old", target);
    snprintf(marker, sizeof marker, "%s/gguf-source.json", target);
    target_remove();
    llama_build(&b);
    TEST_MSG(convert(&b, &error), "%s", error.text);
    progress_calls = 0;
    TEST(gguf_convert(source, target, &replace, &error) && progress_calls == 0);
    common_keys(&b, "llama");
    build_tensor(&b, "token_embd.weight", Q8_0, HIDDEN, 2 * VOCAB, NULL);
    build_file(&b, &bytes);
    source_write(&bytes, bytes.size);
    TEST(!gguf_convert(source, target, &watched, &error) && error.code == ERROR_USAGE);
    error = (Error){0};
    progress_last = 0;
    TEST_MSG(gguf_convert(source, target, &replace, &error), "%s", error.text);
    TEST(progress_calls > 0 && error.code == ERROR_NONE && !file_exists(partial) && !file_exists(old));
    Arena arena = {0};
    TEST(number(result_json(&arena, "config.json"), "vocab_size") == 2 * VOCAB);
    arena_free(&arena);
    /* one that cannot be converted leaves what is there */
    source_write(&bytes, bytes.size / 2);
    TEST(!gguf_convert(source, target, &replace, &error) && file_exists(marker) && !file_exists(partial));
    unlink(marker); /* now it is a directory of somebody's */
    source_write(&bytes, bytes.size);
    TEST(!gguf_convert(source, target, &replace, &error) && strstr(error.text, "exists and is not a conversion"));
    buffer_free(&bytes);
}

/* A pipe without a writer must not be waited for, and a directory is no file. */
static void test_not_a_file(void) {
    Error error = {0};
    char pipe_path[80];
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe.gguf", root);
    target_remove();
    TEST(mkfifo(pipe_path, 0600) == 0);
    TEST_MSG(!gguf_convert(pipe_path, target, &plain, &error) && strstr(error.text, pipe_path), "%s", error.text);
    TEST(!file_exists(target) && !file_exists(partial));
    TEST_MSG(!gguf_convert(root, target, &plain, &error) && strstr(error.text, root), "%s", error.text);
    TEST(!file_exists(target) && !file_exists(partial));
    unlink(pipe_path);
}

int main(void) {
    TEST(mkdtemp(root));
    snprintf(source, sizeof source, "%s/model.gguf", root);
    snprintf(target, sizeof target, "%s/model", root);
    snprintf(partial, sizeof partial, "%s.partial", target);
    test_llama();
    test_config(); /* of test_llama's result */
    test_compact();
    test_llama3_scaling();
    test_gemma3();
    test_phi3();
    test_refused();
    test_truncated();
    test_finished();
    test_replaced();
    test_not_a_file();
    target_remove();
    unlink(source);
    TEST_MSG(rmdir(root) == 0, "something was left in %s", root);
    return test_done();
}
