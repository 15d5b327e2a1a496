#include "engine/sequences.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/math.h"
#include "engine/cache_identity.h"

static void warn(void *context, const char *line) { log_warn("disk cache: %s", line); }

/* A directory that cannot be used is logged; the engine continues without a disk tier. */
static DiskTier *open_disk(const EngineOptions *options, const Runner *runner, KvCache *kv) {
    Error error = {0};
    Buffer identity = {0};
    DiskTier *disk = NULL;
    if (cache_identity(options, runner, &identity, &error)) {
        const DiskTierOptions tier = {.directory = options->cache_directory,
            .bytes = options->cache_disk_bytes,
            .identity = {identity.data, identity.size},
            .warn = warn};
        disk = disk_tier_open(&tier, kv, &error);
    }
    buffer_free(&identity);
    if (!disk) log_warn("no disk cache: %s", error.text);
    return disk;
}

bool sequences_open(
    Sequences *s, const Runner *runner, KvCache *kv, const EngineOptions *options, bool apart, Error *error) {
    *s = (Sequences){.plan = runner_kv_plan(runner), .kv = kv, .apart = apart};
    s->eos_count = model_eos(runner_model(runner), s->eos);
    s->ids = malloc((size_t)model_context(runner_model(runner)) * sizeof *s->ids);
    if (!s->ids) return fail(error, ERROR_MEMORY, "no memory for the text of a sequence");
    if (options->prefix_off) return true;
    s->prefix = prefix_open(kv, error);
    const VisionSpec *vision = model_spec(runner_model(runner))->vision;
    if (s->prefix && vision && vision->bidirectional) prefix_set_part_least(s->prefix, 1); /* images end anywhere */
    if (s->prefix && options->cache_directory) s->disk = open_disk(options, runner, kv);
    return s->prefix;
}

void sequences_close(Sequences *s) {
    prefix_close(s->prefix);
    disk_tier_close(s->disk);
    free(s->ids);
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

/* Content ids of the same positions. */
static void sequence_ids(const Request *request, const AnswerChoice *choice, int first, int count, uint64_t *out) {
    for (int i = 0; i < count; i++) {
        const int position = first + i, answer = position - request->prompt_count;
        out[i] = answer >= 0       ? (uint64_t)request_answer_id(request, choice, answer)
            : request->content_ids ? request->content_ids[position]
                                   : (uint64_t)request->prompt[position];
    }
}

/* ---- beginning ---- */

/* Positions of a page of recurrent states; 0: there are none. */
static int state_tokens(const KvPlan *plan) {
    for (int g = 0; g < plan->group_count; g++)
        if (plan->group[g].recurrent) return plan->group[g].page_tokens;
    return 0;
}

/* No point lies inside of an image that must be read whole. */
static void leave_whole_images(Request *request) {
    ResumePoints *points = &request->resume;
    int kept = 0;
    for (int i = 0; i < points->count; i++)
        if (request_can_cut(request, points->at[i])) points->at[kept++] = points->at[i];
    points->count = kept;
}

/* Behind the last image, for the next question about it: rows inside of it need the encoder again, or cannot be read at
 * all where an image must be read whole. */
static void add_image_end(Request *request) {
    for (int i = request->media_count - 1; i >= 0; i--) {
        const MediaSpan *media = &request->media[i];
        if (media->begin + media->rows >= request->prompt_count) continue;
        resume_points_add_exactly(&request->resume, media->begin + media->rows);
        return;
    }
}

/* Where the prompt is left to be found: behind the first message, behind an image, where it parts from an earlier text,
 * and, with recurrent states, behind messages and in long ones; there at the first rows of pages, where snapshots are
 * small. */
static void set_resume_points(const Sequences *s, Request *request, int count) {
    const KvSequence *kv = &request->kv;
    const MessageText text = {request->prompt, count, s->eos, s->eos_count};
    const int states = state_tokens(s->plan);
    request->resume = states ? (ResumePoints){.every = states, .behind = 1} : (ResumePoints){.every = KV_PAGE_TOKENS};
    if (!prefix_forgets(s->prefix, kv)) return;
    resume_points_add_first(&request->resume, &text);
    resume_points_add(&request->resume, prefix_common(s->prefix, request->salt, s->ids, count, kv));
    if (states) resume_points_add_snapshots(&request->resume, &text, kv->length);
    leave_whole_images(request);
    add_image_end(request);
}

int sequence_rows_to_resume(const Request *request) { return resume_points_left(&request->resume, request->kv.length); }

/* Gives back what was found of a span that must be read whole; nothing is left where that is not possible. */
static bool leave_image(Sequences *s, Request *request, KvSequence *kv, Error *error) {
    BidirectionalSpan span;
    if (request_can_cut(request, kv->length) || !request_span_from(request, kv->length, &span)) return true;
    if (kv_truncate(s->kv, kv, span.begin)) return true;
    kv_sequence_close(s->kv, kv);
    return kv_sequence_open(s->kv, &request->format, kv, error);
}

bool sequence_begin(Sequences *s, Request *request, AnswerChoice *choice, Error *error) {
    KvSequence *kv = sequence_of(request, choice);
    if (!kv_sequence_open(s->kv, &request->format, kv, error)) return false;
    if (!s->prefix || request->cache_off || (request->whole && !choice)) return true;
    const int count = s->apart && choice ? request->prompt_count : sequence_tokens(request, choice) - 1;
    sequence_ids(request, choice, 0, count, s->ids);
    (void)prefix_find(s->prefix, request->salt, s->ids, count, kv);
    if (!leave_image(s, request, kv, error)) return false;
    if (!choice) set_resume_points(s, request, count);
    return true;
}

/* The text of a sequence up to `end`, from where its running key ends. */
static SequenceText disk_text(
    Sequences *s, const Request *request, const AnswerChoice *choice, const KvSequence *kv, int end) {
    const int first = disk_tier_position(kv);
    if (end > first) sequence_ids(request, choice, first, end - first, s->ids);
    return (SequenceText){.salt = request->salt, .format = &request->format, .first = first, .ids = s->ids};
}

bool sequence_resume_from_disk(Sequences *s, Request *request, int64_t deadline_ns) {
    if (request->cache_off || request->whole) return false;
    BidirectionalSpan span;
    const int first = request_span_from(request, 0, &span) ? span.begin : INT_MAX;
    const int count = min_int(request->prompt_count - 1, max_int(first, request->kv.length)); /* pages end anywhere */
    const SequenceText text = disk_text(s, request, NULL, &request->kv, count);
    return disk_tier_find(s->disk, &text, count, deadline_ns, &request->kv);
}

void sequence_spill(Sequences *s, Request *request, AnswerChoice *choice, int rows) {
    KvSequence *kv = sequence_of(request, choice);
    const int end = kv->length + rows;
    if (!s->disk || request->cache_off || end / KV_PAGE_TOKENS == kv->length / KV_PAGE_TOKENS) return;
    if (s->apart && end > request->prompt_count) return;
    const SequenceText text = disk_text(s, request, choice, kv, end);
    disk_tier_put(s->disk, &text, kv, end);
}

static void leave(Sequences *s, Request *request, AnswerChoice *choice) {
    KvSequence *kv = sequence_of(request, choice);
    if (!s->prefix || request->cache_off || !kv->tables || kv->restoring) return;
    sequence_ids(request, choice, 0, kv->length, s->ids);
    prefix_insert(s->prefix, request->salt, s->ids, kv);
    const int more = resume_points_behind(&request->resume, kv->length);
    const SequenceText text = {.salt = request->salt, .format = &request->format, .ids = s->ids};
    if (s->disk && (more == 0 || more >= RESUME_SPACING)) disk_tier_put_state(s->disk, &text, kv);
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
