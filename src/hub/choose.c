#include "hub/choose.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LISTED_MAX = 12, SORTED_MAX = 256 };

/* What mlx-lm asks for, too (mlx_lm/utils.py), so that it finds all it wants; but no Python, which nothing here runs.
 */
static bool is_needed(const char *path) {
    static const char *const ends[] = {".json", ".txt", ".jsonl", ".jinja", ".tiktoken"};
    const Slice text = slice_of(path);
    if (!strncmp(path, "model", 5) && hub_ends_with(text, ".safetensors")) return true;
    if (!strcmp(path, "tokenizer.model") || !strcmp(path, "tiktoken.model")) return true;
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        if (hub_ends_with(text, ends[i])) return true;
    return false;
}

static bool is_weights(const char *path) {
    return !strncmp(path, "model", 5) && !strchr(path, '/') && hub_ends_with(slice_of(path), ".safetensors");
}

static const char *base_name(const char *path) { return strrchr(path, '/') ? strrchr(path, '/') + 1 : path; }

/* NAME-00001-of-00003.gguf */
static bool is_piece(const char *path) {
    const size_t size = strlen(path);
    int part, of, used = 0;
    return size > 20 && sscanf(path + size - 20, "-%5d-of-%5d.gguf%n", &part, &of, &used) == 2 && used == 20;
}

bool choose_is_gguf_model(const char *path) {
    const char *name = base_name(path);
    return hub_ends_with(slice_of(path), ".gguf") && !is_piece(path) && !strcasestr(name, "mmproj") &&
        !strcasestr(name, "imatrix");
}

/* What belongs to a model without being one: weights for drafts, adapters. A word of its path says so. */
static bool is_companion(const char *path) {
    static const char *const words[] = {
        "mtp", "draft", "drafter", "dflash", "dspark", "eagle", "eagle2", "eagle3", "adapter", "lora", "assistant"};
    for (const char *at = path; *at; at += strspn(at, "/-_. ")) {
        const size_t size = strcspn(at, "/-_. ");
        for (size_t i = 0; i < COUNT_OF(words); i++)
            if (strlen(words[i]) == size && !strncasecmp(at, words[i], size)) return true;
        at += size;
    }
    return false;
}

/* "Q4_K_M", "IQ2_XS", "F16" and their like. */
static bool is_quant(Slice text) {
    static const char *const plain[] = {"BF16", "F16", "F32", "FP16", "FP32", "MXFP4"};
    const size_t letters = text.size && strchr("IiTt", text.data[0]) ? 1 : 0;
    if (text.size > letters + 1 && toupper((unsigned char)text.data[letters]) == 'Q')
        return isdigit((unsigned char)text.data[letters + 1]);
    for (size_t i = 0; i < COUNT_OF(plain); i++)
        if (text.size == strlen(plain[i]) && !strncasecmp(text.data, plain[i], text.size)) return true;
    return false;
}

/* The end of a .gguf file's name that says how it is quantised; "" when none does. */
static void quant_of(const char *path, char *quant, size_t size) {
    const char *name = base_name(path);
    const size_t stem = strlen(name) - strlen(".gguf");
    quant[0] = '\0';
    for (size_t i = stem; i-- > 0;) {
        const Slice rest = {name + i, stem - i};
        if ((i > 0 && !strchr("-. ", name[i - 1])) || !is_quant(rest)) continue;
        if (rest.size < size) snprintf(quant, size, "%.*s", SLICE_ARGS(rest));
        return;
    }
}

/* By its path, its name, or the end of its name from a separator on: "Q4_K_M", "UD-Q4_K_XL". */
static bool named_by(const HubFile *file, const char *wanted) {
    const char *name = base_name(file->path);
    const size_t stem = strlen(name) - strlen(".gguf"), size = strlen(wanted);
    if (!strcmp(file->path, wanted) || !strcmp(name, wanted)) return true;
    return size && size < stem && !strncasecmp(name + stem - size, wanted, size) &&
        strchr("-. ", name[stem - size - 1]);
}

/* Sorts candidate files, the best for this machine first: quantised files that fit, largest first because they lose the
 * least; then 16- and 32-bit files that fit; then files that do not fit, smallest first. */
static bool better(const HubFile *a, const HubFile *b, uint64_t memory_bytes) {
    const HubFile *files[2] = {a, b};
    int rank[2];
    for (int i = 0; i < 2; i++) {
        char quant[64];
        quant_of(files[i]->path, quant, sizeof quant);
        const bool plain = strcasestr(quant, "F16") || strcasestr(quant, "F32") || strcasestr(quant, "FP16");
        rank[i] = (uint64_t)files[i]->size > memory_bytes / 4 * 3 ? 2 : plain ? 1 : 0;
    }
    if (rank[0] != rank[1]) return rank[0] < rank[1];
    if (a->size != b->size) return rank[0] == 2 ? a->size < b->size : a->size > b->size;
    return strcmp(a->path, b->path) < 0;
}

/* What to write after the colon: the quantisation when only one file has it. */
static const char *label_of(const HubChoice *choice, const HubFile *file, char quant[64]) {
    size_t same = 0;
    quant_of(file->path, quant, 64);
    for (size_t i = 0; i < choice->count; i++) same += named_by(choice->files[i], quant);
    return quant[0] && same == 1 ? quant : file->path;
}

static bool fail_choices(HubChoice *choice, const HubName *name, uint64_t memory_bytes, Error *error) {
    Buffer list = {0};
    char quant[64];
    const size_t all = choice->count;
    if (choice->count > SORTED_MAX) choice->count = SORTED_MAX;
    for (size_t i = 1; i < choice->count; i++)
        for (size_t k = i; k > 0 && better(choice->files[k], choice->files[k - 1], memory_bytes); k--) {
            const HubFile *file = choice->files[k];
            choice->files[k] = choice->files[k - 1];
            choice->files[k - 1] = file;
        }
    for (size_t i = 0; i < choice->count && i < LISTED_MAX; i++) {
        const HubFile *file = choice->files[i];
        buffer_printf(&list, "%s%s", i ? ", " : " ", label_of(choice, file, quant));
        if (file->size >= 0) buffer_printf(&list, " (%.3g GB)", (double)file->size * 1e-9);
        if (i == 0 && (uint64_t)file->size <= memory_bytes / 4 * 3) buffer_text(&list, " fits this machine best");
    }
    if (all > LISTED_MAX) buffer_printf(&list, " and %zu more", all - LISTED_MAX);
    fail(error, ERROR_USAGE, "%s %s%s; choose one, as in %s:%s.%s", name->repo,
        name->file[0] ? "has none or several files for " : "holds several models", name->file, name->repo,
        label_of(choice, choice->files[0], quant), list.failed ? "" : list.data);
    buffer_free(&list);
    return false;
}

/* A model, or what its full name asks for. */
static bool is_candidate(const HubFile *file, const char *wanted) {
    const bool named = !strcmp(file->path, wanted) || !strcmp(base_name(file->path), wanted);
    return choose_is_gguf_model(file->path) && (named || !is_companion(file->path));
}

/* A file in pieces is called so without their numbers. */
static bool names_pieces(const HubFile *file, const char *wanted) {
    char path[512];
    const size_t numbers = strlen("-00001-of-00003.gguf"), size = strlen(file->path);
    if (!wanted[0] || !is_piece(file->path) || size >= sizeof path) return false;
    snprintf(path, sizeof path, "%.*s.gguf", (int)(size - numbers), file->path);
    return named_by(&(HubFile){.path = path}, wanted);
}

static bool choose_gguf(
    const HubTree *tree, const HubName *name, uint64_t memory_bytes, HubChoice *choice, Error *error) {
    size_t pieces = 0, named = 0, named_pieces = 0;
    for (size_t i = 0; i < tree->count; i++) {
        const HubFile *file = &tree->files[i];
        pieces += is_piece(file->path);
        named += is_candidate(file, name->file) && name->file[0] && named_by(file, name->file);
        named_pieces += names_pieces(file, name->file);
    }
    if (!named && named_pieces)
        return fail(error, ERROR_UNSUPPORTED,
            "%s has %s in several pieces, which apus does not read: join them with llama-gguf-split --merge",
            name->repo, name->file);
    for (size_t i = 0; i < tree->count; i++) {
        const HubFile *file = &tree->files[i];
        if (is_candidate(file, name->file) && (!named || named_by(file, name->file)))
            choice->files[choice->count++] = file;
    }
    choice->format = HUB_GGUF;
    if (choice->count == 1 && (named || !name->file[0])) return true;
    if (choice->count) return fail_choices(choice, name, memory_bytes, error);
    if (pieces)
        return fail(error, ERROR_UNSUPPORTED,
            "%s has GGUF files in several pieces only, which apus does not read: join them with llama-gguf-split "
            "--merge",
            name->repo);
    return fail(error, ERROR_UNSUPPORTED,
        "%s has neither config.json with model*.safetensors nor a .gguf file: nothing that apus can run", name->repo);
}

bool choose_files(const HubTree *tree, const HubName *name, uint64_t memory_bytes, HubChoice *choice, Error *error) {
    *choice = (HubChoice){.files = calloc(tree->count + 1, sizeof *choice->files)};
    if (!choice->files) return fail(error, ERROR_MEMORY, "no memory for a list of files");
    bool config = false, weights = false, ok = true;
    for (size_t i = 0; i < tree->count; i++) {
        config |= !strcmp(tree->files[i].path, "config.json");
        weights |= is_weights(tree->files[i].path);
    }
    if (config && weights && !name->file[0]) {
        for (size_t i = 0; i < tree->count; i++)
            if (is_needed(tree->files[i].path)) choice->files[choice->count++] = &tree->files[i];
    } else {
        ok = choose_gguf(tree, name, memory_bytes, choice, error);
    }
    if (!ok) choice_free(choice);
    return ok;
}

void choice_free(HubChoice *choice) {
    free((void *)choice->files);
    *choice = (HubChoice){0};
}
