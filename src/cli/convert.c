#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "import/checkpoint/checkpoint.h"
#include "import/export/export.h"
#include "import/gguf/gguf.h"

static const Command command = {"convert", "SOURCE DIR",
    "Writes a model anew: quantised, in other numbers, from GGUF or as GGUF.",
    "SOURCE is a GGUF file, or a model as its publisher or MLX wrote it: a directory or ORG/NAME on the hub. DIR "
    "becomes "
    "an\n"
    "MLX checkpoint, with the bits that mlx_lm.convert writes, and appears only when it is whole.\n\n"
    "  apus convert Qwen/Qwen3-0.6B qwen3-4bit -q\n"
    "  apus convert DIR out -q --q-mode mxfp4\n"
    "  apus convert DIR out -q --mixed-recipe mixed_3_6\n"
    "  apus convert DIR out --dequantize --dtype float16\n"
    "  apus convert model.gguf out\n"
    "  apus convert DIR model.gguf --to gguf --gguf-type q4_k\n\n"
    "Of GGUF files Q4_0 Q4_1 Q4_K Q5_0 Q5_1 Q5_K Q8_0 IQ4_NL F16 BF16 F32 convert exactly, Q6_K to the nearest 8-bit "
    "group of\n"
    "32. With --compact all of them are exact and none but IQ4_NL grows: a Q4_K file makes a checkpoint a third "
    "smaller "
    "and\n"
    "faster than without. Only apus reads it. This is what serve, run, chat and bench make of a .gguf file.\n"};

enum { UNSET = -1 };

typedef struct Wishes {
    bool compact;
    const char *mmproj;
    CheckpointOptions checkpoint;
    int64_t bits, group;
    int mode, dtype; /* UNSET: not given */
    int to, type;    /* UNSET: not given */
} Wishes;

static bool is_gguf(const char *path) {
    const size_t size = strlen(path);
    return size > 5 && !strcmp(path + size - 5, ".gguf");
}

static void warn(void *context, const char *line) { log_warn("%s", line); }

static bool check_wishes(const Wishes *w, bool gguf, Error *error) {
    const CheckpointOptions *c = &w->checkpoint;
    const bool form = w->bits || w->group || w->mode != UNSET || c->recipe;
    if (w->type != UNSET && w->to == UNSET) return fail(error, ERROR_USAGE, "--gguf-type goes with --to gguf");
    if (w->to != UNSET && (gguf || c->quantize || c->dequantize || w->dtype != UNSET || c->shard_bytes))
        return fail(
            error, ERROR_USAGE, "--to gguf is for directories, and --gguf-type alone says how the weights are kept");
    if (form && !c->quantize)
        return fail(error, ERROR_USAGE, "--q-bits, --q-group-size, --q-mode and --mixed-recipe go with -q");
    if (gguf && (c->quantize || c->dequantize || w->dtype != UNSET))
        return fail(error, ERROR_USAGE, "a GGUF file keeps its numbers: convert it first, then the directory");
    if (!gguf && w->mmproj) return fail(error, ERROR_USAGE, "--mmproj goes with a GGUF file");
    return gguf || !w->compact || fail(error, ERROR_USAGE, "--compact is for GGUF files");
}

static bool convert_checkpoint(const char *source, const char *directory, const Wishes *w, Error *error) {
    CheckpointOptions options = w->checkpoint;
    Buffer from = {0};
    int shown = -1;
    options.form = (QuantForm){w->mode == UNSET ? QUANT_AFFINE : (Quant)w->mode, (int)w->bits, (int)w->group};
    options.typed = w->dtype != UNSET;
    options.dtype = options.typed ? (DType)w->dtype : DTYPE_F32;
    options.progress = progress_conversion;
    options.context = &shown;
    options.warn = warn;
    bool ok = library_resolve(source, progress_on_terminal(), &from, error) &&
        checkpoint_convert(from.data, directory, &options, error);
    buffer_free(&from);
    return ok;
}

static bool convert_to_gguf(const char *source, const char *path, const Wishes *w, Error *error) {
    Buffer from = {0};
    int shown = -1;
    const ExportOptions options = {.type = w->type == UNSET ? EXPORT_Q8_0 : (ExportType)w->type,
        .progress = progress_conversion,
        .context = &shown,
        .warn = warn};
    const bool ok =
        library_resolve(source, progress_on_terminal(), &from, error) && gguf_export(from.data, path, &options, error);
    buffer_free(&from);
    return ok;
}

static bool convert_gguf(const char *source, const char *directory, const Wishes *w, Error *error) {
    int shown = -1;
    const GgufOptions how = {
        .compact = w->compact, .mmproj = w->mmproj, .progress = progress_conversion, .context = &shown};
    return gguf_convert(source, directory, &how, error);
}

int command_convert(int argc, char **argv) {
    Arguments arguments;
    Wishes w = {.mode = UNSET, .dtype = UNSET, .to = UNSET, .type = UNSET};
    const Option options[] = {
        {"--quantize", "-q", OPTION_FLAG, &w.checkpoint.quantize, 0, 0, NULL, "quantise the weights"},
        {"--q-bits", NULL, OPTION_INTEGER, &w.bits, 2, 8, "N", "bits of a weight (4; of mxfp8: 8)"},
        {"--q-group-size", NULL, OPTION_INTEGER, &w.group, 16, 128, "N",
            "weights that share a scale (64; mxfp4 and mxfp8: 32; nvfp4: 16)"},
        {"--q-mode", NULL, OPTION_CHOICE, &w.mode, QUANT_AFFINE, 0, "affine|mxfp4|nvfp4|mxfp8",
            "form of the weights (affine)"},
        {"--mixed-recipe", "--quant-predicate", OPTION_CHOICE, &w.checkpoint.recipe, RECIPE_2_6, 0,
            "mixed_2_6|mixed_3_4|mixed_3_6|mixed_4_6", "more bits where they matter most"},
        {"--dequantize", "-d", OPTION_FLAG, &w.checkpoint.dequantize, 0, 0, NULL, "make quantised weights plain"},
        {"--dtype", NULL, OPTION_CHOICE, &w.dtype, DTYPE_F32, 0, "float32|float16|bfloat16",
            "numbers that are not quantised (torch_dtype of config.json)"},
        {"--shard-size", NULL, OPTION_BYTES, &w.checkpoint.shard_bytes, 1, 1e15, "SIZE",
            "largest size of a file of weights (5G)"},
        {"--to", NULL, OPTION_CHOICE, &w.to, 0, 0, "gguf", "format of the result: a GGUF file"},
        {"--gguf-type", NULL, OPTION_CHOICE, &w.type, EXPORT_Q8_0, 0, "q8_0|q4_0|q4_k|f16|bf16",
            "form of its matrices (q8_0)"},
        {"--compact", NULL, OPTION_FLAG, &w.compact, 0, 0, NULL, "keep a GGUF file's own sizes; for apus alone"},
        {"--mmproj", NULL, OPTION_TEXT, &w.mmproj, 0, 0, "FILE", "a GGUF file's encoder of images (the one beside it)"},
        {0},
    };
    const OptionsResult result = options_parse(&command, options, argc, argv, 2, 2, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    const char *source = arguments.values[0], *directory = arguments.values[1];
    const bool gguf = !file_is_directory(source) && (is_gguf(source) || file_exists(source));
    bool ok = check_wishes(&w, gguf, &error);
    if (ok && w.to != UNSET)
        ok = convert_to_gguf(source, directory, &w, &error);
    else if (ok)
        ok = gguf ? convert_gguf(source, directory, &w, &error) : convert_checkpoint(source, directory, &w, &error);
    if (!ok) return report(&error);
    printf("%s\n", directory);
    return 0;
}
