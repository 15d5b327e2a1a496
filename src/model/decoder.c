/* The one decoder. All memory of a step is three blocks taken at its start: the residual stream, one work area that the
 * parts of a layer use in turn, and the rows whose logits are wanted. */
#include "model/decoder.h"

#include "model/ffn/glu.h"
#include "model/ffn/mlp.h"
#include "model/loader/loader.h"
#include "model/mixers/attention.h"

static int64_t ffn_width(const Layer *layer) {
    return layer->ffn == FFN_GLU ? glu_width(&layer->glu) : mlp_width(&layer->mlp);
}

int64_t layer_width(const Layer *layer) {
    const int64_t mixer = attention_width(&layer->attention), ffn = ffn_width(layer);
    return mixer > ffn ? mixer : ffn;
}

static void mixer_forward(const Layer *layer, const Block *block) {
    switch (layer->mixer) {
    case MIXER_ATTENTION: attention_forward(&layer->attention, block); break;
    }
}

static void ffn_forward(const Layer *layer, const Block *block) {
    switch (layer->ffn) {
    case FFN_GLU: glu_forward(&layer->glu, block); break;
    case FFN_MLP: mlp_forward(&layer->mlp, block); break;
    }
}

/* normed: memory for a parallel layer's common input, [rows, hidden]. */
static void layer_forward(const Layer *layer, Backend *backend, int rows, float *h, float *work, float *normed) {
    Block mixer = {.backend = backend,
        .rows = rows,
        .x = h,
        .in = layer->mixer_in,
        .work = work,
        .residual = h,
        .out = layer->mixer_out,
        .scale = layer->residual_scale};
    Block ffn = mixer;
    ffn.in = layer->ffn_in;
    ffn.out = layer->ffn_out;
    if (layer->parallel) {
        backend->ops->norm(backend, rows, h, layer->mixer_in, normed);
        mixer.x = ffn.x = normed;
        mixer.in = NULL;
    }
    mixer_forward(layer, &mixer);
    ffn_forward(layer, &ffn);
}

static int step_reach(const Step *step) {
    int reach = 0;
    for (int i = 0; i < step->run_count; i++) {
        const int end = step->runs[i].position + step->runs[i].rows;
        reach = end > reach ? end : reach;
    }
    return reach;
}

void decoder_forward(Spec *spec, Backend *backend, const Step *step, int count, const int32_t *output, float *logits) {
    const BackendOps *ops = backend->ops;
    const int rows = step->rows;
    if (spec->dynamic_rope) {
        rope_reach(spec->dynamic_rope, step_reach(step));
    }
    ops->begin(backend, step);
    float *h = ops->scratch(backend, (int64_t)rows * spec->hidden);
    float *work = ops->scratch(backend, rows * spec->work_width);
    float *extra =
        ops->scratch(backend, (int64_t)rows * spec->hidden); /* a parallel layer's input, then the wanted rows */

    ops->embed(backend, rows, step->tokens, &spec->embedding, spec->embedding_scale, h);
    for (int i = 0; i < spec->layer_count; i++) {
        layer_forward(&spec->layers[i], backend, rows, h, work, extra);
    }
    if (count == 0) {
        return;
    }
    ops->gather(backend, count, output, h, spec->hidden, extra);
    const Matmul head = {.rows = count,
        .x = extra,
        .norm = spec->final_norm,
        .count = 1,
        .weight = {&spec->head},
        .out = {logits},
        .coarse = spec->coarse_head};
    ops->matmul(backend, &head);
    if (spec->logit_scale != 1 || spec->logit_softcap != 0) {
        ops->logits(backend, (int64_t)count * spec->vocab, logits, spec->logit_scale, spec->logit_softcap);
    }
}
