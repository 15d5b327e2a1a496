/* hub/: models of the Hugging Face Hub: what they are called, which of their files are needed, how they are downloaded,
 * and the cache they lie in. It knows files, not what is inside them.
 *
 * The cache is huggingface_hub's (huggingface.co/docs/hub/local-cache), byte for byte, so that Python's tools and this
 * one share it:
 *   models--ORG--NAME/blobs/ETAG               the files; ETAG is the sha256, or git's sha1 of a small file
 *   models--ORG--NAME/snapshots/COMMIT/PATH    relative links to blobs
 *   models--ORG--NAME/refs/BRANCH              the commit, without a newline
 *   models--ORG--NAME/trees/COMMIT.json        what the commit holds
 *   .locks/models--ORG--NAME/ETAG.lock         held (flock) while a blob is written
 * (.no_exist, where Python's tools remember which optional files are absent, is theirs: the list of a commit's files
 * says that here.) A file gets its name only when its hash is right and it is on the disk; a snapshot and its ref
 * appear when all files are there. What is unfinished is blobs/ETAG.apus.incomplete and beside it which ranges of it
 * are there.
 *
 * Errors are one line that says what to do. Threads: any, each with its own HubSettings; two processes or threads that
 * pull one model share the work. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

/* --- Settings ---------------------------------------------------------------------------------------------------- */

/* What the environment says, as huggingface_hub reads it: HF_ENDPOINT; HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME; HF_TOKEN
 * or the file HF_TOKEN_PATH; HF_HUB_OFFLINE; HF_HUB_DOWNLOAD_TIMEOUT, HF_HUB_ETAG_TIMEOUT; SSL_CERT_FILE. Proxies are
 * libcurl's: https_proxy, no_proxy. */
typedef struct HubSettings {
    Arena arena;
    const char *endpoint;     /* "https://huggingface.co", without a slash at its end */
    const char *cache;        /* the folder of models--… */
    const char *token;        /* NULL: none */
    const char *token_source; /* "HF_TOKEN" or the file's path: for messages */
    const char *certificates; /* a file of those to trust (SSL_CERT_FILE), NULL: the system's */
    bool offline;
    int connect_s, stall_s; /* a connection that takes longer, or brings nothing for so long, is given up */
} HubSettings;

NODISCARD bool hub_settings_read(HubSettings *settings, Error *error);
void hub_settings_free(HubSettings *settings);

/* --- Names ------------------------------------------------------------------------------------------------------- */

enum { HUB_REPO_MAX = 200, HUB_FILE_MAX = 512, HUB_REVISION_MAX = 256 };

/* ORG/NAME[:FILE][@REVISION]; hf://… and addresses of the endpoint's pages are the same. */
typedef struct HubName {
    char repo[HUB_REPO_MAX];         /* "org/name" */
    char file[HUB_FILE_MAX];         /* a .gguf file of it or a quantisation, as in "Q4_K_M"; "": none named */
    char revision[HUB_REVISION_MAX]; /* a branch, a tag or a commit; "main" when none is named */
} HubName;

NODISCARD bool hub_name_parse(const char *text, HubName *name, Error *error);

/* --- Pull -------------------------------------------------------------------------------------------------------- */

typedef enum HubPhase { HUB_ASKING, HUB_DOWNLOADING, HUB_CHECKING, HUB_WAITING } HubPhase;

typedef struct HubProgress {
    HubPhase phase;      /* WAITING: for the server (why says so) or for another process that downloads the same */
    uint64_t done_bytes; /* fetched bytes; resumed bytes are not counted in the speed */
    uint64_t total_bytes;
    int files_done, files_total;
    double bytes_per_s; /* mean speed over the last seconds */
    double eta_s;       /* below 0: not known */
    const char *why;    /* reason for WAITING; NULL in other states */
} HubProgress;

typedef struct HubWatch {
    bool (*progress)(void *context, const HubProgress *progress); /* false: stop (ERROR_CANCELLED). Several a second */
    void *context;
} HubWatch;

/* Brings a model into the cache, if it is not there, and appends its path: a checkpoint directory, or a .gguf file.
 * When the hub cannot be reached and the model is in the cache, that is used and `stale` says why. */
NODISCARD bool hub_pull(
    const HubSettings *settings, const HubName *name, const HubWatch *watch, Buffer *path, Error *stale, Error *error);
/* Writes the outline of a model into a directory that exists: config.json and other settings, and each file of weights
 * with its header and a hole in place of the numbers, so that readers of headers find the whole model without its
 * download. A GGUF model becomes one hole of its file's size. */
NODISCARD bool hub_outline(const HubSettings *settings, const HubName *name, const char *directory, Error *error);
/* The same from the cache alone: false with ERROR_NOT_FOUND when it is not there or not whole. */
NODISCARD bool hub_find(const HubSettings *settings, const HubName *name, Buffer *path, Error *error);

/* --- What is there ----------------------------------------------------------------------------------------------- */

typedef enum HubFormat { HUB_SAFETENSORS, HUB_GGUF } HubFormat;

typedef struct HubModel {
    const char *name; /* as pull, run and rm take it: "org/name", "org/name:file.gguf", "org/name@revision" */
    const char *path; /* what hub_find gives */
    uint64_t bytes;
    int64_t used_s; /* when its weights were last read, Unix time; as exact as the file system's access times */
    HubFormat format;
} HubModel;

typedef struct HubModels {
    Arena arena;
    HubModel *models; /* by name */
    size_t count, capacity;
    uint64_t unfinished_bytes; /* bytes of interrupted and running downloads */
    size_t unfinished;         /* in so many repositories */
} HubModels;

/* All whole models of the cache; none when there is no cache. */
NODISCARD bool hub_list(const HubSettings *settings, HubModels *models, Error *error);
void hub_models_free(HubModels *models);
/* Removes a model; without file and revision all of its repository, what is unfinished included. */
NODISCARD bool hub_remove(const HubSettings *settings, const HubName *name, uint64_t *freed_bytes, Error *error);

/* --- Search ------------------------------------------------------------------------------------------------------ */

typedef struct HubHit {
    const char *name;
    int64_t parameters; /* 0: unknown */
    int64_t bytes;      /* bytes of its safetensors weights; 0: unknown */
    int64_t downloads;  /* downloads in the last month */
    int64_t likes;
    const char *updated; /* ISO 8601; NULL: unknown */
    bool gated, gguf, mlx;
} HubHit;

typedef enum HubOrder { HUB_BY_DOWNLOADS, HUB_BY_LIKES, HUB_BY_TREND, HUB_BY_DATE } HubOrder;

typedef struct HubHits {
    Arena arena;
    HubHit *hits; /* in the order that was asked for, the largest or newest first */
    size_t count;
} HubHits;

NODISCARD bool hub_search(
    const HubSettings *settings, const char *text, HubOrder order, int limit, HubHits *hits, Error *error);
void hub_hits_free(HubHits *hits);
