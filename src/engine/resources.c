#include "engine/resources.h"

#include <stdlib.h>

#include "backend/cpu/pool.h"
#include "base/memory.h"

struct Resources {
    Pool *pool;
    Mutex mutex; /* over the following */
    Condition candidate;
    uint64_t asked, served; /* steps */
    MemoryAccount *accounts;
};

Resources *resources_open(int threads, Error *error) {
    Resources *resources = calloc(1, sizeof *resources);
    if (!resources) {
        fail(error, ERROR_MEMORY, "no memory for what models share");
        return NULL;
    }
    mutex_init(&resources->mutex);
    condition_init(&resources->candidate);
    resources->pool = pool_open(threads, error);
    if (resources->pool) return resources;
    resources_close(resources);
    return NULL;
}

void resources_close(Resources *resources) {
    if (!resources) return;
    CHECK(!resources->accounts);
    pool_close(resources->pool);
    condition_destroy(&resources->candidate);
    mutex_destroy(&resources->mutex);
    free(resources);
}

Pool *resources_pool(Resources *resources) { return resources->pool; }

/* ---- turns ---- */

void resources_begin_step(Resources *resources) {
    mutex_lock(&resources->mutex);
    const uint64_t mine = resources->asked++;
    while (resources->served != mine) condition_wait(&resources->candidate, &resources->mutex);
    mutex_unlock(&resources->mutex);
}

void resources_end_step(Resources *resources) {
    mutex_lock(&resources->mutex);
    const bool others = ++resources->served != resources->asked;
    mutex_unlock(&resources->mutex);
    if (others) condition_broadcast(&resources->candidate);
}

bool resources_others_wait(Resources *resources) {
    mutex_lock(&resources->mutex);
    const bool others = resources->asked != resources->served + 1;
    mutex_unlock(&resources->mutex);
    return others;
}

/* ---- memory ---- */

void resources_enter(Resources *resources, MemoryAccount *account) {
    mutex_lock(&resources->mutex);
    account->next = resources->accounts;
    resources->accounts = account;
    mutex_unlock(&resources->mutex);
}

void resources_leave(Resources *resources, MemoryAccount *account) {
    mutex_lock(&resources->mutex);
    for (MemoryAccount **at = &resources->accounts; *at; at = &(*at)->next) {
        if (*at != account) continue;
        *at = account->next;
        break;
    }
    mutex_unlock(&resources->mutex);
}

size_t resources_available(Resources *resources) {
    size_t available = memory_available(), owed = 0;
    mutex_lock(&resources->mutex);
    for (const MemoryAccount *account = resources->accounts; account; account = account->next) {
        const size_t used = atomic_load(&account->used);
        owed += account->promised > used ? account->promised - used : 0;
    }
    mutex_unlock(&resources->mutex);
    return available > owed ? available - owed : 0;
}
