#include "chat/media_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/background.h"
#include "base/cores.h"
#include "base/math.h"
#include "base/sha256.h"
#include "base/thread.h"

typedef struct KeptFile {
    struct KeptFile *next; /* the most recently used first */
    uint8_t digest[SHA256_BYTES];
    size_t bytes;
    int count;
    MediaItem *items[]; /* [count] retained */
} KeptFile;

struct MediaFiles {
    Mutex mutex;
    Condition turn_ended;
    int turns; /* decoders that may begin */
    KeptFile *first;
    size_t bytes;
    int count;
};

MediaFiles *media_files_open(Error *error) {
    MediaFiles *files = calloc(1, sizeof *files);
    if (!files) {
        fail(error, ERROR_MEMORY, "no memory for images and audio");
        return NULL;
    }
    mutex_init(&files->mutex);
    condition_init(&files->turn_ended);
    const int share = cores_of_process()->threads / 4;
    files->turns = min_int(max_int(share, MEDIA_DECODERS_LEAST), MEDIA_DECODERS_MAX);
    return files;
}

static void free_kept(MediaFiles *files, KeptFile *kept) {
    files->bytes -= kept->bytes;
    files->count--;
    for (int i = 0; i < kept->count; i++) media_item_release(kept->items[i]);
    free(kept);
}

void media_files_close(MediaFiles *files) {
    if (!files) return;
    for (KeptFile *kept = files->first, *next; kept; kept = next) {
        next = kept->next;
        free_kept(files, kept);
    }
    condition_destroy(&files->turn_ended);
    mutex_destroy(&files->mutex);
    free(files);
}

/* ---- turns ---- */

typedef struct Decoding {
    MediaDecoder *decode;
    void *context;
    MediaItem **items;
    Error *error;
    bool ok;
} Decoding;

static void decode_now(void *context) {
    Decoding *d = context;
    d->ok = d->decode(d->context, d->items, d->error);
}

static void begin_turn(MediaFiles *files) {
    mutex_lock(&files->mutex);
    while (files->turns == 0) condition_wait(&files->turn_ended, &files->mutex);
    files->turns--;
    mutex_unlock(&files->mutex);
}

static void end_turn(MediaFiles *files) {
    mutex_lock(&files->mutex);
    files->turns++;
    condition_signal(&files->turn_ended);
    mutex_unlock(&files->mutex);
}

static bool run(MediaDecoder *decode, void *context, MediaItem **items, Error *error) {
    Decoding decoding = {.decode = decode, .context = context, .items = items, .error = error};
    background_run(decode_now, &decoding, "media");
    return decoding.ok;
}

bool media_files_decode(MediaFiles *files, MediaDecoder *decode, void *context, MediaItem **items, Error *error) {
    begin_turn(files);
    const bool ok = run(decode, context, items, error);
    end_turn(files);
    return ok;
}

/* ---- what is kept ---- */

static bool find(MediaFiles *files, const uint8_t *digest, int count, MediaItem **items) {
    KeptFile *found = NULL;
    mutex_lock(&files->mutex);
    for (KeptFile **at = &files->first; *at && !found; at = &(*at)->next) {
        KeptFile *kept = *at;
        if (kept->count != count || memcmp(kept->digest, digest, SHA256_BYTES) != 0) continue;
        found = kept;
        *at = kept->next;
        kept->next = files->first;
        files->first = kept;
        for (int i = 0; i < count; i++) {
            items[i] = kept->items[i];
            media_item_retain(items[i]);
        }
        break;
    }
    mutex_unlock(&files->mutex);
    return found;
}

/* Under the mutex. The last one leaves. */
static void drop_last(MediaFiles *files) {
    KeptFile **last = &files->first;
    while ((*last)->next) last = &(*last)->next;
    KeptFile *kept = *last;
    *last = NULL;
    free_kept(files, kept);
}

/* Without memory for it, nothing is kept. */
static void keep(MediaFiles *files, const uint8_t *digest, int count, MediaItem *const *items) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += media_item_bytes(items[i]);
    KeptFile *kept = bytes <= MEDIA_FILES_BYTES ? malloc(sizeof *kept + (size_t)count * sizeof(MediaItem *)) : NULL;
    if (!kept) return;
    *kept = (KeptFile){.bytes = bytes, .count = count};
    memcpy(kept->digest, digest, SHA256_BYTES);
    for (int i = 0; i < count; i++) {
        kept->items[i] = items[i];
        media_item_retain(items[i]);
    }
    mutex_lock(&files->mutex);
    while (files->first && (files->bytes + bytes > MEDIA_FILES_BYTES || files->count == MEDIA_FILES_MAX))
        drop_last(files);
    kept->next = files->first;
    files->first = kept;
    files->bytes += bytes;
    files->count++;
    mutex_unlock(&files->mutex);
}

bool media_files_take(MediaFiles *files, Slice bytes, int variant, int count, MediaDecoder *decode, void *context,
    MediaItem **items, Error *error) {
    uint8_t digest[SHA256_BYTES];
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, &variant, sizeof variant);
    sha256_add(&sha, bytes.data, bytes.size);
    sha256_end(&sha, digest);
    if (find(files, digest, count, items)) return true;
    begin_turn(files);
    /* Another request may have sent the same file meanwhile. */
    const bool found = find(files, digest, count, items);
    const bool ok = found || run(decode, context, items, error);
    if (ok && !found) keep(files, digest, count, items);
    end_turn(files);
    return ok;
}
