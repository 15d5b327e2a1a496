#include "hub/choose.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/part_name.h"

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

bool choose_is_gguf_model(const char *path) {
    const char *name = base_name(path);
    PartName part;
    return hub_ends_with(slice_of(path), ".gguf") && !(part_name_parse(path, &part) && part.part > 1) &&
        !strcasestr(name, "mmproj") && !strcasestr(name, "imatrix");
}

static const HubFile *find_part(const HubTree *tree, const char *first, const PartName *name, int part) {
    Buffer path = {0};
    part_name_write(&path, first, name, part);
    const HubFile *file = path.failed ? NULL : tree_find(tree, buffer_view(&path));
    buffer_free(&path);
    return file;
}

int64_t choose_gguf_bytes(const HubTree *tree, const HubFile *model) {
    PartName name;
    int64_t bytes = model->size;
    if (!part_name_parse(model->path, &name)) return bytes;
    for (int part = 2; part <= name.count && bytes >= 0; part++) {
        const HubFile *file = find_part(tree, model->path, &name, part);
        bytes = file && file->size >= 0 ? bytes + file->size : -1;
    }
    return bytes;
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

/* The path without ".gguf" and without the number of a part. */
static Slice stem_of(const char *path) {
    PartName part;
    return (Slice){path, part_name_parse(path, &part) ? part.stem : strlen(path) - strlen(".gguf")};
}

/* The last name of a path, which the rest may end with. */
static Slice last_of(Slice *path) {
    size_t at = path->size;
    while (at > 0 && path->data[at - 1] != '/') at--;
    const Slice last = {path->data + at, path->size - at};
    path->size = at > 0 ? at - 1 : 0;
    return last;
}

/* The end of a .gguf file's name that says how it is quantised, else the end of its folder's; "" when none does. */
static void quant_of(const char *path, char *quant, size_t size) {
    Slice stem = stem_of(path);
    quant[0] = '\0';
    for (int folder = 0; folder < 2; folder++) {
        const Slice name = last_of(&stem);
        for (size_t i = name.size; i-- > 0;) {
            const Slice rest = {name.data + i, name.size - i};
            if ((i > 0 && !strchr("-. ", name.data[i - 1])) || !is_quant(rest)) continue;
            if (rest.size < size) snprintf(quant, size, "%.*s", SLICE_ARGS(rest));
            return;
        }
    }
}

/* Whether it is all of a name, or the end of it from a separator on: "Q4_K_M", "UD-Q4_K_XL". */
static bool ends_name(Slice name, Slice wanted) {
    if (!wanted.size || wanted.size > name.size) return false;
    const size_t at = name.size - wanted.size;
    return !strncasecmp(name.data + at, wanted.data, wanted.size) && (at == 0 || strchr("-. ", name.data[at - 1]));
}

/* By its path, its name, the end of its name, or the end of its folder's. */
static bool named_by(const HubFile *file, const char *wanted) {
    Slice stem = stem_of(file->path);
    const Slice text = slice_of(wanted), name = last_of(&stem), folder = last_of(&stem);
    if (!strcmp(file->path, wanted) || !strcmp(base_name(file->path), wanted)) return true;
    return (text.size < name.size && ends_name(name, text)) || ends_name(folder, text);
}

typedef struct Choosing {
    const HubTree *tree;
    const char *repo;
    char wanted[HUB_FILE_MAX]; /* "": nothing is */
    uint64_t memory_bytes;
    HubChoice *choice; /* a file or its first part for each model to choose from */
} Choosing;

/* Sorts candidate files, the best for this machine first: quantised files that fit, largest first because they lose the
 * least; then 16- and 32-bit files that fit; then files that do not fit, smallest first. */
static bool better(const Choosing *c, const HubFile *a, const HubFile *b) {
    const HubFile *files[2] = {a, b};
    int rank[2];
    int64_t size[2];
    for (int i = 0; i < 2; i++) {
        char quant[64];
        size[i] = choose_gguf_bytes(c->tree, files[i]);
        quant_of(files[i]->path, quant, sizeof quant);
        const bool plain = strcasestr(quant, "F16") || strcasestr(quant, "F32") || strcasestr(quant, "FP16");
        rank[i] = (uint64_t)size[i] > c->memory_bytes / 4 * 3 ? 2 : plain ? 1 : 0;
    }
    if (rank[0] != rank[1]) return rank[0] < rank[1];
    if (size[0] != size[1]) return rank[0] == 2 ? size[0] < size[1] : size[0] > size[1];
    return strcmp(a->path, b->path) < 0;
}

/* What to write after the colon: the quantisation when only one file has it. */
static const char *label_of(const HubChoice *choice, const HubFile *file, char quant[64]) {
    size_t same = 0;
    quant_of(file->path, quant, 64);
    for (size_t i = 0; i < choice->count; i++) same += named_by(choice->files[i], quant);
    return quant[0] && same == 1 ? quant : file->path;
}

static bool fail_choices(const Choosing *c, Error *error) {
    Buffer list = {0};
    char quant[64];
    HubChoice *choice = c->choice;
    const size_t all = choice->count;
    if (choice->count > SORTED_MAX) choice->count = SORTED_MAX;
    for (size_t i = 1; i < choice->count; i++)
        for (size_t k = i; k > 0 && better(c, choice->files[k], choice->files[k - 1]); k--) {
            const HubFile *file = choice->files[k];
            choice->files[k] = choice->files[k - 1];
            choice->files[k - 1] = file;
        }
    for (size_t i = 0; i < choice->count && i < LISTED_MAX; i++) {
        const HubFile *file = choice->files[i];
        const int64_t size = choose_gguf_bytes(c->tree, file);
        buffer_printf(&list, "%s%s", i ? ", " : " ", label_of(choice, file, quant));
        if (size >= 0) buffer_printf(&list, " (%.3g GB)", (double)size * 1e-9);
        if (i == 0 && (uint64_t)size <= c->memory_bytes / 4 * 3) buffer_text(&list, " fits this machine best");
    }
    if (all > LISTED_MAX) buffer_printf(&list, " and %zu more", all - LISTED_MAX);
    fail(error, ERROR_USAGE, "%s %s%s; choose one, as in %s:%s.%s", c->repo,
        c->wanted[0] ? "has none or several files for " : "holds several models", c->wanted, c->repo,
        label_of(choice, choice->files[0], quant), list.failed ? "" : list.data);
    buffer_free(&list);
    return false;
}

/* A model, or what its full name asks for. */
static bool is_candidate(const HubFile *file, const char *wanted) {
    const bool named = !strcmp(file->path, wanted) || !strcmp(base_name(file->path), wanted);
    return choose_is_gguf_model(file->path) && (named || !is_companion(file->path));
}

/* From the chosen model to all of its parts. */
static bool take_parts(const Choosing *c, Error *error) {
    PartName name;
    HubChoice *choice = c->choice;
    const HubFile *first = choice->files[0];
    if (!part_name_parse(first->path, &name)) return true;
    for (int part = 2; part <= name.count; part++) {
        const HubFile *file = find_part(c->tree, first->path, &name, part);
        if (!file)
            return fail(error, ERROR_NOT_FOUND, "%s: part %d of %d of %s is missing there", c->repo, part, name.count,
                first->path);
        choice->files[choice->count++] = file;
    }
    return true;
}

static bool choose_gguf(const Choosing *c, Error *error) {
    const HubTree *tree = c->tree;
    HubChoice *choice = c->choice;
    size_t named = 0;
    for (size_t i = 0; i < tree->count; i++)
        named += is_candidate(&tree->files[i], c->wanted) && c->wanted[0] && named_by(&tree->files[i], c->wanted);
    for (size_t i = 0; i < tree->count; i++) {
        const HubFile *file = &tree->files[i];
        if (is_candidate(file, c->wanted) && (!named || named_by(file, c->wanted)))
            choice->files[choice->count++] = file;
    }
    choice->format = HUB_GGUF;
    if (choice->count == 1 && (named || !c->wanted[0])) return take_parts(c, error);
    if (choice->count) return fail_choices(c, error);
    return fail(error, ERROR_UNSUPPORTED,
        "%s has neither config.json with model*.safetensors nor a .gguf file: nothing that apus can run", c->repo);
}

/* What is asked for; of a file in parts its first one. */
static void set_wanted(Choosing *c, const char *file) {
    Buffer first = {0};
    part_name_first(&first, file);
    snprintf(c->wanted, sizeof c->wanted, "%s", first.failed || !first.data ? file : first.data);
    buffer_free(&first);
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
        Choosing c = {.tree = tree, .repo = name->repo, .memory_bytes = memory_bytes, .choice = choice};
        set_wanted(&c, name->file);
        ok = choose_gguf(&c, error);
    }
    if (!ok) choice_free(choice);
    return ok;
}

void choice_free(HubChoice *choice) {
    free((void *)choice->files);
    *choice = (HubChoice){0};
}
