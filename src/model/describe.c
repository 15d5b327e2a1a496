/* The table of `apus info`. */
#include <stdio.h>

#include "model/model_internal.h"
#include "model/runner_internal.h"

enum { KINDS_MAX = 8 };

static void describe_layers(const Spec *spec, Buffer *out) {
    Buffer kinds[KINDS_MAX] = {0}, line = {0};
    int counts[KINDS_MAX] = {0}, kind_count = 0, rest = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        buffer_clear(&line);
        layer_describe(&spec->layers[i], &line);
        int kind = 0;
        while (kind < kind_count && !slice_equal(buffer_view(&kinds[kind]), buffer_view(&line))) kind++;
        if (kind == KINDS_MAX) {
            rest++;
            continue;
        }
        if (kind == kind_count) buffer_slice(&kinds[kind_count++], buffer_view(&line));
        counts[kind]++;
    }
    for (int i = 0; i < kind_count; i++) {
        buffer_printf(out, "%-12s %4d × %s\n", i ? "" : "layers", counts[i], kinds[i].data ? kinds[i].data : "");
        buffer_free(&kinds[i]);
    }
    buffer_free(&line);
    if (rest) buffer_printf(out, "%-12s %4d of other kinds\n", "", rest);
}

static void describe_bytes(Buffer *out, uint64_t bytes) {
    const double mib = (double)bytes / (1 << 20);
    if (mib >= 1024) {
        buffer_printf(out, "%.2f GiB", mib / 1024);
    } else {
        buffer_printf(out, "%.1f MiB", mib);
    }
}

static void describe_weights(const Model *model, Buffer *out) {
    const Spec *spec = &model->spec;
    uint64_t parameters = 0, bytes = 0;
    for (int i = 0; i < spec->tally_count; i++) {
        parameters += spec->tally[i].parameters;
        bytes += spec->tally[i].bytes;
    }
    buffer_printf(out, "%-12s %.1f M in matrices\n", "parameters", (double)parameters * 1e-6);
    for (int i = 0; i < spec->tally_count; i++) {
        const Tally *t = &spec->tally[i];
        buffer_printf(out, "%-12s ", i ? "" : "weights");
        describe_bytes(out, t->bytes);
        if (t->quant == QUANT_NONE) {
            buffer_printf(out, " %s", dtype_name(t->dtype));
        } else if (t->quant == QUANT_TERNARY) {
            buffer_printf(out, " ternary, a %s scale per row", dtype_name(t->dtype));
        } else {
            buffer_printf(out, " %s %d bits, groups of %d, %s scales", quant_name(t->quant), t->bits, t->group,
                dtype_name(t->dtype));
        }
        buffer_printf(out, " (%.1f M)\n", (double)t->parameters * 1e-6);
    }
    if (model->weight_bytes > bytes) {
        buffer_printf(out, "%-12s ", "");
        describe_bytes(out, model->weight_bytes - bytes);
        buffer_printf(out, " norms and biases\n");
    }
}

static void describe_context(const Runner *runner, Buffer *out) {
    const Model *model = runner->model;
    const int lengths[] = {1024, 4096, 16384, model->context};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        if (lengths[i] < model->context || i == COUNT_OF(lengths) - 1) {
            buffer_printf(out, "%-12s ", i ? "" : "cache");
            describe_bytes(out, kv_bytes_for(&runner->kv, NULL, lengths[i]));
            buffer_printf(
                out, " for %d tokens%s\n", lengths[i], lengths[i] == model->context ? ", the context here" : "");
        }
    }
}

/* What a snapshot of the recurrent states takes. */
static void describe_states(const KvPlan *plan, Buffer *out) {
    const size_t bytes = kv_snapshot_bytes(plan);
    size_t most = 0;
    int entries = 0;
    for (int g = 0; g < plan->group_count; g++)
        if (plan->group[g].recurrent) most += plan->group[g].page_bytes;
    for (int i = 0; i < plan->entry_count; i++) entries += plan->group[plan->entries[i].group].recurrent;
    if (!bytes) return;
    buffer_printf(out, "%-12s ", "states");
    describe_bytes(out, bytes);
    buffer_printf(out, " for a snapshot of %d recurrent layers, ", entries);
    describe_bytes(out, most);
    buffer_text(out, " at the end of a text\n");
}

static bool quantised(const KvPlan *plan, int entry) { return plan->group[plan->entries[entry].group].quantised; }
static bool biased(const KvPlan *plan, int entry) { return plan->entries[entry].k_bias; }

/* Whether the layer has a cache entry that is so. */
static bool layer_has(const KvPlan *plan, int layer, bool (*is)(const KvPlan *, int entry)) {
    for (int i = 0; i < plan->entry_count; i++)
        if (plan->layers[i] == layer && is(plan, i)) return true;
    return false;
}

/* "3 of 13 layers: 5, 11-12". */
static void describe_which(const KvPlan *plan, int layers, bool (*is)(const KvPlan *, int entry), Buffer *out) {
    int count = 0;
    for (int i = 0; i < layers; i++) count += layer_has(plan, i, is);
    buffer_printf(out, "%d of %d layers", count, layers);
    const char *before = count > 0 && count < layers ? ": " : NULL;
    for (int i = 0, end; before && i < layers; i = end) {
        for (end = i; end < layers && layer_has(plan, end, is) == layer_has(plan, i, is); end++) continue;
        if (!layer_has(plan, i, is)) continue;
        buffer_printf(out, end - i > 1 ? "%s%d-%d" : "%s%d", before, i, end - 1);
        before = ", ";
    }
}

/* What each form of --kv-cache takes: a further token far in, and whole sequences. */
static void describe_forms(const Runner *runner, Buffer *out) {
    static const char *const names[] = {"f16", "q8", "turbo6", "turbo5", "turbo4", "turbo3"};
    enum { SHORT = 8192, LONG = 32768 };
    const KvPlan *plan = &runner->kv;
    bool any = false;
    for (int i = 0; i < plan->entry_count; i++) any = any || quantised(plan, i);
    if (!any) return;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        KvFormat format;
        CHECK(kv_format_parse(names[i], &format, NULL));
        const size_t begin = kv_bytes_for(plan, &format, SHORT), end = kv_bytes_for(plan, &format, LONG);
        buffer_printf(out, "%-12s %-7s %7.1f KiB a token; ", i ? "" : "cache forms", names[i],
            (double)(end - begin) / (LONG - SHORT) / 1024);
        describe_bytes(out, begin);
        buffer_printf(out, " for %d tokens, ", SHORT);
        describe_bytes(out, end);
        buffer_printf(out, " for %d\n", LONG);
    }
    buffer_printf(out, "%-12s quantised in ", "");
    describe_which(plan, runner->model->spec.layer_count, quantised, out);
    buffer_printf(out, "; key biases, removed before that, in ");
    describe_which(plan, runner->model->spec.layer_count, biased, out);
    buffer_printf(out, "\n");
}

static void describe_mtp(const Model *model, Buffer *out) {
    const Spec *mtp = model->spec.mtp;
    if (!mtp) return;
    buffer_printf(out, "%-12s ", "mtp head");
    layer_describe(&mtp->layers[0], out);
    buffer_text(out, "; ");
    describe_bytes(out, model_mtp_bytes(model));
    buffer_text(out, " read for a draft token\n");
}

void runner_describe(const Runner *runner, Buffer *out) {
    const Model *model = runner->model;
    const Spec *spec = &model->spec;
    buffer_printf(out, "%-12s %s\n", "family", spec->family);
    describe_layers(spec, out);
    buffer_printf(out, "%-12s hidden %d, vocabulary %d, output matrix %s, made for %d tokens\n", "", spec->hidden,
        spec->vocab, spec->tied ? "= embedding" : "of its own", spec->positions);
    describe_mtp(model, out);
    describe_weights(model, out);
    describe_context(runner, out);
    describe_states(&runner->kv, out);
    describe_forms(runner, out);
    const bool mixed = spec->precise && runner->bound.coarse_head;
    buffer_printf(out, "%-12s %s%s; ", "machine", backend_describe(runner->backends[0]),
        mixed ? " (int8 for the output matrix)" : "");
    describe_bytes(out, runner->scratch_bytes[0]);
    buffer_printf(out, " to work in, steps of up to %d rows\n", runner->backends[0]->rows_max);
    if (runner->backend_count < 2) return;
    int first = 0;
    while (runner->bound.place[first] == 0) first++;
    buffer_printf(
        out, "%-12s %s, from layer %d of %d on; ", "", backend_describe(runner->backends[1]), first, spec->layer_count);
    describe_bytes(out, runner->scratch_bytes[1]);
    buffer_printf(out, " to work in\n");
}
