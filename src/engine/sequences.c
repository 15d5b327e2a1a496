#include "engine/sequences.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool sequences_open(
    Sequences *s, const Runner *runner, KvCache *kv, const EngineOptions *options, bool apart, Error *error) {
    *s = (Sequences){.plan = runner_kv_plan(runner), .kv = kv, .apart = apart};
    s->eos_count = model_eos(runner_model(runner), s->eos);
    s->text = malloc((size_t)model_context(runner_model(runner)) * sizeof *s->text);
    if (!s->text) return fail(error, ERROR_MEMORY, "no memory for the text of a sequence");
    if (options->prefix_off) return true;
    s->prefix = prefix_open(kv, error);
    if (s->prefix && options->cache_directory) s->disk = disk_tier_open(options, runner, kv);
    return s->prefix;
}

void sequences_close(Sequences *s) {
    prefix_close(s->prefix);
    disk_tier_close(s->disk);
    free(s->text);
    *s = (Sequences){0};
}

KvSequence *sequence_of(Request *request, AnswerChoice *choice) { return choice ? &choice->kv : &request->kv; }

int sequence_tokens(const Request *request, const AnswerChoice *choice) {
    return request->prompt_count + (choice ? choice->generated : 0);
}

void sequence_text(const Request *request, const AnswerChoice *choice, int first, int count, int32_t *out) {
    const int left = request->prompt_count - first, prompt = left < 0 ? 0 : left < count ? left : count;
    memcpy(out, request->prompt + (prompt ? first : 0), (size_t)prompt * sizeof *out);
    for (int i = prompt; i < count; i++) out[i] = request_answer_id(request, choice, first + i - request->prompt_count);
}

/* ---- beginning ---- */

/* Tokens, in whole pages, of a text's first message: up to the first end token behind the first page. 0: there is none.
 */
static int first_message(const Sequences *s, const int32_t *text, int count) {
    for (int i = KV_PAGE_TOKENS - 1; i < count; i++)
        for (int k = 0; k < s->eos_count; k++)
            if (text[i] == s->eos[k]) return (i + 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    return 0;
}

static void set_resume_points(const Sequences *s, Request *request, int count) {
    const KvSequence *kv = &request->kv;
    if (!prefix_forgets(s->prefix, kv)) return;
    request->resume[0] = first_message(s, s->text, count);
    request->resume[1] = prefix_common(s->prefix, request->salt, s->text, count, kv);
}

int sequence_rows_to_resume(const Request *request) {
    int rows = INT_MAX;
    for (int i = 0; i < RESUME_POINTS; i++) {
        const int left = request->resume[i] - request->kv.length;
        if (left > 0 && left < rows) rows = left;
    }
    return rows;
}

bool sequence_begin(Sequences *s, Request *request, AnswerChoice *choice, Error *error) {
    KvSequence *kv = sequence_of(request, choice);
    if (!kv_sequence_open(s->kv, &request->format, kv, error)) return false;
    if (!s->prefix || request->cache_off || (request->whole && !choice)) return true;
    const int count = s->apart && choice ? request->prompt_count : sequence_tokens(request, choice) - 1;
    sequence_text(request, choice, 0, count, s->text);
    (void)prefix_find(s->prefix, request->salt, s->text, count, kv);
    if (!choice) set_resume_points(s, request, count);
    return true;
}

bool sequence_resume_from_disk(Sequences *s, Request *request, int64_t deadline_ns) {
    if (request->cache_off || request->whole) return false;
    const int count = request->prompt_count - 1;
    sequence_text(request, NULL, 0, count, s->text);
    return disk_tier_find(s->disk, request->salt, &request->format, s->text, count, deadline_ns, &request->kv);
}

void sequence_spill(Sequences *s, const Request *request, const AnswerChoice *choice, int rows) {
    const KvSequence *kv = choice ? &choice->kv : &request->kv;
    const int end = kv->length + rows;
    if (!s->disk || request->cache_off || end / KV_PAGE_TOKENS == kv->length / KV_PAGE_TOKENS) return;
    if (s->apart && end > request->prompt_count) return;
    sequence_text(request, choice, 0, end, s->text);
    disk_tier_spill(s->disk, request->salt, &request->format, s->text, kv, end);
}

static void leave(Sequences *s, Request *request, AnswerChoice *choice) {
    const KvSequence *kv = sequence_of(request, choice);
    if (!s->prefix || request->cache_off || !kv->tables) return;
    sequence_text(request, choice, 0, kv->length, s->text);
    prefix_insert(s->prefix, request->salt, s->text, kv);
}

void sequence_publish(Sequences *s, Request *request) { leave(s, request, NULL); }

/* What windows and codes have left of a prompt may be too little to go on from; it was left when it had been read. */
static bool end_at_prompt(Sequences *s, const Request *request, KvSequence *kv) {
    return !s->apart || kv->length <= request->prompt_count || kv_truncate(s->kv, kv, request->prompt_count);
}

void sequence_end(Sequences *s, Request *request, AnswerChoice *choice) {
    KvSequence *kv = sequence_of(request, choice);
    if (kv->tables && !request->failed && end_at_prompt(s, request, kv)) leave(s, request, choice);
    kv_sequence_close(s->kv, kv);
}

size_t sequence_bytes_found(const Sequences *s, const KvSequence *kv) {
    KvUse use = {0};
    size_t bytes = 0;
    kv_sequence_use(s->kv, kv, &use);
    for (int form = 0; form < KV_FORMS; form++) bytes += use.bytes[form];
    const size_t begun = kv->length % KV_PAGE_TOKENS ? kv_bytes_for(s->plan, NULL, 1) : 0;
    return bytes > begun ? bytes - begun : 0;
}
