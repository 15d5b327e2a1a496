/* Threads as fibers, and who of them runs. x86-64 alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

dim3 gridDim, blockDim;

namespace emulator {

Thread *self;
Cluster cluster;

/* ---- chance ---- */

static uint64_t random_state = 1;

static uint32_t sample_word() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}
uint32_t sample(uint32_t below) { return (uint32_t)((uint64_t)sample_word() * below >> 32); }
bool chance(uint32_t of) { return sample(of) == 0; }

static void seed(uint64_t launch) {
    static const char *const text = getenv("EMULATOR_SEED");
    random_state = ((text ? strtoull(text, NULL, 10) : 1) * 0x9e3779b97f4a7c15 + launch) * 0xbf58476d1ce4e5b9 | 1;
    for (int i = 0; i < 4; i++) sample_word();
}

/* ---- stacks ---- */

/* Not a multiple of a page: the tops of all stacks would be the same few lines of a processor's cache. */
#ifdef __SANITIZE_ADDRESS__
enum { STACK_BYTES = (1 << 20) + 65 * 64 };
#else
enum { STACK_BYTES = (1 << 17) + 65 * 64 };
#endif
static const uint64_t CANARY = 0x5ca1ab1e0ddba11;
static std::vector<uint8_t *> stacks;
static size_t stacks_used;

static uint8_t *stack_take() {
    enum { AT_ONCE = 256 };
    if (stacks_used == stacks.size()) {
        void *memory = mmap(NULL, (size_t)STACK_BYTES * AT_ONCE, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) fault("no memory for stacks");
        for (int i = 0; i < AT_ONCE; i++) stacks.push_back((uint8_t *)memory + (size_t)STACK_BYTES * i);
    }
    uint8_t *stack = stacks[stacks_used++];
    *(uint64_t *)stack = CANARY;
    return stack;
}

/* Saves what a function must keep and goes on with another stack. */
__asm__(".text\n"
        ".type emulator_switch, @function\n"
        ".hidden emulator_switch\n"
        ".globl emulator_switch\n"
        "emulator_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size emulator_switch, . - emulator_switch\n");

static void *main_stack;
#ifdef __SANITIZE_ADDRESS__
static const void *main_bottom;
static size_t main_bytes;
static uint8_t *bottom_of(const Thread *thread) { return stacks[(size_t)thread->serial]; }
#endif

/* to NULL: whoever has launched the kernel. */
static void go(void **save, Thread *to, bool for_good) {
    self = to;
#ifdef __SANITIZE_ADDRESS__
    void *fake = NULL;
    __sanitizer_start_switch_fiber(
        for_good ? NULL : &fake, to ? bottom_of(to) : main_bottom, to ? (size_t)STACK_BYTES : main_bytes);
    emulator_switch(save, to ? to->stack : main_stack);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
    (void)for_good;
    emulator_switch(save, to ? to->stack : main_stack);
#endif
}

/* ---- who runs ---- */

static std::vector<Warp *> ready; /* that have lanes which may run */
static size_t current;            /* of them: its lanes go on for a while */

void make_ready(Thread *thread) {
    Warp *warp = thread->warp;
    thread->waits = NULL;
    if (warp->ready == 0) {
        warp->place = (int)ready.size();
        ready.push_back(warp);
    }
    warp->ready |= thread->bit;
}

/* Takes the next one from those who may run; NULL: nobody may, and nothing is under way. */
static Thread *take_next() {
    enum { BULK_CHANCE = 16, WARP_CHANCE = 16 };
    while (!cluster.bulks.empty() && (ready.empty() || chance(BULK_CHANCE))) perform_bulk();
    if (ready.empty()) return NULL;
    if (current >= ready.size() || chance(WARP_CHANCE)) current = sample((uint32_t)ready.size());
    Warp *warp = ready[current];
    const uint32_t turn = sample_word() & 31,
                   rotated = warp->ready >> turn | (uint32_t)((uint64_t)warp->ready << (32 - turn));
    const uint32_t lane = (turn + (uint32_t)__builtin_ctz(rotated)) & 31;
    warp->ready &= ~(1u << lane);
    if (warp->ready == 0) {
        ready[current] = ready.back();
        ready[current]->place = (int)current;
        ready.pop_back();
    }
    return warp->lanes[lane];
}

void wait_for(const char *what) {
    Thread *const own = self;
    own->waits = what;
    Thread *next = take_next();
    if (!next) report_deadlock();
    if (next != own) go(&own->stack, next, false);
}

void give_way() {
    if (cluster.measuring) return leave_if_measuring();
    make_ready(self);
    wait_for("its turn");
}

void end_thread() {
    Thread *const own = self;
    finish_copies(own);
    own->ended = true;
    thread_leaves(own);
    Thread *next = take_next();
    if (!next && cluster.live > 0 && !cluster.measuring) report_deadlock();
    go(&own->stack, next, true);
    __builtin_unreachable();
}

void leave_if_measuring() {
    if (!cluster.measuring) return;
    go(&self->stack, NULL, true);
}

static void thread_main() {
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
    if (!main_bottom) main_bottom = bottom, main_bytes = bytes;
#endif
    cluster.kernel->call(cluster.kernel->function, cluster.arguments);
    end_thread();
}

static void thread_begin(Block *block, Warp *warp, uint32_t at) {
    const dim3 &size = cluster.config->blockDim;
    Thread *thread = &block->threads[at];
    *thread = {};
    thread->index = {at % size.x, at / size.x % size.y, at / size.x / size.y};
    thread->lane = (int)(at % LANES);
    thread->bit = 1u << thread->lane;
    thread->warp = warp;
    thread->block = block;
    thread->where = "its beginning";
    thread->serial = stacks_used;
    uint64_t *top = (uint64_t *)((uintptr_t)(stack_take() + STACK_BYTES) & ~(uintptr_t)15) - 1;
    *--top = 0; /* returns to nowhere */
    *--top = 0;
    *--top = (uint64_t)thread_main;
    for (int i = 0; i < 6; i++) *--top = 0;
    thread->stack = top;
    warp->lanes[thread->lane] = thread;
}

/* ---- a cluster ---- */

static void block_begin(Block *block) {
    const dim3 &size = cluster.config->blockDim;
    block->thread_count = block->live = cluster.measuring ? 1 : size.x * size.y * size.z;
    block->used = SHARED_RESERVED + 1024 + cluster.rest_bytes;
    block->declared_bytes = 0;
    block->rest_at = 0;
    block->declared.clear();
    memset(block->syncs, 0, sizeof block->syncs);
    if (!block->memory) block->memory = (uint8_t *)aligned_alloc(MEMORY_BYTES, MEMORY_BYTES);
    if (!block->threads) block->threads = (Thread *)calloc(BLOCK_MAX, sizeof(Thread));
    fill_with_garbage(block->memory, block->used);
    const uint32_t warps = (block->thread_count + LANES - 1) / LANES;
    if (block->warps.size() < warps) block->warps.resize(warps);
    for (uint32_t w = 0; w < warps; w++) {
        Warp *warp = &block->warps[w];
        warp->block = block;
        warp->number = (int)w;
        warp->ready = warp->waiting = 0;
        for (Meeting &m : warp->meetings) m.compute = NULL;
        warp->products.clear();
        warp->groups.clear();
        const uint32_t count = block->thread_count - w * LANES;
        warp->gone = count >= LANES ? 0 : ~0u << count;
        for (uint32_t i = 0; i < LANES; i++) {
            warp->lanes[i] = NULL;
            if (i < count) thread_begin(block, warp, w * LANES + i);
        }
    }
    for (uint32_t i = 0; i < block->thread_count; i++) make_ready(&block->threads[i]);
}

/* The blocks of cluster.blocks from their beginning to their end. */
void run_cluster() {
    ready.clear();
    stacks_used = 0;
    cluster.live = cluster.arrived = 0;
    cluster.phase = false;
    cluster.waiting = NULL;
    cluster.bulks.clear();
    for (uint32_t i = 0; i < cluster.size; i++) {
        block_begin(&cluster.blocks[i]);
        cluster.live += cluster.blocks[i].live;
    }
    go(&main_stack, take_next(), false);
    for (size_t i = 0; i < stacks_used; i++)
        if (*(uint64_t *)stacks[i] != CANARY) fault("%s: a thread's stack is too small", cluster.name);
    if (!cluster.bulks.empty() && !cluster.measuring)
        fault("%s: its blocks have ended, and a bulk copy of %s is under way", cluster.name, cluster.bulks[0].where);
}

/* ---- launching ---- */

static uint64_t launches;

static void place_cluster(uint32_t number, uint32_t across) {
    const dim3 &grid = cluster.config->gridDim;
    for (uint32_t i = 0; i < cluster.size; i++) {
        Block *block = &cluster.blocks[i];
        block->cluster = &cluster;
        block->rank = i;
        block->index = {number % across * cluster.size + i, number / across % grid.y, number / across / grid.y};
    }
}

static void begin(
    const cudaLaunchConfig_t &config, const Kernel &kernel, const void *arguments, uint32_t size, bool measuring) {
    cluster.config = &config;
    gridDim = config.gridDim;
    blockDim = config.blockDim;
    cluster.kernel = &kernel;
    cluster.arguments = arguments;
    cluster.name = "?";
    cluster.size = size;
    cluster.measuring = measuring;
    cluster.rest_bytes = config.dynamicSmemBytes;
    if (cluster.blocks.size() < CLUSTER_MAX) cluster.blocks.resize(CLUSTER_MAX);
    seed(++launches);
}

void run_grid(const cudaLaunchConfig_t &config, const Kernel &kernel, const void *arguments, uint32_t size) {
    begin(config, kernel, arguments, size, false);
    const uint32_t across = config.gridDim.x / size, count = across * config.gridDim.y * config.gridDim.z;
    const bool backwards = sample(2) != 0;
    const uint32_t first = sample(count);
    for (uint32_t i = 0; i < count; i++) {
        place_cluster((first + (backwards ? count - i : i)) % count, across);
        run_cluster();
    }
}

size_t measure_kernel(const Kernel &kernel, const void *arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1, 1, 1);
    begin(config, kernel, arguments, 1, true);
    place_cluster(0, 1);
    run_cluster();
    cluster.measuring = false;
    return cluster.blocks[0].declared_bytes;
}

const uint3 &block_index(); /* include/cuda_runtime.h */
const uint3 &block_index() { return self->block->index; }
uint32_t cluster_rank() { return self->block->rank; }
uint32_t cluster_size() { return cluster.size; }

void enter(const char *kernel, int threads_max) {
    cluster.name = kernel;
    const dim3 &size = cluster.config->blockDim;
    if (!cluster.measuring && size.x * size.y * size.z > (uint32_t)threads_max)
        fault("%s: a block of %u threads, and its bound is %d", kernel, size.x * size.y * size.z, threads_max);
}

} // namespace emulator
