/* Whether models fit this machine, for the tables of `apus list` and `apus search`. Thread: one. */
#pragma once
#include "base/buffer.h"
#include "library/expected.h"

typedef struct Fits {
    EngineOptions options; /* those of `apus serve` without any */
    bool ready;
} Fits;

/* On a terminal, measures the machine first unless it is known, about a second. */
void fits_open(Fits *fits);
/* The plan of a model by its name. ask_hub: a model that is not here is planned from its headers; otherwise it is
 * judged by the bytes of its weights, 0: unknown. False: there is no telling. */
bool fits_find(const Fits *fits, const char *name, bool ask_hub, uint64_t bytes, Expectation *out);
/* Columns for the word and the speed, with two blanks in front; e NULL: there is no telling. */
#define FITS_TITLE "  FIT         TOK/S"
void fits_print(const Expectation *e);
/* Members of a JSON object, each with a comma in front. */
void fits_json(const Expectation *e, Buffer *out);
