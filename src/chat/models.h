/* The models of a process, added and removed at any time. Each is loaded on demand and unloaded when idle, while other
 * models answer. All share the compute threads and the memory account. Threads: any. */
#pragma once
#include "chat/chat_model.h"

typedef struct Models Models;

enum { MODELS_MAX = 32, MODEL_NAME_MAX = 256 /* bytes with the NUL */ };

typedef struct ModelSource {
    const char *name, *directory;
    bool on_demand; /* it is not loaded at first */
} ModelSource;

/* Another name of a model. */
typedef struct ModelAlias {
    const char *name;   /* a name, or the beginning of names with "*" behind it */
    const char *target; /* name of the model; "": the one with the lowest number */
} ModelAlias;

typedef struct ModelsOptions {
    const ModelSource *sources; /* copied; names differ */
    int count;                  /* 0: no model at first */
    /* For each model, except directory and resources; its pointers are borrowed. An adapter called MODEL:NAME is that
     * model's alone. */
    EngineOptions engine;
    int64_t idle_unload_ms;    /* after a model was released last; 0: never */
    const char *pinned;        /* names of models that are never unloaded when idle, with commas; NULL: none */
    const ModelAlias *aliases; /* [alias_count] borrowed; the names of models come first */
    int alias_count;
} ModelsOptions;

/* Adds and loads all models of the options, one after the other. NULL if one fails. */
NODISCARD Models *models_open(const ModelsOptions *options, Error *error);
void models_close(Models *models); /* after all models were released; NULL is fine */

/* Adds a model without loading it; copied. Returns its number, 0 to MODELS_MAX − 1, which it keeps until it is removed;
 * the same for a model that has this name and directory already. −1 on failure. ERROR_USAGE: the name
 * belongs to another directory, or is empty or too long; ERROR_LIMIT: MODELS_MAX. */
NODISCARD int models_add(Models *models, const ModelSource *source, Error *error);
/* Waits for a running load, unloads the model and removes it. ERROR_NOT_FOUND; ERROR_BUSY: the model is held. */
NODISCARD bool models_remove(Models *models, Slice name, Error *error);

/* The model of that name, loaded if necessary and held until models_release(). ERROR_NOT_FOUND: no such model;
 * ERROR_DEVICE: its device has failed; ERROR_CANCELLED: the deadline (clock_ns(); 0: none) passed while it was loading,
 * which continues. Other errors: the load failed; all callers that waited for it get this error, later calls load
 * again.
 */
NODISCARD ChatModel *models_take(Models *models, Slice name, int64_t deadline_ns, Error *error);
/* The model of that name if it is loaded; the caller releases it. NULL: it is not. */
ChatModel *models_hold(Models *models, Slice name);
/* Begins to reload a damaged model, at a limited rate, and waits at most a second for it. */
void models_mend(Models *models, int index);
void models_release(Models *models, ChatModel *model); /* NULL is fine */
/* models_take(), then models_release(). */
NODISCARD bool models_load(Models *models, Slice name, int64_t deadline_ns, Error *error);
/* From now on the model is unloaded so long after it was released last; −1: never. The caller holds it. False: it is
 * pinned and stays. */
bool models_keep(Models *models, const ChatModel *model, int64_t keep_ms);
/* ERROR_BUSY while the model is held; succeeds if it is not loaded. */
NODISCARD bool models_unload(Models *models, Slice name, Error *error);

typedef enum ModelState { MODEL_UNLOADED, MODEL_LOADING, MODEL_LOADED, MODEL_UNLOADING } ModelState;

typedef struct ModelStatus {
    char name[MODEL_NAME_MAX];
    ModelState state;
    int holders;                    /* models_take() calls without models_release() yet */
    int64_t created;                /* when it was loaded last, in seconds since 1970; 0: never */
    int context;                    /* tokens; 0: never loaded */
    bool takes_images, takes_audio; /* false: never loaded, too */
    /* Requests get ERROR_IO until the model is loaded again, as its files could not be read; or ERROR_DEVICE until the
     * process ends, as its device failed. */
    bool damaged;
    EngineStats stats; /* all zero unless it is loaded */
} ModelStatus;

int models_count(Models *models);
/* The number of a model, by its name, its name and ":latest", an alias, the name of an adapter, or any of the former
 * with
 * ":" and that of an adapter; -1: no model of that name. Stable while the model is held. */
int models_find(Models *models, Slice name);
/* The adapter that such a name asks for; empty: none. Borrowed from the options. */
Slice models_adapter(Models *models, Slice name);
/* The i-th adapter of a model, from 0 on; empty: it has fewer. */
Slice models_adapter_name(Models *models, const char *model, int i);
/* False: no model has that number. */
bool models_status(Models *models, int index, ModelStatus *status);
/* The model with the lowest number; false: there is none. */
bool models_first(Models *models, ModelStatus *status);

/* The options that a model of this directory would be loaded with, among those that are loaded. */
EngineOptions models_engine_options(Models *models, const char *directory);
/* Host memory that all loaded models would give back, mapped weights not counted, whose pages the system takes by
 * itself. *busy: one of them is loading or answers. */
uint64_t models_held_bytes(Models *models, bool *busy);
