#include "chat/models.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/resources.h"

typedef struct Entry {
    Models *models;
    char *name, *directory; /* NULL: no model has this number */
    bool removed;           /* it is being removed: not found any more */
    int waiters;            /* threads that wait for a change of it, without the mutex */
    ModelState state;
    ChatModel *model; /* LOADED */
    int holders;
    bool pinned;         /* it stays, whatever requests say */
    bool kept;           /* models_keep() has set keep_ns */
    int64_t keep_ns;     /* −1: it stays */
    int64_t released_ns; /* when the last holder let go, or it was loaded */
    int64_t created;
    int context;
    bool takes_images, takes_audio;
    uint64_t failures; /* loads that failed */
    Error why;         /* the last of them did */
    bool damaged;      /* since it could not be read, until it is loaded anew; */
    bool lost;         /* as its device has failed, for good */
    int64_t mended_ns; /* when that was tried last */
} Entry;

struct Models {
    EngineOptions engine;
    Resources *resources;
    int64_t idle_ns; /* 0: models stay */
    const ModelAlias *aliases;
    int alias_count;
    Entry entries[MODELS_MAX];

    Mutex mutex; /* over the entries' state, and the following */
    Condition changed;
    bool loading; /* one load at a time: the next one must see the memory that this one takes */
    bool closing;
    bool loader_begun, thread_runs;
    Thread loader; /* runs the last load, so that a waiting request may give up at its deadline */
    Thread thread; /* unloads idle models */
};

/* ---- under the mutex ---- */

static Entry *find_named(Models *m, Slice name) {
    for (int i = 0; i < MODELS_MAX; i++) {
        Entry *entry = &m->entries[i];
        if (entry->name && !entry->removed && (name.size == 0 || slice_is(name, entry->name))) return entry;
    }
    return NULL;
}

static bool is_alias(const char *alias, Slice name) {
    const size_t size = strlen(alias);
    if (size > 0 && alias[size - 1] == '*') return slice_starts(name, (Slice){alias, size - 1});
    return slice_is(name, alias);
}

/* Under the mutex. The model of a name without an adapter. */
static Entry *find_plain(Models *m, Slice name) {
    static const char latest[] = ":latest"; /* how Ollama's clients complete names */
    const size_t tail = sizeof latest - 1;
    Entry *entry = name.size ? find_named(m, name) : NULL;
    if (!entry && name.size > tail && !memcmp(name.data + name.size - tail, latest, tail))
        entry = find_named(m, (Slice){name.data, name.size - tail});
    for (int i = 0; !entry && i < m->alias_count; i++)
        if (is_alias(m->aliases[i].name, name)) entry = find_named(m, slice_of(m->aliases[i].target));
    return entry;
}

/* The name of an adapter of the options without its model; *model: that model, empty: every one. */
static Slice split_adapter(const AdapterSource *adapter, Slice *model) {
    const char *colon = strrchr(adapter->name, ':');
    *model = colon ? (Slice){adapter->name, (size_t)(colon - adapter->name)} : (Slice){0};
    return slice_of(colon ? colon + 1 : adapter->name);
}

static bool has_adapter(const Entry *entry, Slice model) { return model.size == 0 || slice_is(model, entry->name); }

/* Under the mutex. The model of "ADAPTER" and of "MODEL:ADAPTER"; NULL: the name has no adapter. */
static Entry *find_adapted(Models *m, Slice name, Slice *adapter) {
    for (int i = 0; i < m->engine.model.adapter_count; i++) {
        Slice model;
        const Slice own = split_adapter(&m->engine.model.adapters[i], &model);
        const size_t before = name.size - own.size;
        Entry *entry = NULL;
        if (name.size < own.size || memcmp(name.data + before, own.data, own.size)) continue;
        if (before == 0)
            entry = find_named(m, model);
        else if (before > 1 && name.data[before - 1] == ':')
            entry = find_plain(m, (Slice){name.data, before - 1});
        if (!entry || !has_adapter(entry, model)) continue;
        *adapter = own;
        return entry;
    }
    return NULL;
}

static Entry *find(Models *m, Slice name) {
    Slice adapter;
    Entry *entry = find_plain(m, name);
    return entry ? entry : find_adapted(m, name, &adapter);
}

/* Those of the options that are the model's; their number. */
static int list_adapters(const Models *m, const Entry *entry, AdapterSource *out) {
    int count = 0;
    for (int i = 0; i < m->engine.model.adapter_count && count < ADAPTERS_MAX; i++) {
        Slice model;
        const AdapterSource *adapter = &m->engine.model.adapters[i];
        const Slice own = split_adapter(adapter, &model);
        if (has_adapter(entry, model)) out[count++] = (AdapterSource){own.data, adapter->directory};
    }
    return count;
}

static EngineOptions options_for(const Models *m, const char *directory) {
    EngineOptions options = m->engine;
    options.directory = directory;
    options.resources = m->resources;
    return options;
}

static void *load(void *argument) {
    Entry *entry = argument;
    Models *m = entry->models;
    EngineOptions options = options_for(m, entry->directory);
    AdapterSource adapters[ADAPTERS_MAX];
    options.model.adapters = adapters;
    options.model.adapter_count = list_adapters(m, entry, adapters);
    const double start = clock_seconds();
    Error why = {0};
    ChatModel *model = chat_model_open(entry->name, &options, &why);
    const double seconds = clock_seconds() - start;
    mutex_lock(&m->mutex);
    m->loading = false;
    entry->state = model ? MODEL_LOADED : MODEL_UNLOADED;
    entry->model = model;
    entry->released_ns = clock_ns();
    if (!model) {
        entry->failures++;
        entry->why = why;
    } else {
        entry->damaged = false;
        entry->created = model->created;
        entry->context = chat_model_context(model);
        entry->takes_images = engine_vision(model->engine) != NULL;
        entry->takes_audio = engine_audio(model->engine) != NULL;
        log_debug("loaded %s in %.2f s", entry->name, seconds);
    }
    condition_broadcast(&m->changed);
    mutex_unlock(&m->mutex);
    return NULL;
}

/* Nothing else loads. */
static bool begin_load(Models *m, Entry *entry, Error *error) {
    if (m->loader_begun) thread_join(m->loader); /* it is done but for its end */
    m->loader_begun = thread_start(&m->loader, load, entry, "apus-load", error);
    if (!m->loader_begun) return false;
    m->loading = true;
    entry->state = MODEL_LOADING;
    return true;
}

/* Gives the mutex up meanwhile. */
static void unload(Models *m, Entry *entry) {
    ChatModel *model = entry->model;
    entry->state = MODEL_UNLOADING;
    entry->model = NULL;
    mutex_unlock(&m->mutex);
    chat_model_close(model);
    mutex_lock(&m->mutex);
    entry->state = MODEL_UNLOADED;
    log_debug("unloaded %s", entry->name);
    condition_broadcast(&m->changed);
}

/* ---- the thread ---- */

/* The loaded, unheld model whose idle time ends first; *left_ns: time until then. NULL: there is none. */
static Entry *next_idle(Models *m, int64_t *left_ns) {
    Entry *first = NULL;
    int64_t first_ns = 0;
    for (int i = 0; i < MODELS_MAX; i++) {
        Entry *entry = &m->entries[i];
        const int64_t keep_ns = entry->kept ? entry->keep_ns : m->idle_ns > 0 ? m->idle_ns : -1;
        if (entry->state != MODEL_LOADED || entry->holders > 0 || keep_ns < 0) continue;
        if (first && entry->released_ns + keep_ns >= first_ns) continue;
        first = entry;
        first_ns = entry->released_ns + keep_ns;
    }
    if (first) *left_ns = first_ns - clock_ns();
    return first;
}

static void *unload_idle(void *argument) {
    Models *m = argument;
    mutex_lock(&m->mutex);
    while (!m->closing) {
        int64_t left_ns = 0;
        Entry *entry = next_idle(m, &left_ns);
        if (!entry)
            condition_wait(&m->changed, &m->mutex);
        else if (left_ns > 0)
            condition_wait_ms(&m->changed, &m->mutex, left_ns / 1000000 + 1);
        else
            unload(m, entry);
    }
    mutex_unlock(&m->mutex);
    return NULL;
}

/* ---- opening ---- */

static void free_entry(Entry *entry) {
    free(entry->name);
    free(entry->directory);
    *entry = (Entry){0};
}

/* names: with commas; NULL: none. */
static bool pin(Models *m, const char *names, Error *error) {
    for (const char *at = names ? names : ""; *at;) {
        const size_t size = strcspn(at, ",");
        Entry *entry = find(m, (Slice){at, size});
        if (!entry) return fail(error, ERROR_USAGE, "--pin %.*s: no model is called that", (int)size, at);
        entry->kept = entry->pinned = true;
        entry->keep_ns = -1;
        at += size + (at[size] == ',');
    }
    return true;
}

/* A server that begins without models gets them later. */
static bool check_aliases(Models *m, const ModelsOptions *options, Error *error) {
    for (int i = 0; i < options->alias_count && options->count > 0; i++) {
        const ModelAlias *alias = &options->aliases[i];
        if (alias->target[0] && !find_named(m, slice_of(alias->target)))
            return fail(
                error, ERROR_USAGE, "--alias %s=%s: no model is called %s", alias->name, alias->target, alias->target);
    }
    return true;
}

static bool open_parts(Models *m, const ModelsOptions *options, Error *error) {
    m->engine = options->engine;
    m->idle_ns = options->idle_unload_ms * 1000000;
    m->aliases = options->aliases;
    m->alias_count = options->alias_count;
    m->resources = resources_open(options->engine.backend.threads, error);
    if (!m->resources) return false;
    for (int i = 0; i < options->count; i++) {
        const char *name = options->sources[i].name;
        if (find_named(m, slice_of(name)))
            return fail(error, ERROR_USAGE, "two models are called %s; give one another name", name);
        if (models_add(m, &options->sources[i], error) < 0) return false;
    }
    if (!check_aliases(m, options, error) || !pin(m, options->pinned, error)) return false;
    for (int i = 0; i < options->count; i++)
        if (!options->sources[i].on_demand && !models_load(m, slice_of(options->sources[i].name), 0, error))
            return false;
    m->thread_runs = m->idle_ns > 0 && thread_start(&m->thread, unload_idle, m, "apus-models", error);
    return m->thread_runs || m->idle_ns == 0;
}

Models *models_open(const ModelsOptions *options, Error *error) {
    Models *m = calloc(1, sizeof *m);
    if (!m) {
        fail(error, ERROR_MEMORY, "no memory for the list of models");
        return NULL;
    }
    mutex_init(&m->mutex);
    condition_init(&m->changed);
    if (open_parts(m, options, error)) return m;
    models_close(m);
    return NULL;
}

void models_close(Models *m) {
    if (!m) return;
    mutex_lock(&m->mutex);
    m->closing = true;
    condition_broadcast(&m->changed);
    mutex_unlock(&m->mutex);
    if (m->thread_runs) thread_join(m->thread);
    if (m->loader_begun) thread_join(m->loader);
    for (int i = 0; i < MODELS_MAX; i++) {
        CHECK(m->entries[i].holders == 0);
        chat_model_close(m->entries[i].model);
        free_entry(&m->entries[i]);
    }
    resources_close(m->resources);
    condition_destroy(&m->changed);
    mutex_destroy(&m->mutex);
    free(m);
}

/* ---- use ---- */

/* Under the mutex. */
static bool is_damaged(Entry *entry) {
    if (entry->state == MODEL_LOADED) {
        const EngineStats stats = engine_stats(entry->model->engine);
        entry->damaged |= stats.damaged;
        entry->lost |= stats.lost;
    }
    return entry->damaged;
}

/* Under the mutex, which it gives up meanwhile; false: it is past the deadline. */
static bool wait_change(Models *m, int64_t deadline_ns) {
    if (!deadline_ns) {
        condition_wait(&m->changed, &m->mutex);
        return true;
    }
    const int64_t left_ns = deadline_ns - clock_ns();
    if (left_ns > 0) condition_wait_ms(&m->changed, &m->mutex, left_ns / 1000000 + 1);
    return left_ns > 0;
}

/* Under the mutex: the entry is loaded, or the error says why not. A damaged model is loaded anew when it is no longer
 * held. */
static bool reach_loaded(Models *m, Entry *entry, int64_t deadline_ns, Error *error) {
    const uint64_t failures = entry->failures;
    while (is_damaged(entry) || entry->state != MODEL_LOADED) {
        if (entry->removed) return fail(error, ERROR_NOT_FOUND, "%s was removed", entry->name);
        if (entry->lost) return fail(error, ERROR_DEVICE, "the device of %s has failed", entry->name);
        if (entry->state == MODEL_LOADED && entry->holders > 0)
            return fail(error, ERROR_IO, "the files of %s could not be read", entry->name);
        if (entry->state == MODEL_LOADED) {
            unload(m, entry);
            continue;
        }
        if (entry->failures != failures) { /* the load that was waited for */
            if (error) *error = entry->why;
            return false;
        }
        if (entry->state == MODEL_UNLOADED && !m->loading && !begin_load(m, entry, error)) return false;
        if (!wait_change(m, deadline_ns)) return fail(error, ERROR_CANCELLED, "%s is not loaded yet", entry->name);
    }
    return true;
}

/* The same; meanwhile the entry stays. */
static bool make_loaded(Models *m, Entry *entry, int64_t deadline_ns, Error *error) {
    entry->waiters++;
    const bool loaded = reach_loaded(m, entry, deadline_ns, error);
    entry->waiters--;
    if (entry->removed) condition_broadcast(&m->changed);
    return loaded;
}

ChatModel *models_take(Models *m, Slice name, int64_t deadline_ns, Error *error) {
    mutex_lock(&m->mutex);
    Entry *entry = find(m, name);
    if (!entry)
        fail(error, ERROR_NOT_FOUND, "there is no model %.*s", SLICE_SHOWN(name));
    else if (!make_loaded(m, entry, deadline_ns, error))
        entry = NULL;
    ChatModel *model = entry ? entry->model : NULL;
    if (model) entry->holders++;
    mutex_unlock(&m->mutex);
    return model;
}

void models_mend(Models *m, int index) {
    enum { AGAIN_S = 1, WAIT_S = 1 }; /* a health check is answered while a large model loads */
    mutex_lock(&m->mutex);
    Entry *entry = &m->entries[index];
    const int64_t now = clock_ns();
    if (entry->name && !entry->removed && is_damaged(entry) && now - entry->mended_ns > AGAIN_S * INT64_C(1000000000)) {
        entry->mended_ns = now;
        Error why = {0};
        if (!make_loaded(m, entry, now + WAIT_S * INT64_C(1000000000), &why))
            log_debug("%s: %s", entry->name, why.text);
    }
    mutex_unlock(&m->mutex);
}

void models_release(Models *m, ChatModel *model) {
    if (!model) return;
    mutex_lock(&m->mutex);
    Entry *entry = m->entries;
    while (entry < m->entries + MODELS_MAX && entry->model != model) entry++;
    CHECK(entry < m->entries + MODELS_MAX && entry->holders > 0);
    entry->holders--;
    entry->released_ns = clock_ns();
    if (entry->holders == 0) condition_broadcast(&m->changed);
    mutex_unlock(&m->mutex);
}

ChatModel *models_hold(Models *m, Slice name) {
    mutex_lock(&m->mutex);
    Entry *entry = find(m, name);
    ChatModel *model = entry && entry->state == MODEL_LOADED ? entry->model : NULL;
    if (model) entry->holders++;
    mutex_unlock(&m->mutex);
    return model;
}

bool models_keep(Models *m, const ChatModel *model, int64_t keep_ms) {
    Error why = {0};
    mutex_lock(&m->mutex);
    Entry *entry = m->entries;
    while (entry < m->entries + MODELS_MAX && entry->model != model) entry++;
    CHECK(entry < m->entries + MODELS_MAX && entry->holders > 0);
    const bool pinned = entry->pinned;
    entry->kept = true;
    entry->keep_ns = keep_ms < 0 || pinned ? -1 : keep_ms * 1000000;
    if (!m->thread_runs && !m->closing && entry->keep_ns >= 0)
        m->thread_runs = thread_start(&m->thread, unload_idle, m, "apus-models", &why);
    if (why.text[0]) log_warn("idle models stay: %s", why.text);
    condition_broadcast(&m->changed);
    mutex_unlock(&m->mutex);
    return !pinned;
}

bool models_load(Models *m, Slice name, int64_t deadline_ns, Error *error) {
    ChatModel *model = models_take(m, name, deadline_ns, error);
    models_release(m, model);
    return model != NULL;
}

/* Under the mutex: the entry is unloaded, unless it is held. */
static bool make_unloaded(Models *m, Entry *entry, Error *error) {
    bool ok = true;
    entry->waiters++;
    while (ok && entry->state != MODEL_UNLOADED) {
        if (entry->state != MODEL_LOADED)
            condition_wait(&m->changed, &m->mutex);
        else if (entry->holders > 0)
            ok = fail(error, ERROR_BUSY, "%s is answering %d requests", entry->name, entry->holders);
        else
            unload(m, entry);
    }
    entry->waiters--;
    if (entry->removed) condition_broadcast(&m->changed);
    return ok;
}

bool models_unload(Models *m, Slice name, Error *error) {
    mutex_lock(&m->mutex);
    Entry *entry = find(m, name);
    bool ok = entry || fail(error, ERROR_NOT_FOUND, "there is no model %.*s", SLICE_SHOWN(name));
    ok = ok && make_unloaded(m, entry, error);
    mutex_unlock(&m->mutex);
    return ok;
}

/* ---- adding and removing ---- */

/* Under the mutex. */
static bool fill_entry(Models *m, Entry *entry, const ModelSource *source, Error *error) {
    entry->models = m;
    entry->name = strdup(source->name);
    entry->directory = strdup(source->directory);
    if (entry->name && entry->directory) return true;
    free_entry(entry);
    return fail(error, ERROR_MEMORY, "no memory for the list of models");
}

/* Under the mutex. */
static int add(Models *m, const ModelSource *source, Error *error) {
    const Entry *known = find(m, slice_of(source->name));
    if (known && !strcmp(known->directory, source->directory)) return (int)(known - m->entries);
    if (known) {
        fail(error, ERROR_USAGE, "another model is called %s", source->name);
        return -1;
    }
    for (int i = 0; i < MODELS_MAX; i++)
        if (!m->entries[i].name) return fill_entry(m, &m->entries[i], source, error) ? i : -1;
    fail(error, ERROR_LIMIT, "%d models are served already; remove one", MODELS_MAX);
    return -1;
}

int models_add(Models *m, const ModelSource *source, Error *error) {
    const size_t size = strlen(source->name);
    if (size == 0 || size >= MODEL_NAME_MAX) {
        fail(error, ERROR_USAGE, "a model's name must have 1 to %d bytes", MODEL_NAME_MAX - 1);
        return -1;
    }
    mutex_lock(&m->mutex);
    const int index = add(m, source, error);
    mutex_unlock(&m->mutex);
    return index;
}

bool models_remove(Models *m, Slice name, Error *error) {
    mutex_lock(&m->mutex);
    Entry *entry = find(m, name);
    bool ok = entry || fail(error, ERROR_NOT_FOUND, "there is no model %.*s", SLICE_SHOWN(name));
    if (ok) {
        entry->removed = true;
        ok = make_unloaded(m, entry, error);
        while (ok && entry->waiters > 0) condition_wait(&m->changed, &m->mutex);
        if (ok)
            free_entry(entry);
        else
            entry->removed = false;
    }
    mutex_unlock(&m->mutex);
    return ok;
}

/* ---- status ---- */

int models_count(Models *m) {
    int count = 0;
    mutex_lock(&m->mutex);
    for (int i = 0; i < MODELS_MAX; i++) count += m->entries[i].name && !m->entries[i].removed;
    mutex_unlock(&m->mutex);
    return count;
}

int models_find(Models *m, Slice name) {
    mutex_lock(&m->mutex);
    const Entry *entry = find(m, name);
    mutex_unlock(&m->mutex);
    return entry ? (int)(entry - m->entries) : -1;
}

Slice models_adapter(Models *m, Slice name) {
    Slice adapter = {0};
    mutex_lock(&m->mutex);
    if (!find_plain(m, name)) (void)find_adapted(m, name, &adapter);
    mutex_unlock(&m->mutex);
    return adapter;
}

Slice models_adapter_name(Models *m, const char *model, int i) {
    for (int j = 0; j < m->engine.model.adapter_count; j++) {
        Slice owner;
        const Slice own = split_adapter(&m->engine.model.adapters[j], &owner);
        if ((owner.size == 0 || slice_is(owner, model)) && i-- == 0) return own;
    }
    return (Slice){0};
}

bool models_status(Models *m, int index, ModelStatus *status) {
    CHECK(index >= 0 && index < MODELS_MAX);
    mutex_lock(&m->mutex);
    Entry *entry = &m->entries[index];
    const bool present = entry->name && !entry->removed;
    if (present) {
        *status = (ModelStatus){.state = entry->state,
            .holders = entry->holders,
            .damaged = is_damaged(entry),
            .created = entry->created,
            .context = entry->context,
            .takes_images = entry->takes_images,
            .takes_audio = entry->takes_audio};
        memcpy(status->name, entry->name, strlen(entry->name) + 1);
        if (entry->model) status->stats = engine_stats(entry->model->engine);
    }
    mutex_unlock(&m->mutex);
    return present;
}

bool models_first(Models *m, ModelStatus *status) {
    int i = 0;
    while (i < MODELS_MAX && !models_status(m, i, status)) i++;
    return i < MODELS_MAX;
}

EngineOptions models_engine_options(Models *m, const char *directory) { return options_for(m, directory); }

uint64_t models_held_bytes(Models *m, bool *busy) {
    uint64_t bytes = 0;
    mutex_lock(&m->mutex);
    *busy = m->loading;
    for (int i = 0; i < MODELS_MAX; i++) {
        const Entry *entry = &m->entries[i];
        if (entry->state != MODEL_LOADED) continue;
        const EngineStats stats = engine_stats(entry->model->engine);
        *busy |= stats.running > 0;
        bytes += stats.kv_bytes_total;
        if (m->engine.model.weights == WEIGHTS_READ) bytes += model_weight_bytes(engine_model(entry->model->engine));
    }
    mutex_unlock(&m->mutex);
    return bytes;
}
