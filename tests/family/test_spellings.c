/* Other ways to write the same config: published files, and those that transformers saves, differ in the names of
 * fields and values, in what they leave out and in what they repeat. Both ways give the same logits. */
#include "compare.h"

typedef struct Spelling {
    const char *fixture;
    const char *as;   /* what must mean the same as `to`; NULL: `from` does, whose logits are the golden ones */
    const char *from; /* text of the config as fixture_config() writes it */
    const char *to;   /* what replaces it */
} Spelling;

static const Spelling spellings[] = {
    {"mamba2-published", NULL, "\"expand\":2", "\"expand\":2,\"time_step_limit\":[0.0,Infinity]"},
    {"mamba2-published", NULL, "\"expand\":2", "\"expand\":2,\"time_step_limit\":[0.0,{\"__float__\":\"Infinity\"}]"},
    {"granite-hybrid-published", NULL, "[\"mamba\",\"mamba\",\"attention\"]",
        "[\"linear_attention\",\"linear_attention\",\"full_attention\"]"},
    {"granite-hybrid-published", NULL, "\"mamba_d_head\":32", "\"mamba_d_head\":\"auto\""},
    {"granite-hybrid-published", NULL, "\"mamba_d_head\":32,", ""},
    {"falcon-h1-published", NULL, "\"mamba_d_head\":16", "\"mamba_d_head\":\"auto\""},
    {"mamba-published", NULL, "\"intermediate_size\":192,", "\"expand\":2,"},
    {"kimi-linear-published", NULL,
        "\"linear_attn_config\":{\"num_heads\":2,\"head_dim\":32,\"kda_layers\":[2,3],\"full_attn_layers\":[1],"
        "\"short_conv_kernel_size\":3}",
        "\"linear_num_heads\":2,\"linear_head_dim\":32,\"linear_conv_kernel_dim\":3,\"layer_types\":"
        "[\"full_attention\",\"linear_attention\",\"linear_attention\"],\"mlp_layer_types\":"
        "[\"sparse\",\"sparse\",\"sparse\"]"},
    {"kimi-linear-published", NULL, "\"tie_word_embeddings\":false", "\"tie_word_embeddings\":true"},
    {"kimi-linear-published", NULL, "\"tie_word_embeddings\":false",
        "\"tie_word_embeddings\":false,\"attention_bias\":false,\"linear_num_heads\":2,\"linear_head_dim\":32,"
        "\"linear_conv_kernel_dim\":3,\"qk_head_dim\":24,\"output_router_logits\":false"},
    {"jamba-published", NULL, "\"hidden_act\":\"silu\"",
        "\"hidden_act\":\"silu\",\"use_associative_scan\":true,\"use_mambapy\":false"},
    {"qwen3-moe", NULL, "\"num_experts\":", "\"num_local_experts\":"},
    {"mellum-published", NULL, "\"num_experts\":", "\"num_local_experts\":"},
    {"qwen3-moe", NULL, "\"num_experts_per_tok\":",
        "\"qkv_bias\":false,\"use_qk_norm\":true,\"shared_expert_intermediate_size\":0,\"num_experts_per_tok\":"},
    {"hunyuan-dense", NULL, "\"use_qk_norm\":",
        "\"mlp_bias\":false,\"num_experts\":1,\"dense_list\":[4096,0],\"class_num\":0,\"im_end_id\":5,\"pad_id\":0,"
        "\"use_rotary_pos_emb\":true,\"use_qk_norm\":"},
    {"minimax", NULL, "\"num_experts_per_tok\":",
        "\"layernorm_mlp_beta\":1.0,\"mlp_intermediate_size\":96,\"shared_moe_mode\":\"sigmoid\",\"num_experts_per_"
        "tok\":"},
    {"ernie4-5-moe", NULL, "\"moe_k\":", "\"moe_gate\":\"topk\",\"moe_k\":"},
    {"qwen3-5", NULL, "\"num_key_value_heads\":", "\"mlp_only_layers\":[],\"num_key_value_heads\":"},
    {"dots1", NULL, "\"num_experts_per_tok\":", "\"output_router_logits\":false,\"num_experts_per_tok\":"},
    {"glm4-moe", NULL, "\"num_experts_per_tok\":", "\"output_router_logits\":false,\"num_experts_per_tok\":"},
    {"qwen3-next-published", "\"norm_topk_prob\":true,", "\"norm_topk_prob\":false,", ""},
    {"exaone-moe", NULL, "\"is_moe_layer\":[false,true,true,true]", "\"first_k_dense_replace\":1"},
    {"exaone-moe", NULL, "\"is_moe_layer\":[false,true,true,true]",
        "\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"sparse\"]"},
    {"longcat-flash", "\"routed_scaling_factor\":6.0,", "\"routed_scaling_factor\":2.5,", ""},
    {"rope-longrope", "\"rope_type\":\"longrope\",\"attention_factor\":1.3228756555322954,",
        "\"rope_type\":\"longrope\",", "\"rope_type\":\"longrope\",\"factor\":8.0,"}, /* √(1 + ln 8 / ln 16) */
    {"glm4", "\"partial_rotary_factor\":0.25", "\"partial_rotary_factor\":0.5",
        "\"partial_rotary_factor\":0.5,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,"
        "\"partial_rotary_factor\":0.25}"},
    {"deepseek-v32", NULL, "\"index_topk\":",
        "\"layer_types\":[\"indexed_attention\",\"indexed_attention\",\"indexed_attention\"],\"index_topk\":"},
    {"glm-moe-dsa", NULL, "\"index_topk\":",
        "\"layer_types\":[\"deepseek_sparse_attention\",\"deepseek_sparse_attention\"],\"index_topk\":"},
    {"rope-yarn", "\"original_max_position_embeddings\":512,", "\"original_max_position_embeddings\":32,", ""},
    {"olmo3-parameters", "\"sliding_window\":4096,", "\"sliding_window\":7,", ""},
    {"olmo3", "\"rope_theta\":500000.0,", "\"rope_theta\":10000.0,", ""},
    {"cohere2-pattern", "\"sliding_window\":4096,", "\"sliding_window\":5,", ""},
    {"gemma4-31b", NULL, "\"global_head_dim\":48",
        "\"per_layer_config\":{\"2\":{\"head_dim\":48,\"num_key_value_heads\":1}}"},
    {"gemma4-31b", NULL, "\"num_global_key_value_heads\":1",
        "\"per_layer_config\":{\"2\":{\"head_dim\":48,\"num_key_value_heads\":1}}"},
    {"gemma2", "\"attn_logit_softcapping\":1e5", "\"attn_logit_softcapping\":5.0", "\"attn_logit_softcapping\":null"},
    {"gemma2", "\"final_logit_softcapping\":1e5", "\"final_logit_softcapping\":3.0",
        "\"final_logit_softcapping\":null"},
};

/* A warning is a failure: it would say that a field is not known. */
static void warn(void *context, const char *line) { TEST_MSG(false, "%s: %s", (const char *)context, line); }

static bool walk(const Fixture *f, const char *directory, float *logits) {
    const ModelOptions options = {
        .context = f->count, .strict_config = true, .warn = warn, .warn_context = (void *)f->name};
    const RunnerOptions chunks = {.backend = fixture_backend("ref", 1, FIXTURE_TOKENS_MAX)};
    FixtureRun run;
    if (!fixture_run_open(&run, directory, &options, &chunks)) return false;
    const bool ok = fixture_walk(run.runner, f->tokens, f->count, f->count, 0, logits);
    fixture_run_close(&run);
    return ok;
}

/* The fixture's config.json with `from` replaced. */
static bool edit_config(const Fixture *f, const char *from, const char *to, Buffer *edited) {
    Buffer config = {0};
    fixture_config(f, 0, &config);
    const char *at = strstr(config.data, from);
    TEST_MSG(at, "%s is not in %s", from, config.data);
    if (at) {
        buffer_append(edited, config.data, (size_t)(at - config.data));
        buffer_text(edited, to);
        buffer_text(edited, at + strlen(from));
    }
    buffer_free(&config);
    return at != NULL;
}

static bool compute_tensors(Fixture *f, FixtureFile *file, const char *from, const char *to, float *logits) {
    Buffer edited = {0};
    char directory[64];
    bool ok = edit_config(f, from, to, &edited) && fixture_write(file, buffer_view(&edited), directory);
    TEST(ok);
    if (ok) {
        ok = walk(f, directory, logits);
        fixture_remove(directory);
    }
    buffer_free(&edited);
    return ok;
}

/* Logits of the fixture with `from` replaced. */
static bool compute(Fixture *f, const char *from, const char *to, float *logits) {
    return compute_tensors(f, fixture_tensors(f, 0), from, to, logits);
}

/* phi4mm: its publisher's files have products beside adapters for images and sound, which texts do without. */
static void test_base_layers(void) {
    static const char *const modules[] = {".qkv_proj.", ".o_proj.", ".gate_up_proj.", ".down_proj."};
    static const char *const beside[] = {"model.layers.0.self_attn.qkv_proj.lora_A.vision.weight",
        "model.layers.0.self_attn.qkv_proj.lora_B.vision.weight", "model.layers.1.mlp.down_proj.lora_A.speech.weight",
        "model.embed_tokens_extend.image_embed.glb_GN"};
    Fixture f;
    int renamed = 0;
    if (!fixture_open(&f, "phi4-multimodal")) return;
    float *ours = calloc((size_t)(f.count * f.vocab), sizeof *ours);
    FixtureFile *file = fixture_tensors(&f, 0);
    for (int i = 0; i < file->count; i++)
        for (size_t m = 0; m < COUNT_OF(modules); m++) {
            const char *name = file->header[i].name, *at = strstr(name, modules[m]);
            if (!at) continue;
            const int size = (int)(at - name) + (int)strlen(modules[m]);
            file->header[i].name = arena_printf(&f.arena, "%.*sbase_layer.%s", size, name, name + size);
            renamed++;
            break;
        }
    for (size_t i = 0; i < COUNT_OF(beside); i++)
        fixture_add(&f, file, beside[i], DTYPE_F32, 2, 4, 8, fixture_values(beside[i], 2, 4, 8, 0, 1));
    TEST(renamed >= (int)COUNT_OF(modules));
    if (compute_tensors(&f, file, "\"phi4_multimodal\"", "\"phi4mm\"", ours)) check_exact(&f, 0, ours);
    free(ours);
    fixture_close(&f);
}

static void test_spelling(const Spelling *s) {
    Fixture f;
    if (!fixture_open(&f, s->fixture)) return;
    const size_t count = (size_t)(f.count * f.vocab);
    float *ours = calloc(count, sizeof *ours), *other = calloc(count, sizeof *other);
    if (!s->as)
        memcpy(other, fixture_golden(&f, 0), count * sizeof *other);
    else
        TEST_MSG(compute(&f, s->from, s->as, other), "%s", s->as);
    TEST_MSG(compute(&f, s->from, s->to, ours), "%s", s->to);
    double off = 0, top = 0;
    for (size_t i = 0; i < count; i++) {
        const double here = fabs((double)ours[i] - (double)other[i]);
        off = here <= off ? off : here; /* NaN stays */
        top = fmax(top, fabs((double)other[i]));
    }
    TEST_MSG(
        top > 0 && off <= exact_limit * top, "%s with %s: off by %.1e of max|logit|", s->fixture, s->to, off / top);
    free(ours);
    free(other);
    fixture_close(&f);
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(spellings); i++) test_spelling(&spellings[i]);
    test_base_layers();
    return test_done();
}
