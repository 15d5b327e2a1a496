/* The parts of an engine, for the files of engine.h: engine_open.c makes it, engine_thread.c owns it while it runs,
 * engine_step.c runs its steps, engine_slices.c computes what is no step, engine_results.c takes what
 * steps computed, engine_answers.c samples and ends answers, engine_query.c says how it is. Functions here belong to
 * the engine thread, except where they say otherwise. */
#pragma once
#include "base/memory.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "engine/resources.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/token_mask.h"
#include "model/sliced_step.h"

struct Engine {
    Resources *resources;     /* NULL: it has the machine for itself */
    Resources *own_resources; /* opened for this engine alone; NULL: none */
    MemoryAccount account;
    double kv_host; /* part of the cache that is memory of the host */
    Model *model;
    Runner *runner;
    KvCache *kv;
    MediaCache *media;              /* NULL: the model takes neither images nor audio */
    SlicedStep *sliced;             /* prefill of spans in slices; NULL: not of this model */
    bool span_begun;                /* the scheduler's span was begun */
    double span_row_s[SLICE_KINDS]; /* time of one of its rows; 0: not known yet */
    MediaMemory media_memory;
    size_t media_host_bytes; /* host memory that images may take; 0: none, or that of a device */
    KvFormat kv_format;
    int vocab, eos_count;
    Pooling pooling;
    int32_t eos[EOS_MAX];
    SamplerScratch scratch;
    MaskWorkers *lookahead;
    float *logits;  /* [outputs, vocab] logits of the step, borrowed from the runner until the next step */
    float *working; /* [vocab] */
    Scheduler scheduler;
    StepPlan *next; /* has been begun as well, ahead of the end of the step before; NULL: none */
    int under_way;  /* steps */
    int64_t ended_ns;
    ExpertProviderStats experts; /* when the step began */
    bool thread_runs;
    Thread thread;
    uint64_t steps, prompt_tokens, generated_tokens;
    double step_s, media_s;
    bool damaged; /* all answers fail until the model is reloaded */
    bool lost;    /* the device has failed: only another process can reload the model */
    uint64_t kv_blocks;
    size_t kv_idle_bytes; /* counted at */
    int64_t idle_counted_ns;
    int stall_ms;
    _Atomic int64_t step_due_ns; /* when the step that is being computed is taken for hung; 0: there is none */

    void (*notify)(void *context);
    void *notify_context;
    void (*failed)(void *context, const Error *why);
    void *failed_context;

    Mutex mutex;
    Condition wake, round_ended;
    bool closing;
    uint64_t rounds; /* that have ended; a round: admission, a step and its results */
    EngineStats stats;
};

/* ---- engine_answers.c ---- */

/* Finds NaNs, which a fault in weights or kernels spreads to every logit and every hidden state. False: the request
 * failed. */
bool engine_check_numbers(Request *request, const float *values, int count);
/* Takes a token that the backend has sampled, for a request without a constraint. False: the choice has ended. */
bool engine_take_sampled(Engine *engine, Request *request, AnswerChoice *choice, int32_t id);
/* A choice's next token from its logits, and the jump-ahead tokens behind it. False: the choice has ended, or the
 * request failed. */
bool engine_next_token(Engine *engine, Request *request, AnswerChoice *choice, float *logits);
/* Brings one request up to date: failures, cancels, choices to end and to start. May free it. */
void engine_settle(Engine *engine, Request *request);
void engine_settle_all(Engine *engine);

/* ---- engine_results.c ---- */

/* Takes the results of a slice of a step that has ended: rows become part of sequences, tokens are sampled. */
void engine_finish_slice(Engine *engine, const StepPlan *plan, const StepSlice *slice);

/* ---- engine_step.c ---- */

/* A step, and where that is possible the beginning of the one after it, so that the device has something to do while
 * this one's tokens are handed out. */
void engine_run_step(Engine *engine);
/* Discards the step that was begun ahead: waits for it and drops its results. */
void engine_drop_next(Engine *engine);
/* Whether all requests with rows in the step are cancelled or stopped, or the engine closes; context: the engine. */
bool engine_step_given_up(void *context);
ExpertProviderStats engine_expert_stats(const Engine *engine);

/* ---- engine_slices.c ---- */

/* Works for a while on the image or the audio for which the oldest prompt waits. */
void engine_encode_media(Engine *engine);
/* Prefills a span that no step divides, beside running choices. False: there is none. */
bool engine_prefill_span(Engine *engine);

/* ---- engine_thread.c ---- */

/* The engine thread; argument: the engine. */
void *engine_run(void *argument);
/* Under the mutex, or before the thread runs. */
void engine_publish_stats(Engine *engine);
