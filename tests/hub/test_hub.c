/* Names, the choice of files, lists of files: what needs no server. The rest is check_hub.py's. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "hub/choose.h"
#include "hub/digest.h"
#include "test.h"

static void test_names(void) {
    static const struct {
        const char *text, *repo, *file, *revision;
    } good[] = {
        {"org/name", "org/name", "", "main"},
        {"org/name:Q4_K_M", "org/name", "Q4_K_M", "main"},
        {"org/name:sub/x.gguf@v1", "org/name", "sub/x.gguf", "v1"},
        {"org/name@refs/pr/1", "org/name", "", "refs/pr/1"},
        {"hf://org/na.me-4_bit", "org/na.me-4_bit", "", "main"},
        {"https://huggingface.co/org/name", "org/name", "", "main"},
        {"https://huggingface.co/org/name/", "org/name", "", "main"},
        {"https://huggingface.co/org/name/tree/dev", "org/name", "", "dev"},
        {"https://huggingface.co/org/name/blob/main/a/b.gguf", "org/name", "a/b.gguf", "main"},
        {"https://huggingface.co/org/name/resolve/main/b.gguf?download=true", "org/name", "b.gguf", "main"},
    };
    static const char *const bad[] = {"", "name", "org/", "/name", "org/name/x", "org/na--me", "org/na..me",
        "org/name.git", "../name", "org/..", "./name", "org/.name", "org/name.", "-org/name", "org/name:", "org/name@",
        "org/name:@v", "org/name:../x", "org/name:/x", "org/name:a\\b", "org/name@../v", "org/na me", "org/na\nme",
        "org/näme", "https://huggingface.co/org", "https://huggingface.co/org/name/settings"};
    HubName name;
    Error error;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        TEST_MSG(hub_name_parse(good[i].text, &name, &error), "%s", good[i].text);
        TEST_MSG(!strcmp(name.repo, good[i].repo) && !strcmp(name.file, good[i].file) &&
                !strcmp(name.revision, good[i].revision),
            "%s: %s %s %s", good[i].text, name.repo, name.file, name.revision);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) TEST_MSG(!hub_name_parse(bad[i], &name, &error), "%s", bad[i]);
    char text[1024];
    memset(text, 'a', sizeof text);
    memcpy(text, "org/", 4);
    text[4 + 96] = '\0';
    TEST(hub_name_parse(text, &name, &error));
    text[4 + 96] = 'a';
    text[sizeof text - 1] = '\0';
    TEST(!hub_name_parse(text, &name, &error));
    memcpy(text, "o/n:", 4);
    TEST(!hub_name_parse(text, &name, &error));
}

#define SHA1 "0123456789012345678901234567890123456789"
#define SHA256 "0123456789012345678901234567890123456789012345678901234567890123"

static void fill(HubTree *tree, const char *const *paths, const int64_t *sizes, size_t count) {
    Error error;
    *tree = (HubTree){0};
    for (size_t i = 0; i < count; i++)
        TEST(tree_add(tree, &(HubFile){.path = paths[i], .etag = SHA1, .oid = SHA1, .size = sizes[i]}, &error));
    tree_sort(tree);
}

/* The path of the only file, or the first part of the only model, chosen for ORG/NAME:file, or "" and the error. */
static const char *chosen(const HubTree *tree, const char *file, uint64_t memory, Error *error) {
    HubName name = {.repo = "org/name", .revision = "main"};
    HubChoice choice;
    memcpy(name.file, file, strlen(file) + 1);
    *error = (Error){0};
    if (!choose_files(tree, &name, memory, &choice, error)) return "";
    const bool parts = choice.count > 1 && strstr(choice.files[0]->path, "-00001-of-");
    const char *path = choice.count == 1 || parts ? choice.files[0]->path : "";
    choice_free(&choice);
    return path;
}

static void test_gguf(void) {
    static const char *const paths[] = {"m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-F16.gguf", "m-IQ2_XS.gguf",
        "mmproj-m-F16.gguf", "m-Q6_K-00001-of-00002.gguf", "m-Q6_K-00002-of-00002.gguf", "README.md", "config.json",
        "imatrix.gguf"};
    static const int64_t sizes[] = {4000, 8000, 16000, 2000, 5, 60000, 60000, 5, 5, 5};
    HubTree tree;
    Error error;
    fill(&tree, paths, sizes, COUNT_OF(paths));
    TEST(!strcmp(chosen(&tree, "q4_k_m", 1 << 20, &error), "m-Q4_K_M.gguf"));
    TEST(!strcmp(chosen(&tree, "m-F16.gguf", 1 << 20, &error), "m-F16.gguf"));
    TEST(!strcmp(chosen(&tree, "F16", 1 << 20, &error), "m-F16.gguf"));
    TEST(!strcmp(chosen(&tree, "Q6_K", 1 << 20, &error), "m-Q6_K-00001-of-00002.gguf"));
    TEST(!strcmp(chosen(&tree, "4_K_M", 1 << 20, &error), "") && error.code == ERROR_USAGE);
    TEST(!strcmp(chosen(&tree, "m-Q8_0", 1 << 20, &error), "") && error.code == ERROR_USAGE);
    /* The order: Q8_0 is the largest that is quantised and fits; with less memory it is Q4_K_M, with hardly any the
     * smallest. */
    static const struct {
        uint64_t memory;
        const char *order[4];
    } cases[] = {{1 << 20, {"Q8_0", "Q4_K_M", "IQ2_XS", "F16"}}, {8000, {"Q4_K_M", "IQ2_XS", "Q8_0", "F16"}},
        {100, {"IQ2_XS", "Q4_K_M", "Q8_0", "F16"}}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TEST(!strcmp(chosen(&tree, "", cases[i].memory, &error), ""));
        const char *at = strstr(error.text, ". ");
        for (size_t k = 0; k < 4 && at; k++) at = strstr(at, cases[i].order[k]);
        TEST_MSG(at != NULL, "%s", error.text);
        TEST((strstr(error.text, "fits this machine best") != NULL) == (cases[i].memory > 100));
    }
    tree_free(&tree);
    static const char *const dynamic[] = {"a/m-UD-Q4_K_XL.gguf", "a/m-Q4_K_XL.gguf", "m.Q2_K.gguf"};
    fill(&tree, dynamic, sizes, COUNT_OF(dynamic));
    TEST(!strcmp(chosen(&tree, "ud-q4_k_xl", 0, &error), "a/m-UD-Q4_K_XL.gguf"));
    TEST(!strcmp(chosen(&tree, "Q2_K", 0, &error), "m.Q2_K.gguf"));
    TEST(!strcmp(chosen(&tree, "Q4_K_XL", 0, &error), "") && strstr(error.text, "a/m-Q4_K_XL.gguf"));
    tree_free(&tree);
    /* What belongs to a model does not count as one, unless it is named in full. */
    static const char *const companions[] = {"m-Q4_K_M.gguf", "MTP/mtp-m-Q4_K_M.gguf", "mmproj-BF16.gguf",
        "m-draft-Q4_K_M.gguf", "eagle3/m-Q4_K_M.gguf", "m-vision-adapter-F16.gguf", "m-lora-F16.gguf"};
    fill(&tree, companions, sizes, COUNT_OF(companions));
    TEST(!strcmp(chosen(&tree, "", 1 << 20, &error), "m-Q4_K_M.gguf"));
    TEST(!strcmp(chosen(&tree, "Q4_K_M", 1 << 20, &error), "m-Q4_K_M.gguf"));
    TEST(!strcmp(chosen(&tree, "MTP/mtp-m-Q4_K_M.gguf", 1 << 20, &error), "MTP/mtp-m-Q4_K_M.gguf"));
    tree_free(&tree);
    fill(&tree, companions + 3, sizes, 1);
    TEST(!strcmp(chosen(&tree, "", 1 << 20, &error), "") && error.code == ERROR_UNSUPPORTED);
    tree_free(&tree);
    fill(&tree, paths, sizes, 1);
    TEST(!strcmp(chosen(&tree, "", 0, &error), "m-Q4_K_M.gguf"));
    tree_free(&tree);
    fill(&tree, paths + 5, sizes, 2);
    TEST(!strcmp(chosen(&tree, "", 0, &error), "m-Q6_K-00001-of-00002.gguf"));
    tree_free(&tree);
    fill(&tree, paths + 7, sizes, 2);
    TEST(!strcmp(chosen(&tree, "", 0, &error), "") && error.code == ERROR_UNSUPPORTED);
    tree_free(&tree);
}

/* A model in parts is one to choose: by the end of its name, of its folder's, by any part, with the bytes of all. */
static void test_gguf_parts(void) {
    static const char *const paths[] = {"Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf",
        "UD-Q4_K_XL/m-00001-of-00003.gguf", "UD-Q4_K_XL/m-00002-of-00003.gguf", "UD-Q4_K_XL/m-00003-of-00003.gguf",
        "m-Q2_K-00001-of-00003.gguf", "m-Q2_K-00003-of-00003.gguf", "m-IQ1_S-00001-of-00001.gguf",
        "draft/m-Q6_K-00001-of-00002.gguf", "draft/m-Q6_K-00002-of-00002.gguf"};
    static const int64_t sizes[] = {4000, 5000, 1000, 1000, 2500, 10, 10, 500, 1, 1};
    static const struct {
        const char *wanted, *path;
        size_t count;
    } cases[] = {{"Q8_0", "Q8_0/m-Q8_0-00001-of-00002.gguf", 2}, {"q8_0", "Q8_0/m-Q8_0-00001-of-00002.gguf", 2},
        {"UD-Q4_K_XL", "UD-Q4_K_XL/m-00001-of-00003.gguf", 3}, {"ud-q4_k_xl", "UD-Q4_K_XL/m-00001-of-00003.gguf", 3},
        {"UD-Q4_K_XL/m-00003-of-00003.gguf", "UD-Q4_K_XL/m-00001-of-00003.gguf", 3},
        {"m-Q8_0-00002-of-00002.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", 2},
        {"IQ1_S", "m-IQ1_S-00001-of-00001.gguf", 1}};
    HubTree tree;
    HubChoice choice;
    Error error = {0};
    fill(&tree, paths, sizes, COUNT_OF(paths));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        HubName name = {.repo = "org/name", .revision = "main"};
        snprintf(name.file, sizeof name.file, "%s", cases[i].wanted);
        const bool ok = choose_files(&tree, &name, 0, &choice, &error);
        TEST_MSG(ok, "%s: %s", cases[i].wanted, error.text);
        if (!ok) continue;
        TEST_MSG(choice.count == cases[i].count && !strcmp(choice.files[0]->path, cases[i].path), "%s: %zu, %s",
            cases[i].wanted, choice.count, choice.files[0]->path);
        for (size_t k = 0; k < choice.count; k++)
            TEST(strtol(strstr(choice.files[k]->path, "-of-") - 5, NULL, 10) == (long)k + 1);
        choice_free(&choice);
    }
    /* the sizes of all parts, the order by them, and what they are called */
    TEST(!strcmp(chosen(&tree, "", 8000, &error), ""));
    const char *best = strstr(error.text, ". Q4_K_XL (4.5e-06 GB) fits this machine best, IQ1_S (5e-07 GB), ");
    TEST_MSG(best && strstr(best, "Q8_0 (9e-06 GB)") && !strstr(error.text, "draft"), "%s", error.text);
    TEST(!strcmp(chosen(&tree, "Q2_K", 8000, &error), "") && error.code == ERROR_NOT_FOUND);
    TEST_MSG(strstr(error.text, "part 2 of 3 of m-Q2_K-00001-of-00003.gguf is missing there"), "%s", error.text);
    TEST(choose_gguf_bytes(&tree, tree_find(&tree, SLICE("m-Q2_K-00001-of-00003.gguf"))) == -1);
    tree_free(&tree);
}

static void test_safetensors(void) {
    static const char *const paths[] = {"config.json", "model.safetensors", "tokenizer.json", "modeling_x.py", "m.gguf",
        "original/model.safetensors", "adapter.safetensors", "tokenizer.model", "x.bin", "a/b.json",
        "chat_template.jinja"};
    static const int64_t sizes[COUNT_OF(paths)] = {0};
    HubTree tree;
    Error error;
    HubName name = {.repo = "org/name", .revision = "main"};
    HubChoice choice;
    fill(&tree, paths, sizes, COUNT_OF(paths));
    TEST(choose_files(&tree, &name, 0, &choice, &error) && choice.format == HUB_SAFETENSORS);
    TEST_MSG(choice.count == 6, "%zu", choice.count);
    for (size_t i = 0; i < choice.count; i++)
        TEST(!strstr(choice.files[i]->path, ".py") && !strstr(choice.files[i]->path, ".bin") &&
            !strstr(choice.files[i]->path, "original") && !strstr(choice.files[i]->path, "gguf"));
    choice_free(&choice);
    TEST(!strcmp(chosen(&tree, "m.gguf", 0, &error), "m.gguf"));
    TEST(tree_find(&tree, SLICE("a/b.json")) && !tree_find(&tree, SLICE("a/b")) && !tree_find(&tree, SLICE("z")));
    tree_free(&tree);
}

/* As json.dump(…, indent=1) writes it: huggingface_hub's _tree_cache.py. */
static void test_tree_file(void) {
    static const char expected[] =
        "{\n \"format_version\": 1,\n \"files\": {\n  \"a \\u00e9\\ud83d\\ude42\\\".json\": {\n   \"size\": 7,\n"
        "   \"blob_id\": \"" SHA1 "\"\n  },\n  \"m.safetensors\": {\n   \"size\": 9,\n   \"blob_id\": \"" SHA1
        "\",\n   \"lfs_sha256\": \"" SHA256 "\",\n   \"lfs_size\": 9,\n   \"xet_hash\": \"" SHA256 "\"\n  }\n }\n}";
    char path[] = "/tmp/apus-test-tree-XXXXXX";
    const int fd = mkstemp(path);
    TEST(fd >= 0);
    close(fd);
    HubTree tree = {0}, again;
    Error error = {0};
    Buffer text = {0};
    TEST(tree_add(&tree, &(HubFile){.path = "a é🙂\".json", .etag = SHA1, .oid = SHA1, .size = 7}, &error));
    TEST(tree_add(&tree,
        &(HubFile){.path = "m.safetensors", .etag = SHA256, .oid = SHA1, .xet = SHA256, .size = 9, .listed_size = 9},
        &error));
    TEST_MSG(tree_write(path, &tree, &error), "%s", error.text);
    TEST(file_read(path, 0, &text, &error));
    TEST_MSG(slice_is(buffer_view(&text), expected), "%s", text.data);
    TEST_MSG(tree_read(path, &again, &error), "%s", error.text);
    TEST(again.count == 2 && !strcmp(again.files[1].etag, SHA256) && again.files[1].size == 9 &&
        again.files[0].size == 7);
    tree_free(&tree);
    tree_free(&again);
    static const char *const bad[] = {"", "[]", "{\"format_version\": 2, \"files\": {}}", "{\"format_version\": 1}",
        "{\"format_version\": 1, \"files\": {\"../x\": {\"size\": 1, \"blob_id\": \"" SHA1 "\"}}}",
        "{\"format_version\": 1, \"files\": {\"x\": {\"size\": -1, \"blob_id\": \"" SHA1 "\"}}}",
        "{\"format_version\": 1, \"files\": {\"x\": {\"size\": 1, \"blob_id\": \"../../../x\"}}}",
        "{\"format_version\": 1, \"files\": {\"x\": {\"size\": 1}}}"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        TEST(file_write_atomic(path, slice_of(bad[i]), &error));
        TEST_MSG(!tree_read(path, &again, &error), "%s", bad[i]);
    }
    unlink(path);
    buffer_free(&text);
}

/* FIPS 180-4's "abc", and git's hash of an empty file. */
static void test_digests(void) {
    Digest digest = {0};
    Error error;
    char hex[DIGEST_DIGITS_MAX + 1];
    TEST(digest_begin(&digest, SHA256, 3, &error) && digest_add(&digest, SLICE("abc"), &error) &&
        digest_end(&digest, hex, &error));
    TEST(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    TEST(digest_begin(&digest, SHA1, 0, &error) && digest_end(&digest, hex, &error));
    TEST(!strcmp(hex, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"));
    digest_free(&digest);
}

/* The order in which huggingface_hub's constants.py looks. */
static void test_settings(void) {
    static const struct {
        const char *set, *value, *cache; /* one variable more each time; the cache is then */
    } caches[] = {{"HOME", "/home/x", "/home/x/.cache/huggingface/hub"},
        {"XDG_CACHE_HOME", "/xdg", "/xdg/huggingface/hub"}, {"HF_HOME", "~/hf/", "/home/x/hf/hub"},
        {"HUGGINGFACE_HUB_CACHE", "/old", "/old"}, {"HF_HUB_CACHE", "${HOME}/$NOTHING/a", "/home/x/$NOTHING/a"},
        {"HF_HUB_CACHE", "$HOME/b", "/home/x/b"}};
    static const char *const all[] = {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "NOTHING",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_HUB_DOWNLOAD_TIMEOUT"};
    HubSettings settings;
    Error error;
    for (size_t i = 0; i < COUNT_OF(all); i++) unsetenv(all[i]);
    for (size_t i = 0; i < COUNT_OF(caches); i++) {
        setenv(caches[i].set, caches[i].value, 1);
        TEST(hub_settings_read(&settings, &error));
        TEST_MSG(!strcmp(settings.cache, caches[i].cache), "%s: %s", caches[i].set, settings.cache);
        TEST(!settings.token && !settings.offline && settings.stall_s == 10);
        TEST(!strcmp(settings.endpoint, "https://huggingface.co"));
        hub_settings_free(&settings);
    }
    setenv("HUGGING_FACE_HUB_TOKEN", "old", 1);
    setenv("HF_TOKEN", " new\n", 1);
    setenv("HF_ENDPOINT", "https://mirror/x//", 1);
    setenv("HF_HUB_OFFLINE", "yes", 1);
    setenv("HF_HUB_DOWNLOAD_TIMEOUT", "3", 1);
    TEST(hub_settings_read(&settings, &error));
    TEST(!strcmp(settings.token, "new") && !strcmp(settings.token_source, "HF_TOKEN") && settings.offline);
    TEST(!strcmp(settings.endpoint, "https://mirror/x") && settings.stall_s == 3);
    hub_settings_free(&settings);
    setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", 1);
    setenv("HF_HUB_OFFLINE", "0", 1);
    TEST(hub_settings_read(&settings, &error) && !settings.token && !settings.offline);
    hub_settings_free(&settings);
    unsetenv("HF_HUB_DISABLE_IMPLICIT_TOKEN");
    setenv("HF_TOKEN", "a b", 1);
    TEST(!hub_settings_read(&settings, &error));
    unsetenv("HF_TOKEN");
    setenv("HF_ENDPOINT", "file:///etc", 1);
    TEST(!hub_settings_read(&settings, &error));
}

int main(void) {
    test_settings();
    test_names();
    test_gguf();
    test_gguf_parts();
    test_safetensors();
    test_tree_file();
    test_digests();
    return test_done();
}
