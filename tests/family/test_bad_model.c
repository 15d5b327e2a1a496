/* Checkpoints that lie: every refusal names file or tensor, field and value; nothing is dropped in silence. */
#include "fixture.h"

#include "model/spec.h"

static char last_warning[ERROR_TEXT_MAX];
static int warning_count;
static void keep_warning(void *context, const char *line) {
    snprintf(last_warning, sizeof last_warning, "%s", line);
    warning_count++;
}

/* NULL: it cannot be opened, or not run. */
static Buffer description;
static Model *open_model(const char *directory, bool strict, Error *error) {
    const ModelOptions options = {.strict_config = strict, .warn = keep_warning};
    const RunnerOptions chunks = {.backend = {.cpu = "ref", .rows_max = 16}};
    FixtureRun run;
    *error = (Error){0};
    warning_count = 0;
    last_warning[0] = 0;
    if (!fixture_run_try(&run, directory, &options, &chunks, error)) return NULL;
    buffer_clear(&description);
    runner_describe(run.runner, &description);
    runner_close(run.runner);
    return run.model;
}

/* Opens a copy of the fixture whose config has `from` replaced by `to`; NULL from: `to` is the whole config. */
static Model *open_edited(Fixture *f, int variant, const char *from, const char *to, bool strict, Error *error) {
    Buffer config = {0}, edited = {0};
    char directory[64];
    fixture_config(f, variant, &config);
    const char *at = from ? strstr(config.data, from) : config.data;
    TEST_MSG(at, "%s is not in %s", from, config.data);
    if (at && from) {
        buffer_append(&edited, config.data, (size_t)(at - config.data));
        buffer_text(&edited, to);
        buffer_text(&edited, at + strlen(from));
    } else {
        buffer_text(&edited, to);
    }
    TEST(fixture_write(fixture_tensors(f, variant), buffer_view(&edited), directory));
    Model *model = open_model(directory, strict, error);
    fixture_remove(directory);
    buffer_free(&config);
    buffer_free(&edited);
    return model;
}

static void expect_refusal(Fixture *f, int variant, const char *from, const char *to, const char *mention) {
    Error error;
    Model *model = open_edited(f, variant, from, to, false, &error);
    TEST_MSG(!model, "%s was accepted", to);
    TEST_MSG(error.code != ERROR_NONE && strstr(error.text, "config.json") && strstr(error.text, mention),
        "\"%s\" does not mention %s", error.text, mention);
    model_close(model);
}

/* What quantization says about a module by name, and what the file holds of it. */
static void test_named_modules(Fixture *f) {
    const char *from = "\"bits\":4}", *module = "model.layers.1.mlp.up_proj";
    static const char *const plain[] = {"false", "null"};
    char text[128], mention[128];
    for (size_t i = 0; i < COUNT_OF(plain); i++) {
        snprintf(text, sizeof text, "\"bits\":4,\"%s\":%s}", module, plain[i]);
        snprintf(mention, sizeof mention, "quantization.%s is %s", module, plain[i]);
        expect_refusal(f, 3, from, text, mention);
        snprintf(mention, sizeof mention, "has the tensor %s.scales", module);
        expect_refusal(f, 3, from, text, mention);
    }
    expect_refusal(f, 3, from, "\"bits\":4,\"lm_head\":4}", "quantization.lm_head is 4");
    expect_refusal(f, 4, "o_proj\":false", "o_proj\":{\"bits\":4,\"group_size\":32}",
        "no tensor model.layers.1.self_attn.o_proj.scales");
    expect_refusal(f, 4, "o_proj\":false", "o_proj\":true", "no tensor model.layers.1.self_attn.o_proj.scales");
    expect_refusal(f, 4, "\"lm_head\":{\"group_size\":64,\"bits\":8}", "\"lm_head\":true",
        "quantization.lm_head does not say what the tensor's shapes say");
}

static void test_config(void) {
    Fixture f;
    if (!fixture_open(&f, "llama")) return;
    expect_refusal(&f, 0, "\"hidden_size\":64", "\"hidden_size\":-5", "hidden_size is -5");
    expect_refusal(&f, 0, "\"hidden_size\":64", "\"hidden_size\":\"64\"", "hidden_size is \"64\"");
    expect_refusal(&f, 0, "\"hidden_size\":64", "\"hidden_size\":null", "hidden_size is missing");
    expect_refusal(&f, 0, "\"hidden_size\":64", "\"hidden_size\":99999999999", "hidden_size is 99999999999");
    expect_refusal(&f, 0, "\"hidden_size\":64", "\"hidden_size\":6.5", "hidden_size is 6.5");
    expect_refusal(&f, 0, "\"num_hidden_layers\":3", "\"num_hidden_layers\":16000000", "num_hidden_layers is 16000000");
    expect_refusal(&f, 0, "\"num_hidden_layers\":3", "\"num_hidden_layers\":0", "num_hidden_layers is 0");
    expect_refusal(&f, 0, "\"num_key_value_heads\":2", "\"num_key_value_heads\":3", "num_key_value_heads 3");
    expect_refusal(&f, 0, "\"num_attention_heads\":4", "\"num_attention_heads\":6", "num_attention_heads 6");
    expect_refusal(
        &f, 0, "\"num_attention_heads\":4", "\"num_attention_heads\":4,\"head_dim\":5000", "head_dim is 5000");
    expect_refusal(&f, 0, "\"num_attention_heads\":4", "\"num_attention_heads\":4,\"head_dim\":17", "17");
    expect_refusal(&f, 0, "\"rms_norm_eps\":0.00001", "\"rms_norm_eps\":-1", "rms_norm_eps is -1");
    expect_refusal(&f, 0, "\"hidden_act\":\"silu\"", "\"hidden_act\":\"tanh\"", "hidden_act is \"tanh\"");
    expect_refusal(&f, 0, "\"tie_word_embeddings\":false", "\"tie_word_embeddings\":0", "tie_word_embeddings is 0");
    expect_refusal(&f, 0, "\"model_type\":\"llama\"", "\"model_type\":\"lama\"", "lama");
    expect_refusal(&f, 0, "\"model_type\":\"llama\",", "", "model_type");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0", "\"rope_scaling\":{\"type\":\"magic\"}", "magic");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0", "\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.factor");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0", "\"rope_scaling\":7", "rope_scaling is a");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0",
        "\"rope_scaling\":{\"type\":\"longrope\",\"original_max_position_embeddings\":64,\"long_factor\":[1,2]}",
        "long_factor");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0", "\"layer_types\":[\"full_attention\"]", "layer_types");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0",
        "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]", "sliding_window");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0", "\"layer_types\":[0,1,2]", "layer_types[0]");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0", "\"quantization_config\":{\"quant_method\":\"awq\"}", "awq");
    expect_refusal(&f, 0, "\"rope_theta\":10000.0", "\"quantize_activations\":true", "quantize_activations");
    expect_refusal(&f, 4, "\"model.layers.0.mlp.down_proj\":{\"group_size\":32,\"bits\":6}",
        "\"model.layers.0.mlp.down_proj\":{\"group_size\":32,\"bits\":5}", "model.layers.0.mlp.down_proj");
    test_named_modules(&f);
    expect_refusal(&f, 0, NULL, "[1]", "object");
    expect_refusal(&f, 0, NULL, "{\"model_type\":\"llama\"", "config.json");
    fixture_close(&f);
    if (!fixture_open(&f, "phi")) return;
    expect_refusal(&f, 0, "\"partial_rotary_factor\":0.5", "\"partial_rotary_factor\":0.001", "1 dims");
    expect_refusal(
        &f, 0, "\"partial_rotary_factor\":0.5", "\"partial_rotary_factor\":1.5", "partial_rotary_factor is 1.5");
    fixture_close(&f);
    if (!fixture_open(&f, "phi3small")) return;
    expect_refusal(&f, 0, "\"rope_position_scale\":1.0", "\"rope_position_scale\":2.0", "rope_position_scale");
    expect_refusal(&f, 0, "\"rope_position_scale\":1.0", "\"rope_scaling\":{\"type\":\"su\"}", "rope_scaling");
    expect_refusal(
        &f, 0, "\"blocksparse_vert_stride\":3", "\"blocksparse_vert_stride\":0", "blocksparse_vert_stride is 0");
    fixture_close(&f);
    if (!fixture_open(&f, "baichuan-m1")) return;
    expect_refusal(&f, 0, "\"conv_window\":2", "\"conv_window\":3", "conv_window is 3");
    expect_refusal(&f, 0, "\"num_swa_attention_heads\":2", "\"num_swa_attention_heads\":3", "num_attention_heads 3");
    fixture_close(&f);
    if (!fixture_open(&f, "longcat-flash")) return;
    expect_refusal(&f, 0, "\"zero_expert_num\":3", "\"zero_expert_num\":1020", "zero_expert_num");
    expect_refusal(&f, 0, "\"zero_expert_type\":\"identity\"", "\"zero_expert_type\":\"copy\"", "zero_expert_type");
    expect_refusal(&f, 0, "\"q_lora_rank\":32", "\"q_lora_rank\":null", "q_lora_rank");
    fixture_close(&f);
    if (!fixture_open(&f, "deepseek-v32-sparse")) return;
    expect_refusal(&f, 0, "\"index_topk\":7", "\"index_topk\":0", "index_topk is 0");
    expect_refusal(&f, 0, "\"index_topk\":7", "\"index_topk_freq\":4", "index_topk_freq");
    expect_refusal(&f, 0, "\"index_head_dim\":32", "\"index_head_dim\":8", "index_head_dim");
    expect_refusal(&f, 0, "\"index_topk\":7",
        "\"index_topk\":7,\"layer_types\":[\"indexed_attention\",\"full_attention\",\"indexed_attention\"]",
        "layer_types[1] must be indexed_attention");
    fixture_close(&f);
    if (!fixture_open(&f, "glm-moe-dsa-shared")) return;
    expect_refusal(&f, 0, "[\"full\",\"shared\",\"full\"", "[\"shared\",\"shared\",\"full\"", "indexer_types[0]");
    expect_refusal(&f, 0, "[\"full\",\"shared\",\"full\"", "[\"full\",\"shared\",\"half\"", "indexer_types[2]");
    fixture_close(&f);
    if (!fixture_open(&f, "minimax-m3-sparse")) return;
    expect_refusal(&f, 0, "\"sparse_num_index_heads\":2", "\"sparse_num_index_heads\":3", "index_n_heads is 3");
    expect_refusal(&f, 0, "\"swiglu_alpha\":1.702", "\"swiglu_alpha\":1.5", "swiglu_alpha must be 1.702");
    expect_refusal(&f, 0, "\"swiglu_limit\":7.0", "\"swiglu_limit\":8.0", "swiglu_limit 7");
    expect_refusal(&f, 0, "\"sparse_local_block\":1", "\"sparse_local_block\":9", "index_local_blocks is 9");
    fixture_close(&f);
    if (!fixture_open(&f, "gpt-oss-plain")) return;
    expect_refusal(&f, 0, "\"model_type\":\"gpt_oss\"", "\"model_type\":\"gpt_oss\",\"swiglu_alpha\":1.5",
        "swiglu_alpha must be 1.702");
    fixture_close(&f);
    if (!fixture_open(&f, "falcon-h1-published")) return; /* mamba_expand is 2 */
    expect_refusal(&f, 0, "\"mamba_d_ssm\":96", "\"mamba_d_ssm\":null", "mamba_d_ssm is 128");
    fixture_close(&f);
    if (!fixture_open(&f, "hf-olmo")) return;
    expect_refusal(&f, 0, "\"alibi\":false", "\"alibi\":true", "alibi");
    expect_refusal(&f, 0, "\"mlp_ratio\":2", "\"mlp_ratio\":9000000", "mlp_ratio");
    fixture_close(&f);
    if (!fixture_open(&f, "phi3-window")) return;
    expect_refusal(&f, 0, "\"full_attn_mod\":1", "\"full_attn_mod\":2", "full_attn_mod");
    expect_refusal(&f, 0, "\"sliding_window\":6", "\"sliding_window\":0", "sliding_window is 0");
    fixture_close(&f);
    if (!fixture_open(&f, "qwen2")) return; /* whose use_sliding_window is false */
    expect_refusal(&f, 0, "\"max_window_layers\":1", "\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
        "layer_types[1] is sliding_attention");
    fixture_close(&f);
    if (!fixture_open(&f, "gemma3")) return;
    expect_refusal(
        &f, 0, "\"text_config\":{", "\"text_config\":{\"quantization_config\":{\"quant_method\":\"awq\"},", "awq");
    fixture_close(&f);
    if (!fixture_open(&f, "../vision/gemma3")) return;
    expect_refusal(
        &f, 0, "\"final_logit_softcapping\":null", "\"final_logit_softcapping\":20", "final_logit_softcapping");
    fixture_close(&f);
    if (!fixture_open(&f, "../vision/qwen3-vl-moe")) return;
    expect_refusal(
        &f, 0, "\"mrope_interleaved\":true", "\"mrope_interleaved\":false", "mrope_interleaved must be true");
    expect_refusal(&f, 0, "\"norm_topk_prob\":true", "\"norm_topk_prob\":false", "norm_topk_prob");
    fixture_close(&f);
    if (!fixture_open(&f, "qwen2-window")) return;
    expect_refusal(&f, 0, "\"max_window_layers\":1", "\"max_window_layers\":-1", "max_window_layers is -1");
    fixture_close(&f);
}

static void test_unknown_fields(void) {
    Fixture f;
    Error error;
    if (!fixture_open(&f, "llama")) return;
    const char *from = "\"rope_theta\":10000.0",
               *harmless = "\"rope_theta\":10000.0,\"torch_dtype\":\"bfloat16\","
                           "\"rope_interleaved\":false,\"sliding_window\":null";
    Model *model = open_edited(&f, 0, from, harmless, true, &error);
    TEST_MSG(model && warning_count == 0, "%s", error.text);
    model_close(model);
    static const char *const doubtful[][2] = {
        {"rope_interleaved", "true"}, {"sliding_window", "7"}, {"is_encoder_decoder", "true"}};
    for (size_t i = 0; i < COUNT_OF(doubtful); i++) {
        char text[80];
        snprintf(text, sizeof text, "%s,\"%s\":%s", from, doubtful[i][0], doubtful[i][1]);
        model = open_edited(&f, 0, from, text, false, &error);
        TEST_MSG(model && warning_count == 1 && strstr(last_warning, doubtful[i][0]), "%s: %s", text, last_warning);
        model_close(model);
    }
    const char *strange = "\"rope_theta\":10000.0,\"attention_twist\":3";
    model = open_edited(&f, 0, from, strange, false, &error);
    TEST(model && warning_count == 1 && strstr(last_warning, "attention_twist"));
    model_close(model);
    model = open_edited(&f, 0, from, strange, true, &error);
    TEST(!model && strstr(error.text, "attention_twist"));
    const char *nested = "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0,\"swirl\":1}";
    model = open_edited(&f, 0, from, nested, true, &error);
    TEST(!model && strstr(error.text, "rope_scaling.swirl"));
    model_close(model);
    fixture_close(&f);
}

/* Which layers have a window, as published configs say it. The goldens say what a window is. */
static void test_windows(void) {
    enum { LAYERS_MAX = 4 };
    static const struct {
        const char *fixture, *from, *to;
        int windows[LAYERS_MAX];
    } cases[] = {
        {"mistral-window", "\"sliding_window\":7", "\"sliding_window\":null", {0, 0, 0}},           /* v0.2 and later */
        {"mistral-window", "\"sliding_window\":7", "\"sliding_window\":4096", {4096, 4096, 4096}},  /* v0.1 */
        {"phi3-window", "\"sliding_window\":6", "\"sliding_window\":262144", {262144, 262144}},     /* Phi-3.5 mini */
        {"phi3-window", "\"sliding_window\":6", "\"sliding_window\":null", {0, 0}},                 /* Phi-4 */
        {"qwen2-window", "\"use_sliding_window\":true", "\"use_sliding_window\":false", {0, 0, 0}}, /* Qwen2.5 */
        {"qwen2-window", "\"max_window_layers\":1", "\"max_window_layers\":28", {0, 0, 0}},
        {"qwen2-window", "\"max_window_layers\":1", "\"max_window_layers\":0", {5, 5, 5}},
        {"qwen2-window", "\"max_window_layers\":1",
            "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\"]", {5, 0, 0}},
        {"smollm3-window", "\"use_sliding_window\":true", "\"use_sliding_window\":false", {0, 0, 0, 0}},
        {"gemma3-text", "\"sliding_window_pattern\":3",
            "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\"]",
            {0, 7, 0, 7}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        Error error;
        if (!fixture_open(&f, cases[i].fixture)) return;
        Model *model = open_edited(&f, 0, cases[i].from, cases[i].to, true, &error);
        TEST_MSG(model && warning_count == 0, "%s%s", error.text, last_warning);
        const Spec *spec = model ? model_spec(model) : NULL;
        for (int layer = 0; spec && layer < spec->layer_count; layer++) {
            const int window = spec->layers[layer].components[0].attention.op.window;
            TEST_MSG(window == cases[i].windows[layer], "%s with %s: layer %d has window %d", cases[i].fixture,
                cases[i].to, layer, window);
        }
        model_close(model);
        fixture_close(&f);
    }
}

/* What happens to one tensor of the file before it is written. */
typedef enum Damage { RENAME, RESHAPE, RETYPE, EMPTY } Damage;

static void expect_tensor_refusal(Fixture *f, int variant, const char *name, Damage damage, const char *mention) {
    Buffer config = {0};
    char directory[64];
    Error error;
    FixtureFile *file = fixture_tensors(f, variant);
    bool found = false;
    for (int i = 0; i < file->count; i++) {
        TensorHeader *h = &file->header[i];
        if (strcmp(h->name, name) != 0) continue;
        found = true;
        if (damage == RENAME) h->name = "elsewhere";
        if (damage == RESHAPE) {
            h->rank = 2;
            h->shape[1] = h->shape[1] ? h->shape[1] : 1;
            if (h->shape[0] % 2 == 0) {
                h->shape[0] /= 2;
                h->shape[1] *= 2;
            } else {
                h->shape[1] *= h->shape[0];
                h->shape[0] = 1;
            }
        }
        if (damage == EMPTY) { /* of a stack: nothing, but in more rows than there are numbers for */
            h->dtype = DTYPE_U8;
            h->shape[1] = (int64_t)1 << 60;
            h->shape[2] = 0;
            file->size[i] = 0;
        }
        if (damage == RETYPE) h->dtype = dtype_bytes(h->dtype) == 4 ? DTYPE_I32 : DTYPE_I16;
    }
    TEST_MSG(found, "%s", name);
    fixture_config(f, variant, &config);
    TEST(fixture_write(file, buffer_view(&config), directory));
    Model *model = open_model(directory, false, &error);
    TEST_MSG(!model && strstr(error.text, name) && strstr(error.text, mention), "\"%s\" does not mention %s and %s",
        error.text, name, mention);
    model_close(model);
    fixture_remove(directory);
    buffer_free(&config);
}

static void test_tensors(void) {
    Fixture f;
    if (!fixture_open(&f, "llama")) return;
    expect_tensor_refusal(&f, 0, "model.layers.1.self_attn.k_proj.weight", RENAME, "missing");
    expect_tensor_refusal(&f, 0, "model.norm.weight", RENAME, "missing");
    expect_tensor_refusal(&f, 0, "lm_head.weight", RENAME, "missing");
    expect_tensor_refusal(&f, 0, "model.layers.2.mlp.up_proj.weight", RESHAPE, "[48, 128], must be [96, 64]");
    expect_tensor_refusal(&f, 0, "model.norm.weight", RESHAPE, "[32, 2], must be [64]");
    expect_tensor_refusal(&f, 0, "model.layers.2.mlp.up_proj.weight", RETYPE, "I32");
    expect_tensor_refusal(&f, 2, "model.norm.weight", RETYPE, "I16");
    expect_tensor_refusal(&f, 3, "model.layers.0.mlp.up_proj.weight", RESHAPE, "shape");
    expect_tensor_refusal(&f, 3, "model.layers.0.mlp.up_proj.scales", RESHAPE, "shape");
    expect_tensor_refusal(&f, 3, "model.layers.0.mlp.up_proj.biases", RESHAPE, "shape");
    expect_tensor_refusal(&f, 3, "model.layers.0.mlp.up_proj.biases", RENAME, "missing");
    expect_tensor_refusal(&f, 3, "model.layers.0.mlp.up_proj.biases", RETYPE, "I16");
    expect_tensor_refusal(&f, 3, "model.layers.0.mlp.up_proj.weight", RETYPE, "I32");
    fixture_close(&f);
    if (!fixture_open(&f, "dots1")) return;
    expect_tensor_refusal(&f, 0, "model.layers.1.mlp.experts.up_proj.weight", EMPTY, "U8");
    fixture_close(&f);
}

/* A bias that the config does not speak of is refused, unless it is 0. */
static void test_unused_bias(void) {
    enum { WIDTH = 64 };
    Fixture f;
    if (!fixture_open(&f, "qwen2")) return;
    for (int zero = 0; zero < 2; zero++) {
        Buffer config = {0};
        char directory[64];
        Error error;
        FixtureFile *file = fixture_tensors(&f, 0);
        float *bias = calloc(WIDTH, sizeof *bias);
        if (!bias) abort();
        bias[WIDTH - 1] = zero ? 0 : 0.5f;
        fixture_add(&f, file, "model.layers.0.self_attn.o_proj.bias", DTYPE_F32, 1, WIDTH, 1, bias);
        fixture_config(&f, 0, &config);
        TEST(fixture_write(file, buffer_view(&config), directory));
        Model *model = open_model(directory, false, &error);
        TEST_MSG(zero ? model && warning_count == 1 : !model && strstr(error.text, "self_attn.o_proj.bias"), "%s%s",
            error.text, last_warning);
        model_close(model);
        fixture_remove(directory);
        buffer_free(&config);
    }
    fixture_close(&f);
}

/* A tensor that nobody reads is named; the usual leftovers are not. */
static void test_unused_tensors(void) {
    Fixture f;
    if (!fixture_open(&f, "qwen2")) return;
    for (int known = 0; known < 2; known++) {
        Buffer config = {0};
        char directory[64];
        Error error;
        FixtureFile *file = fixture_tensors(&f, 0);
        fixture_add(&f, file, known ? "model.layers.0.self_attn.rotary_emb.inv_freq" : "model.spare", DTYPE_F32, 1, 1,
            1, calloc(1, sizeof(float)));
        fixture_add(&f, file, "lm_head.weight", DTYPE_F32, 1, 1, 1, calloc(1, sizeof(float))); /* tied */
        fixture_config(&f, 0, &config);
        TEST(fixture_write(file, buffer_view(&config), directory));
        Model *model = open_model(directory, true, &error);
        TEST_MSG(model, "%s", error.text);
        TEST_MSG(warning_count == !known && (known || strstr(last_warning, "model.spare")), "%s", last_warning);
        model_close(model);
        fixture_remove(directory);
        buffer_free(&config);
    }
    fixture_close(&f);
}

/* End tokens, defaults, and the table for people. */
static void test_constants(void) {
    Fixture f;
    Error error;
    int32_t eos[EOS_MAX];
    char directory[64];
    if (!fixture_open(&f, "llama")) return;
    Model *model =
        open_edited(&f, 3, "\"rope_theta\":10000.0", "\"eos_token_id\":[5,9,1000000],\"bos_token_id\":1", true, &error);
    TEST_MSG(model, "%s", error.text);
    if (model) {
        TEST(model_eos(model, eos) == 2 && eos[0] == 5 && eos[1] == 9);
        TEST_MSG(
            warning_count == 1 && strstr(last_warning, "config.json: eos_token_id has 1000000"), "%s", last_warning);
        TEST(model_vocab(model) == 48 && model_context(model) == 512 && !model_generation_config(model));
        TEST_MSG(
            strstr(description.data, "3 × attention 4 heads of 16 on 2 kv; gated 96 silu"), "%s", description.data);
        TEST_MSG(strstr(description.data, "affine 4 bits, groups of 32"), "%s", description.data);
    }
    model_close(model);
    if (fixture_write_variant(&f, 0, directory) &&
        fixture_write_text(directory, "generation_config.json", SLICE("{\"eos_token_id\":7,\"temperature\":0.5}"))) {
        model = open_model(directory, true, &error);
        TEST(model && model_eos(model, eos) == 1 && eos[0] == 7);
        TEST(model && json_is_number(json_get(model_generation_config(model), "temperature")));
        model_close(model);
        TEST(fixture_write_text(directory, "generation_config.json", SLICE("{\"eos_token_id\":")));
        model = open_model(directory, true, &error);
        TEST(!model && strstr(error.text, "generation_config.json"));
        model_close(model);
    }
    fixture_remove(directory);
    TEST(!open_model("/nonexistent/model", true, &error) && strstr(error.text, "/nonexistent/model"));
    fixture_close(&f);
}

/* Ids that end a text: a wrong one is never dropped in silence, whichever file has it. */
static void test_eos(void) {
    static const char *const wrong[][2] = {{"\"</s>\"", "eos_token_id is \"</s>\""}, {"2.5", "eos_token_id is 2.5"},
        {"true", "eos_token_id is true"}, {"{\"id\":2}", "eos_token_id is an object"},
        {"[2,\"</s>\"]", "eos_token_id has \"</s>\""}, {"[[2]]", "eos_token_id has an array"},
        {"[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "eos_token_id has more than 16 ids"}};
    Fixture f;
    Error error;
    char directory[64], text[128];
    int32_t eos[EOS_MAX];
    if (!fixture_open(&f, "llama")) return;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        snprintf(text, sizeof text, "\"rope_theta\":10000.0,\"eos_token_id\":%s", wrong[i][0]);
        expect_refusal(&f, 0, "\"rope_theta\":10000.0", text, wrong[i][1]);
        if (!fixture_write_variant(&f, 0, directory)) continue;
        snprintf(text, sizeof text, "{\"eos_token_id\":%s}", wrong[i][0]);
        TEST(fixture_write_text(directory, "generation_config.json", slice_of(text)));
        Model *model = open_model(directory, false, &error);
        TEST_MSG(!model && strstr(error.text, "generation_config.json: ") && strstr(error.text, wrong[i][1]), "%s",
            error.text);
        model_close(model);
        fixture_remove(directory);
    }
    /* Ids that are no tokens: the model never writes them, so the text ends as the file means it to. */
    Model *model = open_edited(
        &f, 0, "\"rope_theta\":10000.0", "\"rope_theta\":10000.0,\"eos_token_id\":[-1,48,47]", true, &error);
    TEST_MSG(model && warning_count == 1 && strstr(last_warning, "has -1, which is no token of a vocabulary of 48") &&
            strstr(last_warning, "2 such"),
        "%s%s", error.text, last_warning);
    TEST(model && model_eos(model, eos) == 1 && eos[0] == 47);
    model_close(model);
    fixture_close(&f);
}

/* A model of an unknown kind is told its kind, whatever state its weights are in. */
/* Sizes that recurrent layers cannot have, and a part that no family has. */
static void test_recurrent(void) {
    static const struct {
        const char *name, *from, *to, *mention;
    } cases[] = {
        {"qwen", "\"no_bias\":", "\"visual\":{\"layers\":48},\"no_bias\":", "Qwen-VL, the first one"},
        {"qwen3-5", "\"linear_key_head_dim\":16", "\"linear_key_head_dim\":512", "a state of 512"},
        {"qwen3-5", "\"linear_num_key_heads\":2", "\"linear_num_key_heads\":3", "3 key heads or groups"},
        {"qwen3-5", "\"linear_conv_kernel_dim\":4", "\"linear_conv_kernel_dim\":9", "over 9 positions"},
        {"nemotron-h", "\"M-M*-\"", "\"M-M?-\"", "layer 3 is"},
        {"nemotron-h", "\"M-M*-\"", "\"M-M*\"", "layers' kinds are 4"},
        {"nemotron-h", "\"n_groups\":2", "\"n_groups\":3", "3 key heads or groups"},
        {"zamba2", "\"use_mem_rope\":true", "\"use_mem_rope\":true,\"use_long_context\":true", "use_long_context"},
        {"zamba2", "\"hybrid\",\"mamba\"", "\"attention\",\"mamba\"", "layers_block_type[1]"},
        {"chatglm", "\"rmsnorm\":true", "\"rmsnorm\":false", "rmsnorm"},
        {"chatglm", "\"rmsnorm\":true", "\"rmsnorm\":true,\"pre_seq_len\":8", "pre_seq_len"},
        {"chatglm", "\"rmsnorm\":true", "\"rmsnorm\":true,\"vision_config\":{}", "vision_config"},
        {"baichuan", "\"hidden_act\":\"silu\"", "\"hidden_act\":\"gelu\"", "hidden_act"},
        {"lfm2", "\"conv\",\"full_attention\",\"conv\"", "\"conv\",\"full_attention\",\"mamba\"", "layer_types[2]"},
        {"jamba", "\"mamba_d_state\":8", "\"mamba_d_state\":300", "a state of 300"},
        {"granite-hybrid", "\"mamba_d_conv\":4", "\"mamba_d_conv\":40", "over 40 positions"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        if (!fixture_open(&f, cases[i].name)) continue;
        expect_refusal(&f, 0, cases[i].from, cases[i].to, cases[i].mention);
        fixture_close(&f);
    }
}

/* Fields that change what is computed, and biases of the file that the config does not speak of. */
static void test_not_computed(void) {
    static const struct {
        const char *name, *from, *to, *mention;
    } cases[] = {
        {"dbrx-published", "\"moe_top_k\":3", "\"moe_top_k\":3,\"ffn_act_fn\":{\"name\":\"gelu\"}",
            "ffn_act_fn.name is"},
        {"bailing-hybrid", "\"rope_theta\":10000.0", "\"rope_theta\":10000.0,\"norm_head\":true", "norm_head is true"},
        {"nanbeige", "\"num_loops\":2", "\"num_loops\":2,\"loop_share_kv\":true", "loop_share_kv is true"},
        {"nanbeige", "\"num_loops\":2", "\"num_loops\":17", "17 loops"},
        {"mpt", "\"alibi\":true", "\"alibi\":false", "alibi is false"},
        {"iquestcoder", "\"clip_qkv\":null", "\"clip_qkv\":8.0", "clip_qkv is not supported"},
        {"ernie4-5-moe", "\"moe_k\":3", "\"moe_k\":3,\"moe_norm_min\":0.5", "moe_norm_min must be"},
        {"apertus", "\"qk_norm\":true", "\"qk_norm\":false", "qk_norm is false"},
        {"laguna", "\"gating\":true", "\"gating\":false", "the file has gates"},
        {"minicpm3", "\"scale_emb\":12", "\"scale_emb\":12,\"mlp_bias\":true", "mlp_bias is true"},
        {"muse-glimmer", "[500000.0,0,", "[10000.0,0,", "several bases"},
        {"nemotron-nas", "{\"n_heads_in_group\":2}", "{\"n_heads_in_group\":2,\"window_length\":8}",
            "block_configs[0].attention.window_length is not supported"},
        {"telechat3-bias", "\"attention_bias\":true", "\"attention_bias\":false",
            "the file has model.layers.0.self_attn."},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        if (!fixture_open(&f, cases[i].name)) continue;
        expect_refusal(&f, 0, cases[i].from, cases[i].to, cases[i].mention);
        fixture_close(&f);
    }
}

static void test_unknown_type(void) {
    static const char *const weights[] = {NULL, "not a safetensors file"};
    for (size_t i = 0; i < COUNT_OF(weights); i++) {
        char directory[] = "/tmp/apus-fixture-XXXXXX";
        Error error;
        TEST(mkdtemp(directory) &&
            fixture_write_text(directory, "config.json", SLICE("{\"model_type\":\"lama\",\"hidden_size\":64}")));
        if (weights[i]) TEST(fixture_write_text(directory, "model.safetensors", slice_of(weights[i])));
        Model *model = open_model(directory, false, &error);
        TEST_MSG(
            !model && error.code == ERROR_UNSUPPORTED && strstr(error.text, "model_type \"lama\""), "%s", error.text);
        model_close(model);
        fixture_remove(directory);
    }
}

/* Any config ends in a model or in an error, whatever its values: one value after another becomes something hostile. */
static void test_hostile_values(const char *name, int variant) {
    static const char *const hostile[] = {"-1", "0", "1", "3", "16777216", "1e300", "1e-300", "9223372036854775807",
        "null", "true", "\"\"", "\"x\"", "[]", "[1,2]", "{}", "{\"factor\":1e-29,\"type\":\"yarn\"}", "0.001", "7",
        "2"};
    Fixture f;
    char directory[64];
    Error error;
    Buffer config = {0}, edited = {0};
    if (!fixture_open(&f, name) || !fixture_write_variant(&f, variant, directory)) return;
    fixture_config(&f, variant, &config);
    int opened = 0, refused = 0;
    for (const char *colon = strchr(config.data, ':'); colon; colon = strchr(colon + 1, ':')) {
        if (colon[1] == '{' || colon[1] == '[') continue;
        const char *end = colon + 1 + strcspn(colon + 1, ",}]");
        for (size_t h = 0; h < COUNT_OF(hostile); h++) {
            if (test_sampled() && (h + (size_t)(colon - config.data)) % (test_usual() ? 6 : 3))
                continue; /* a sample: they take turns */
            buffer_clear(&edited);
            buffer_append(&edited, config.data, (size_t)(colon + 1 - config.data));
            buffer_text(&edited, hostile[h]);
            buffer_text(&edited, end);
            if (!fixture_write_text(directory, "config.json", buffer_view(&edited))) continue;
            Model *model = open_model(directory, false, &error);
            TEST_MSG(model || error.text[0], "%s", edited.data);
            opened += model != NULL;
            refused += model == NULL;
            model_close(model);
        }
    }
    TEST_MSG(opened > 0 && refused > 10, "%d opened, %d refused", opened, refused);
    fixture_remove(directory);
    fixture_close(&f);
    buffer_free(&config);
    buffer_free(&edited);
}

/* Whoever does not want to know why passes no Error, and no warn either. */
static void test_no_error(void) {
    Fixture f;
    char directory[64];
    const ModelOptions options = {0};
    TEST(!model_open("/nonexistent", &options, NULL));
    if (!fixture_open(&f, "llama")) return;
    TEST(fixture_write_variant(&f, 0, directory));
    const char *const configs[] = {"{", "[]", "{}", "{\"model_type\":\"lama\"}", "{\"model_type\":\"llama\"}"};
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        TEST(fixture_write_text(directory, "config.json", slice_of(configs[i])));
        TEST(!model_open(directory, &options, NULL));
    }
    fixture_remove(directory);
    fixture_close(&f);
}

/* Numbers that must fit each other, beyond what each may be. */
static void test_mixtures(void) {
    Fixture f;
    Error error;
    if (!fixture_open(&f, "dots1")) return;
    expect_refusal(&f, 0, "\"n_routed_experts\":10,\"num_experts_per_tok\":4",
        "\"n_routed_experts\":10,\"num_experts_per_tok\":11", "11 experts are to be used");
    /* The product of the two is 0 in 32 bits. */
    expect_refusal(&f, 0,
        "\"moe_intermediate_size\":64,\"n_routed_experts\":10,\"num_experts_per_tok\":4,\"n_shared_experts\":1",
        "\"moe_intermediate_size\":65536,\"n_routed_experts\":10,\"num_experts_per_tok\":4,\"n_shared_experts\":65536",
        "65536 shared experts of 65536");
    static const char *const groups[] = {
        "\"n_group\":4,\"topk_group\":3", "\"n_group\":5,\"topk_group\":6", "\"n_group\":1000,\"topk_group\":1"};
    for (size_t i = 0; i < COUNT_OF(groups); i++) {
        Model *model = open_edited(&f, 0, "\"n_group\":5,\"topk_group\":3", groups[i], false, &error);
        TEST_MSG(!model && strstr(error.text, "groups"), "%s: \"%s\"", groups[i], error.text);
        model_close(model);
    }
    fixture_close(&f);
    if (!fixture_open(&f, "qwen3-moe")) return;
    Buffer list = {0};
    buffer_text(&list, "\"mlp_only_layers\":[0");
    for (int i = 0; i < 4096; i++) buffer_text(&list, ",0");
    buffer_text(&list, "]");
    buffer_byte(&list, 0);
    expect_refusal(&f, 0, "\"mlp_only_layers\":[3]", list.data, "mlp_only_layers has 4097 elements");
    buffer_free(&list);
    fixture_close(&f);
    if (!fixture_open(&f, "deepseek-v3")) return;
    expect_refusal(&f, 0, "\"num_attention_heads\":4", "\"num_attention_heads\":4096", "num_attention_heads is 4096");
    expect_refusal(&f, 0, "\"qk_rope_head_dim\":16", "\"qk_rope_head_dim\":0", "qk_rope_head_dim is 0");
    expect_refusal(&f, 0, "\"qk_rope_head_dim\":16", "\"qk_rope_head_dim\":17", "17");
    expect_refusal(&f, 0, "\"mscale_all_dim\":0.7", "\"mscale_all_dim\":1e300", "mscale_all_dim is 1e+300");
    fixture_close(&f);
}

static Backend *without_relu(Backend *inner, Error *error) {
    inner->missing = 1u << (CAPABILITY_ACTIVATIONS + ACT_RELU);
    return inner;
}

/* A backend that lacks the activation of a model's experts does not compute another one. */
static void test_missing_activation(void) {
    Fixture f;
    char directory[64];
    if (!fixture_open(&f, "nemotron-h-published")) return;
    if (fixture_write_variant(&f, 0, directory)) {
        RunnerOptions options = {.backend = fixture_backend("ref", 1, FIXTURE_TOKENS_MAX)};
        options.backend.wrap = without_relu;
        FixtureRun run;
        Error error = {0};
        const bool opened = fixture_run_try(&run, directory, &(ModelOptions){.context = f.count}, &options, &error);
        TEST_MSG(!opened && error.code == ERROR_UNSUPPORTED && strstr(error.text, "cannot compute the activation relu"),
            "\"%s\"", error.text);
        if (opened) fixture_run_close(&run);
        fixture_remove(directory);
    }
    fixture_close(&f);
}

int main(void) {
    test_no_error();
    test_missing_activation();
    test_mixtures();
    test_recurrent();
    test_not_computed();
    const char *const names[] = {"llama-window", "gemma3", "phi3", "qwen2-window", "qwen3", "smollm3-list",
        "rope-dynamic", "rope-yarn-mscale", "afmoe-groups", "bailing-moe-groups", "deepseek-v2", "deepseek-v3",
        "ernie4-5-moe-bias", "exaone-moe", "glm4-moe", "gpt-oss-plain", "granitemoe", "hunyuan", "klear-wide",
        "llama4-text", "mimo-v2-flash", "minimax", "phimoe", "qwen3-5", "nemotron-h-latent", "falcon-h1-norm", "lfm2"};
    for (size_t i = 0; i < COUNT_OF(names); i++) test_hostile_values(names[i], 0);
    test_hostile_values("llama", 4); /* where quantization names modules */
    test_config();
    test_unknown_fields();
    test_windows();
    test_tensors();
    test_unused_bias();
    test_unused_tensors();
    test_constants();
    test_eos();
    test_unknown_type();
    return test_done();
}
