/* The table of `apus info`. */
#include <stdio.h>

#include "model/decoder.h"
#include "model/kv_cache.h"
#include "model/model_internal.h"

enum { KINDS_MAX = 8, LINE_SIZE = 200 };

static const char *activation_name(Activation activation) {
    const char *const names[] = {"silu", "gelu", "gelu tanh", "relu²", "no activation"};
    return names[activation];
}

static void describe_layer(const Layer *layer, char out[LINE_SIZE]) {
    const Attention *op = &layer->attention.op;
    const Activation activation = layer->ffn == FFN_GLU ? layer->glu.activation : layer->mlp.activation;
    const int64_t inner = layer->ffn == FFN_GLU ? layer->glu.up.rows : layer->mlp.up.rows;
    char window[32] = "";
    if (op->window) {
        snprintf(window, sizeof window, ", window %d", op->window);
    }
    snprintf(out, LINE_SIZE, "attention %d heads of %d on %d kv%s%s; %s %lld %s", op->heads, op->kv.layout.head_dim,
        op->kv.layout.kv_heads, window, op->rope ? "" : ", no rope", layer->ffn == FFN_GLU ? "gated" : "mlp",
        (long long)inner, activation_name(activation));
}

static void describe_layers(const Spec *spec, Buffer *out) {
    char kinds[KINDS_MAX][LINE_SIZE], line[LINE_SIZE];
    int counts[KINDS_MAX] = {0}, kind_count = 0, rest = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        describe_layer(&spec->layers[i], line);
        int kind = 0;
        while (kind < kind_count && strcmp(kinds[kind], line) != 0) {
            kind++;
        }
        if (kind == KINDS_MAX) {
            rest++;
            continue;
        }
        if (kind == kind_count) {
            memcpy(kinds[kind_count++], line, LINE_SIZE);
        }
        counts[kind]++;
    }
    for (int i = 0; i < kind_count; i++) {
        buffer_printf(out, "%-12s %4d × %s\n", i ? "" : "layers", counts[i], kinds[i]);
    }
    if (rest) {
        buffer_printf(out, "%-12s %4d of other kinds\n", "", rest);
    }
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

static void describe_context(const Model *model, Buffer *out) {
    const int lengths[] = {1024, 4096, 16384, model->context};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        if (lengths[i] < model->context || i == COUNT_OF(lengths) - 1) {
            buffer_printf(out, "%-12s ", i ? "" : "cache");
            describe_bytes(out, kv_bytes_for(model, lengths[i]));
            buffer_printf(
                out, " for %d tokens%s\n", lengths[i], lengths[i] == model->context ? ", the context here" : "");
        }
    }
}

void model_describe(const Model *model, Buffer *out) {
    const Spec *spec = &model->spec;
    buffer_printf(out, "%-12s %s\n", "family", spec->family);
    describe_layers(spec, out);
    buffer_printf(out, "%-12s hidden %d, vocabulary %d, output matrix %s, made for %d tokens\n", "", spec->hidden,
        spec->vocab, spec->tied ? "= embedding" : "of its own", spec->positions);
    describe_weights(model, out);
    describe_context(model, out);
    const bool mixed = spec->precise && spec->coarse_head;
    buffer_printf(
        out, "%-12s %s%s; ", "machine", backend_describe(model->backend), mixed ? " (int8 for the output matrix)" : "");
    describe_bytes(out, model->scratch_bytes);
    buffer_printf(out, " to work in, steps of up to %d rows\n", model->backend->rows_max);
}
