/* A bank from the inside: bank.c opens it and gives it memory, bank_steps.c serves steps. */
#pragma once
#include "base/thread.h"
#include "weights/bank.h"

enum {
    PARTS_MAX = 9, /* codes, scales, biases of three matrices */
    NONE = -1,
};

/* Where a part of an expert lies, and where its first aligned byte goes within a slot. */
typedef struct BankPart {
    uint64_t offset;
    size_t bytes, at;
    int file;
} BankPart;

typedef struct BankExpert {
    Weight matrix[BANK_MATRICES]; /* addresses: 1 + number of the part, NULL where there is none */
    BankPart part[PARTS_MAX];
    int part_count;
    int slot; /* NONE: not in the cache, nor on its way */
} BankExpert;

/* Lost: its reads do not come back. It is nobody's until they do. */
typedef enum SlotState { SLOT_EMPTY, SLOT_LOADING, SLOT_READY, SLOT_LOST } SlotState;
typedef struct BankSlot {
    int expert; /* of all layers; NONE: empty */
    int older, newer;
    SlotState state;
    bool wanted;   /* by the step: not to be given to anybody else */
    uint64_t step; /* that began to read it */
    int parts_left, error, error_file;
    BankRead reads[PARTS_MAX];
} BankSlot;

struct ExpertBank {
    ExpertSource source;
    BankIo *io;
    const char **paths;
    Arena arena;
    int layer_count, expert_count, cycle, most_used;
    int *layer_first; /* [layer_count] of experts */
    BankExpert *experts;
    size_t slot_bytes;

    uint8_t *memory; /* slot_count · slot_bytes */
    size_t memory_bytes;
    int slot_count;
    BankSlot *slots;
    int oldest, newest;

    /* What the step wants: experts of all layers. */
    Mutex user; /* held from want() to the last take() */
    int *wanted;
    int wanted_count, given_first, given_count; /* wanted[0…given_first) were given up, given_count are in use */
    int queued;                                 /* of those wanted, not yet being read */
    int here, here_end;                         /* experts of the layer that the step is at */
    uint64_t step;                              /* counts them */
    bool failed;
    Error error;
    int silence_ms;
    bool unchecked;        /* something was read since the files were looked at; */
    uint64_t step_checked; /* the last whose reads are known to be of the files that were opened */
    int lost;              /* reads that do not come back */
    bool (*given_up)(void *context);
    void *watcher;

    Mutex mutex; /* over what follows */
    SourceStats stats;
    bool stop;
    int64_t reading_since_ns; /* 0: nothing is under way */
    int reading;              /* lost ones are not counted */

    bool touching;
    Thread toucher;
};

static inline ExpertBank *bank_of(ExpertSource *source) { return (ExpertBank *)source; }

/* bank_steps.c */
void bank_use(ExpertBank *bank, int slot); /* it becomes the newest; of one that is in no list: bank_link */
void bank_link(ExpertBank *bank, int slot);
void bank_want(ExpertSource *source, int layer, const int32_t *experts, int count);
int bank_take(ExpertSource *source, int most, SourcedExpert *out);
