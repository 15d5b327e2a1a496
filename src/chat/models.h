/* The models that a process serves: each is loaded when somebody asks for it and unloaded when nobody has for a while,
 * beside others that answer meanwhile. All share the threads that compute and the account of memory. Threads: any. */
#pragma once
#include "chat/chat_model.h"

typedef struct Models Models;

enum { MODELS_MAX = 16 };

typedef struct ModelSource {
    const char *name, *directory;
} ModelSource;

typedef struct ModelsOptions {
    const ModelSource *sources; /* copied; names differ */
    int count;
    EngineOptions engine;   /* of each model, but for directory and resources; what it points to outlives the models */
    int64_t idle_unload_ms; /* after a model was released last; 0: never */
} ModelsOptions;

/* Loads all of them, one after the other. */
NODISCARD Models *models_open(const ModelsOptions *options, Error *error);
void models_close(Models *models); /* nobody holds a model any more; NULL is fine */

/* The model of that name, loaded if need be; it stays until it is released. ERROR_NOT_FOUND: there is none;
 * ERROR_DEVICE: its device has failed; ERROR_CANCELLED: the deadline (of clock_ns; 0: none) came before it was loaded,
 * which goes on; else the load failed: who waited for it gets the same error, who asks afterwards tries again. */
NODISCARD ChatModel *models_take(Models *models, Slice name, int64_t deadline_ns, Error *error);
/* Of a model that is damaged: begins to load it anew, but not often, and waits for that for a second at most. */
void models_mend(Models *models, int index);
void models_release(Models *models, ChatModel *model); /* NULL is fine */
/* As models_take and models_release at once. */
NODISCARD bool models_load(Models *models, Slice name, int64_t deadline_ns, Error *error);
/* ERROR_BUSY while somebody holds it; fine when it is not loaded. */
NODISCARD bool models_unload(Models *models, Slice name, Error *error);

typedef enum ModelState { MODEL_UNLOADED, MODEL_LOADING, MODEL_LOADED, MODEL_UNLOADING } ModelState;

typedef struct ModelStatus {
    const char *name; /* lives as long as the models */
    ModelState state;
    int holders;       /* who have taken it */
    int64_t created;   /* when it was loaded last, in seconds since 1970; 0: never */
    int context;       /* tokens; 0: never loaded */
    bool damaged;      /* its files could not be read: ERROR_IO for who asks, until it is loaded again; or its device
                          failed: ERROR_DEVICE for good */
    EngineStats stats; /* all zero unless it is loaded */
} ModelStatus;

int models_count(const Models *models);
const char *models_name(const Models *models, int index);
int models_find(const Models *models, Slice name); /* −1: there is none of that name */
ModelStatus models_status(Models *models, int index);
