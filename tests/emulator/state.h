/* What the emulator keeps of the cluster of blocks that runs. */
#pragma once
#define EMULATOR_STATE /* no language of kernels */
#include <vector>

#include "emulator.h"

namespace emulator {

enum { MEETINGS_MAX = 8, SYNCS = 16, BLOCK_MAX = 1024, MEMORY_BYTES = 1 << 18 /* addresses of wgmma have 18 bits */ };

/* Lanes of a mask that meet. */
struct Meeting {
    uint32_t mask, arrived;
    Compute *compute; /* NULL: none */
    const char *what;
    void *put[LANES];
};

/* A wgmma that was ordered by a warp (product.cpp). */
struct Product {
    void *sums[LANES];
    uint32_t a[LANES][4];
    uint64_t a_matrix, b_matrix;
    int columns, warp_row;
    bool integers, a_unsigned, b_unsigned, a_shared, adds, a_turned, b_turned;
    const char *where;
};

struct Warp {
    Block *block;
    Thread *lanes[LANES];
    uint32_t ready, gone, waiting; /* lanes that may run, are not there, wait at an mbarrier */
    int number, place;             /* in the block; among the warps that may run */
    Meeting meetings[MEETINGS_MAX];
    std::vector<Product> products; /* under way */
    std::vector<size_t> groups;    /* how many products each closed group has */
};

struct Sync {
    uint32_t arrived, expected; /* expected 0: all that live */
    Thread *waiting;
};

struct Declared {
    uint32_t number;
    size_t at;
};

struct Cluster;
struct Block {
    uint3 index;
    uint32_t rank;
    Cluster *cluster;
    uint8_t *memory; /* MEMORY_BYTES */
    size_t used, declared_bytes, rest_at;
    std::vector<Declared> declared;
    uint32_t live, thread_count;
    Thread *threads;
    std::vector<Warp> warps;
    Sync syncs[SYNCS];
};

/* Bytes on their way into shared memory, and whom they tell. */
struct Bulk {
    uint8_t *to;
    const uint8_t *from; /* NULL: value */
    uint32_t bytes;
    Block *block; /* whose barrier */
    uint64_t *barrier;
    uint8_t value[16];
    const char *where;
};

struct Cluster {
    const cudaLaunchConfig_t *config;
    const Kernel *kernel;
    const void *arguments;
    const char *name; /* of the kernel */
    uint32_t size, live, arrived;
    bool phase, measuring;
    Thread *waiting;
    std::vector<Block> blocks;
    std::vector<Bulk> bulks;
    size_t rest_bytes; /* of dynamic shared memory */
};
extern Cluster cluster;

/* fiber.cpp */
uint32_t sample(uint32_t below);
void wait_for(const char *what); /* others run until somebody makes this thread ready */
void make_ready(Thread *thread);
void run_cluster();
[[noreturn]] void end_thread();
extern "C" void emulator_switch(void **save, void *load);

/* The whole grid, a cluster of `size` blocks after the other. */
void run_grid(const cudaLaunchConfig_t &config, const Kernel &kernel, const void *arguments, uint32_t size);
size_t measure_kernel(const Kernel &kernel, const void *arguments);

/* block.cpp */
void thread_leaves(Thread *thread); /* those who wait for it no longer do */
void finish_copies(Thread *thread);
void perform_bulk();
void fill_with_garbage(void *p, size_t bytes);

/* report.cpp */
[[noreturn]] void report_deadlock();

} // namespace emulator
