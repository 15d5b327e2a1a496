/* Added tokens: from the JSON of tokenizer.json and tokenizer_config.json to the indexes of them. */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "text/tokenizer/build.h"
#include "text/tokenizer/members.h"

static bool read_added(const Json *object, int64_t id, Arena *arena, AddedToken *token, Error *error) {
    const Json *content = json_get(object, "content");
    if (!content || content->type != JSON_STRING)
        return fail(error, ERROR_FORMAT, "content must be a string, not %s", json_type_name(content));
    if (content->size > ADDED_TOKEN_BYTES_MAX) {
        return fail(error, ERROR_LIMIT, "content has %u bytes; %d are the most", content->size, ADDED_TOKEN_BYTES_MAX);
    }
    if (id < 0 || id > BPE_ID_MAX)
        return fail(error, ERROR_LIMIT, "the id %lld is not in 0…%d", (long long)id, BPE_ID_MAX);
    char *copy = arena_copy(arena, json_slice(content));
    if (!copy) return fail(error, ERROR_MEMORY, "no memory for added tokens");
    *token = (AddedToken){.content = {copy, content->size}, .id = (int32_t)id};
    token->pattern = token->content;
    return member_bool(object, "special", false, &token->special, error) &&
        member_bool(object, "single_word", false, &token->single_word, error) &&
        member_bool(object, "lstrip", false, &token->left, error) &&
        member_bool(object, "rstrip", false, &token->right, error) &&
        member_bool(object, "normalized", !token->special, &token->normalized, error);
}

/* The model's id of that spelling wins over the file's. */
static bool keep_added(Tokenizer *t, Map *seen, AddedToken token, Error *error) {
    if (!token.content.size) return true;
    uint64_t place;
    if (map_get(seen, token.content, &place)) { /* written twice: the later flags count */
        token.id = t->added[place].id;
        t->added[place] = token;
        return true;
    }
    int32_t id = bpe_find_spelled(&t->bpe, token.content);
    if (id >= 0) token.id = id;
    if (!map_put(seen, token.content, t->added_count)) return fail(error, ERROR_MEMORY, "no memory for added tokens");
    t->added[t->added_count++] = token;
    return true;
}

static int compare_ids(const void *a, const void *b) {
    const AddedToken *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static bool normalize_pattern(Tokenizer *t, AddedToken *token, Error *error) {
    NormalText scratch = {0};
    RegexWork work = {.steps = 1000000};
    Slice text = token->content;
    if (t->normalizer.count && t->normalizer.steps[0].kind == NORMALIZE_PIECES) return true; /* it keeps them */
    bool ok = normalizer_run(&t->normalizer, &scratch, &work, &text, NULL, error);
    if (ok && text.size > ADDED_PATTERN_BYTES_MAX)
        ok = fail(error, ERROR_LIMIT, "%zu bytes once normalized", text.size);
    if (ok && !slice_equal(text, token->content)) {
        char *copy = arena_copy(&t->arena, text);
        ok = copy || fail(error, ERROR_MEMORY, "no memory for added tokens");
        token->pattern = (Slice){copy, text.size};
    }
    normal_text_free(&scratch);
    regex_work_free(&work);
    return ok;
}

void added_mark_control(Tokenizer *t, Slice source) {
    const AddedIndex *indexes[] = {&t->raw, &t->normalized};
    for (size_t k = 0; k < COUNT_OF(indexes); k++) {
        const AddedIndex *index = indexes[k];
        for (size_t at = 0; index->edges && at < source.size; at++) {
            if (!index->first[(uint8_t)source.data[at]]) continue;
            uint32_t node = 0;
            for (size_t i = at; i < source.size && (node = added_index_step(index, node, (uint8_t)source.data[i]));
                 i++) {
                AddedToken *token = index->token[node] >= 0 ? &t->added[index->token[node]] : NULL;
                if (!token || token->control || space_behind(token->content, 0) == token->content.size) continue;
                token->control = true;
            }
        }
    }
}

static bool index_added(Tokenizer *t, Error *error) {
    if (t->added_count) qsort(t->added, t->added_count, sizeof *t->added, compare_ids);
    int32_t vocab = (int32_t)t->bpe.id_limit;
    if (t->added_count && t->added[t->added_count - 1].id >= vocab) vocab = t->added[t->added_count - 1].id + 1;
    t->vocab = vocab;
    t->id_flags = calloc((size_t)vocab, 1);
    if (!t->id_flags) return fail(error, ERROR_MEMORY, "no memory for added tokens");
    for (size_t i = 0; i < t->added_count; i++) {
        AddedToken *token = &t->added[i];
        if (i && t->added[i - 1].id == token->id) {
            return fail(error, ERROR_FORMAT, "added_tokens: \"%.*s\" and \"%.*s\" have one id, %d",
                SLICE_SHOWN(t->added[i - 1].content), SLICE_SHOWN(token->content), token->id);
        }
        if (token->normalized && !normalize_pattern(t, token, error)) {
            return fail_while(error, "added_tokens, \"%.*s\"", SLICE_SHOWN(token->content));
        }
        token->control = token->special;
        t->id_flags[token->id] |= (uint8_t)(ID_ADDED | (token->special ? ID_SPECIAL : 0));
        if (!added_index_add(token->normalized ? &t->normalized : &t->raw, token->pattern, (int32_t)i)) {
            return fail(error, ERROR_MEMORY, "no memory for added tokens");
        }
    }
    return true;
}

bool added_build(Tokenizer *t, const Json *added, const Json *config, Error *error) {
    const Json *more = json_get(config, "added_tokens_decoder");
    if (added && added->type == JSON_NULL) added = NULL;
    if (added && added->type != JSON_ARRAY)
        return fail(error, ERROR_FORMAT, "added_tokens must be an array, not %s", json_type_name(added));
    if (more && more->type != JSON_OBJECT) more = NULL;
    size_t count = (added ? added->size : 0) + (size_t)(more ? more->size : 0);
    if (count > ADDED_TOKENS_MAX) return fail(error, ERROR_LIMIT, "added_tokens: more than %d", ADDED_TOKENS_MAX);
    t->added = arena_alloc(&t->arena, count ? count : 1, sizeof *t->added);
    if (!t->added) return fail(error, ERROR_MEMORY, "no memory for added tokens");

    Map seen = {0};
    bool ok = map_reserve(&seen, count) || fail(error, ERROR_MEMORY, "no memory for added tokens");
    size_t place = 0;
    if (added && ok) {
        for (JSON_EACH(node, added)) {
            AddedToken token;
            const Json *id = json_get(node, "id");
            ok = id && id->type == JSON_INTEGER
                ? read_added(node, id->integer, &t->arena, &token, error)
                : fail(error, ERROR_FORMAT, "id must be a whole number, not %s", json_type_name(id));
            ok = ok && keep_added(t, &seen, token, error);
            if (!ok) {
                fail_while(error, "added_tokens[%zu]", place);
                break;
            }
            place++;
        }
    }
    if (more && ok) { /* tokens that only the configuration knows */
        for (JSON_EACH_PAIR(key, node, more)) {
            char digits[16] = {0}, *rest;
            memcpy(digits, key->string, key->size < sizeof digits - 1 ? key->size : sizeof digits - 1);
            long id = strtol(digits, &rest, 10);
            const Json *content = json_get(node, "content");
            bool known = content && content->type == JSON_STRING && map_get(&seen, json_slice(content), NULL);
            if (known) continue;
            AddedToken token;
            ok = (key->size && *rest == '\0') || fail(error, ERROR_FORMAT, "the key must be an id");
            ok = ok && read_added(node, id, &t->arena, &token, error) && keep_added(t, &seen, token, error);
            if (!ok) {
                fail_while(
                    error, "tokenizer_config.json, added_tokens_decoder, \"%.*s\"", SLICE_SHOWN(json_slice(key)));
                break;
            }
        }
    }
    map_free(&seen);
    return ok && index_added(t, error);
}
