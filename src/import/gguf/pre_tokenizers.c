/* How texts are cut before merges apply, by the name that tokenizer.ggml.pre gives it: the steps that the models' own
 * tokenizer.json has. Names and patterns: github.com/ggml-org/llama.cpp, llama-vocab.cpp; format:
 * github.com/huggingface/tokenizers. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "import/gguf/internal.h"

enum { NAMES_BYTES_MAX = 1024 };

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define REST_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define EDGE "[^\\r\\n\\p{L}\\p{N}]?"

/* Steps that are no patterns. GPT2 is ByteLevel with its own pattern; behind a list without it comes ByteLevel alone.
 */
static const char DIGITS[] = "{\"type\":\"Digits\",\"individual_digits\":true}",
                  NUMBERS[] = "{\"type\":\"Digits\",\"individual_digits\":false}",
                  PUNCTUATION[] = "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}",
                  BYTES[] =
                      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}",
                  GPT2[] =
                      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}";

static const char LLAMA3[] = CONTRACTIONS "|" EDGE "\\p{L}+|\\p{N}{1,3}|" REST;
static const char QWEN2[] = CONTRACTIONS "|" EDGE "\\p{L}+|\\p{N}|" REST;
static const char QWEN35[] =
    CONTRACTIONS "|" EDGE "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char BAILING[] =
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char SEED[] =
    CONTRACTIONS "|" EDGE "\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char EXAONE_MOE[] = CONTRACTIONS
    "|" EDGE
    "(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char O200K[] =
    EDGE UPPER "*" LOWER "+" CONTRACTIONS "?|" EDGE UPPER "+" LOWER "*" CONTRACTIONS "?|\\p{N}{1,3}|" REST_SLASH;
static const char TEKKEN[] = EDGE UPPER "*" LOWER "+|" EDGE UPPER "+" LOWER "*|\\p{N}|" REST_SLASH;
static const char DEEPSEEK3[] = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
                                "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char LINES[] = "[\\r\\n]", CJK3[] = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                  CJK[] = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
/* Letters that have two cases, as an old Unicode had them. */
static const char DEEPSEEK_WORDS[] =
    "\\s?[A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
    "]+";
static const char DEEPSEEK_SIGNS[] = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";

#define REST_AFTER_DIGITS "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
/* Groups of three from the right. */
static const char THREES[] = "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))", THREES_WORD[] = "\\d{1,3}(?=(?:\\d{3})*\\b)";
static const char ASIAN[] =
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+";
static const char SPARK[] =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?" REST_AFTER_DIGITS
    "|[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char YOUTU_SCRIPTS[] =
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
static const char YOUTU[] =
    EDGE UPPER "*" LOWER "+" CONTRACTIONS "?|" EDGE UPPER "+" LOWER "*" CONTRACTIONS "?|\\p{N}|" REST_SLASH;
static const char JAIS2[] = CONTRACTIONS
    "|" EDGE
    "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|"
    "\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}";
static const char BLOOM[] = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+";
static const char UFAKZEKA[] = EDGE "\\p{L}+|\\p{N}|" REST;
static const char MINICPM5[] = CONTRACTIONS "|" EDGE "\\p{L}+|\\p{N}+|" REST;
#define UPPER_NO_HAN "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER_NO_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
static const char KIMI_K2[] = "[\\p{Han}]+|" EDGE UPPER_NO_HAN "*" LOWER_NO_HAN "+" CONTRACTIONS "?|" EDGE UPPER_NO_HAN
                              "+" LOWER_NO_HAN "*" CONTRACTIONS "?|\\p{N}{1,3}|" REST;

static const GgufPre known[] = {
    {.name = "qwen2", {QWEN2}, .nfc = true},
    {.name = "deepseek-r1-qwen", {QWEN2}, .nfc = true},
    {.name = "qwen35", {QWEN35}},
    {.name = "stablelm2", {QWEN2}},
    {.name = "hunyuan", {QWEN2}},
    {.name = "solar-open", {QWEN2}},
    {.name = "grok-2", {QWEN2}},
    {.name = "f2llmv2", {QWEN2}, .nfc = true},
    {.name = "kormo", {QWEN2}},
    {.name = "megrez", {QWEN2}},
    {.name = "ufakzeka", {UFAKZEKA}},
    {.name = "laguna", {"[^\\n]+|[\\n]+", QWEN2}},
    {.name = "bailingmoe", {BAILING}},
    {.name = "bailingmoe2", {BAILING}},
    {.name = "llada-moe", {BAILING}},
    {.name = "seed-coder", {SEED}},
    {.name = "exaone-moe", {EXAONE_MOE}},
    {.name = "llama-bpe", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "falcon3", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "falcon-h1", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "lfm2", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "pixtral", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "midm-2.0", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "jina-v5-nano", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "minicpm5", {"\\p{N}{1,3}", MINICPM5}, .ignore_merges = true},
    {.name = "jais-2", {JAIS2}},
    {.name = "glm4", {LLAMA3}, .ignore_merges = true},
    {.name = "chatglm-bpe", {LLAMA3}},
    {.name = "smaug-bpe", {LLAMA3}},
    {.name = "dbrx", {LLAMA3}},
    {.name = "gpt-4o", {O200K}},
    {.name = "llama4", {O200K}},
    {.name = "minimax-m2", {O200K}},
    {.name = "kanana2", {O200K}},
    {.name = "talkie", {O200K}},
    {.name = "granite-embed-multi-97m", {O200K}, .ignore_merges = true},
    {.name = "tiny_aya", {THREES_WORD, O200K}},
    {.name = "cohere2moe", {THREES_WORD, O200K}},
    {.name = "kimi-k2", {KIMI_K2}},
    {.name = "youtu", {YOUTU_SCRIPTS, YOUTU}, .ignore_merges = true},
    {.name = "tekken", {TEKKEN}, .ignore_merges = true, .add_bos = true},
    {.name = "deepseek-llm", {LINES, DEEPSEEK_WORDS, DEEPSEEK_SIGNS, "\\s+$", CJK, DIGITS}},
    {.name = "deepseek-coder", {LINES, "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, DIGITS}},
    {.name = "deepseek-v3", {"\\p{N}{1,3}", CJK3, DEEPSEEK3}},
    {.name = "hunyuan-dense", {"\\p{N}{1,3}", CJK3, DEEPSEEK3}},
    {.name = "joyai-llm", {"\\p{N}{1,3}", CJK3, DEEPSEEK3}},
    {.name = "hy_v4", {"\\p{N}{1,3}", CJK3, DEEPSEEK3}},
    {.name = "afmoe", {THREES, ASIAN, DEEPSEEK3}},
    {.name = "spark2_5", {"\\p{N}{1,3}", CJK3, SPARK, "\\p{N}"}},
    {.name = "bloom", {BLOOM}},
    {.name = "gpt3-finnish", {BLOOM}},
    {.name = "poro-chat", {BLOOM}},
    {.name = "viking", {BLOOM, DIGITS}},
    {.name = "mellum2", {DIGITS, GPT2}},
    {.name = "smollm", {DIGITS, GPT2}},
    {.name = "starcoder", {DIGITS, GPT2}},
    {.name = "refact", {DIGITS, GPT2}},
    {.name = "codeshell", {DIGITS, GPT2}},
    {.name = "exaone", {DIGITS, GPT2}},
    {.name = "minerva-7b", {DIGITS, GPT2}},
    {.name = "command-r", {DIGITS, GPT2}, .nfc = true},
    {.name = "falcon", {PUNCTUATION, GPT2, NUMBERS, "[0-9][0-9][0-9]"}},
    {.name = "gpt-2", {GPT2}},
    {.name = "phi-2", {GPT2}},
    {.name = "roberta-bpe", {GPT2}, .marks = true},
    {.name = "jina-es", {GPT2}},
    {.name = "jina-de", {GPT2}},
    {.name = "jina-v2-es", {GPT2}},
    {.name = "jina-v2-de", {GPT2}},
    {.name = "gigachat", {GPT2}},
    {.name = "a.x-4.0", {GPT2}},
    {.name = "mellum", {GPT2}},
    {.name = "modern-bert", {GPT2}},
    {.name = "exaone4", {GPT2}},
    {.name = "jais", {GPT2}},
    {.name = "trillion", {GPT2}},
    {.name = "granite-docling", {GPT2}},
    {.name = "mpt", {GPT2}, .nfc = true},
    {.name = "olmo", {GPT2}, .nfc = true},
};

/* Vocabularies that early files hold without a name: by a token and the largest number of tokens. */
static const struct {
    const char *token;
    uint64_t count_max;
    const char *name;
} unnamed[] = {
    {"<|begin_of_text|>", 128256, "llama-bpe"},
    {"<\uff5cbegin\u2581of\u2581sentence\uff5c>", 32256, "deepseek-coder"},
    {"<\uff5cbegin\u2581of\u2581sentence\uff5c>", 102400, "deepseek-llm"},
    {"<|START_OF_TURN_TOKEN|>", 256000, "command-r"},
};

static const char *unnamed_find(const GgufFile *file) {
    const GgufValue *tokens = gguf_value(file, "tokenizer.ggml.tokens");
    if (!tokens || !tokens->array || tokens->kind != GGUF_STRING) return NULL;
    const uint8_t *at = tokens->data;
    for (uint64_t id = 0; id < tokens->count; id++) {
        Slice text = gguf_string_next(&at);
        for (size_t i = 0; i < COUNT_OF(unnamed); i++) {
            if (tokens->count <= unnamed[i].count_max && slice_is(text, unnamed[i].token)) return unnamed[i].name;
        }
    }
    return NULL;
}

const GgufPre *gguf_pre_find(const GgufFile *file, const GgufTokenizer *rules, Error *error) {
    char names[NAMES_BYTES_MAX];
    size_t size = 0;
    Slice name = {0};
    bool named = gguf_string(file, "tokenizer.ggml.pre", &name) && !slice_is(name, "default");
    if (!named) {
        const char *other = rules->pre ? rules->pre : unnamed_find(file);
        name = slice_of(other ? other : "");
    }
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        if (slice_is(name, known[i].name)) return &known[i];
        if (size < sizeof names)
            size += (size_t)snprintf(names + size, sizeof names - size, "%s%s", size ? " " : "", known[i].name);
    }
    if (named)
        fail(
            error, ERROR_UNSUPPORTED, "tokenizer.ggml.pre %.*s is not known (these are: %s)", SLICE_SHOWN(name), names);
    else
        fail(error, ERROR_UNSUPPORTED,
            "tokenizer.ggml.pre does not name the pre-tokenizer, nor does the vocabulary tell it (known are: %s)",
            names);
    return NULL;
}

const GgufPre *gguf_pre_at(size_t index) { return index < COUNT_OF(known) ? &known[index] : NULL; }

static void put_step(Buffer *out, const char *step) {
    if (step[0] == '{') {
        buffer_text(out, step);
        return;
    }
    buffer_text(out, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    json_write_string(out, slice_of(step));
    buffer_text(out, "},\"behavior\":\"Isolated\",\"invert\":false}");
}

void gguf_pre_write(Buffer *out, const GgufPre *pre) {
    bool bytes = false;
    buffer_printf(out, "\"normalizer\":%s,\n\"pre_tokenizer\":", pre->nfc ? "{\"type\":\"NFC\"}" : "null");
    buffer_text(out, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (size_t i = 0; i < GGUF_STEPS_MAX && pre->steps[i]; i++) {
        if (i) buffer_byte(out, ',');
        put_step(out, pre->steps[i]);
        bytes = bytes || pre->steps[i] == GPT2;
    }
    if (!bytes) buffer_printf(out, ",%s", BYTES);
    buffer_printf(out, "]},\n\"decoder\":%s,\n", BYTES);
}
