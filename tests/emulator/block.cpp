/* What threads of a block and a cluster share: memory, meetings, barriers, copies under way. */
#include <string.h>

#include "state.h"

namespace emulator {

struct Copy {
    uint8_t *to;
    const uint8_t *from;
    uint32_t bytes, from_bytes;
};
/* cp.async of a thread that were ordered and not done; ends: of each closed group, where it ends among them. */
struct Copies {
    std::vector<Copy> list;
    std::vector<size_t> ends;
};

/* ---- memory ---- */

/* Words that as f32 and as f16 are NaN, and as numbers of bytes or places far outside. */
void fill_with_garbage(void *p, size_t bytes) {
    const uint32_t word = 0xfffffe01u | sample(128) << 1;
    for (size_t i = 0; i + 4 <= bytes; i += 4) memcpy((uint8_t *)p + i, &word, 4);
}

void *shared_memory(uint32_t number, size_t bytes, size_t align) {
    Block *block = self->block;
    for (const Declared &d : block->declared)
        if (d.number == number) return block->memory + d.at;
    if (align < 4) align = 4;
    const size_t at = (block->used + align - 1) / align * align;
    block->declared_bytes = (block->declared_bytes + align - 1) / align * align + bytes;
    if (block->declared_bytes > SHARED_USUAL)
        fault("%s: %zu bytes of declared shared memory", cluster.name, block->declared_bytes);
    if (block->declared_bytes + cluster.rest_bytes > SHARED_MAX)
        fault("%s: %zu and %zu bytes of shared memory", cluster.name, block->declared_bytes, cluster.rest_bytes);
    fill_with_garbage(block->memory + at, bytes);
    block->used = at + bytes;
    block->declared.push_back({number, at});
    return block->memory + at;
}

/* Where memory has the alignment that was asked for and no greater one. */
void *shared_memory_rest(size_t align) {
    Block *block = self->block;
    if (!block->rest_at) block->rest_at = SHARED_RESERVED + (align >= 16 && align <= 1024 ? align : 16);
    return block->memory + block->rest_at;
}

enum { RANK_SHIFT = 24 };

uint32_t shared_address(const void *p) {
    const uintptr_t at = (uintptr_t)p - (uintptr_t)self->block->memory;
    if (at >= MEMORY_BYTES) fault("%p is no address in the block's shared memory", p);
    return (uint32_t)at;
}
uint32_t block_address(uint32_t address, uint32_t rank) {
    if (rank >= cluster.size) fault("mapa: block %u of a cluster of %u", rank, cluster.size);
    return (address & ((1u << RANK_SHIFT) - 1)) | (rank + 1) << RANK_SHIFT;
}
static Block *block_of(uint32_t address) {
    const uint32_t rank = address >> RANK_SHIFT;
    if (rank > cluster.size) fault("%#x is no address in shared memory", address);
    return rank ? &cluster.blocks[rank - 1] : self->block;
}
void *shared_pointer(uint32_t address, size_t bytes, size_t align) {
    Block *block = block_of(address);
    const uint32_t at = address & ((1u << RANK_SHIFT) - 1);
    if (at % align) fault("%#x in shared memory is not a multiple of %zu", at, align);
    if (at < SHARED_RESERVED || at + bytes > block->used)
        fault("%#x with %zu bytes is outside of the block's shared memory, which ends at %#zx", at, bytes, block->used);
    return block->memory + at;
}
void aligned(const void *p, size_t bytes) {
    if ((uintptr_t)p % bytes) fault("%p is not a multiple of the %zu bytes that are loaded or stored there", p, bytes);
}

/* ---- meetings of a warp ---- */

static void meeting_ends(Warp *warp, Meeting *meeting, uint32_t present, uint32_t but) {
    Compute *compute = meeting->compute;
    const uint32_t others = meeting->arrived & ~but;
    compute(meeting->put, present);
    meeting->compute = NULL;
    for (uint32_t left = others; left; left &= left - 1) make_ready(warp->lanes[__builtin_ctz(left)]);
}

void meet(uint32_t mask, void *put, Compute *compute, const char *what) {
    if (cluster.measuring) leave_if_measuring();
    Warp *warp = self->warp;
    Meeting *found = NULL;
    if (!(mask & self->bit)) fault("%s: lane %d is not of its own mask %#x", what, self->lane, mask);
    for (Meeting &m : warp->meetings) {
        if (!m.compute) {
            if (!found) found = &m;
        } else if (m.mask == mask) {
            found = &m;
            break;
        } else if (m.mask & mask) {
            /* Lanes of both may come to either first: it is a fault only if they never meet. */
        }
    }
    if (!found) fault("%s: too many meetings of a warp at once", what);
    if (!found->compute) {
        found->mask = mask;
        found->arrived = 0;
        found->compute = compute;
        found->what = what;
        memset(found->put, 0, sizeof found->put);
    } else if (found->compute != compute) {
        fault("lanes of a warp are at different operations: %s and %s", found->what, what);
    }
    found->arrived |= self->bit;
    found->put[self->lane] = put;
    const uint32_t present = mask & ~warp->gone;
    if (found->arrived == present)
        meeting_ends(warp, found, present, self->bit);
    else
        wait_for(what);
}

void nothing(void *const[LANES], uint32_t) {}

/* ---- barriers of a block ---- */

static void sync_ends(Sync *sync) {
    for (Thread *t = sync->waiting; t; t = t->next) make_ready(t);
    *sync = {};
}
static void sync_at(uint32_t number, uint32_t expected, bool waits, const char *what) {
    if (cluster.measuring) leave_if_measuring();
    if (number >= SYNCS) fault("barrier %u", number);
    if (expected % LANES) fault("%s: %u threads are no whole warps", what, expected);
    Sync *sync = &self->block->syncs[number];
    if (sync->arrived && sync->expected != expected)
        fault("barrier %u: for %u threads and for %u", number, sync->expected, expected);
    sync->expected = expected;
    sync->arrived++;
    if (sync->arrived == (expected ? expected : self->block->live)) return sync_ends(sync);
    if (!waits) return;
    self->next = sync->waiting;
    sync->waiting = self;
    wait_for(what);
}
void sync_block() { sync_at(0, 0, true, "__syncthreads"); }
void sync_some(uint32_t barrier, uint32_t threads) { sync_at(barrier, threads, true, "bar.sync"); }
void arrive_some(uint32_t barrier, uint32_t threads) { sync_at(barrier, threads, false, "bar.arrive"); }

/* ---- barriers of a cluster ---- */

static void cluster_passes() {
    cluster.arrived = 0;
    cluster.phase = !cluster.phase;
    for (Thread *t = cluster.waiting; t; t = t->next) make_ready(t);
    cluster.waiting = NULL;
}
void cluster_arrive() {
    if (cluster.measuring) leave_if_measuring();
    self->cluster_phase = cluster.phase;
    if (++cluster.arrived == cluster.live) cluster_passes();
}
void cluster_wait() {
    if (self->cluster_phase != cluster.phase) return;
    self->next = cluster.waiting;
    cluster.waiting = self;
    wait_for("barrier.cluster");
}

void thread_leaves(Thread *thread) {
    Warp *warp = thread->warp;
    Block *block = thread->block;
    warp->gone |= thread->bit;
    block->live--;
    cluster.live--;
    for (Meeting &m : warp->meetings) {
        const uint32_t present = m.mask & ~warp->gone;
        if (m.compute && present && m.arrived == present) meeting_ends(warp, &m, present, 0);
    }
    Sync *all = &block->syncs[0];
    if (all->arrived && !all->expected && all->arrived == block->live) sync_ends(all);
    if (cluster.live && cluster.arrived == cluster.live) cluster_passes();
}

/* ---- barriers that count bytes ---- */

struct Counter {
    uint64_t magic : 14, phase : 1, expected : 12, pending : 13;
    int64_t bytes : 24;
};
static_assert(sizeof(Counter) == 8, "as in shared memory");
enum { COUNTER_MAGIC = 0x2b1d };

static Counter *counter_at(uint32_t address) {
    Counter *c = (Counter *)shared_pointer(address, 8, 8);
    if (c->magic != COUNTER_MAGIC) fault("no mbarrier at %#x", address);
    return c;
}

static void counter_check(Block *block, Counter *c) {
    if (c->pending || c->bytes) return;
    c->phase = !c->phase;
    c->pending = c->expected;
    for (Warp &warp : block->warps)
        for (uint32_t left = warp.waiting; left; left &= left - 1) {
            Thread *t = warp.lanes[__builtin_ctz(left)];
            if (t->barrier != (uint64_t *)c) continue;
            if (!t->waits)
                fault("an mbarrier passes a phase while thread %u of the block has not seen the one before (%s)",
                    t->index.x, t->where);
            make_ready(t);
        }
}

void barrier_init(uint32_t at, uint32_t count) {
    Counter *c = (Counter *)shared_pointer(at, 8, 8);
    if (count == 0 || count >= 1 << 12) fault("an mbarrier for %u", count);
    *c = {COUNTER_MAGIC, 0, count, count, 0};
}
void barrier_expect(uint32_t at, uint32_t bytes) {
    Counter *c = counter_at(at);
    c->bytes += bytes;
    if (bytes >= 1 << 20 || c->bytes >= 1 << 20) fault("an mbarrier cannot expect so many bytes");
}
void barrier_arrive(uint32_t at, uint32_t count, uint32_t expected_bytes) {
    Counter *c = counter_at(at);
    if (expected_bytes) barrier_expect(at, expected_bytes);
    if (count > c->pending) fault("the mbarrier at %#x is for %u, and more arrive", at, (unsigned)c->expected);
    c->pending -= count;
    counter_check(block_of(at), c);
}
bool barrier_passed(uint32_t at, uint32_t parity, bool wait) {
    const Counter *c = counter_at(at);
    if (c->phase != (parity & 1)) return true;
    if (!wait) return false;
    self->barrier = (uint64_t *)c;
    self->warp->waiting |= self->bit;
    wait_for(parity & 1 ? "an mbarrier, phase 1" : "an mbarrier, phase 0");
    self->warp->waiting &= ~self->bit;
    self->barrier = NULL;
    return true;
}

/* ---- copies under way ---- */

static void bulk_add(uint32_t to, const void *from, const void *value, uint32_t bytes, uint32_t barrier, size_t align) {
    Bulk bulk = {(uint8_t *)shared_pointer(to, bytes, align), (const uint8_t *)from, bytes, block_of(barrier),
        (uint64_t *)counter_at(barrier), {}, self->where};
    if (value) memcpy(bulk.value, value, bytes);
    cluster.bulks.push_back(bulk);
}
void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    if (bytes == 0 || bytes % 16 || (uintptr_t)from % 16)
        fault("a bulk copy of %u bytes from %p: not in sixteens", bytes, from);
    bulk_add(to, from, NULL, bytes, barrier, 16);
}
void copy_tensor(uint32_t to, const TensorMap *map, TensorPlace place, uint32_t barrier) {
    if (to % 1024) fault("a copy of a tensor to %#x: its rows would be turned otherwise", to);
    static const uint8_t zeros[16] __attribute__((aligned(16))) = {};
    for (int i = 1; i < 3; i++)
        if (place.at[i] + (uint64_t)map->box[i] > map->dims[i]) fault("a copy of a tensor beyond its dimension %d", i);
    for (uint32_t row = 0; row < map->box[1]; row++)
        for (uint32_t piece = 0; piece < 8; piece++)
            copy_bulk(to + row * 128 + (piece ^ (row & 7)) * 16,
                place.at[0] + 8 * piece < map->dims[0] ? map->base + place.at[2] * map->strides[1] +
                        (place.at[1] + row) * map->strides[0] + place.at[0] * 2 + piece * 16
                                                       : zeros,
                16, barrier);
}
void store_bulk(uint32_t to, const void *value, uint32_t bytes, uint32_t barrier) {
    bulk_add(to, NULL, value, bytes, barrier, bytes);
}

/* Any of those under way. */
void perform_bulk() {
    const size_t at = sample((uint32_t)cluster.bulks.size());
    const Bulk bulk = cluster.bulks[at];
    cluster.bulks[at] = cluster.bulks.back();
    cluster.bulks.pop_back();
    memcpy(bulk.to, bulk.from ? bulk.from : bulk.value, bulk.bytes);
    Counter *c = (Counter *)bulk.barrier;
    c->bytes -= bulk.bytes;
    counter_check(bulk.block, c);
}

static void copy_perform(const Copy &copy) {
    memcpy(copy.to, copy.from, copy.from_bytes);
    memset(copy.to + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
}
void copy_async(uint32_t to, const void *from, uint32_t bytes, uint32_t from_bytes) {
    if (from_bytes > bytes) fault("cp.async of %u bytes to %u", from_bytes, bytes);
    aligned(from, bytes);
    const Copy copy = {(uint8_t *)shared_pointer(to, bytes, bytes), (const uint8_t *)from, bytes, from_bytes};
    if (!self->copies) self->copies = new Copies;
    if (chance(2))
        copy_perform(copy);
    else
        self->copies->list.push_back(copy);
}
void copies_commit() {
    if (!self->copies) self->copies = new Copies;
    self->copies->ends.push_back(self->copies->list.size());
}
void copies_wait(uint32_t groups) {
    Copies *c = self->copies;
    if (!c) return;
    const bool all = groups == ~0u;
    const size_t keep = all ? 0 : groups, done = c->ends.size() > keep ? c->ends.size() - keep : 0;
    const size_t end = all ? c->list.size() : done ? c->ends[done - 1] : 0;
    for (size_t i = 0; i < end; i++) copy_perform(c->list[i]);
    c->list.erase(c->list.begin(), c->list.begin() + (ptrdiff_t)end);
    c->ends.erase(c->ends.begin(), c->ends.begin() + (ptrdiff_t)done);
    for (size_t &at : c->ends) at -= end;
}
void finish_copies(Thread *thread) {
    if (!thread->copies) return;
    copies_wait(~0u);
    delete thread->copies;
    thread->copies = NULL;
}

} // namespace emulator
