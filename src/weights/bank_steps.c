/* What a bank does for a step: which experts are there, which are read, and what makes room for them. */
#include <string.h>

#include "base/clock.h"
#include "weights/bank_internal.h"

enum {
    LOOK_MS = 20,      /* how often whoever waits for a read asks whether the step is still wanted */
    USE = 256,         /* of an expert; */
    AGE_STEPS = 32,    /* so many wants of each layer halve it */
    HINT_WINDOW = 64,  /* hints whose use is looked at together; */
    HINT_PAUSE = 4096, /* wants without any when they are of none */
};
/* Part of the hints that must have been right. One that was not costs the time of a read, and sometimes another one for
 * what made room; one that was right displaced no more than its read would have done later. */
static const double HINTS_RIGHT = 0.6;

/* ---- the order of use ---- */

static void unlink_slot(ExpertBank *bank, int s) {
    const BankSlot *slot = &bank->slots[s];
    if (slot->older == NONE)
        bank->oldest = slot->newer;
    else
        bank->slots[slot->older].newer = slot->newer;
    if (slot->newer == NONE)
        bank->newest = slot->older;
    else
        bank->slots[slot->newer].older = slot->older;
}

void bank_link(ExpertBank *bank, int s) {
    BankSlot *slot = &bank->slots[s];
    slot->older = bank->newest;
    slot->newer = NONE;
    if (bank->newest == NONE)
        bank->oldest = s;
    else
        bank->slots[bank->newest].newer = s;
    bank->newest = s;
}

void bank_use(ExpertBank *bank, int s) {
    unlink_slot(bank, s);
    bank_link(bank, s);
}

/* ---- reading ---- */

static uint8_t lane_bit(int lane) { return (uint8_t)(1 << lane); }

/* One more read under way, or one less. */
static void count_reading(ExpertBank *bank, int change, size_t bytes) {
    mutex_lock(&bank->mutex);
    const int64_t now = clock_ns();
    if (bank->reading == 0) bank->reading_since_ns = now;
    bank->reading += change;
    bank->stats.read_bytes += bytes;
    if (bank->reading == 0) bank->stats.read_s += (double)(now - bank->reading_since_ns) * 1e-9;
    mutex_unlock(&bank->mutex);
}

static uint8_t *slot_memory(const ExpertBank *bank, int s) { return bank->memory + (size_t)s * bank->slot_bytes; }

/* An expert goes into a slot; what was there makes room. lane −1: for a hint. */
static void begin_reading(ExpertBank *bank, int lane, int s, int expert) {
    BankSlot *slot = &bank->slots[s];
    BankExpert *e = &bank->experts[expert];
    if (slot->expert != NONE) {
        bank->experts[slot->expert].slot = NONE;
        bank->displaced[slot->expert] = lane < 0;
        mutex_lock(&bank->mutex);
        bank->stats.evictions++;
        mutex_unlock(&bank->mutex);
    }
    e->slot = s;
    slot->expert = expert;
    slot->state = SLOT_LOADING;
    slot->wanted = lane < 0 ? 0 : lane_bit(lane);
    slot->guessed = slot->unused = lane < 0;
    slot->error = 0;
    slot->want = bank->wants;
    slot->parts_left = e->part_count;
    for (int i = 0; i < e->part_count; i++) {
        const BankPart *part = &e->part[i];
        const uint64_t first = part->offset / BANK_ALIGN * BANK_ALIGN, end = part->offset + part->bytes;
        slot->reads[i] = (BankRead){.file = part->file,
            .offset = first,
            .size = (size_t)((end + BANK_ALIGN - 1) / BANK_ALIGN * BANK_ALIGN - first),
            .need = (size_t)(end - first),
            .to = slot_memory(bank, s) + part->at,
            .owner = s};
        count_reading(bank, 1, 0);
        bank_io_submit(bank->io, &slot->reads[i]);
    }
}

static void note_failure(ExpertBank *bank, const BankSlot *slot) {
    const char *path = bank->paths[slot->error_file];
    if (slot->error == BANK_SHORT)
        fail(&bank->error, ERROR_IO, "%s became shorter while it was in use", path);
    else
        fail(&bank->error, ERROR_IO, "cannot read an expert from %s: %s", path, strerror(slot->error));
    bank->failed = true;
}

static void empty_slot(ExpertBank *bank, BankSlot *slot, SlotState state) {
    if (slot->expert != NONE) bank->experts[slot->expert].slot = NONE;
    slot->expert = NONE;
    slot->state = state;
    slot->wanted = 0;
}

static void finish_read(ExpertBank *bank, const BankRead *read) {
    BankSlot *slot = &bank->slots[read->owner];
    if (slot->state == SLOT_LOST) {
        bank->lost--;
        if (--slot->parts_left == 0) slot->state = SLOT_EMPTY;
        return;
    }
    count_reading(bank, -1, read->size);
    bank->unchecked = true;
    if (read->error) {
        slot->error = read->error;
        slot->error_file = read->file;
    }
    if (--slot->parts_left > 0) return;
    slot->state = SLOT_READY;
    if (!slot->error) return;
    for (int i = 0; i < SOURCE_LANES; i++) {
        BankLane *lane = &bank->lanes[i];
        if (!(slot->wanted & lane_bit(i))) continue;
        if (slot->guessed || slot->want <= bank->step_first)
            lane->queued++; /* an earlier step failed over it, or a hint: this one asks again */
        else
            note_failure(bank, slot);
    }
    empty_slot(bank, slot, SLOT_EMPTY);
}

static void finish_reads(ExpertBank *bank) {
    for (const BankRead *read; (read = bank_io_wait(bank->io, 0));) finish_read(bank, read);
}

/* The disk is silent: what is under way counts as lost, so that those who come next may ask again. */
static void lose_reads(ExpertBank *bank) {
    int lost = 0;
    const char *path = bank->paths[0];
    for (int s = 0; s < bank->slot_count; s++) {
        BankSlot *slot = &bank->slots[s];
        if (slot->state != SLOT_LOADING) continue;
        path = bank->paths[slot->reads[0].file];
        lost += slot->parts_left;
        empty_slot(bank, slot, SLOT_LOST);
    }
    bank->lost += lost;
    count_reading(bank, -lost, 0);
    fail(&bank->error, ERROR_IO, "cannot read an expert from %s: no answer for %.1f s", path,
        (double)bank->silence_ms * 1e-3);
    bank->failed = true;
}

static void wait_for_read(ExpertBank *bank) {
    const int64_t start = clock_ns(), silent_ns = start + bank->silence_ms * INT64_C(1000000);
    const BankRead *read = NULL;
    while (!read && !bank->failed) {
        if (bank->given_up && bank->given_up(bank->watcher)) {
            fail(&bank->error, ERROR_CANCELLED, "nobody waits for this step any more");
            bank->failed = true;
        } else if (!(read = bank_io_wait(bank->io, LOOK_MS)) && clock_ns() > silent_ns) {
            lose_reads(bank);
        }
    }
    if (read) finish_read(bank, read);
    mutex_lock(&bank->mutex);
    bank->stats.stall_s += (double)(clock_ns() - start) * 1e-9;
    mutex_unlock(&bank->mutex);
}

/* ---- what makes room ---- */

static bool is_free(const BankSlot *slot) {
    return !slot->wanted && (slot->state == SLOT_EMPTY || slot->state == SLOT_READY);
}

/* Where a lane wants more than there are slots, its own make room in the order in which they were used, and not in that
 * in which they happen to be done with: so what is found does not depend on the disk. */
static int oldest_free(const ExpertBank *bank, const BankLane *lane) {
    const bool crowded = lane->wanted_count > bank->slot_count;
    for (int s = bank->oldest; s != NONE; s = bank->slots[s].newer) {
        if (is_free(&bank->slots[s])) return s;
        if (crowded && bank->slots[s].state != SLOT_LOST) return NONE;
    }
    return NONE;
}

/* Where the oldest would be wanted before all others: an empty slot, or of other layers than the step is at what was
 * wanted least often. Of several the newest: the oldest of those would again be wanted before all others. */
static int rarest_elsewhere(const ExpertBank *bank, const BankLane *lane) {
    int rarest = NONE;
    for (int s = bank->oldest; s != NONE; s = bank->slots[s].newer) {
        const BankSlot *slot = &bank->slots[s];
        if (!is_free(slot)) continue;
        if (slot->state == SLOT_EMPTY) return s;
        if (slot->expert >= lane->here && slot->expert < lane->here_end) continue;
        if (rarest == NONE || bank->uses[slot->expert] <= bank->uses[bank->slots[rarest].expert]) rarest = s;
    }
    return rarest;
}

static int next_victim(const ExpertBank *bank, const BankLane *lane) {
    const int s = bank->slot_count < bank->cycle_now ? rarest_elsewhere(bank, lane) : NONE;
    return s == NONE ? oldest_free(bank, lane) : s;
}

/* What was wanted long ago counts less and less. */
static void age_uses(ExpertBank *bank) {
    if (bank->wants % ((uint64_t)AGE_STEPS * (uint64_t)bank->layer_count)) return;
    for (int e = 0; e < bank->expert_count; e++) bank->uses[e] /= 2;
}

/* Begins to read what is wanted and not there, as far as there are slots for it. */
static void start_queued(ExpertBank *bank, int l) {
    BankLane *lane = &bank->lanes[l];
    for (int i = lane->given_first; lane->queued > 0 && i < lane->wanted_count; i++) {
        if (bank->experts[lane->wanted[i]].slot != NONE) continue;
        const int s = next_victim(bank, lane);
        if (s == NONE) break;
        begin_reading(bank, l, s, lane->wanted[i]);
        bank_use(bank, s);
        lane->queued--;
    }
    finish_reads(bank);
}

/* ---- the source ---- */

/* What a lane wants is in a slot, perhaps since a hint. */
static void use_found(ExpertBank *bank, int lane, int s, uint64_t *hint_hits) {
    BankSlot *slot = &bank->slots[s];
    slot->wanted |= lane_bit(lane);
    *hint_hits += slot->unused;
    slot->unused = false;
    bank_use(bank, s);
}

void bank_want(ExpertSource *source, int l, int layer, const int32_t *experts, int count) {
    ExpertBank *bank = bank_of(source);
    BankLane *lane = &bank->lanes[l];
    CHECK(bank->memory && layer < bank->layer_count && lane->given_first == lane->wanted_count);
    uint64_t hint_hits = 0, hint_losses = 0;
    bank->hinted_count = 0; /* too late by now */
    bank->wants++;
    age_uses(bank);
    lane->here = bank->layer_first[layer];
    lane->here_end = layer + 1 < bank->layer_count ? bank->layer_first[layer + 1] : bank->expert_count;
    lane->wanted_count = count;
    lane->given_first = lane->given_count = lane->queued = 0;
    finish_reads(bank);
    bank_trace_want(bank->trace, false, layer, experts, count);
    for (int i = 0; i < count; i++) {
        const int expert = lane->wanted[i] = lane->here + experts[i], s = bank->experts[expert].slot;
        hint_losses += s == NONE && bank->displaced[expert];
        bank->displaced[expert] = false;
        bank->uses[expert] += USE;
        bank->step_wanted += s == NONE || !bank->slots[s].wanted; /* by the other lane */
        if (s == NONE)
            lane->queued++;
        else
            use_found(bank, l, s, &hint_hits);
    }
    mutex_lock(&bank->mutex);
    bank->stats.misses += (uint64_t)lane->queued;
    bank->stats.missing += lane->queued > 0;
    bank->stats.hits += (uint64_t)(count - lane->queued);
    bank->stats.hint_hits += hint_hits;
    bank->stats.hint_losses += hint_losses;
    mutex_unlock(&bank->mutex);
    if (!bank->failed) start_queued(bank, l); /* else this layer's are not used either */
}

/* Hints have to be worth it. */
static bool hints_pay(ExpertBank *bank) {
    if (bank->wants < bank->hint_pause) return false;
    const SourceStats *then = &bank->hint_window, *now = &bank->stats;
    const uint64_t hints = now->hints - then->hints;
    if (hints < HINT_WINDOW) return true;
    const double right = (double)(now->hint_hits - then->hint_hits);
    bank->hint_window = *now;
    if (right >= HINTS_RIGHT * (double)hints) return true;
    bank->hint_pause = bank->wants + HINT_PAUSE;
    return false;
}

/* What was hinted at is read behind everything that is wanted, never beside it: at once, or when the last of that came.
 * Of this layer's experts there are more to come where a lane has some queued. */
static void begin_hints(ExpertBank *bank) {
    if (bank->hinted_count == 0 || bank->failed || bank->reading > 0) return;
    for (int i = 0; i < SOURCE_LANES; i++)
        if (bank->lanes[i].queued > 0) return;
    int begun = 0;
    for (int i = 0; i < bank->hinted_count; i++) {
        const int s = bank->oldest, expert = bank->layer_first[bank->hinted_layer] + bank->hinted[i];
        if (!is_free(&bank->slots[s])) break;
        bank_trace_want(bank->trace, true, bank->hinted_layer, &bank->hinted[i], 1);
        begin_reading(bank, -1, s, expert);
        bank_use(bank, s);
        begun++;
    }
    bank->hinted_count = 0;
    finish_reads(bank);
    mutex_lock(&bank->mutex);
    bank->stats.hints += (uint64_t)begun;
    mutex_unlock(&bank->mutex);
}

/* Not where hardly anything stays. */
void bank_hint(ExpertSource *source, int layer, const int32_t *experts, int count) {
    ExpertBank *bank = bank_of(source);
    const int here = bank->layer_first[layer];
    finish_reads(bank);
    bank->hinted_count = 0;
    if (bank->slot_count < bank->cycle_now || !hints_pay(bank)) return;
    bank->hinted_layer = layer;
    for (int i = 0; i < count && bank->hinted_count < SOURCE_HINTS_MAX; i++)
        if (bank->experts[here + experts[i]].slot == NONE) bank->hinted[bank->hinted_count++] = experts[i];
    begin_hints(bank);
}

static const void *address(const ExpertBank *bank, const BankExpert *e, const void *number) {
    if (!number) return NULL;
    const BankPart *part = &e->part[(uintptr_t)number - 1];
    return slot_memory(bank, e->slot) + part->at + part->offset % BANK_ALIGN;
}

static Weight matrix_of(const ExpertBank *bank, const BankExpert *e, int m) {
    Weight w = e->matrix[m];
    w.data = address(bank, e, w.data);
    w.scales = address(bank, e, w.scales);
    w.biases = address(bank, e, w.biases);
    return w;
}

static BankSlot *slot_of(ExpertBank *bank, const BankLane *lane, int i) {
    const int s = bank->experts[lane->wanted[i]].slot;
    return s == NONE ? NULL : &bank->slots[s];
}

static void give_up(ExpertBank *bank, int l) {
    BankLane *lane = &bank->lanes[l];
    for (int i = 0; i < lane->given_count; i++)
        slot_of(bank, lane, lane->given_first + i)->wanted &= (uint8_t)~lane_bit(l);
    lane->given_first += lane->given_count;
    lane->given_count = 0;
}

/* The step ends without what is still wanted. */
static void abandon(ExpertBank *bank, int l) {
    BankLane *lane = &bank->lanes[l];
    for (int i = lane->given_first; i < lane->wanted_count; i++) {
        BankSlot *slot = slot_of(bank, lane, i);
        if (slot) slot->wanted &= (uint8_t)~lane_bit(l);
    }
    lane->given_first = lane->wanted_count;
}

/* Those that are there come to the front of what is wanted. */
static int collect(ExpertBank *bank, BankLane *lane, int most, SourcedExpert *out) {
    for (int i = lane->given_first; i < lane->wanted_count && lane->given_count < most; i++) {
        const int expert = lane->wanted[i];
        const BankExpert *e = &bank->experts[expert];
        if (e->slot == NONE || bank->slots[e->slot].state != SLOT_READY) continue;
        const int place = lane->given_first + lane->given_count;
        lane->wanted[i] = lane->wanted[place];
        lane->wanted[place] = expert;
        out[lane->given_count++] =
            (SourcedExpert){expert - lane->here, matrix_of(bank, e, 0), matrix_of(bank, e, 1), matrix_of(bank, e, 2)};
    }
    return lane->given_count;
}

int bank_take(ExpertSource *source, int l, int most, SourcedExpert *out) {
    ExpertBank *bank = bank_of(source);
    BankLane *lane = &bank->lanes[l];
    give_up(bank, l);
    while (!bank->failed && lane->given_first < lane->wanted_count) {
        start_queued(bank, l);
        if (bank->failed) break;
        if (collect(bank, lane, most, out)) {
            begin_hints(bank);
            return lane->given_count;
        }
        /* Not when the last one under way was an earlier step's that failed, and is to be asked for again. */
        if (bank->reading > 0 || lane->queued == 0 || next_victim(bank, lane) == NONE) wait_for_read(bank);
    }
    abandon(bank, l);
    return 0;
}

void bank_watch(ExpertBank *bank, bool (*given_up)(void *context), void *context) {
    bank->given_up = given_up;
    bank->watcher = context;
}

/* What was read since the files were looked at may be of other files by now. */
static void forget_unchecked(ExpertBank *bank) {
    for (int s = 0; s < bank->slot_count; s++) {
        BankSlot *slot = &bank->slots[s];
        if (slot->state == SLOT_READY && slot->want > bank->wants_checked) empty_slot(bank, slot, SLOT_EMPTY);
    }
}

static void check_files(ExpertBank *bank) {
    Error why = {0};
    if (bank_io_check(bank->io, &why)) {
        bank->unchecked = false;
        if (bank->reading == 0) bank->wants_checked = bank->wants;
        return;
    }
    forget_unchecked(bank);
    if (!bank->failed) bank->error = why;
    bank->failed = true;
}

void bank_begin(ExpertBank *bank) {
    mutex_lock(&bank->user);
    bank->step_first = bank->wants;
    const int cycle = bank->step_wanted > bank->cycle ? bank->step_wanted : bank->cycle;
    if (cycle != bank->cycle_now) bank_trace_cycle(bank->trace, cycle);
    bank->cycle_now = cycle;
    bank->step_wanted = 0;
}

bool bank_lanes_fit(const ExpertBank *bank, int rows) {
    return rows * bank->most_used <= bank->slot_count && bank->slot_count >= bank->cycle_now;
}

bool bank_end(ExpertBank *bank, Error *error) {
    if (bank->unchecked) check_files(bank);
    const bool ok = !bank->failed;
    if (!ok && error) *error = bank->error;
    bank->failed = false;
    mutex_unlock(&bank->user);
    return ok;
}
