#include "server/lan/devices.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/thread.h"

#ifdef __APPLE__
#define st_mtim st_mtimespec
#endif

enum { VERSION = 1, FILE_BYTES_MAX = 1 << 20, SECRET_BYTES = 16, ID_BYTES = 6, DIGEST_TEXT = 2 * SHA256_BYTES + 1 };

typedef struct Paired {
    Device device;
    char digest[DIGEST_TEXT]; /* SHA-256 of its key */
} Paired;

typedef struct Pairing {
    char digest[DIGEST_TEXT]; /* SHA-256 of its secret */
    int64_t end_s;
} Pairing;

struct Devices {
    Mutex mutex; /* guards all that follows */
    char *path, *lock_path;
    struct stat seen; /* the file as it was read last */
    Paired list[DEVICES_MAX];
    int count;
    Pairing pairings[PAIRINGS_MAX];
    int pairing_count;
};

static int64_t now_s(void) { return (int64_t)time(NULL); }

static bool make_hex(char *out, int bytes, Error *error) {
    unsigned char random[SECRET_BYTES];
    if (getentropy(random, (size_t)bytes)) return fail(error, ERROR_IO, "the system has no random bytes");
    for (int i = 0; i < bytes; i++) snprintf(out + 2 * i, 3, "%02x", random[i]);
    return true;
}

static void digest_of(Slice text, char out[DIGEST_TEXT]) {
    uint8_t digest[SHA256_BYTES];
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, text.data, text.size);
    sha256_end(&sha, digest);
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/* In the same time for all texts. */
static bool same_digest(const char *a, const char *b) {
    int difference = 0;
    for (int i = 0; i < DIGEST_TEXT - 1; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}

/* ---- the file ---- */

static bool take_text(const Json *object, const char *name, char *out, size_t size) {
    const Json *value = json_get(object, name);
    if (!value || value->type != JSON_STRING || value->size == 0 || value->size >= size) return false;
    memcpy(out, value->string, value->size);
    out[value->size] = '\0';
    return strlen(out) == value->size;
}

static bool take_time(const Json *object, const char *name, int64_t *out) {
    const Json *value = json_get(object, name);
    if (!value || value->type != JSON_INTEGER) return false;
    *out = value->integer;
    return true;
}

static bool take_digest(const Json *object, const char *name, char out[DIGEST_TEXT]) {
    return take_text(object, name, out, DIGEST_TEXT) && strlen(out) == DIGEST_TEXT - 1;
}

static bool read_lists(Devices *d, const Json *root) {
    const Json *devices = json_get(root, "devices"), *pairings = json_get(root, "pairings");
    if (!devices || devices->type != JSON_ARRAY || devices->size > DEVICES_MAX) return false;
    if (!pairings || pairings->type != JSON_ARRAY || pairings->size > PAIRINGS_MAX) return false;
    d->count = d->pairing_count = 0;
    for (JSON_EACH(object, devices)) {
        Paired *paired = &d->list[d->count++];
        Device *device = &paired->device;
        if (!take_text(object, "id", device->id, sizeof device->id) ||
            !take_text(object, "name", device->name, sizeof device->name) ||
            !take_time(object, "created", &device->created_s) || !take_time(object, "last_used", &device->used_s) ||
            !take_digest(object, "key", paired->digest))
            return false;
    }
    for (JSON_EACH(object, pairings)) {
        Pairing *pairing = &d->pairings[d->pairing_count++];
        if (!take_digest(object, "secret", pairing->digest) || !take_time(object, "end", &pairing->end_s)) return false;
    }
    return true;
}

/* On failure the list is empty: no device is let in. */
static bool read_file(Devices *d, Error *error) {
    Buffer text = {0};
    Arena arena = {0};
    bool ok = file_read(d->path, FILE_BYTES_MAX, &text, error);
    const Json *root = ok ? json_parse(&arena, buffer_view(&text), error) : NULL;
    int64_t version = 0;
    ok = root != NULL;
    if (ok && !(take_time(root, "apus_devices", &version) && version == VERSION && read_lists(d, root)))
        ok = fail(error, ERROR_FORMAT, "it is no list of devices of version %d", VERSION);
    if (!ok) d->count = d->pairing_count = 0;
    arena_free(&arena);
    buffer_free(&text);
    return ok || fail_while(error, "%s", d->path);
}

/* Reads the file again if it is another one. Times of use since then stay. */
static bool refresh(Devices *d, Error *error) {
    struct stat now;
    if (stat(d->path, &now)) {
        d->count = d->pairing_count = 0;
        d->seen = (struct stat){0};
        return errno == ENOENT || fail(error, ERROR_IO, "cannot read %s: %s", d->path, strerror(errno));
    }
    if (now.st_ino == d->seen.st_ino && now.st_mtim.tv_sec == d->seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == d->seen.st_mtim.tv_nsec && now.st_size == d->seen.st_size)
        return true;
    Paired before[DEVICES_MAX];
    const int count = d->count;
    memcpy(before, d->list, sizeof before);
    d->seen = now;
    const bool ok = read_file(d, error);
    for (int i = 0; i < d->count; i++)
        for (int k = 0; k < count; k++)
            if (!strcmp(before[k].device.id, d->list[i].device.id) &&
                before[k].device.used_s > d->list[i].device.used_s)
                d->list[i].device.used_s = before[k].device.used_s;
    return ok;
}

static bool write_file(Devices *d, Error *error) {
    Buffer text = {0};
    buffer_printf(&text, "{\"apus_devices\":%d,\n \"devices\":[", VERSION);
    for (int i = 0; i < d->count; i++) {
        const Device *device = &d->list[i].device;
        buffer_printf(&text, "%s\n  {\"id\":\"%s\",\"name\":", i ? "," : "", device->id);
        json_write_string(&text, slice_of(device->name));
        buffer_printf(&text, ",\"created\":%" PRId64 ",\"last_used\":%" PRId64 ",\"key\":\"%s\"}", device->created_s,
            device->used_s, d->list[i].digest);
    }
    buffer_text(&text, "],\n \"pairings\":[");
    for (int i = 0; i < d->pairing_count; i++)
        buffer_printf(&text, "%s\n  {\"secret\":\"%s\",\"end\":%" PRId64 "}", i ? "," : "", d->pairings[i].digest,
            d->pairings[i].end_s);
    buffer_text(&text, "]}\n");
    bool ok = !text.failed || fail(error, ERROR_MEMORY, "no memory for the list of devices");
    ok = ok && file_write_atomic(d->path, buffer_view(&text), error);
    if (ok) (void)!stat(d->path, &d->seen);
    buffer_free(&text);
    return ok;
}

/* The file as it is now, which no other process changes before end_change(). Under the mutex. */
static int begin_change(Devices *d, Error *error) {
    const int lock = open(d->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX)) {
        fail(error, ERROR_IO, "cannot lock %s: %s", d->lock_path, strerror(errno));
        if (lock >= 0) close(lock);
        return -1;
    }
    if (refresh(d, error)) return lock;
    close(lock);
    return -1;
}

static bool end_change(Devices *d, int lock, bool ok, Error *error) {
    ok = ok && write_file(d, error);
    close(lock);
    return ok;
}

/* ---- opening ---- */

bool lan_path(Buffer *path, Error *error) {
    const char *own = getenv("APUS_STATE"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (own && own[0])
        buffer_printf(path, "%s/lan", own);
    else if (xdg && xdg[0])
        buffer_printf(path, "%s/apus/lan", xdg);
    else if (home && home[0])
        buffer_printf(path, "%s/.local/state/apus/lan", home);
    else
        return fail(error, ERROR_USAGE, "no directory for paired devices: set HOME or APUS_STATE");
    return !path->failed || fail(error, ERROR_MEMORY, "no memory for a path");
}

Devices *devices_open(const char *directory, Error *error) {
    if (!file_make_directories(directory, error)) return NULL;
    if (chmod(directory, 0700)) {
        fail(error, ERROR_IO, "cannot close %s to others: %s", directory, strerror(errno));
        return NULL;
    }
    Devices *d = calloc(1, sizeof *d);
    Buffer path = {0};
    buffer_printf(&path, "%s/devices.json", directory);
    bool ok = d && !path.failed;
    if (d) mutex_init(&d->mutex);
    if (ok) d->path = strdup(path.data);
    buffer_text(&path, ".lock");
    ok = ok && !path.failed;
    if (ok) d->lock_path = strdup(path.data);
    buffer_free(&path);
    ok = ok && d->path && d->lock_path;
    if (!ok) fail(error, ERROR_MEMORY, "no memory for paired devices");
    if (ok && refresh(d, error)) return d;
    devices_close(d);
    return NULL;
}

void devices_close(Devices *d) {
    Error ignored;
    if (!d) return;
    const int lock = d->count > 0 ? begin_change(d, &ignored) : -1; /* keeps when they were used */
    if (lock >= 0) (void)!end_change(d, lock, true, &ignored);
    mutex_destroy(&d->mutex);
    free(d->path);
    free(d->lock_path);
    free(d);
}

/* ---- use ---- */

bool devices_have(Devices *d, const char *key, char id[DEVICE_ID_MAX]) {
    char digest[DIGEST_TEXT];
    Error ignored;
    bool found = false;
    digest_of(slice_of(key), digest);
    mutex_lock(&d->mutex);
    if (refresh(d, &ignored)) {
        for (int i = 0; i < d->count; i++) {
            if (!same_digest(d->list[i].digest, digest)) continue;
            found = true;
            d->list[i].device.used_s = now_s();
            if (id) memcpy(id, d->list[i].device.id, DEVICE_ID_MAX);
        }
    }
    mutex_unlock(&d->mutex);
    return found;
}

int devices_list(Devices *d, Device out[DEVICES_MAX]) {
    Error ignored;
    mutex_lock(&d->mutex);
    (void)!refresh(d, &ignored);
    const int count = d->count;
    for (int i = 0; i < count; i++) out[i] = d->list[i].device;
    mutex_unlock(&d->mutex);
    return count;
}

static void drop_pairing(Devices *d, int i) {
    d->pairing_count--;
    memmove(&d->pairings[i], &d->pairings[i + 1], (size_t)(d->pairing_count - i) * sizeof d->pairings[0]);
}

static void drop_old_pairings(Devices *d) {
    for (int i = d->pairing_count - 1; i >= 0; i--)
        if (d->pairings[i].end_s < now_s()) drop_pairing(d, i);
}

bool devices_invite(Devices *d, char secret[DEVICE_SECRET_MAX], Error *error) {
    if (!make_hex(secret, SECRET_BYTES, error)) return false;
    mutex_lock(&d->mutex);
    const int lock = begin_change(d, error);
    bool ok = lock >= 0;
    if (ok) {
        drop_old_pairings(d);
        if (d->pairing_count == PAIRINGS_MAX) drop_pairing(d, 0);
        Pairing *pairing = &d->pairings[d->pairing_count++];
        digest_of(slice_of(secret), pairing->digest);
        pairing->end_s = now_s() + PAIRING_S;
        ok = end_change(d, lock, true, error);
    }
    mutex_unlock(&d->mutex);
    return ok;
}

/* A name as it is shown: without control characters; as many bytes as fit. */
static void copy_name(Slice name, char out[DEVICE_NAME_MAX]) {
    size_t n = 0;
    for (size_t i = 0; i < name.size && n + 1 < DEVICE_NAME_MAX; i++)
        if ((unsigned char)name.data[i] >= 0x20 && name.data[i] != 0x7f) out[n++] = name.data[i];
    while (n > 0 && ((unsigned char)out[n - 1] & 0xc0) == 0x80 && n + 1 == DEVICE_NAME_MAX) n--; /* no half character */
    out[n] = '\0';
    if (n == 0) snprintf(out, DEVICE_NAME_MAX, "device");
}

/* Under the lock. */
static bool add(Devices *d, Slice secret, Slice name, const char *id, const char *key, Error *error) {
    char digest[DIGEST_TEXT];
    int found = -1;
    digest_of(secret, digest);
    drop_old_pairings(d);
    for (int i = 0; i < d->pairing_count; i++)
        if (same_digest(d->pairings[i].digest, digest)) found = i;
    if (found < 0) return fail(error, ERROR_NOT_FOUND, "this pairing was used, or its time is over");
    if (d->count == DEVICES_MAX) return fail(error, ERROR_LIMIT, "%d devices are paired", DEVICES_MAX);
    drop_pairing(d, found);
    Paired *paired = &d->list[d->count++];
    *paired = (Paired){.device.created_s = now_s()};
    memcpy(paired->device.id, id, strlen(id) + 1);
    copy_name(name, paired->device.name);
    digest_of(slice_of(key), paired->digest);
    return true;
}

bool devices_pair(
    Devices *d, Slice secret, Slice name, char id[DEVICE_ID_MAX], char key[DEVICE_SECRET_MAX], Error *error) {
    if (!make_hex(id, ID_BYTES, error) || !make_hex(key, SECRET_BYTES, error)) return false;
    mutex_lock(&d->mutex);
    const int lock = begin_change(d, error);
    const bool ok = lock >= 0 && end_change(d, lock, add(d, secret, name, id, key, error), error);
    mutex_unlock(&d->mutex);
    return ok;
}

/* Under the lock. */
static bool drop(Devices *d, Slice id, Error *error) {
    for (int i = 0; i < d->count; i++) {
        if (!slice_is(id, d->list[i].device.id)) continue;
        d->count--;
        memmove(&d->list[i], &d->list[i + 1], (size_t)(d->count - i) * sizeof d->list[0]);
        return true;
    }
    return fail(error, ERROR_NOT_FOUND, "no device has the id %.*s", SLICE_SHOWN(id));
}

bool devices_revoke(Devices *d, Slice id, Error *error) {
    mutex_lock(&d->mutex);
    const int lock = begin_change(d, error);
    const bool ok = lock >= 0 && end_change(d, lock, drop(d, id, error), error);
    mutex_unlock(&d->mutex);
    return ok;
}
