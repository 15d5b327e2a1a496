/* What the classes of mlx-lm 0.32.2 say about modules by name: quant_predicate, cast_predicate, sanitize. */
#include "import/checkpoint/internal.h"

#include <ctype.h>

enum { TYPES_MAX = 8 };

typedef struct Rule {
    const char *types[TYPES_MAX]; /* model types; the last stays NULL */
    const char *end;              /* how the module's name ends */
    RuleAnswer answer;
} Rule;

static const Rule rules[] = {
    {{"afmoe"}, "router.gate", RULE_8_BITS},
    {{"bailing_moe", "bailing_moe_linear", "bailing_hybrid"}, "mlp.gate.gate_proj", RULE_8_BITS},
    {{"gemma4", "gemma4_text", "gemma4_unified"}, "router.proj", RULE_8_BITS},
    {{"gpt_oss"}, "router", RULE_8_BITS},
    {{"granite", "granitemoe"}, "self_attn.o_proj", RULE_8_BITS},
    {{"granite", "granitemoe"}, "mlp.down_proj", RULE_8_BITS},
    {{"granite", "granitemoe"}, "lm_head", RULE_8_BITS},
    {{"granitemoe", "granitemoehybrid"}, "block_sparse_moe.router.layer", RULE_8_BITS},
    {{"jamba"}, "router", RULE_8_BITS},
    {{"laguna"}, "mlp.gate.proj", RULE_8_BITS},
    {{"lfm2_moe"}, "feed_forward.gate", RULE_8_BITS},
    {{"minimax", "minimax_m2", "minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"}, "block_sparse_moe.gate",
        RULE_8_BITS},
    {{"Klear", "kimi_linear", "qwen3_moe", "qwen3_vl_moe", "mellum"}, "mlp.gate", RULE_8_BITS},
    {{"qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"}, "mlp.gate", RULE_8_BITS},
    {{"qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"}, "shared_expert_gate", RULE_8_BITS},
    {{"longcat_flash"}, "classifier", RULE_8_BITS},
    {{"step3p5"}, "mlp.gate.gate", RULE_8_BITS},
    /* routers that are parameters there, not layers */
    {{"deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "kimi_vl"}, "mlp.gate",
        RULE_PLAIN},
    {{"dots1", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "mimo_v2_flash", "solar_open"}, "mlp.gate",
        RULE_PLAIN},
    {{"joyai_llm_flash"}, "mlp.gate", RULE_PLAIN},
    {{"nemotron_h"}, "mixer.gate", RULE_PLAIN},
    /* other modules that keep their elements */
    {{"bailing_hybrid"}, "attention.embed_q", RULE_PLAIN},
    {{"bailing_hybrid"}, "attention.unembed_out", RULE_PLAIN},
    {{"spark2_5"}, "self_attn.g_proj", RULE_PLAIN},
};

static bool has_type(const char *const types[TYPES_MAX], const char *model_type) {
    for (int i = 0; i < TYPES_MAX && types[i]; i++)
        if (!strcmp(types[i], model_type)) return true;
    return false;
}

static bool ends_with(const char *name, const char *end) {
    const size_t size = strlen(name), length = strlen(end);
    return size >= length && !strcmp(name + size - length, end);
}

RuleAnswer rule_of_module(const char *model_type, const char *module) {
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (has_type(rules[i].types, model_type) && ends_with(module, rules[i].end)) return rules[i].answer;
    return RULE_USUAL;
}

bool rule_keeps_dtype(const char *model_type, const char *name) {
    static const char *const rates[TYPES_MAX] = {
        "kimi_linear", "nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"};
    static const char *const steps[TYPES_MAX] = {"kimi_linear"}, *const none[TYPES_MAX] = {"dots1"};
    if (ends_with(name, "e_score_correction_bias") || ends_with(name, "expert_bias"))
        return !has_type(none, model_type);
    return (ends_with(name, "A_log") && has_type(rates, model_type)) ||
        (ends_with(name, "dt_bias") && has_type(steps, model_type));
}

bool rule_adds_plus(const char *model_type) {
    static const char *const types[TYPES_MAX] = {
        "qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"};
    return has_type(types, model_type);
}

QuantForm rule_of_recipe(QuantRecipe recipe, int group, const char *module, int layer, int layer_count) {
    static const struct {
        int low, high;
    } bits[] = {[RECIPE_2_6] = {2, 6}, [RECIPE_3_4] = {3, 4}, [RECIPE_3_6] = {3, 6}, [RECIPE_4_6] = {4, 6}};
    const int eighth = layer_count / 8;
    const bool important =
        layer < eighth || layer >= 7 * layer_count / 8 || (layer >= eighth && (layer - eighth) % 3 == 2);
    const bool value = strstr(module, "v_proj") || strstr(module, "v_a_proj") || strstr(module, "v_b_proj");
    const bool more = strstr(module, "lm_head") || (important && (value || strstr(module, "down_proj")));
    return (QuantForm){QUANT_AFFINE, more ? bits[recipe].high : bits[recipe].low, group};
}

const char *rule_refuses(const char *model_type) {
    if (!strcmp(model_type, "bitnet")) return "its ternary matrices stay packed there, which is not supported";
    if (!strcmp(model_type, "deepseek_v4"))
        return "mlx-lm does not have this family, so the form that its converter would write is not known";
    return strcmp(model_type, "dbrx") ? NULL : "mlx-lm has a matrix for each expert, which is not supported";
}

/* Suffixes of a module's name in publishers' files and in MLX; second: name of the second half of its rows. */
typedef enum RenameWhere {
    RENAME_ALWAYS,
    RENAME_BARE,       /* only a tensor without ".weight", as transformers saves experts since 5.0 */
    RENAME_TRANSPOSED, /* only matrices of experts that the file has transposed */
    RENAME_DENSE,      /* only in models without experts */
} RenameWhere;

static const struct {
    const char *end, *first, *second;
    RenameWhere where;
} renames[] = {
    {".experts.gate_up_proj", ".experts.gate_proj", ".experts.up_proj", RENAME_TRANSPOSED},
    {".experts.down_proj", ".experts.down_proj", NULL, RENAME_TRANSPOSED},
    {".mlp.experts.gate_up_proj", ".mlp.switch_mlp.gate_proj", ".mlp.switch_mlp.up_proj", RENAME_BARE},
    {".mlp.experts.down_proj", ".mlp.switch_mlp.down_proj", NULL, RENAME_BARE},
    {".experts.gate_up_proj", ".experts.switch_glu.gate_proj", ".experts.switch_glu.up_proj", RENAME_BARE},
    {".experts.down_proj", ".experts.switch_glu.down_proj", NULL, RENAME_BARE},
    {".block_sparse_moe.input_linear", ".block_sparse_moe.switch_mlp.gate_proj", ".block_sparse_moe.switch_mlp.up_proj",
        RENAME_ALWAYS},
    {".block_sparse_moe.output_linear", ".block_sparse_moe.switch_mlp.down_proj", NULL, RENAME_ALWAYS},
    {".shared_mlp.input_linear", ".mlp.gate_proj", ".mlp.up_proj", RENAME_DENSE},
    {".shared_mlp.output_linear", ".mlp.down_proj", NULL, RENAME_DENSE},
    /* Hunyuan 4 as transformers saves it: its publisher's names, as of its experts. */
    {".mlp.linear_gate", ".mlp.gate_proj", NULL, RENAME_ALWAYS},
    {".shared_experts.linear_gate", ".shared_experts.gate_proj", NULL, RENAME_ALWAYS},
};

bool rule_divides(const char *model_type) {
    static const char *const whole[TYPES_MAX] = {"deepseek_v2", "minicpm3", "youtu_llm"};
    return !has_type(whole, model_type);
}

const char *rule_rename(const Plan *plan, const char *module, const Recorded *item, const char **second) {
    Arena *arena = plan->arena;
    *second = NULL;
    for (size_t i = 0; i < COUNT_OF(renames); i++) {
        if (!ends_with(module, renames[i].end) || (renames[i].where == RENAME_BARE && !item->bare)) continue;
        if (renames[i].where == RENAME_TRANSPOSED && !item->transposed) continue;
        if (renames[i].where == RENAME_DENSE && plan->has_mixture) continue;
        const int stem = (int)(strlen(module) - strlen(renames[i].end));
        const char *first = arena_printf(arena, "%.*s%s", stem, module, renames[i].first);
        if (!renames[i].second) return first;
        *second = arena_printf(arena, "%.*s%s", stem, module, renames[i].second);
        return *second ? first : NULL;
    }
    return module;
}
