/* The models that a process serves, added and removed at any time. Each is loaded on demand and unloaded when idle,
 * while others answer. All share the compute threads and the memory account. Thread: any. */
#pragma once
#include "chat/chat_model.h"

typedef struct Models Models;

enum { MODELS_MAX = 32, MODEL_NAME_MAX = 256 /* bytes with the NUL */ };

typedef struct ModelSource {
    const char *name, *directory;
} ModelSource;

typedef struct ModelsOptions {
    const ModelSource *sources; /* copied; names differ */
    int count;                  /* 0: no model at first */
    EngineOptions engine;       /* for each model, except directory and resources; its pointers are borrowed */
    int64_t idle_unload_ms;     /* after a model was released last; 0: never */
} ModelsOptions;

/* Adds and loads all of them, one after the other; a failure of one is a failure of all. */
NODISCARD Models *models_open(const ModelsOptions *options, Error *error);
void models_close(Models *models); /* no model is held any more; NULL is fine */

/* Adds a model without loading it; copied. Gives its number, which it keeps until it is removed: 0 to MODELS_MAX - 1. A
 * model of the same name and directory is left as it is and its number given. -1 on failure. ERROR_USAGE: the name
 * belongs to another directory, or is empty or too long; ERROR_LIMIT: MODELS_MAX. */
NODISCARD int models_add(Models *models, const ModelSource *source, Error *error);
/* Waits for a running load, unloads it and forgets it. ERROR_NOT_FOUND; ERROR_BUSY: it is held. */
NODISCARD bool models_remove(Models *models, Slice name, Error *error);

/* The model of that name, loaded if need be; it stays until it is released. ERROR_NOT_FOUND: there is none;
 * ERROR_DEVICE: its device has failed; ERROR_CANCELLED: the deadline (of clock_ns; 0: none) came before it was loaded,
 * which goes on; else the load failed: who waited for it gets the same error, who asks afterwards tries again. */
NODISCARD ChatModel *models_take(Models *models, Slice name, int64_t deadline_ns, Error *error);
/* Begins to reload a damaged model, at a limited rate, and waits for that for a second at most. */
void models_mend(Models *models, int index);
void models_release(Models *models, ChatModel *model); /* NULL is fine */
/* As models_take and models_release at once. */
NODISCARD bool models_load(Models *models, Slice name, int64_t deadline_ns, Error *error);
/* ERROR_BUSY while the model is held; succeeds if it is not loaded. */
NODISCARD bool models_unload(Models *models, Slice name, Error *error);

typedef enum ModelState { MODEL_UNLOADED, MODEL_LOADING, MODEL_LOADED, MODEL_UNLOADING } ModelState;

typedef struct ModelStatus {
    char name[MODEL_NAME_MAX];
    ModelState state;
    int holders;       /* who have taken it */
    int64_t created;   /* when it was loaded last, in seconds since 1970; 0: never */
    int context;       /* tokens; 0: never loaded */
    bool damaged;      /* its files could not be read: ERROR_IO for who asks, until it is loaded again; or its device
                          failed: ERROR_DEVICE for good */
    EngineStats stats; /* all zero unless it is loaded */
} ModelStatus;

int models_count(Models *models);
/* The number of a model; -1: no model of that name. Stable while the model is held. */
int models_find(Models *models, Slice name);
/* False: no model has that number. */
bool models_status(Models *models, int index, ModelStatus *status);
/* The model with the lowest number; false: there is none. */
bool models_first(Models *models, ModelStatus *status);
