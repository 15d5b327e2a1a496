#include "model/runner.h"

#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "model/decoder.h"
#include "model/model_internal.h"
#include "model/runner_internal.h"
#include "model/step_builder.h"

enum { RUNNER_ROWS_DEFAULT = 512 };

/* ---- the plan ---- */

/* The entries of the cache: the first component that names one fills it. */
static bool list_entries(const Bound *bound, CacheSpec *specs, Backend **backends, Error *error) {
    int count = 0;
    for (int i = 0; i < bound->spec->layer_count; i++)
        for (int c = 0; c < bound->layers[i].component_count; c++) {
            const Component *component = &bound->layers[i].components[c];
            const ComponentOps *ops = component_ops(component->kind);
            const int entry = component->cache_entry, state = component->state_entry;
            CHECK(entry <= count && entry < bound->spec->cache_entries);
            if (entry >= 0 && entry < count && backends[entry] != bound_backend(bound, i))
                return fail(error, ERROR_UNSUPPORTED,
                    "layer %d attends to the cache of layer %d: both must be on the same device", i,
                    specs[entry].layer);
            if (entry == count) {
                specs[count] = ops->cache_spec(component);
                specs[count].layer = i;
                backends[count++] = bound_backend(bound, i);
            }
            if (state < 0 || state < count) continue;
            CHECK(state == count && state < bound->spec->cache_entries);
            specs[count] = ops->state_spec(component);
            specs[count].layer = i;
            backends[count++] = bound_backend(bound, i);
        }
    CHECK(count == bound->spec->cache_entries);
    return true;
}

static bool make_kv_plan(const Bound *bound, int context, int sequence_rows_max, KvPlan *plan, Error *error) {
    const size_t count = (size_t)bound->spec->cache_entries + 1; /* never no bytes */
    CacheSpec *specs = calloc(count, sizeof *specs);
    Backend **backends = calloc(count, sizeof *backends);
    bool ok = (specs && backends) || fail(error, ERROR_MEMORY, "no memory for the plan of a KV cache");
    ok = ok && list_entries(bound, specs, backends, error) &&
        kv_plan_make(plan, specs, backends, bound->spec->cache_entries, context, error);
    plan->rows_max = sequence_rows_max ? min_int(plan->rows_max, sequence_rows_max) : plan->rows_max;
    free(specs);
    free(backends);
    return ok;
}

/* The decoder over a backend that computes nothing, with the largest step there can be: every shape is checked, scratch
 * is counted. */
static bool plan_step(Runner *runner, Backend *const *plans, int count, int split, int rows, Error *error) {
    const Model *model = runner->model;
    Bound bound = {0};
    KvPlan kv = {0};
    uint64_t tickets[BACKENDS_MAX];
    StepBuilder builder;
    const bool states = runner->spec->input.state.rows > 0;
    const EmbeddingRange all = {.rows = rows};
    const StepCapacity capacity = {.rows = rows,
        .sequences = 1,
        .outputs = runner->outputs_max,
        .hidden_rows = runner->hidden_rows_max,
        .embeddings = states};
    bool ok = step_builder_open(&builder, &capacity, error) &&
        bound_open(&bound, runner->spec, plans, count, split, error) &&
        (runner->target || make_kv_plan(&bound, model->context, 0, &kv, error));
    const KvLayer *entries = runner->target ? runner->target->kv.entries : kv.entries;
    if (ok) {
        const StreamSchedule schedule = {
            .tile_rows = runner->schedule.tile_rows, .can_prefetch = !states && model->experts.prefetch};
        step_begin(&builder, false);
        step_add_sequence(&builder,
            &(StepSequence){.rows = rows,
                .decode = true,
                .tokens = builder.tokens,
                .embedding_count = states,
                .embeddings = &all,
                .states = states,
                .output_count = runner->outputs_max,
                .scales = builder.scales,
                .hidden_row_count = runner->hidden_rows_max});
        const Step *step = step_end(&builder, error);
        CHECK(step);
        decoder_forward(&bound, &schedule, entries, step, tickets);
        for (int i = 0; ok && i < count; i++) ok = plan_result(plans[i], &runner->scratch_bytes[i], error);
    }
    kv_plan_free(&kv);
    bound_close(&bound);
    step_builder_close(&builder);
    return ok;
}

static bool plan_runner(Runner *runner, int split, int rows, Error *error) {
    Backend *plans[BACKENDS_MAX] = {0};
    const int count = split ? 2 : 1;
    bool ok = true;
    for (int i = 0; ok && i < count; i++) ok = (plans[i] = plan_open(rows, error));
    ok = ok && plan_step(runner, plans, count, split, rows, error);
    for (int i = 0; i < count; i++) backend_close(plans[i]);
    return ok;
}

/* ---- opening ---- */

static bool open_backend(Runner *runner, const BackendOptions *wanted, int rows, Error *error) {
    BackendOptions options = *wanted;
    options.rows_max = rows;
    options.scratch_bytes = runner->scratch_bytes[runner->backend_count];
    options.precise = wanted->precise || runner->model->spec.precise;
    Backend *backend = backend_open(&options, error);
    if (backend) runner->backends[runner->backend_count++] = backend;
    return backend != NULL;
}

/* The target's backend, whose scratch is the larger one: an assistant is a small model. */
static bool use_target(Runner *runner, int rows, Error *error) {
    const Runner *target = runner->target;
    if (target->backend_count > 1)
        return fail(error, ERROR_UNSUPPORTED, "an assistant reads the KV cache of one device: no --gpu-layers");
    if (runner->scratch_bytes[0] > target->scratch_bytes[0] || rows > target->backends[0]->rows_max)
        return fail(error, ERROR_UNSUPPORTED, "an assistant that works in %zu bytes, more than the %zu of its model",
            runner->scratch_bytes[0], target->scratch_bytes[0]);
    runner->backends[runner->backend_count++] = target->backends[0];
    runner->kv = target->kv;
    return true;
}

static bool has_sub_norm(const Component *component) {
    return (component->kind == COMPONENT_ATTENTION && component->attention.sub_norm) ||
        (component->kind == COMPONENT_GLU && component->glu.sub_norm);
}

/* Why a component cannot be divided over so many devices; NULL: it can, or its matrices say why when they are bound.
 * *count: heads that cannot be divided; 0: no number is to be named. */
static const char *undivided(const Component *component, int parts, int64_t *count) {
    const AttentionComponent *attention = &component->attention;
    const Recurrence *recurrence = &component->recurrent.op;
    const GatedNorm *norm = &component->recurrent.gated_norm;
    const int64_t width = component->recurrent.o.cols / parts;
    *count = 0;
    if (has_sub_norm(component)) return "norms inside of attention or feed-forward networks";
    if (component->reads) return "components that read an earlier residual";
    switch (component->kind) {
    case COMPONENT_MLA: return "latent attention";
    case COMPONENT_MAMBA: return "recurrent layers with a state per channel (Mamba-1)";
    case COMPONENT_SHARED_ATTENTION: return "attention blocks that layers share";
    case COMPONENT_INDEXER: return "a sparse indexer";
    case COMPONENT_COMPRESSED_ATTENTION: return "attention to compressed keys";
    case COMPONENT_HYPER_COLLAPSE: return "streams of hyper-connections";
    case COMPONENT_MOE:
        if (component->moe.identities) return "identities among experts";
        return component->moe.dense.gate.rows ? "a feed-forward network beside experts" : NULL;
    case COMPONENT_ATTENTION:
        if (attention->op.selection.block) return "attention to chosen keys";
        if (attention->conv.taps) return "convolutions of keys and values";
        if (attention->v_norm || attention->head_norm) return "norms of values or of each head's own";
        if (attention->op.norm_full) return "norms over all heads together";
        *count = attention->op.kv.layout.kv_heads % parts ? attention->op.kv.layout.kv_heads : 0;
        return *count ? "heads of keys and values" : NULL;
    case COMPONENT_RECURRENT:
        if (recurrence->tiled) return "recurrent layers in llama.cpp's order of heads";
        *count = recurrence->value_heads % parts ? recurrence->value_heads : 0;
        if (*count) return "heads of a recurrent layer";
        *count = recurrence->key_heads % parts ? recurrence->key_heads : 0;
        if (*count) return "key heads or groups of a recurrent layer";
        return norm->group && width % norm->group ? "recurrent layers with one norm over all heads" : NULL;
    default: return NULL;
    }
}

/* Refuses models that cannot be divided over devices. Matrices that cannot be divided are refused when they are bound.
 */
static bool can_divide(const Model *model, int parts, Error *error) {
    const Spec *spec = &model->spec;
    if (model->bank)
        return fail(error, ERROR_UNSUPPORTED,
            "--tensor-parallel %d: experts that stay in their files cannot be divided so far", parts);
    for (int i = 0; i < spec->layer_count; i++)
        for (int c = 0; c < spec->layers[i].component_count; c++) {
            int64_t count;
            const char *what = undivided(&spec->layers[i].components[c], parts, &count);
            if (what && count)
                return fail(error, ERROR_UNSUPPORTED, "--tensor-parallel %d: layer %d: %lld %s cannot be divided",
                    parts, i, (long long)count, what);
            if (what)
                return fail(error, ERROR_UNSUPPORTED, "--tensor-parallel %d: layer %d: %s cannot be divided so far",
                    parts, i, what);
        }
    return true;
}

/* Experts come from their files to the first backend alone. */
static bool can_stream(const Runner *runner, int split, Error *error) {
    const Spec *spec = &runner->model->spec;
    const Backend *first = runner->backends[0];
    bool above = false;
    for (int i = split; split && i < spec->layer_count; i++) {
        const MoeComponent *moe = layer_moe(&spec->layers[i]);
        above = above || (moe && moe->source);
    }
    if (first->sources && first->ops->set_rows && !above) return true;
    return fail(error, ERROR_UNSUPPORTED,
        "%s cannot stream experts: that is the processor's. With --gpu-layers N the last N layers and their experts "
        "are on the GPU, and those of the others are streamed",
        above ? runner->backends[1]->ops->name : first->ops->name);
}

static bool open_parts(Runner *runner, const RunnerOptions *options, Error *error) {
    const Spec *spec = runner->spec;
    const int rows = options->backend.rows_max ? options->backend.rows_max : RUNNER_ROWS_DEFAULT;
    if (rows < 0 || rows > RUNNER_ROWS_MAX)
        return fail(error, ERROR_USAGE, "a step of %d rows cannot be, at most %d", rows, RUNNER_ROWS_MAX);
    if (options->split < 0 || options->split >= spec->layer_count)
        return fail(error, ERROR_USAGE, "layers from %d on cannot be split off, there are %d", options->split,
            spec->layer_count);
    const int outputs = options->outputs_max && options->outputs_max < rows ? options->outputs_max : rows;
    runner->outputs_max = outputs;
    runner->hidden_rows_max = options->hidden_rows_max < rows ? options->hidden_rows_max : rows;
    runner->schedule.tile_rows = options->layer_tile_rows ? options->layer_tile_rows
        : runner->bank                                    ? LAYER_TILE_ROWS_MAX
                                                          : 0;
    const int parts = options->backend.tensor_parallel;
    if (parts > 1 && options->split)
        return fail(error, ERROR_USAGE, "--tensor-parallel has all layers on its devices: no --gpu-layers");
    if (spec->adapter_count && parts > 1)
        return fail(error, ERROR_UNSUPPORTED,
            "LoRA adapters are not divided between devices so far: --tensor-parallel does not go with --lora");
    if (parts > 1 && !can_divide(runner->model, parts, error)) return false;
    if (!plan_runner(runner, options->split, rows, error) ||
        !(runner->target ? use_target(runner, rows, error) : open_backend(runner, &options->backend, rows, error)) ||
        (options->split && !open_backend(runner, &options->upper, rows, error)) ||
        !bound_open(&runner->bound, spec, runner->backends, runner->backend_count, options->split, error))
        return false;
    if ((runner->bank || runner->schedule.tile_rows) && !can_stream(runner, options->split, error)) return false;
    runner->schedule.can_prefetch = !options->mtp && runner->model->experts.prefetch;
    if (!options->split) runner->schedule.experts = runner->bank;
    runner->bound.coarse_head = !(options->split ? options->upper.precise : options->backend.precise);
    return runner->target ||
        make_kv_plan(&runner->bound, runner->model->context, options->sequence_rows_max, &runner->kv, error);
}

Runner *runner_open(const Model *model, const RunnerOptions *options, Error *error) {
    Runner *runner = calloc(1, sizeof *runner);
    if (!runner) {
        fail(error, ERROR_MEMORY, "no memory for a runner");
        return NULL;
    }
    runner->model = model;
    runner->target = options->target;
    runner->spec = options->mtp ? model->spec.mtp : &model->spec;
    runner->bank = options->mtp ? NULL : model->bank;
    CHECK(runner->spec && !(options->mtp && options->split));
    CHECK((runner->target != NULL) == (runner->spec == &model->spec && model_is_assistant(model)));
    if (open_parts(runner, options, error)) return runner;
    if (error && error->code != ERROR_USAGE) fail_while(error, "%s", model->directory);
    runner_close(runner);
    return NULL;
}

void runner_close(Runner *runner) {
    if (!runner) return;
    if (!runner->target) kv_plan_free(&runner->kv);
    bound_close(&runner->bound);
    for (int i = 0; i < runner->backend_count && !runner->target; i++) backend_close(runner->backends[i]);
    free(runner);
}

uint64_t runner_scratch_bytes(const Runner *runner) {
    uint64_t bytes = 0;
    for (int i = 0; i < runner->backend_count; i++) bytes += runner->scratch_bytes[i];
    return bytes;
}
const Model *runner_model(const Runner *runner) { return runner->model; }
Backend *runner_backend(const Runner *runner) { return runner->backends[0]; }
Backend *runner_upper(const Runner *runner) { return runner->backends[runner->backend_count - 1]; }
const KvPlan *runner_kv_plan(const Runner *runner) { return &runner->kv; }
int runner_decode_rows_max(const Runner *runner) {
    int least = 0;
    for (int i = 0; i < runner->backend_count; i++) {
        const int most = runner->backends[i]->decode_rows_max;
        if (most && (!least || most < least)) least = most;
    }
    return least;
}
int runner_span_rows_max(const Runner *runner) { return stream_span_rows_max(&runner->schedule); }
const float *runner_sums(const Runner *runner) { return runner->sums; }

uint64_t runner_kv_bytes(const Runner *runner, int depth) {
    uint64_t bytes = 0;
    for (int i = 0; i < runner->bound.spec->layer_count; i++)
        for (int c = 0; c < runner->bound.layers[i].component_count; c++) {
            const Component *component = &runner->bound.layers[i].components[c];
            if (component->cache_entry < 0) continue;
            bytes += component_ops(component->kind)->cost(component, depth).cache_values *
                dtype_bytes(runner->kv.entries[component->cache_entry].layout.dtype);
        }
    return bytes;
}

/* ---- the step ---- */

/* Checks that the quantised pages that a row reads exist in every quantised layer. */
static void check_codes(const KvPlan *kv, const KvQuantView *quant, int cold) {
    for (int i = 0; i < kv->entry_count; i++) {
        const KvQuant *code = &quant->layers[i];
        if (code->k == KV_FULL) continue;
        for (int page = quant->sink / KV_PAGE_TOKENS; page < cold / KV_PAGE_TOKENS; page++)
            CHECK(quant->k_pages[i][page] >= 0 && quant->v_pages[i][page] >= 0);
    }
}

/* Whether a chunk reads or writes this page of a group; the pages of a recurrent group between its first and its last
 * are neither. */
static bool uses_page(const KvPlan *kv, int g, const SequenceChunk *chunk, int page, int first, int last) {
    const KvQuantView *quant = kv->group[g].quantised ? chunk->quant : NULL;
    if (kv->group[g].recurrent) return page == last || (page == first && chunk->position > 0);
    return page < (quant ? quant->sink : 0) / KV_PAGE_TOKENS ||
        page >= kv_cold_end(quant, chunk->position) / KV_PAGE_TOKENS;
}

/* A step must hold together: chunks in row order over all rows, every position that a row may read in a page of the
 * sequence. ahead: a row stands for the position behind its own, so that its windows are narrower. */
static void check_run(const KvPlan *kv, int ahead, int span_rows_max, const SequenceChunk *chunk) {
    CHECK(chunk->rows > 0 && chunk->position >= 0);
    CHECK(kv->group_count == 0 || chunk->rows <= kv->rows_max);
    const int end = chunk->position + chunk->rows;
    for (int i = 0; i < chunk->span_count; i++) {
        const BidirectionalSpan *span = &chunk->spans[i];
        CHECK(span->begin >= (i ? span[-1].end : chunk->position) && span->begin < span->end && span->end <= end);
        CHECK(span->end - span->begin <= span_rows_max);
    }
    for (int g = 0; g < kv->group_count; g++) {
        const int window = kv->group[g].window ? kv->group[g].window - ahead : 0;
        const int first =
            attention_range(chunk, window, false, SPANS_IN_WINDOW, chunk->position).first / kv->group[g].page_tokens;
        const int last = (end - 1) / kv->group[g].page_tokens;
        for (int page = first; page <= last; page++)
            CHECK(!uses_page(kv, g, chunk, page, first, last) || chunk->tables[g][page] >= 0);
    }
    if (chunk->quant) check_codes(kv, chunk->quant, kv_cold_end(chunk->quant, end - 1));
}

static void check_step(const Runner *runner, const Step *step) {
    int row = 0;
    CHECK(step->position_dims >= 1 && step->position_dims <= POSITION_DIMS_MAX);
    for (int r = 0; r < step->chunk_count; r++) {
        CHECK(step->chunks[r].row == row);
        check_run(&runner->kv, runner->target != NULL, runner_span_rows_max(runner), &step->chunks[r]);
        row += step->chunks[r].rows;
    }
    CHECK(row == step->rows && row > 0 && row <= runner->backends[0]->rows_max);
    CHECK(step->decode_rows >= 0 && step->decode_rows <= row);
    CHECK(step->decode_rows == 0 || step->uniform_matmul || step->decode_rows <= runner_decode_rows_max(runner));
    const bool ahead = runner_can_lookahead(runner);
    int given = 0;
    for (int i = 0; i < row; i++) {
        const int32_t token = step->tokens[i];
        CHECK(token < runner->spec->vocab);
        given += token == TOKEN_GIVEN || runner->spec->input.state.rows > 0;
        CHECK(token >= TOKEN_GIVEN || (ahead && token_output(token) < runner->backends[0]->rows_max));
    }
    for (int i = 0; i < step->embedding_count; i++) given -= step->embeddings[i].rows;
    CHECK(given == 0);
}

bool runner_samples(const Runner *runner) { return runner->backends[runner->backend_count - 1]->ops->sample; }

/* Tokens are where the last layer is, and experts that are read for one step would be taken from another. */
bool runner_can_lookahead(const Runner *runner) {
    return runner_samples(runner) && runner->backend_count == 1 && !runner->bank;
}

const int32_t *runner_sampled(const Runner *runner) { return runner->sampled; }

void runner_begin(Runner *runner, KvCache *cache, const Step *step, RunnerStep *begun) {
    check_step(runner, step);
    CHECK(step->output_count >= 0 && step->output_count <= step->rows && step->output_count <= runner->outputs_max);
    CHECK(step->hidden_row_count >= 0 && step->hidden_row_count <= step->rows &&
        step->hidden_row_count <= runner->hidden_rows_max);
    CHECK(!step->sample_params || runner_samples(runner));
    if (runner->bank) expert_cache_begin(runner->bank);
    *begun = (RunnerStep){.step = *step};
    stream_begin(&runner->schedule, step);
    begun->out = decoder_forward(&runner->bound, &runner->schedule, kv_entries(cache), step, begun->tickets);
    stream_end(&runner->schedule);
}

bool runner_end(Runner *runner, const RunnerStep *begun, float **logits, Error *error) {
    const Step *step = &begun->step;
    const int count = step->output_count;
    bool ok = true;
    runner->hidden_rows = runner->sums = NULL;
    runner->sampled = NULL;
    runner->hidden_there = NULL;
    for (int i = 0; i < runner->backend_count; i++) {
        Backend *backend = runner->backends[i];
        ok = backend->ops->wait(backend, begun->tickets[i], ok ? error : NULL) && ok;
    }
    if (runner->bank && !expert_cache_end(runner->bank, ok ? error : NULL)) ok = false;
    const char *damaged = model_damaged(runner->model);
    if (ok && damaged) ok = fail(error, ERROR_IO, "%s shrank while it was in use", damaged);
    if (!ok || !begun->out) return ok;
    Backend *last = runner->backends[runner->backend_count - 1];
    const uint64_t ticket = begun->tickets[runner->backend_count - 1];
    const Spec *spec = runner->spec;
    if (step->sample_params) {
        runner->sampled = last->ops->sampled(last, ticket);
        runner->hidden_floats = step->hidden_row_count * decoder_state_width(spec);
        if (runner->hidden_floats) runner->hidden_there = begun->out + decoder_hidden_rows_at(spec, count);
        *logits = NULL;
        return true;
    }
    const bool summed = step->scales && last->ops->sum_logits && count > 0;
    *logits = last->ops->read_logits(last, begun->out, decoder_results(spec, step, count, summed));
    if (!*logits) return last->ops->wait(last, ticket, error) && false;
    runner->hidden_rows = *logits + decoder_hidden_rows_at(spec, count);
    runner->sums = summed ? *logits + decoder_sums_at(spec, step, count) : NULL;
    return true;
}

const float *runner_hidden_rows(Runner *runner) {
    Backend *last = runner->backends[runner->backend_count - 1];
    if (runner->hidden_there)
        runner->hidden_rows = last->ops->read_logits(last, runner->hidden_there, runner->hidden_floats);
    runner->hidden_there = NULL;
    return runner->hidden_rows;
}

const float *runner_hidden_rows_there(const Runner *runner, const RunnerStep *begun) {
    return begun->out + decoder_hidden_rows_at(runner->spec, begun->step.output_count);
}

bool runner_forward(Runner *runner, KvCache *cache, const Step *step, float **logits, Error *error) {
    RunnerStep begun;
    if (!step) return false;
    runner_begin(runner, cache, step, &begun);
    return runner_end(runner, &begun, logits, error);
}
