/* A model for the terminal: the options that choose how it runs, and one answer at a time, streamed. */
#pragma once
#include <stdio.h>

#include "chat/prompt.h"
#include "cli/cache_options.h"
#include "cli/options.h"

/* NAME=DIR of each --lora. */
enum { ADAPTER_NAME_MAX = 128 /* bytes with the NUL */ };
typedef struct AdapterArguments {
    AdapterSource list[ADAPTERS_MAX]; /* their names are `names` */
    char names[ADAPTERS_MAX][ADAPTER_NAME_MAX];
    int count;
} AdapterArguments;
bool session_read_adapter(const char *text, void *arguments, Error *error); /* for an OptionReader */

/* Options shared by every command that loads a model; ENGINE_OPTIONS lists them for the tables. */
typedef struct EngineArguments {
    EngineOptions options;  /* what engine_options() does not derive from the other members */
    const char *gpu_layers; /* a number, "all" or "auto"; NULL: all */
    CacheArguments cache;
    bool no_lookup;
    const char *draft_model; /* name, directory or file; NULL: none */
    AdapterArguments adapters;
} EngineArguments;
#define ENGINE_ARGUMENTS_DEFAULT                                                                                       \
    (EngineArguments) {                                                                                                \
        .options = {                                                                                                   \
            .backend = {.device = "cpu", .cpu = "auto", .tensor_parallel = 1},                                         \
            .model = {.weights = WEIGHTS_MAPPED},                                                                      \
            .slots = 8,                                                                                                \
            .queue_max = 256,                                                                                          \
            .kv_format = {.after = KV_AFTER, .hot = KV_HOT, .sink = KV_SINK}                                           \
        }                                                                                                              \
    }
/* clang-format off */
#define ENGINE_OPTIONS(e)                                                                                              \
    OPTIONS_TITLE("Model and memory"),                                                                                 \
    {"--device", NULL, OPTION_TEXT, &(e).options.backend.device, 0, 0, "NAME",                                                         \
        "cpu, cuda, cuda:N, or auto: a GPU where there is one (cpu)"},                                                 \
    {"--gpu-layers", "-ngl", OPTION_TEXT, &(e).gpu_layers, 0, 0, "N",                                                   \
        "the last N layers are on the GPU, the others here; auto: as many as fit; all (all)"},                         \
    {"--tensor-parallel", NULL, OPTION_INT, &(e).options.backend.tensor_parallel, 1, BACKEND_RANKS_MAX, "N",                       \
        "each layer is divided among N GPUs, the one of --device and those behind it (1)"},                            \
    {"--cpu", NULL, OPTION_TEXT, &(e).options.backend.cpu, 0, 0, "ISA", "instructions: auto, ref, avx2, avx512, amx, neon (auto)"},    \
    {"--threads", "-t", OPTION_INT, &(e).options.backend.threads, 0, 1024, "N", "threads that compute (one per core)"},            \
    {"--ctx-size", "-c", OPTION_INT, &(e).options.model.context, 0, 1 << 24, "N",                                                \
        "tokens a conversation may hold (the model's, at most 32768)"},                                                \
    {"--prefill-size", NULL, OPTION_INT, &(e).options.prefill_size, 1, RUNNER_ROWS_MAX / 2, "N",                            \
        "prompt tokens per step (512; 8192 with --stream-experts)"},                                                   \
    CACHE_OPTIONS((e).cache, (e).options),                                                                                       \
    {"--weights", NULL, OPTION_CHOICE, &(e).options.model.weights, WEIGHTS_MAPPED, 0, "mmap|ram",                                                        \
        "mmap: used where they lie in the file; ram: read into huge pages first (mmap)"},                              \
    {"--precise", NULL, OPTION_FLAG, &(e).options.backend.precise, 0, 0, NULL,                                                         \
        "activations as 16 bits instead of 8: slower prompts, smaller errors"},                                        \
    {"--no-lookup", NULL, OPTION_FLAG, &(e).no_lookup, 0, 0, NULL,                                                     \
        "no draft tokens from the prompt and the answer (speculative decoding, which changes no answer)"},             \
    {"--draft-model", NULL, OPTION_TEXT, &(e).draft_model, 0, 0, "MODEL",                                              \
        "a small model with the same vocabulary that guesses the next tokens; answers stay the same (none)"},          \
    {"--mtp", NULL, OPTION_FLAG, &(e).options.model.mtp, 0, 0, NULL,                                                   \
        "guess with the model's multi-token prediction head, if its file has one; answers stay the same"},             \
    {"--num-draft-tokens", NULL, OPTION_INT, &(e).options.speculation.draft_tokens, 1, DRAFT_TOKENS_MAX, "N",          \
        "the most tokens that either guesses at once (8)"},                                                                \
    {"--lora", NULL, OPTION_READ, &(OptionReader){session_read_adapter, &(e).adapters}, 0, 0, "NAME=DIR",                      \
        "a LoRA adapter of PEFT or MLX; several times. A request chooses it as MODEL:NAME, run and chat use the first"}, \
    OPTIONS_TITLE("Experts larger than memory"),                                                                       \
    {"--top-k-experts", NULL, OPTION_INT, &(e).options.model.experts_used, 1, 32, "N",                                            \
        "a token uses N experts of a layer at most: faster, but worse answers (the model's)"},                  \
    EXPERT_OPTIONS((e).options.model.experts), \
    {"--strict-config", NULL, OPTION_FLAG, &(e).options.model.strict_config, 0, 0, NULL,                                             \
        "fields of config.json that nothing here uses are an error"}
/* clang-format on */

typedef struct SamplingArguments {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, seed, max_tokens;
} SamplingArguments;
#define SAMPLING_ARGUMENTS_DEFAULT                                                                                     \
    (SamplingArguments) { .temperature = 0.7, .top_p = 0.95, .repetition_penalty = 1, .seed = -1 }
#define SAMPLING_OPTIONS(s)                                                                                            \
    {"--temperature", "--temp", OPTION_NUMBER, &(s).temperature, 0, 2, "X",                                            \
        "randomness; 0 takes the likeliest token (0.7)"},                                                              \
        {"--top-p", NULL, OPTION_NUMBER, &(s).top_p, 0, 1, "X",                                                        \
            "the likeliest tokens that make up this probability (0.95)"},                                              \
        {"--top-k", NULL, OPTION_INTEGER, &(s).top_k, 0, 1 << 30, "N", "the N likeliest tokens; 0: all (0)"},          \
        {"--min-p", NULL, OPTION_NUMBER, &(s).min_p, 0, 1, "X", "tokens at least this likely beside the best (0)"},    \
        {"--repetition-penalty", NULL, OPTION_NUMBER, &(s).repetition_penalty, 0.01, 2, "X",                           \
            "makes repeats less likely (1: off)"},                                                                     \
        {"--seed", NULL, OPTION_INTEGER, &(s).seed, -1, 9e15, "N", "same seed, same text (-1: another each time)"}, {  \
        "--max-tokens", "-n", OPTION_INTEGER, &(s).max_tokens, 0, 1 << 30, "N",                                        \
            "longest answer (what the context holds)"                                                                  \
    }

/* directory and the arguments' texts are borrowed: they outlive the options. */
NODISCARD bool engine_options(
    const EngineArguments *arguments, const char *directory, EngineOptions *out, Error *error);

/* directory: what the model is called, too. One answer at a time. */
NODISCARD ChatModel *session_open(const char *directory, const EngineArguments *arguments, Error *error);

typedef struct SessionAnswer {
    Finish finish;
    int tokens, prompt_tokens;
    double first_s, total_s; /* to the first token, to the end */
    DraftStats drafts;
} SessionAnswer;

/* The prompt of an answer: messages, or with raw set that text to be continued. */
typedef struct SessionPrompt {
    const ChatMessage *messages;
    size_t count;
    const char *raw;
} SessionPrompt;

/* Streams to standard output; `text` receives the answer. *stop set by a signal handler ends it early. */
NODISCARD bool session_answer(const ChatModel *model, const SessionPrompt *prompt, const SamplingArguments *sampling,
    const volatile int *stop, Buffer *text, SessionAnswer *answer, Error *error);

void session_print_stats(const SessionAnswer *answer, FILE *out);

/* A content part with a file's image, audio or video, whose bytes are allocated in `file`. */
NODISCARD bool session_read_media(ContentKind kind, const char *path, Buffer *file, ContentPart *part, Error *error);

/* Appends text as UTF-8: what is not becomes U+FFFD. */
void session_clean(Slice text, Buffer *out);
