/* What is told when a kernel is wrong: who is where. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

namespace emulator {

enum { DEPTH_MAX = 12, GROUPS_MAX = 24 };

/* The functions that have called one another, by their frame pointers, as addr2line tells them; where it is missing, as
 * addresses. */
static void print_calls(void *const *frame) {
    char command[1024];
    Dl_info library = {};
    int length = 0;
    for (int i = 0; i < DEPTH_MAX && frame && frame[1]; i++, frame = (void *const *)frame[0]) {
        Dl_info found;
        if (!dladdr(frame[1], &found)) break;
        if (!library.dli_fname) {
            library = found;
            length = snprintf(command, sizeof command, "addr2line -i -s -C -p -f -e '%s'", found.dli_fname);
        }
        if (found.dli_fbase != library.dli_fbase) break;
        length += snprintf(command + length, sizeof command - (size_t)length, " %#zx",
            (size_t)((const char *)frame[1] - (const char *)found.dli_fbase) - 1);
    }
    if (!library.dli_fname) return;
    fflush(stderr);
    snprintf(command + length, sizeof command - (size_t)length, " 1>&2 2>/dev/null");
    if (system(command)) fprintf(stderr, "      %s\n", command);
}

static void print_own_calls() { print_calls((void *const *)__builtin_frame_address(0)); }

/* Where the frame pointer of a thread lies that waits: behind the other five registers (emulator_switch). */
static void print_calls_of(const Thread *t) {
    void *const *saved = (void *const *)t->stack;
    print_calls((void *const *)saved[5]);
}

static void print_thread(const Thread *t) {
    fprintf(stderr, "block %u %u %u, thread %u %u %u, at %s", t->block->index.x, t->block->index.y, t->block->index.z,
        t->index.x, t->index.y, t->index.z, t->where);
}

void fault(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "\nemulator: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    if (self) {
        fprintf(stderr, "  %s\n  ", cluster.name);
        print_thread(self);
        fprintf(stderr, "\n");
        print_own_calls();
    }
    abort();
}

void report_deadlock() {
    const Thread *decode_rows_for_matmul[GROUPS_MAX];
    int count = 0;
    fprintf(stderr, "\nemulator: all that are left wait for ever\n  %s\n", cluster.name);
    for (uint32_t b = 0; b < cluster.size; b++) {
        const Block &block = cluster.blocks[b];
        for (size_t w = 0; w * LANES < block.thread_count; w++) {
            uint32_t left = ~block.warps[w].gone;
            while (left) {
                const Thread *first = block.warps[w].lanes[__builtin_ctz(left)];
                uint32_t alike = 0;
                for (uint32_t i = left; i; i &= i - 1) {
                    const Thread *t = block.warps[w].lanes[__builtin_ctz(i)];
                    if (t->where == first->where && t->waits == first->waits) alike |= t->bit;
                }
                left &= ~alike;
                fprintf(stderr, "  block %u %u %u, warp %zu, lanes %08x at %s: %s\n", block.index.x, block.index.y,
                    block.index.z, w, alike, first->where, first->waits ? first->waits : "runs");
                bool known = first == self;
                for (int i = 0; i < count; i++)
                    known |= decode_rows_for_matmul[i]->where == first->where &&
                        decode_rows_for_matmul[i]->waits == first->waits;
                if (!known && count < GROUPS_MAX) {
                    decode_rows_for_matmul[count++] = first;
                    print_calls_of(first);
                }
            }
        }
    }
    abort();
}

} // namespace emulator
