#include "cache/spill_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"

enum {
    SEGMENT_BYTES = 64 << 20, /* approximate bytes of a file; an eighth of a small store */
    SEGMENTS_LEAST = 8,
    SLOTS_FIRST = 1024,
    NAME_MAX_BYTES = 32,
    VERSION = 1, /* version of the file format */
};

/* Little-endian, as every machine here is. */
typedef struct Head {
    char magic[8];
    uint32_t version, head_bytes;
    SpillKey key;
    uint64_t size;     /* bytes that follow */
    uint64_t checksum; /* checksum of these bytes */
    uint64_t reserved; /* 0 */
    uint64_t head_checksum;
} Head;
_Static_assert(sizeof(Head) == SPILL_HEAD_BYTES, "the head is part of the format");

static Head head_make(SpillKey key, const void *bytes, size_t size) {
    Head head = {.magic = "ApusPage",
        .version = VERSION,
        .head_bytes = SPILL_HEAD_BYTES,
        .key = key,
        .size = size,
        .checksum = checksum64(bytes, size)};
    head.head_checksum = checksum64(&head, offsetof(Head, head_checksum));
    return head;
}

static bool head_valid(const Head *head) {
    return !memcmp(head->magic, "ApusPage", sizeof head->magic) && head->version == VERSION &&
        head->head_bytes == SPILL_HEAD_BYTES && head->size > 0 &&
        head->head_checksum == checksum64(head, offsetof(Head, head_checksum));
}

static void segment_name(uint32_t number, char name[NAME_MAX_BYTES]) {
    snprintf(name, NAME_MAX_BYTES, "pages-%08x", number);
}

/* ---- the index ---- */

static SpillPlace *slot_find(SpillPlace *slots, size_t count, SpillKey key) {
    for (size_t i = key.word[0] & (count - 1);; i = (i + 1) & (count - 1))
        if (!slots[i].segment || (slots[i].key.word[0] == key.word[0] && slots[i].key.word[1] == key.word[1]))
            return &slots[i];
}

SpillPlace *spill_store_find(const SpillStore *store, SpillKey key) {
    if (!store->slot_count) return NULL;
    SpillPlace *place = slot_find(store->slots, store->slot_count, key);
    return place->segment && place->size > 0 ? place : NULL;
}

/* A new table for `count` records, without the records of one segment. */
static bool index_rebuild(SpillStore *store, size_t count, const SpillSegment *without) {
    size_t slots = SLOTS_FIRST;
    while (slots / 2 < count) slots *= 2;
    SpillPlace *fresh = calloc(slots, sizeof *fresh);
    if (!fresh) return false;
    store->record_count = 0;
    for (size_t i = 0; i < store->slot_count; i++) {
        const SpillPlace *old = &store->slots[i];
        if (!old->segment || old->segment == without || !old->size) continue;
        *slot_find(fresh, slots, old->key) = *old;
        store->record_count++;
    }
    free(store->slots);
    store->slots = fresh;
    store->slot_count = slots;
    return true;
}

static bool index_add(SpillStore *store, const SpillPlace *place) {
    if (store->record_count + 1 > store->slot_count / 2 && !index_rebuild(store, store->record_count + 1, NULL))
        return false;
    SpillPlace *slot = slot_find(store->slots, store->slot_count, place->key);
    store->record_count += !slot->segment;
    *slot = *place;
    return true;
}

/* ---- opening ---- */

static SpillSegment *segment_add(SpillStore *store, uint32_t number, int file) {
    SpillSegment *segment = calloc(1, sizeof *segment);
    if (!segment) return NULL;
    *segment = (SpillSegment){.number = number, .file = file};
    if (store->newest)
        store->newest->next = segment;
    else
        store->oldest = segment;
    store->newest = segment;
    return segment;
}

/* Indexes the records of a file, up to the first that is invalid. */
static bool segment_scan(SpillStore *store, SpillSegment *segment) {
    uint64_t at = 0;
    Head head;
    while (at < segment->size) {
        const bool whole = segment->size - at > sizeof head &&
            pread(segment->file, &head, sizeof head, (off_t)at) == (ssize_t)sizeof head && head_valid(&head) &&
            head.size <= segment->size - at - sizeof head;
        if (!whole) {
            store->ignored++;
            return true;
        }
        if (!index_add(store, &(SpillPlace){head.key, segment, at, head.size})) return false;
        at += sizeof head + head.size;
    }
    return true;
}

/* Deletes a file of the store that is empty or cannot be opened; leaves and ignores anything but plain files. */
static bool segment_open(SpillStore *store, uint32_t number, Error *error) {
    char name[NAME_MAX_BYTES];
    struct stat status;
    segment_name(number, name);
    const int file = openat(store->directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode) || status.st_size == 0) {
        if (file >= 0 && S_ISREG(status.st_mode))
            unlinkat(store->directory, name, 0);
        else
            store->ignored++;
        if (file >= 0) close(file);
        return true;
    }
    SpillSegment *segment = segment_add(store, number, file);
    if (!segment) close(file);
    if (segment) segment->size = (uint64_t)status.st_size;
    if (segment) store->bytes += segment->size;
    return (segment && segment_scan(store, segment)) || fail(error, ERROR_MEMORY, "no memory for a disk cache's index");
}

static int by_number(const void *a, const void *b) {
    const uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;
    return (one > other) - (one < other);
}

/* The number in a file's name; false: the file is not the store's. */
static bool name_number(const char *name, uint32_t *number) {
    char again[NAME_MAX_BYTES];
    unsigned value;
    if (sscanf(name, "pages-%8x", &value) != 1) return false;
    segment_name(value, again);
    *number = value;
    return !strcmp(name, again);
}

static bool collect_numbers(SpillStore *store, uint32_t **numbers, size_t *count, Error *error) {
    const int again = openat(store->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    if (!list) {
        if (again >= 0) close(again);
        return fail(error, ERROR_IO, "cannot list it: %s", strerror(errno));
    }
    bool ok = true;
    size_t capacity = 0;
    for (struct dirent *entry; ok && (entry = readdir(list));) {
        uint32_t number;
        if (entry->d_name[0] == '.' || !strcmp(entry->d_name, "lock")) continue;
        if (!name_number(entry->d_name, &number)) {
            store->ignored++;
            continue;
        }
        if (*count == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            uint32_t *more = realloc(*numbers, capacity * sizeof *more);
            ok = more || fail(error, ERROR_MEMORY, "no memory for a disk cache's index");
            if (more) *numbers = more;
        }
        if (ok) (*numbers)[(*count)++] = number;
    }
    closedir(list);
    return ok;
}

static bool open_segments(SpillStore *store, Error *error) {
    uint32_t *numbers = NULL;
    size_t count = 0;
    bool ok = collect_numbers(store, &numbers, &count, error);
    if (ok && count) qsort(numbers, count, sizeof *numbers, by_number);
    for (size_t i = 0; ok && i < count; i++) ok = segment_open(store, numbers[i], error);
    if (count) store->next_number = numbers[count - 1] + 1;
    free(numbers);
    return ok;
}

static bool take_directory(SpillStore *store, const char *path, Error *error) {
    char parent[4096];
    const char *slash = strrchr(path, '/');
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 0, path);
    if (parent[0] && !file_make_directories(parent, error)) return false;
    if (mkdir(path, 0700) && errno != EEXIST) return fail(error, ERROR_IO, "cannot make it: %s", strerror(errno));
    store->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->directory < 0) return fail(error, ERROR_IO, "cannot open it: %s", strerror(errno));
    store->lock = openat(store->directory, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (store->lock < 0) return fail(error, ERROR_IO, "cannot write there: %s", strerror(errno));
    return !flock(store->lock, LOCK_EX | LOCK_NB) || fail(error, ERROR_BUSY, "another process uses it");
}

bool spill_store_open(SpillStore *store, const char *directory, uint64_t limit, Error *error) {
    *store = (SpillStore){.directory = -1, .lock = -1, .limit = limit, .next_number = 1};
    if (limit < SPILL_BYTES_LEAST)
        return fail(error, ERROR_USAGE, "a disk cache has at least %d bytes", SPILL_BYTES_LEAST);
    if (take_directory(store, directory, error) && open_segments(store, error)) return true;
    spill_store_close(store);
    return fail_while(error, "%s", directory);
}

void spill_store_close(SpillStore *store) {
    for (SpillSegment *segment = store->oldest, *next; segment; segment = next) {
        next = segment->next;
        close(segment->file);
        free(segment);
    }
    free(store->slots);
    if (store->slot_count || store->lock >= 0 || store->directory >= 0) {
        if (store->lock >= 0) close(store->lock); /* releases the lock */
        if (store->directory >= 0) close(store->directory);
    }
    *store = (SpillStore){.directory = -1, .lock = -1};
}

/* ---- reading ---- */

bool spill_store_read(SpillStore *store, SpillPlace *place, void *out) {
    Head head;
    struct iovec parts[] = {{&head, sizeof head}, {out, place->size}};
    size_t got = 0;
    while (
        got < sizeof head + place->size) { /* a read of more than 2 GB, or one that was interrupted, comes in pieces */
        const ssize_t more = got < sizeof head ? preadv(place->segment->file, parts, 2, (off_t)place->offset)
                                               : pread(place->segment->file, (char *)out + (got - sizeof head),
                                                     sizeof head + place->size - got, (off_t)(place->offset + got));
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0 || got + (size_t)more < sizeof head) break;
        got += (size_t)more;
    }
    const bool whole = got == sizeof head + place->size && head_valid(&head) && head.size == place->size &&
        !memcmp(&head.key, &place->key, sizeof head.key) && head.checksum == checksum64(out, place->size);
    if (!whole) place->size = 0;
    return whole;
}

/* ---- writing ---- */

static SpillSegment *take_oldest(SpillStore *store) {
    SpillSegment *segment = store->oldest;
    if (!segment || !index_rebuild(store, store->record_count, segment)) return NULL;
    store->oldest = segment->next;
    if (store->newest == segment) store->newest = NULL;
    if (store->current == segment) store->current = NULL;
    store->bytes -= segment->size;
    return segment;
}

static bool start_segment(SpillStore *store, Error *error) {
    char name[NAME_MAX_BYTES];
    segment_name(store->next_number++, name);
    const int file =
        openat(store->directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file < 0) return fail(error, ERROR_IO, "%s: %s", name, strerror(errno));
    store->current = segment_add(store, store->next_number - 1, file);
    if (store->current) return true;
    close(file);
    return fail(error, ERROR_MEMORY, "no memory for a file of a disk cache");
}

bool spill_store_prepare(
    SpillStore *store, SpillKey key, size_t size, SpillPlace *place, SpillSegment **removed, Error *error) {
    const uint64_t most = store->limit / SEGMENTS_LEAST < SEGMENT_BYTES ? store->limit / SEGMENTS_LEAST : SEGMENT_BYTES;
    const uint64_t need = size + sizeof(Head);
    *removed = NULL;
    if (need > store->limit)
        return fail(error, ERROR_LIMIT, "%zu bytes are more than the whole disk cache may have", size);
    if (store->current && store->current->size > 0 && store->current->size + need > most) store->current = NULL;
    while (store->bytes + need > store->limit) {
        SpillSegment *oldest = take_oldest(store);
        if (!oldest) return fail(error, ERROR_MEMORY, "no memory for a disk cache's index");
        oldest->next = *removed;
        *removed = oldest;
    }
    if (!store->current && !start_segment(store, error)) return false;
    *place = (SpillPlace){key, store->current, store->current->size, size};
    return true;
}

bool spill_store_write(const SpillStore *store, const SpillPlace *place, const void *bytes, Error *error) {
    const Head head = head_make(place->key, bytes, place->size);
    const size_t total = sizeof head + place->size;
    size_t done = 0;
    while (done < total) {
        const ssize_t more = done < sizeof head
            ? pwrite(
                  place->segment->file, (const char *)&head + done, sizeof head - done, (off_t)(place->offset + done))
            : pwrite(place->segment->file, (const char *)bytes + (done - sizeof head), total - done,
                  (off_t)(place->offset + done));
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) return fail(error, ERROR_IO, "%s", more ? strerror(errno) : "nothing could be written");
        done += (size_t)more;
    }
    return true;
}

bool spill_store_commit(SpillStore *store, const SpillPlace *place, bool written) {
    if (!written) return ftruncate(place->segment->file, (off_t)place->offset) == 0;
    place->segment->size = place->offset + SPILL_HEAD_BYTES + place->size;
    store->bytes += SPILL_HEAD_BYTES + place->size;
    return index_add(store, place);
}

void spill_store_drop(const SpillStore *store, SpillSegment *removed) {
    for (SpillSegment *next; removed; removed = next) {
        char name[NAME_MAX_BYTES];
        next = removed->next;
        segment_name(removed->number, name);
        close(removed->file);
        unlinkat(store->directory, name, 0);
        free(removed);
    }
}
