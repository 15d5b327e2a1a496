/* The sequences of requests: they begin with what the prefix cache and the disk have of their text, and leave to them
 * what they hold. */
#pragma once
#include "cache/disk_tier.h"
#include "cache/prefix.h"
#include "engine/request.h"

typedef struct Sequences {
    const KvPlan *plan;
    KvCache *kv;
    PrefixCache *prefix; /* NULL: off */
    DiskTier *disk;      /* NULL: off */
    bool apart; /* tokens of answers are computed otherwise than prompts': only the latter are kept and found */
    int eos_count;
    int32_t eos[EOS_MAX];
    uint64_t *ids; /* [context] working memory: content ids of a prompt and its answer */
} Sequences;

NODISCARD bool sequences_open(
    Sequences *sequences, const Runner *runner, KvCache *kv, const EngineOptions *options, bool apart, Error *error);
void sequences_close(Sequences *sequences); /* safe on a zeroed one */

/* The sequence of a prompt (choice NULL), or of a choice: the prompt and its answer so far. */
KvSequence *sequence_of(Request *request, AnswerChoice *choice);
int sequence_tokens(const Request *request, const AnswerChoice *choice);
/* copied to out, from position `first` on. */
void sequence_text(const Request *request, const AnswerChoice *choice, int first, int count, int32_t *out);

/* A sequence that holds as much of its text as the cache has, but not the last token, whose logits are wanted. A prompt
 * whose rows are all wanted begins empty. Where codes or windows would leave nothing to go on from inside of a
 * prompt, it gets points to be left at: behind its first message, which other conversations may share, and where an
 * earlier text parts from it, as the next one may part there as well. */
NODISCARD bool sequence_begin(Sequences *sequences, Request *request, AnswerChoice *choice, Error *error);
/* Continues a prompt that has begun with what the disk has of it, until the deadline: reads files, so not under a
 * mutex. False: that was all. */
bool sequence_resume_from_disk(Sequences *sequences, Request *request, int64_t deadline_ns);
/* Tokens that a prompt may read up to its next resume point. */
int sequence_rows_to_resume(const Request *request);
/* Pages that the computed step's rows have filled go to disk; before kv_advance(). */
void sequence_spill(Sequences *sequences, Request *request, AnswerChoice *choice, int rows);
/* Leaves a prompt to be found, as far as it was read, unless the request leaves nothing. */
void sequence_publish(Sequences *sequences, Request *request);
/* Closes it if it is open; what it held, or of that what is its prompt's, is left to be found unless its request
 * failed. */
void sequence_end(Sequences *sequences, Request *request, AnswerChoice *choice);
/* Bytes of its pages that need not be taken any more: all but those of a page that is begun, which is copied. */
size_t sequence_bytes_found(const Sequences *sequences, const KvSequence *kv);
