/* What a bank does for a step: which experts are there, which are read, and what makes room for them. */
#include <string.h>

#include "base/clock.h"
#include "weights/bank_internal.h"

enum { LOOK_MS = 20 /* how often whoever waits for a read asks whether the step is still wanted */ };

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

static void begin_reading(ExpertBank *bank, int s, int expert) {
    BankSlot *slot = &bank->slots[s];
    BankExpert *e = &bank->experts[expert];
    if (slot->expert != NONE) bank->experts[slot->expert].slot = NONE;
    e->slot = s;
    slot->expert = expert;
    slot->state = SLOT_LOADING;
    slot->wanted = true;
    slot->error = 0;
    slot->step = bank->step;
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
    slot->wanted = false;
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
    if (slot->wanted && slot->step == bank->step)
        note_failure(bank, slot);
    else
        bank->queued += slot->wanted; /* an earlier step failed over it: this one asks again */
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

static int oldest_free(const ExpertBank *bank) {
    int s = bank->oldest;
    while (s != NONE && !is_free(&bank->slots[s])) s = bank->slots[s].newer;
    return s;
}

/* Where the oldest would be wanted before all others: an empty slot, or the newest of another layer than the step is
 * at. */
static int newest_elsewhere(const ExpertBank *bank) {
    for (int s = bank->oldest; s != NONE; s = bank->slots[s].newer)
        if (bank->slots[s].state == SLOT_EMPTY && is_free(&bank->slots[s])) return s;
    for (int s = bank->newest; s != NONE; s = bank->slots[s].older)
        if (is_free(&bank->slots[s]) && (bank->slots[s].expert < bank->here || bank->slots[s].expert >= bank->here_end))
            return s;
    return NONE;
}

static int next_victim(const ExpertBank *bank) {
    const int s = bank->slot_count < bank->cycle ? newest_elsewhere(bank) : NONE;
    return s == NONE ? oldest_free(bank) : s;
}

/* Begins to read what is wanted and not there, as far as there are slots for it. */
static void start_queued(ExpertBank *bank) {
    for (int i = bank->given_first; bank->queued > 0 && i < bank->wanted_count; i++) {
        if (bank->experts[bank->wanted[i]].slot != NONE) continue;
        const int s = next_victim(bank);
        if (s == NONE) return;
        if (bank->slots[s].expert != NONE) {
            mutex_lock(&bank->mutex);
            bank->stats.evictions++;
            mutex_unlock(&bank->mutex);
        }
        begin_reading(bank, s, bank->wanted[i]);
        bank_use(bank, s);
        bank->queued--;
    }
    finish_reads(bank);
}

/* ---- the source ---- */

void bank_want(ExpertSource *source, int layer, const int32_t *experts, int count) {
    ExpertBank *bank = bank_of(source);
    mutex_lock(&bank->user);
    CHECK(bank->memory && layer < bank->layer_count);
    bank->step++;
    bank->here = bank->layer_first[layer];
    bank->here_end = layer + 1 < bank->layer_count ? bank->layer_first[layer + 1] : bank->expert_count;
    bank->wanted_count = count;
    bank->given_first = bank->given_count = bank->queued = 0;
    finish_reads(bank);
    for (int i = 0; i < count; i++) {
        const int expert = bank->wanted[i] = bank->layer_first[layer] + experts[i], s = bank->experts[expert].slot;
        if (s == NONE) {
            bank->queued++;
            continue;
        }
        bank->slots[s].wanted = true;
        bank_use(bank, s);
    }
    mutex_lock(&bank->mutex);
    bank->stats.misses += (uint64_t)bank->queued;
    bank->stats.hits += (uint64_t)(count - bank->queued);
    mutex_unlock(&bank->mutex);
    if (!bank->failed) start_queued(bank); /* else this layer's are not used either */
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

static void give_up(ExpertBank *bank) {
    for (int i = 0; i < bank->given_count; i++)
        bank->slots[bank->experts[bank->wanted[bank->given_first + i]].slot].wanted = false;
    bank->given_first += bank->given_count;
    bank->given_count = 0;
}

/* The step ends without what is still wanted. */
static void abandon(ExpertBank *bank) {
    for (int i = bank->given_first; i < bank->wanted_count; i++) {
        const int s = bank->experts[bank->wanted[i]].slot;
        if (s != NONE) bank->slots[s].wanted = false;
    }
    bank->given_first = bank->wanted_count;
}

/* Those that are there come to the front of what is wanted. */
static int collect(ExpertBank *bank, int most, SourcedExpert *out) {
    for (int i = bank->given_first; i < bank->wanted_count && bank->given_count < most; i++) {
        const int expert = bank->wanted[i];
        const BankExpert *e = &bank->experts[expert];
        if (e->slot == NONE || bank->slots[e->slot].state != SLOT_READY) continue;
        const int place = bank->given_first + bank->given_count;
        bank->wanted[i] = bank->wanted[place];
        bank->wanted[place] = expert;
        out[bank->given_count++] =
            (SourcedExpert){expert - bank->here, matrix_of(bank, e, 0), matrix_of(bank, e, 1), matrix_of(bank, e, 2)};
    }
    return bank->given_count;
}

int bank_take(ExpertSource *source, int most, SourcedExpert *out) {
    ExpertBank *bank = bank_of(source);
    give_up(bank);
    while (!bank->failed && bank->given_first < bank->wanted_count) {
        start_queued(bank);
        if (bank->failed) break;
        if (collect(bank, most, out)) return bank->given_count;
        /* Not when the last one under way was an earlier step's that failed, and is to be asked for again. */
        if (bank->reading > 0 || bank->queued == 0 || next_victim(bank) == NONE) wait_for_read(bank);
    }
    abandon(bank);
    mutex_unlock(&bank->user);
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
        if (slot->state == SLOT_READY && slot->step > bank->step_checked) empty_slot(bank, slot, SLOT_EMPTY);
    }
}

static void check_files(ExpertBank *bank) {
    Error why = {0};
    if (bank_io_check(bank->io, &why)) {
        bank->unchecked = false;
        if (bank->reading == 0) bank->step_checked = bank->step;
        return;
    }
    forget_unchecked(bank);
    if (!bank->failed) bank->error = why;
    bank->failed = true;
}

bool bank_check(ExpertBank *bank, Error *error) {
    mutex_lock(&bank->user);
    if (bank->unchecked) check_files(bank);
    const bool ok = !bank->failed;
    if (!ok && error) *error = bank->error;
    bank->failed = false;
    mutex_unlock(&bank->user);
    return ok;
}
