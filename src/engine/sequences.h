/* The sequences of requests: they begin with the pages that the prefix cache and the disk tier have of their text, and
 * leave their own pages to both. */
#pragma once
#include "cache/disk_tier.h"
#include "cache/prefix.h"
#include "engine/request.h"

typedef struct Sequences {
    const KvPlan *plan;
    KvCache *kv;
    PrefixCache *prefix; /* NULL: off */
    DiskTier *disk;      /* NULL: off */
    bool apart; /* decode rows have an arithmetic of their own: only pages of prompts are published and found */
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
/* Copies the token ids of positions first ≤ p < first + count to out. */
void sequence_text(const Request *request, const AnswerChoice *choice, int first, int count, int32_t *out);

/* Opens the sequence with the pages of the prefix cache that match its text, except for the last token, whose logits
 * are needed. A prompt that needs the logits of all rows begins empty. Where quantised pages, windows or recurrent
 * states allow no resumption inside of a prompt, it gets resume points, at which it is published: behind its first
 * message, which other conversations may share, and where an earlier text diverges from it. */
NODISCARD bool sequence_begin(Sequences *sequences, Request *request, AnswerChoice *choice, Error *error);
/* Appends pages of the disk tier to a prompt that has begun, until the deadline. Reads files: not under a mutex. False:
 * there are no more. */
bool sequence_resume_from_disk(Sequences *sequences, Request *request, int64_t deadline_ns);
/* Tokens that a prompt may read up to its next resume point. */
int sequence_rows_to_resume(const Request *request);
/* Writes pages that the step's rows have filled to the disk tier; before kv_advance(). */
void sequence_spill(Sequences *sequences, Request *request, AnswerChoice *choice, int rows);
/* Publishes the computed part of a prompt to the prefix cache, unless the request has its cache off. */
void sequence_publish(Sequences *sequences, Request *request);
/* Closes the sequence if it is open. Its pages, or with `apart` those of its prompt, are published unless its request
 * failed. */
void sequence_end(Sequences *sequences, Request *request, AnswerChoice *choice);
/* Bytes of the sequence's pages that the prefix cache had: all but a partly filled last page, which is copied. */
size_t sequence_bytes_found(const Sequences *sequences, const KvSequence *kv);
