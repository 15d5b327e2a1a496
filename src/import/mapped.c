#include "import/mapped.h"

#include <sys/mman.h>
#include <unistd.h>

void mapped_release(const uint8_t *begin, const uint8_t *end) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)begin + page - 1) & ~(page - 1), last = (uintptr_t)end & ~(page - 1);
    if (first < last) madvise((void *)first, last - first, MADV_DONTNEED);
}
