#include "model/bound.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

typedef struct Binding {
    Backend *backend;
    Weight weight;
} Binding;

/* The context of a visitor of one layer. The first failure ends it. */
typedef struct Binder {
    Bound *bound;
    Backend *backend;
    bool failed;
    Error *error;
} Binder;

static void bind_failed(Binder *b) {
    if (!b->failed) fail(b->error, ERROR_MEMORY, "no memory for the table of weights");
    b->failed = true;
}

static bool room_for_binding(Bound *bound) {
    if (bound->binding_count < bound->binding_capacity) return true;
    const size_t capacity = bound->binding_capacity ? 2 * bound->binding_capacity : 256;
    Binding *more = realloc(bound->bindings, capacity * sizeof *more);
    if (!more) return false;
    bound->bindings = more;
    bound->binding_capacity = capacity;
    return true;
}

static void bind_weight(void *context, Weight *weight);

/* A copy of the updates of adapters, bound like the weight. */
static void bind_updates(Binder *b, Weight *weight) {
    LowRank *copy = arena_alloc(&b->bound->arena, ADAPTERS_MAX, sizeof *copy);
    if (!copy) {
        bind_failed(b);
        return;
    }
    memcpy(copy, weight->updates, ADAPTERS_MAX * sizeof *copy);
    for (int i = 0; i < b->bound->spec->adapter_count; i++) {
        if (copy[i].a.rows == 0) continue;
        bind_weight(b, &copy[i].a);
        bind_weight(b, &copy[i].b);
    }
    weight->updates = copy;
}

static void bind_weight(void *context, Weight *weight) {
    Binder *b = context;
    if (b->failed) return;
    if (!room_for_binding(b->bound)) {
        bind_failed(b);
        return;
    }
    b->failed = !b->backend->ops->bind(b->backend, weight, b->error);
    if (b->failed) return;
    b->bound->bindings[b->bound->binding_count++] = (Binding){b->backend, *weight};
    if (weight->updates) bind_updates(b, weight);
}

static void bind_vector(void *context, const float **vector, int64_t count, Split split) {
    Weight row = {.rows = 1, .cols = count, .dtype = DTYPE_F32, .data = *vector, .split = split};
    bind_weight(context, &row);
    *vector = row.data;
}

static void bind_bank(void *context, Weight **weights, int count, Split split) {
    Binder *b = context;
    Weight *copy = b->failed ? NULL : arena_alloc(&b->bound->arena, (size_t)count, sizeof *copy);
    if (!copy) {
        bind_failed(b);
        return;
    }
    memcpy(copy, *weights, (size_t)count * sizeof *copy);
    for (int i = 0; i < count; i++) {
        copy[i].split = split;
        if (copy[i].data) bind_weight(b, &copy[i]); /* others come from a source */
    }
    *weights = copy;
}

static void bind_norm(void *context, const Norm **norm) {
    Binder *b = context;
    Norm *copy = b->failed ? NULL : arena_alloc(&b->bound->arena, 1, sizeof *copy);
    if (!copy) {
        bind_failed(b);
        return;
    }
    *copy = **norm;
    if (copy->weight) bind_vector(b, &copy->weight, copy->width, SPLIT_NONE);
    if (copy->bias) bind_vector(b, &copy->bias, copy->width, SPLIT_NONE);
    *norm = copy;
}

static void bind_rope(void *context, const Rope **rope) {
    Binder *b = context;
    Rope *copy = b->failed ? NULL : arena_alloc(&b->bound->arena, 1, sizeof *copy);
    if (!copy) {
        bind_failed(b);
        return;
    }
    *copy = **rope;
    bind_vector(b, &copy->frequencies, copy->dims / 2, SPLIT_NONE);
    *rope = copy;
}

/* The input of parallel components is normalised once. */
static void check_groups(const Layer *layer) {
    for (int c = 0; c < layer->component_count; c++) {
        const Component *component = &layer->components[c];
        CHECK(!component->parallel || c > 0);
        CHECK(
            c + 1 == layer->component_count || !component[1].parallel || component->parallel || component->input_norm);
    }
}

/* The norms through which the layer's largest group of parallel components reads. */
static int group_norms(const Layer *layer) {
    int most = 1, own = 1;
    for (int c = 1; c < layer->component_count; c++) {
        own = layer->components[c].parallel ? own + (layer->components[c].input_norm != NULL) : 1;
        most = own > most ? own : most;
    }
    return most;
}

static int64_t recurrent_width(const Layer *layer) {
    int64_t width = 0;
    for (int c = 0; c < layer->component_count; c++) {
        const int64_t own = component_recurrent(&layer->components[c]) ? component_width(&layer->components[c]) : 0;
        width = own > width ? own : width;
    }
    return width;
}

/* The activation that the component has from the checkpoint's family; NULL: none. */
static const Activation *activation_of(const Component *component) {
    switch (component->kind) {
    case COMPONENT_GLU: return &component->glu.activation;
    case COMPONENT_MLP: return &component->mlp.activation;
    case COMPONENT_MOE: return &component->moe.activation;
    case COMPONENT_LAYER_INPUT: return &component->layer_input.activation;
    default: return NULL;
    }
}

bool bound_activation(const Backend *backend, Activation activation, const char *where, Error *error) {
    if (!backend_lacks(backend, CAPABILITY_ACTIVATIONS + activation.kind)) return true;
    return fail(error, ERROR_UNSUPPORTED, "%s: the backend %s cannot compute the activation %s", where,
        backend->ops->name, activation_name(activation));
}

/* What the component needs and the backend cannot compute; NULL: nothing. */
static const char *missing_operation(const Backend *backend, const Component *component) {
    const BackendOps *ops = backend->ops;
    if (component_recurrent(component) && !ops->recurrence) return "recurrent layers";
    switch (component->kind) {
    case COMPONENT_SHARED_ATTENTION: return ops->join_groups ? NULL : "attention to residual and embedding";
    case COMPONENT_RG_LRU: return ops->rg_lru ? NULL : "real-gated recurrences";
    case COMPONENT_INDEXER: return ops->index_select ? NULL : "a sparse indexer";
    case COMPONENT_COMPRESSOR: return ops->compress ? NULL : "compressed keys";
    case COMPONENT_COMPRESSED_ATTENTION: return ops->compressed_attention ? NULL : "attention to compressed keys";
    case COMPONENT_NORM_GATE: return ops->gate_heads ? NULL : "gated norms";
    case COMPONENT_HYPER_COLLAPSE: return ops->hyper_connect ? NULL : "hyper-connections";
    case COMPONENT_MLA:
        if (component->mla.gate.rows && !ops->gate_heads) return "gates of attention heads";
        if (component->mla.joined && !ops->join_groups) return "joined queries of low rank";
        return component->mla.op.selection.block && !ops->index_select ? "a sparse indexer" : NULL;
    case COMPONENT_ALTUP_PREDICT: return ops->mix_streams ? NULL : "AltUp";
    case COMPONENT_GLU: return component->glu.sparse && !ops->sparsify ? "sparse activations" : NULL;
    case COMPONENT_MOE:
        if (component->moe.identities && backend_lacks(backend, CAPABILITY_IDENTITIES))
            return "identities among experts";
        if (component->moe.table && !ops->hyper_connect /* together */) return "hash routing";
        if (component->moe.score == ROUTE_SQRT_SOFTPLUS && backend_lacks(backend, CAPABILITY_SQRT_SOFTPLUS))
            return "experts' scores";
        return component->moe.weigh_inputs && backend_lacks(backend, CAPABILITY_INPUT_WEIGHTS)
            ? "weights of experts' inputs"
            : NULL;
    case COMPONENT_ATTENTION:
        if (component->attention.op.selection.block && !ops->index_select) return "block-sparse attention";
        if (component->attention.head_gate && !ops->gate_heads) return "gates of attention heads";
        return component->attention.op.chunked && backend_lacks(backend, CAPABILITY_CHUNKED) ? "chunked attention"
                                                                                             : NULL;
    default: return NULL;
    }
}

/* Whether the layer's backend has the operations of its components. */
static bool check_operations(const Bound *bound, int i, Error *error) {
    const Backend *backend = bound_backend(bound, i);
    char where[32];
    snprintf(where, sizeof where, "layer %d", i);
    bool ok = true;
    for (int c = 0; ok && c < bound->layers[i].component_count; c++) {
        const Component *component = &bound->layers[i].components[c];
        const char *missing = missing_operation(backend, component);
        if (missing)
            return fail(
                error, ERROR_UNSUPPORTED, "%s: the backend %s cannot compute %s", where, backend->ops->name, missing);
        const Activation *own = activation_of(component);
        ok = !own || bound_activation(backend, *own, where, error);
        if (component->kind == COMPONENT_MOE && component->moe.dense.gate.rows)
            ok = ok && bound_activation(backend, component->moe.dense.activation, where, error);
    }
    return ok;
}

/* What the layer needs of the step's memory. */
static void measure_layer(Bound *bound, const Layer *layer) {
    const int norms = group_norms(layer);
    const int64_t width = layer_width(layer), recurrent = recurrent_width(layer);
    bound->group_norms = norms > bound->group_norms ? norms : bound->group_norms;
    bound->width = width > bound->width ? width : bound->width;
    bound->recurrent_width = recurrent > bound->recurrent_width ? recurrent : bound->recurrent_width;
    for (int c = 0; c < layer->component_count; c++) {
        const Component *component = &layer->components[c];
        CHECK(component->reads < c + !component->reads);
        bound->keeps = bound->keeps || component->reads != 0;
        if (component->kind != COMPONENT_INDEXER) continue;
        const int chosen = indexer_width(&component->indexer);
        CHECK(bound->chosen_width == 0 || bound->chosen_width == chosen);
        bound->chosen_width = chosen;
    }
}

static void bind_layer_inputs(Binder *b) {
    LayerInputs *inputs = &b->bound->layer_inputs;
    *inputs = b->bound->spec->layer_inputs;
    if (!inputs->embedding.rows) return;
    bind_weight(b, &inputs->embedding);
    bind_weight(b, &inputs->projection);
    bind_norm(b, &inputs->norm);
}

static void bind_state_input(Binder *b) {
    Bound *bound = b->bound;
    const int rows = bound->backends[0]->rows_max;
    bound->input = bound->spec->input;
    if (!bound->input.state.rows) return;
    bind_weight(b, &bound->input.token);
    bind_weight(b, &bound->input.state);
    if (bound->input.token_norm) bind_norm(b, &bound->input.token_norm);
    if (bound->input.state_norm) bind_norm(b, &bound->input.state_norm);
    bound->state_output = bound->spec->state_output;
    if (bound->state_output.rows) bind_weight(b, &bound->state_output);
    bound->given_tokens = arena_alloc(&bound->arena, (size_t)rows, sizeof *bound->given_tokens);
    if (!bound->given_tokens) bind_failed(b);
    for (int i = 0; bound->given_tokens && i < rows; i++) bound->given_tokens[i] = TOKEN_GIVEN;
}

/* That of the last layer; parts of an encoder without layers have one. */
static Backend *last_backend(const Bound *bound) {
    const int count = bound->spec->layer_count;
    return count ? bound_backend(bound, count - 1) : bound->backends[0];
}

static void bind_hyper(Binder *b) {
    HyperConnections *hyper = &b->bound->hyper;
    *hyper = b->bound->spec->hyper;
    if (!hyper->streams) return;
    b->backend = last_backend(b->bound);
    bind_weight(b, &hyper->head.mix);
    bind_norm(b, &hyper->head.norm);
    bind_vector(b, &hyper->head.scale, 1, SPLIT_NONE);
    bind_vector(b, &hyper->head.base, hyper->streams, SPLIT_NONE);
    b->backend = bound_backend(b->bound, 0);
}

static void bind_streams(Binder *b) {
    AltUp *altup = &b->bound->altup;
    *altup = b->bound->spec->altup;
    if (!altup->streams) return;
    bind_bank(b, &altup->expand, altup->streams - 1, SPLIT_NONE);
    b->backend = last_backend(b->bound);
    bind_bank(b, &altup->merge, altup->streams - 1, SPLIT_NONE);
    b->backend = bound_backend(b->bound, 0);
}

static bool bind_layers(Bound *bound, int split, Error *error) {
    const Spec *spec = bound->spec;
    const size_t count = (size_t)spec->layer_count;
    bound->layers = arena_alloc(&bound->arena, count, sizeof *bound->layers);
    bound->place = arena_alloc(&bound->arena, count + 1, sizeof *bound->place); /* parts of an encoder have no layers */
    if (!bound->layers || !bound->place) return fail(error, ERROR_MEMORY, "no memory for the table of weights");
    Binder binder = {.bound = bound, .error = error};
    const Visitor visitor = {.weight = bind_weight,
        .norm = bind_norm,
        .rope = bind_rope,
        .vector = bind_vector,
        .bank = bind_bank,
        .context = &binder};
    for (int i = 0; i < spec->layer_count; i++) {
        bound->place[i] = split > 0 && i >= split;
        bound->layers[i] = spec->layers[i];
        binder.backend = bound_backend(bound, i);
        if (!check_operations(bound, i, error)) return false;
        layer_visit(&bound->layers[i], &visitor);
        check_groups(&bound->layers[i]);
        measure_layer(bound, &bound->layers[i]);
    }
    bound->embedding = spec->embedding;
    bound->final_norm = spec->final_norm;
    bound->head = spec->head;
    binder.backend = bound_backend(bound, 0);
    if (spec->embedding.rows) bind_weight(&binder, &bound->embedding);
    bound->position_embedding = spec->position_embedding;
    if (bound->position_embedding.rows) bind_weight(&binder, &bound->position_embedding);
    bound->embedding_norm = spec->embedding_norm;
    if (bound->embedding_norm) bind_norm(&binder, &bound->embedding_norm);
    bind_layer_inputs(&binder);
    bind_state_input(&binder);
    bind_streams(&binder);
    bind_hyper(&binder);
    if (spec->tied && last_backend(bound) == binder.backend) {
        bound->head = bound->embedding;
    } else {
        binder.backend = last_backend(bound);
        if (spec->head.rows) bind_weight(&binder, &bound->head);
    }
    if (bound->final_norm) bind_norm(&binder, &bound->final_norm);
    return !binder.failed;
}

bool bound_weight(Bound *bound, Weight *weight, Error *error) {
    Binder binder = {.bound = bound, .backend = bound->backends[0], .error = error};
    bind_weight(&binder, weight);
    return !binder.failed;
}

bool bound_norm(Bound *bound, const Norm **norm, Error *error) {
    Binder binder = {.bound = bound, .backend = bound->backends[0], .error = error};
    bind_norm(&binder, norm);
    return !binder.failed;
}

/* Host memory from which the second backend uploads fast. */
static void *take_staging(Backend *upper, size_t bytes, Error *error) {
    if (upper->ops->take_host) return upper->ops->take_host(upper, bytes, error);
    void *memory = malloc(bytes);
    if (!memory) fail(error, ERROR_MEMORY, "no memory for %zu bytes between two backends", bytes);
    return memory;
}

static bool open_seam(Bound *bound, Error *error) {
    Backend *upper = bound->backends[1];
    const int rows = bound->backends[0]->rows_max;
    size_t floats, bytes;
    if (!size_mul((size_t)rows, (size_t)bound_residual_width(bound), &floats) ||
        !size_mul(floats, sizeof(float), &bytes))
        return fail(error, ERROR_MEMORY, "no memory for a step of %d rows", rows);
    bound->staging = take_staging(upper, bytes, error);
    if (bound->staging) bound->arrival = upper->ops->alloc(upper, bytes, MEMORY_STEP, error);
    return bound->arrival;
}

static void close_seam(Bound *bound) {
    Backend *upper = bound->backends[1];
    if (bound->arrival) upper->ops->release(upper, bound->arrival);
    if (bound->staging && upper->ops->give_host)
        upper->ops->give_host(upper, bound->staging);
    else
        free(bound->staging);
}

bool bound_open(Bound *bound, const Spec *spec, Backend *const *backends, int backend_count, int split, Error *error) {
    CHECK(backend_count >= 1 && backend_count <= BACKENDS_MAX && (split > 0) == (backend_count > 1));
    *bound = (Bound){.spec = spec, .backend_count = backend_count, .group_norms = 1};
    for (int i = 0; i < backend_count; i++) bound->backends[i] = backends[i];
    const bool ok = bind_layers(bound, split, error) && (backend_count == 1 || open_seam(bound, error));
    if (!ok) bound_close(bound);
    return ok;
}

void bound_close(Bound *bound) {
    for (size_t i = 0; i < bound->binding_count; i++) {
        const Binding *binding = &bound->bindings[i];
        binding->backend->ops->unbind(binding->backend, &binding->weight);
    }
    close_seam(bound);
    free(bound->bindings);
    arena_free(&bound->arena);
    *bound = (Bound){0};
}

int64_t bound_residual_width(const Bound *bound) {
    return (int64_t)bound->spec->hidden * (1 + bound_streams(bound)) + layer_inputs_stride(&bound->layer_inputs);
}

int bound_streams(const Bound *bound) { return bound->altup.streams + bound->hyper.streams; }

Backend *bound_backend(const Bound *bound, int layer) { return bound->backends[bound->place[layer]]; }
