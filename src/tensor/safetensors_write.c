/* Writing one safetensors file: the header first, then the data as it comes, under a temporary name until finished. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "tensor/safetensors.h"

enum {
    DATA_ALIGNMENT = 64, /* the data area starts on a cache line; the format asks for 8 */
    PATH_BYTES_MAX = 4096,
};

struct SafetensorsWriter {
    FILE *file;
    char path[PATH_BYTES_MAX], temporary[PATH_BYTES_MAX + 64];
    uint64_t written, promised; /* bytes of the data area */
};

static bool header_build(Buffer *out, const TensorHeader *headers, size_t count, uint64_t *total, Error *error) {
    size_t offset = 0;
    buffer_text(out, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < count; i++) {
        const TensorHeader *h = &headers[i];
        size_t bytes = dtype_bytes(h->dtype), end;
        bool fits = true;
        buffer_byte(out, ',');
        json_write_string(out, slice_of(h->name));
        buffer_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(h->dtype));
        for (int d = 0; d < h->rank; d++) {
            buffer_printf(out, "%s%lld", d ? "," : "", (long long)h->shape[d]);
            fits = fits && h->shape[d] >= 0 && size_mul(bytes, (size_t)h->shape[d], &bytes);
        }
        if (!fits || !size_add(offset, bytes, &end)) {
            return fail(error, ERROR_LIMIT, "tensor %s is larger than can be addressed", h->name);
        }
        buffer_printf(out, "],\"data_offsets\":[%zu,%zu]}", offset, end);
        offset = end;
    }
    buffer_byte(out, '}');
    while ((8 + out->size) % DATA_ALIGNMENT && !out->failed) buffer_byte(out, ' ');
    *total = offset;
    return !out->failed || fail(error, ERROR_MEMORY, "no memory for the header");
}

static bool file_begin(SafetensorsWriter *writer, const Buffer *header, Error *error) {
    int fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return fail(error, ERROR_IO, "cannot create %s: %s", writer->temporary, strerror(errno));
    writer->file = fdopen(fd, "wb");
    if (!writer->file) {
        close(fd);
        unlink(writer->temporary);
        return fail(error, ERROR_MEMORY, "no memory to write %s", writer->path);
    }
    uint64_t size = header->size;
    if (fwrite(&size, sizeof size, 1, writer->file) == 1 && fwrite(header->data, header->size, 1, writer->file) == 1) {
        return true;
    }
    return fail(error, ERROR_IO, "cannot write %s: %s", writer->path, strerror(errno));
}

static bool check_room(const SafetensorsWriter *writer, Error *error) {
    const double gb = 1e-9;
    const uint64_t room = file_room(writer->temporary);
    return writer->promised <= room ||
        fail(error, ERROR_LIMIT, "%s takes %.3g GB, and its disk has %.3g GB free: make room", writer->path,
            (double)writer->promised * gb, (double)room * gb);
}

SafetensorsWriter *safetensors_create(const char *path, const TensorHeader *headers, size_t count, Error *error) {
    SafetensorsWriter *writer = calloc(1, sizeof *writer);
    if (!writer) return fail(error, ERROR_MEMORY, "no memory to write %s", path), NULL;
    int length = snprintf(writer->path, sizeof writer->path, "%s", path);
    snprintf(writer->temporary, sizeof writer->temporary, "%s.%d-%llx.tmp", writer->path, (int)getpid(),
        (unsigned long long)clock_ns());
    Buffer header = {0};
    bool ok = length < PATH_BYTES_MAX || fail(error, ERROR_LIMIT, "the path %s is too long", path);
    ok = ok && header_build(&header, headers, count, &writer->promised, error) && file_begin(writer, &header, error) &&
        check_room(writer, error);
    buffer_free(&header);
    if (ok) return writer;
    safetensors_abandon(writer);
    return NULL;
}

bool safetensors_write(SafetensorsWriter *writer, const void *bytes, size_t size, Error *error) {
    CHECK(size <= writer->promised - writer->written);
    if (size == 0) return true;
    if (fwrite(bytes, size, 1, writer->file) != 1) {
        return fail(error, ERROR_IO, "cannot write %s: %s", writer->path, strerror(errno));
    }
    writer->written += size;
    return true;
}

bool safetensors_finish(SafetensorsWriter *writer, Error *error) {
    CHECK(writer->written == writer->promised);
    bool ok = fflush(writer->file) == 0 && fsync(fileno(writer->file)) == 0;
    int reason = errno;
#ifdef POSIX_FADV_DONTNEED
    /* The cache holds it in small pages, as it was written; read again through a mapping it lies in huge ones. */
    if (ok) (void)posix_fadvise(fileno(writer->file), 0, 0, POSIX_FADV_DONTNEED);
#endif
    if (fclose(writer->file) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    if (ok && rename(writer->temporary, writer->path) != 0) {
        ok = false;
        reason = errno;
    }
    if (!ok) {
        fail(error, ERROR_IO, "cannot write %s: %s", writer->path, strerror(reason));
        unlink(writer->temporary);
    }
    free(writer);
    return ok;
}

void safetensors_abandon(SafetensorsWriter *writer) {
    if (!writer) return;
    if (writer->file) {
        fclose(writer->file);
        unlink(writer->temporary);
    }
    free(writer);
}
