#include "cli/expert_faults.h"

#include <stdio.h>
#include <string.h>

#include "base/slice.h"
#include "model/model.h"

enum { FAULT_MAX = 1000000 };

bool expert_faults_read(const char *text, void *faults, Error *error) {
    double fails = 0, cut = 0, hang = 0, slow = 0, silence = 0, seed = 0;
    const struct {
        const char *name;
        double *value;
    } known[] = {
        {"fail", &fails}, {"cut", &cut}, {"hang", &hang}, {"slow", &slow}, {"silence", &silence}, {"seed", &seed}};
    for (const char *at = text; *at;) {
        char name[8] = "";
        double value = -1, *to = NULL;
        int length = 0;
        (void)sscanf(at, "%7[a-z]:%lf%n", name, &value, &length);
        for (size_t i = 0; i < COUNT_OF(known); i++)
            if (!strcmp(name, known[i].name)) to = known[i].value;
        if (!to || !(value >= 0 && value <= FAULT_MAX) || (at[length] && (at[length] != ',' || !at[length + 1])))
            return fail(error, ERROR_USAGE, "\"%.40s\" is no fault of reads: fail:0.001,cut:0.1,hang:0.01,slow:5", at);
        *to = value;
        at += length + (at[length] == ',');
    }
    *(ExpertCacheFaults *)faults = (ExpertCacheFaults){fails, cut, hang, (int)slow, (int)silence, (uint64_t)seed};
    return true;
}
