/* A stand-in for a GPU, as a library of the same kind (backend/plugin.h): the reference backend behind the fence, so
 * that whoever touches its memory dies, with a memory of its own size and faults when they are wanted. What surrounds a
 * device is tested with it where there is none (tests/server/check_gpu_layers.py).
 * APUS_STAND_IN_BYTES: its memory (1 GB). APUS_STAND_IN_FAULT: a file; a step that finds it there takes it away and
 * fails like a device that broke, and so does all that follows in this process. APUS_STAND_IN_FULL: a file; a step of
 * more than one row that finds it there has no memory.
 * It draws tokens, with the sampler itself, so that steps are begun ahead; their tokens show when they are waited for.
 */
#include "backend/fence.h"
#include "backend/cpu/ref/ref.h"
#include "backend/kv_quant.h"
#include "backend/plugin.h"
#include "engine/sampler.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct Block {
    struct Block *next;
    const void *memory;
    size_t bytes;
} Block;

static size_t used;
static Block *blocks;
static BackendOps ops; /* the fence's, but for these: */
static const BackendOps *fence;
static bool broken;
static int rows;

static size_t total(void) {
    const char *text = getenv("APUS_STAND_IN_BYTES");
    return text ? (size_t)strtoull(text, NULL, 10) : (size_t)1000000000;
}

static bool take(const void *memory, size_t bytes) {
    Block *block = malloc(sizeof *block);
    if (!block) return false;
    *block = (Block){blocks, memory, bytes};
    blocks = block;
    used += bytes;
    return true;
}

static bool has_room(size_t bytes, Error *error) {
    return used + bytes <= total() ||
        fail(error, ERROR_MEMORY, "no room on the GPU for %.2f GB, %.2f of %.2f GB are free", (double)bytes * 1e-9,
            (double)(total() - used) * 1e-9, (double)total() * 1e-9);
}

static void give_back(const void *memory) {
    for (Block **at = &blocks; *at; at = &(*at)->next) {
        Block *block = *at;
        if (block->memory != memory) continue;
        used -= block->bytes;
        *at = block->next;
        free(block);
        return;
    }
}

static void *stand_in_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    void *memory = has_room(bytes, error) ? fence->alloc(backend, bytes, owner, error) : NULL;
    if (memory) (void)take(memory, bytes);
    return memory;
}

static void stand_in_release(Backend *backend, void *memory) {
    fence->release(backend, memory);
    give_back(memory);
}

static bool stand_in_bind(Backend *backend, Weight *w, Error *error) {
    return has_room(weight_bytes(w), error) && fence->bind(backend, w, error) && take(w->data, weight_bytes(w));
}

static void stand_in_unbind(Backend *backend, const Weight *w) {
    give_back(w->data);
    fence->unbind(backend, w);
}

/* Of the last two steps. */
static int32_t *sampled[2];
static uint64_t begun, waited;
static int32_t *tokens; /* of the step, with those that the step before drew */

/* What one process has of them is one engine's, so one backend's at a time. */
static bool open_tokens(int rows_max) {
    for (int i = 0; i < 2; i++) free(sampled[i]);
    free(tokens);
    for (int i = 0; i < 2; i++) sampled[i] = malloc((size_t)rows_max * sizeof **sampled);
    tokens = malloc((size_t)rows_max * sizeof *tokens);
    begun = waited = 0;
    return sampled[0] && sampled[1] && tokens;
}

static bool stand_in_begin(Backend *backend, const Step *step) {
    Step own = *step;
    fence_expect(begun - waited < 2, "more than two steps under way");
    rows = step->rows;
    begun++;
    for (int i = 0; i < rows; i++) {
        const int32_t token = step->tokens[i], *before = sampled[(begun - 1) % 2];
        tokens[i] = token_output(token) >= 0 ? before[token_output(token)] : token;
    }
    own.tokens = tokens;
    return fence->begin(backend, &own);
}

static void stand_in_embed(Backend *backend, const Embed *op) {
    Embed own = *op;
    own.tokens = tokens;
    fence->embed(backend, &own);
}

static void stand_in_sample(Backend *backend, const LogitSampling *op) {
    Fence *f = fence_of(backend);
    SamplerScratch scratch;
    Error error = {0};
    fence_expect(sampler_scratch_open(&scratch, (int)op->vocab, &error), "no memory to draw");
    fence_own_floats(f, op->logits, op->rows * op->vocab, "logits to draw from");
    fence_own_floats(f, op->work, op->rows * 2 * logit_blocks(op->vocab), "where drawing works");
    fence_enter_step(f);
    for (int i = 0; i < op->rows; i++)
        sampled[begun % 2][i] = sampler_sample(&scratch, op->logits + i * op->vocab, &op->sample_params[i]);
    fence_leave(f);
    sampler_scratch_close(&scratch);
}

static const int32_t *stand_in_sampled(Backend *backend, uint64_t ticket) {
    fence_expect(waited > 0, "tokens of a step that was not waited for");
    return sampled[waited % 2];
}

void backend_close(Backend *backend) { backend->ops->close(backend); } /* the fence's of what it is before */

static bool wanted(const char *name) {
    const char *path = getenv(name);
    return path && access(path, F_OK) == 0;
}

static bool faults(void) {
    const char *path = getenv("APUS_STAND_IN_FAULT");
    return path && unlink(path) == 0;
}

static bool stand_in_wait(Backend *backend, uint64_t ticket, Error *error) {
    waited++;
    if (!fence->wait(backend, ticket, error)) return false;
    broken = broken || faults();
    if (broken) return fail(error, ERROR_DEVICE, "a step: an illegal memory access was encountered");
    return !wanted("APUS_STAND_IN_FULL") || rows == 1 || fail(error, ERROR_MEMORY, "no room on the GPU for 1.00 GB");
}

/* A driver starts threads when it is opened. One that does not inherit a mask of blocked signals takes them. */
static void *driver_thread(void *argument) {
    for (;;) pause();
    return argument;
}
static void start_driver(void) {
    pthread_t thread;
    if (!pthread_create(&thread, NULL, driver_thread, NULL)) pthread_detach(thread);
}
static int device_count(Error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    return pthread_once(&once, start_driver) ? 0 : 1;
}
static void device_describe(int device, char *text, size_t size) { snprintf(text, size, "stand-in"); }
static bool device_memory(int device, DeviceMemory *out, Error *error) {
    *out = (DeviceMemory){total() - used, total()};
    return true;
}
static uint64_t bound_bytes(const Weight *weight) { return weight_bytes(weight); }
static size_t code_bytes(const KvLayout *layout, KvForm form, bool values) {
    return kv_quant_bytes(layout, form, values);
}
static uint64_t work_bytes(int rows_max, int64_t cols_max) { return 1 << 20; }
static double read_speed(int device) { return 2e12; }
static void kernels(int device, char *text, size_t size) { snprintf(text, size, "the reference backend\n"); }

static Backend *stand_in_open(const BackendOptions *options, int device, Error *error) {
    if (broken) {
        fail(error, ERROR_DEVICE, "the GPU has failed");
        return NULL;
    }
    BackendOptions own = *options;
    own.device = own.cpu = NULL;
    own.threads = 1;
    own.pool = NULL;
    own.wrap = NULL;
    if (!open_tokens(options->rows_max)) {
        fail(error, ERROR_MEMORY, "no memory for tokens");
        return NULL;
    }
    Backend *inner = ref_open(&own, error), *backend = inner ? fence_open(inner, error) : NULL;
    if (!backend) return NULL;
    if (!fence) {
        fence = backend->ops;
        ops = *fence;
        ops.name = "stand-in";
        ops.alloc = stand_in_alloc;
        ops.release = stand_in_release;
        ops.bind = stand_in_bind;
        ops.unbind = stand_in_unbind;
        ops.begin = stand_in_begin;
        ops.embed = stand_in_embed;
        ops.sample = stand_in_sample;
        ops.sampled = stand_in_sampled;
        ops.wait = stand_in_wait;
    }
    backend->ops = &ops;
    backend->sources = false; /* as a GPU */
    return backend;
}

__attribute__((visibility("default"))) const Plugin *apus_plugin(void);
const Plugin *apus_plugin(void) {
    static const Plugin plugin = {PLUGIN_ABI, sizeof(BackendOps), sizeof(BackendOptions), device_count, device_describe,
        stand_in_open, device_memory, bound_bytes, code_bytes, work_bytes, read_speed, kernels};
    return &plugin;
}
