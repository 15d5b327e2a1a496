/* A model that costs nothing, linked in place of the real one. Its cache holds what was written: each position the hash
 * of all tokens up to it, computed from the position before as found through the page table. So a wrong page, position
 * or token changes every later logit. Logits are a function of all that a row sees, and of the form in which it sees
 * it. The cache is the real one, over a backend of plain memory. Steps can be held at a gate, counted and made to fail;
 * it can sample tokens and begin steps ahead, as a device does. With `vision` it encodes images: every row of a slice
 * and of a step takes its time of a clock that a test may take for the real one. */
#pragma once
#include <stdatomic.h>

#include "base/thread.h"
#include "engine/sampler.h"
#include "model/runner.h"
#include "model/vision.h"
#include "test.h"

enum {
    FAKE_PAGES = 4096,
    FAKE_PAGE_BYTES = KV_PAGE_TOKENS * sizeof(uint64_t),
    FAKE_CODE_BYTES = KV_PAGE_TOKENS * sizeof(uint16_t),
    FAKE_STEPS = 4096,
    FAKE_GENERATED = 1 << 20, /* what makes the difference */
    FAKE_EOS = 2
};

typedef struct FakeStep {
    int rows, decode_rows, chunks, outputs, largest_run, last_small_run, first_large_run;
    bool uniform_matmul;
    int64_t ended_ns; /* on the fake's clock */
    int sliced_rows;  /* rows of slices, of images and spans, up to the step */
} FakeStep;

extern struct Fake {
    int vocab, context;
    int window;         /* of a second layer; 0: there is none */
    bool states;        /* another layer keeps a recurrent state: the hash of all tokens so far */
    bool quantised;     /* the first layer's pages can be codes */
    bool sample_params; /* tokens, and so steps may be begun ahead */
    int decode_rows;    /* rows of a step that leave something else in the cache, as those of answers; 0: none do */
    int refuse;         /* it cannot draw each so many-th token; 0: it always can */
    int32_t eos;        /* the end token, */
    float eos_logit;    /* and what is added to its logit */
    int fail_at;        /* this step fails, counted from 1; 0: none */
    Spec spec;          /* with `vision` it takes images */
    int64_t step_ns, row_ns; /* what a step takes, and each of its rows */
    int64_t slice_row_ns;    /* what a row of a slice takes; that of attention takes ten times as long */
    _Atomic int64_t clock_ns;
    atomic_int sliced_rows; /* of all slices so far */

    Mutex mutex;
    Condition changed;
    bool gated;
    int permits, arrived; /* steps that may run; steps that came to the gate */
    int steps;            /* finished */
    FakeStep log[FAKE_STEPS];
    ErrorCode fail_code;       /* of that step; 0: ERROR_DEVICE; ERROR_IO: as a file of the model shrank */
    int nan_at;                /* the step whose logits are not numbers */
    size_t leaked_bytes;       /* of pages that were in use when their cache closed */
    atomic_int load_ms;        /* that the next models take to be opened */
    atomic_int ahead, sampled; /* steps that were begun ahead, tokens; of all engines */
} fake;
extern _Thread_local bool fake_engine_thread; /* the calling thread has begun a step */

void fake_reset(void);
void fake_permit(int count); /* lets count more steps run */
void fake_open_gate(void);
/* Waits until so many steps have come to the gate, counted from the reset; the last of them is held there unless
 * permitted. */
void fake_wait_arrived(int count);
int fake_steps(void);
uint64_t fake_next_hash(uint64_t before, int32_t token);
void fake_logits(uint64_t hash, float *out); /* [fake.vocab] */
