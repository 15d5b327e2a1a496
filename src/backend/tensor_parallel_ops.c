/* Operations: every rank computes its share of each. */
#include "backend/recurrent.h"
#include "backend/tensor_parallel_internal.h"

/* Makes the next rank at or behind `part` that computes this step current and returns it; NULL: none is left. */
static Backend *next_part(Parallel *t, int *part) {
    while (*part < t->count && !t->walks[*part]) ++*part;
    return *part < t->count ? parallel_enter(t, *part) : NULL;
}
#define EACH_PART(t, p, part) (int p = 0; (part = next_part(t, &p)); p++)

static const float *vector_of(const float *vector, int part) {
    return vector ? ((const Shared *)(const void *)vector)->data[part] : NULL;
}

/* The rank's view of a norm, stored in *room. */
static const Norm *norm_of(const Norm *norm, int part, Norm *room) {
    if (!norm) return NULL;
    *room = *norm;
    room->weight = vector_of(norm->weight, part);
    room->bias = vector_of(norm->bias, part);
    return room;
}

static void parallel_embed(Backend *backend, const Embed *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Embed own = *op;
            own.table = &shared_of(op->table)->part[p];
            own.out = parallel_at(t, p, op->out);
            own.given_count = 0;
            part->ops->embed(part, &own);
            for (int i = 0; i < op->given_count; i++) {
                const EmbeddingRange *range = &op->given[i];
                const size_t bytes = (size_t)(range->rows * op->table->cols) * sizeof(float);
                float *to = own.out + range->row * op->table->cols;
                if (range->in_backend)
                    part->ops->copy(part, to, parallel_at(t, p, range->values), bytes);
                else
                    part->ops->upload(part, to, range->values, bytes);
            }
        }
}

static void parallel_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Norm own;
            part->ops->norm(part, rows, parallel_at(t, p, x), norm_of(norm, p, &own), parallel_at(t, p, out));
        }
}

static Matmul own_matmul(const Parallel *t, int part, const Matmul *op, Norm *norm) {
    Matmul own = *op;
    own.x = parallel_at(t, part, op->x);
    own.norm = norm_of(op->norm, part, norm);
    for (int i = 0; i < op->count; i++) {
        own.weight[i] = &shared_of(op->weight[i])->part[part];
        own.out[i] = parallel_at(t, part, op->out[i]);
    }
    return own;
}

static void parallel_matmul(Backend *backend, const Matmul *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Norm norm;
            const Matmul own = own_matmul(t, p, op, &norm);
            part->ops->matmul(part, &own);
        }
}

static Glu own_glu(const Parallel *t, int part, const Glu *op, Norm *norm) {
    Glu own = *op;
    own.x = parallel_at(t, part, op->x);
    own.norm = norm_of(op->norm, part, norm);
    own.gate = &shared_of(op->gate)->part[part];
    own.up = &shared_of(op->up)->part[part];
    own.out = parallel_at(t, part, op->out);
    return own;
}

static void parallel_glu(Backend *backend, const Glu *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Norm norm;
            const Glu own = own_glu(t, p, op, &norm);
            part->ops->glu(part, &own);
        }
}

/* ---- sums over the ranks ---- */

/* Replaces the terms y[part] of every rank by their sum in the order of the ranks. */
static void sum_on_host(Parallel *t, float *const *y, int64_t count) {
    Backend *part;
    const size_t bytes = (size_t)count * sizeof(float);
    for
        EACH_PART(t, p, part) {
            part->ops->download(part, p ? t->more : t->sum, y[p], bytes);
            for (int64_t i = 0; p > 0 && i < count; i++) t->sum[i] += t->more[i];
        }
    for
        EACH_PART(t, p, part) part->ops->upload(part, y[p], t->sum, bytes);
}

/* terms: [ranks] set by the rank's operation if the weight is divided by columns. */
static MatmulAdd own_matmul_add(const Parallel *t, int part, const MatmulAdd *op, Norm *norm, float **terms) {
    MatmulAdd own = *op;
    own.x = parallel_at(t, part, op->x);
    own.weight = &shared_of(op->weight)->part[part];
    own.norm = norm_of(op->norm, part, norm);
    own.residual = parallel_at(t, part, op->residual);
    own.partial = op->weight->split == SPLIT_COLUMNS ? &terms[part] : NULL;
    return own;
}

/* Completes an operation that all ranks have begun: residual += scale · norm(Σ terms). terms: [ranks]; NULL: the rank
 * has completed it. */
static void sum_among_parts(Parallel *t, const MatmulAdd *op, float *const *terms) {
    Backend *part;
    Norm norm;
    for
        EACH_PART(t, p, part) {
            if (!terms[p]) continue;
            const RankSum sum = {.rows = op->rows,
                .width = op->weight->rows,
                .terms = terms[p],
                .residual = parallel_at(t, p, op->residual),
                .scale = op->scale,
                .norm = norm_of(op->norm, p, &norm)};
            part->ops->all_reduce(part, &sum);
        }
}

/* Begins the products of all ranks before the sums, so that no rank waits for a product that has not been submitted. */
static void add_among_parts(Parallel *t, const MatmulAdd *op) {
    Backend *part;
    Norm norm;
    float *terms[BACKEND_RANKS_MAX] = {0};
    for
        EACH_PART(t, p, part) {
            const MatmulAdd own = own_matmul_add(t, p, op, &norm, terms);
            part->ops->matmul_add(part, &own);
        }
    sum_among_parts(t, op, terms);
}

static void parallel_matmul_add(Backend *backend, const MatmulAdd *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    const int64_t width = op->weight->rows;
    if (parallel_sums(t) || op->weight->split != SPLIT_COLUMNS) {
        add_among_parts(t, op);
        return;
    }
    for
        EACH_PART(t, p, part) {
            const Matmul own = {.rows = op->rows,
                .decode_rows = op->decode_rows,
                .x = parallel_at(t, p, op->x),
                .count = 1,
                .weight = {&shared_of(op->weight)->part[p]},
                .out = {t->terms[p]}};
            part->ops->matmul(part, &own);
        }
    sum_on_host(t, t->terms, op->rows * width);
    for
        EACH_PART(t, p, part) {
            Norm norm;
            part->ops->add(part, op->rows, width, parallel_at(t, p, op->residual), t->terms[p], op->scale,
                norm_of(op->norm, p, &norm));
        }
}

static void parallel_ffn_block(Backend *backend, const FfnBlock *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    float *terms[BACKEND_RANKS_MAX] = {0};
    if (!parallel_sums(t)) {
        parallel_glu(backend, &op->glu);
        parallel_matmul_add(backend, &op->down);
        return;
    }
    for
        EACH_PART(t, p, part) {
            Norm in, out;
            const FfnBlock own = {own_glu(t, p, &op->glu, &in), own_matmul_add(t, p, &op->down, &out, terms)};
            part->ops->ffn_block(part, &own);
        }
    sum_among_parts(t, &op->down, terms);
}

/* ---- attention ---- */

static Attention own_attention(Parallel *t, int part, const Attention *op, Norm *q_norm, Norm *k_norm) {
    Attention own = *op;
    own.heads /= t->count;
    own.kv = parallel_layer(t, part, &op->kv);
    own.q_norm = norm_of(op->q_norm, part, q_norm);
    own.k_norm = norm_of(op->k_norm, part, k_norm);
    own.rope = parallel_rope(t, part, op->rope);
    own.sinks = vector_of(op->sinks, part);
    own.slopes = vector_of(op->slopes, part);
    own.q = parallel_at(t, part, op->q);
    own.k = parallel_at(t, part, op->k);
    own.v = parallel_at(t, part, op->v);
    own.gate = parallel_at(t, part, op->gate);
    own.out = parallel_at(t, part, op->out);
    return own;
}

static void parallel_attention(Backend *backend, const Attention *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Norm q_norm, k_norm;
            const Attention own = own_attention(t, p, op, &q_norm, &k_norm);
            part->ops->attention(part, &own);
        }
}

static void parallel_attention_block(Backend *backend, const AttentionBlock *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    float *terms[BACKEND_RANKS_MAX] = {0};
    if (!parallel_sums(t)) {
        parallel_matmul(backend, &op->project);
        parallel_attention(backend, &op->attention);
        parallel_matmul_add(backend, &op->output);
        return;
    }
    for
        EACH_PART(t, p, part) {
            Norm in, q_norm, k_norm, out;
            const AttentionBlock own = {own_matmul(t, p, &op->project, &in),
                own_attention(t, p, &op->attention, &q_norm, &k_norm), own_matmul_add(t, p, &op->output, &out, terms)};
            part->ops->attention_block(part, &own);
        }
    sum_among_parts(t, &op->output, terms);
}

/* Not reached: models with MLA are refused when a model is divided. */
static void parallel_mla(Backend *backend, const Mla *op) { CHECK(!"latents in parts"); }

/* ---- recurrent states ---- */

/* A rank's part of a page: as of the whole, with its share of the heads and channels. */
static RecurrentPart own_place(const Parallel *t, int part, const RecurrentPart *place) {
    return (RecurrentPart){parallel_layer(t, part, &place->kv), place->anchor_at / t->count, place->row_at / t->count};
}

static void parallel_conv(Backend *backend, const Conv *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Conv own = *op;
            own.place = own_place(t, p, &op->place);
            for (int i = 0; i < op->part_count; i++) {
                ConvPart *channels = &own.part[i];
                channels->channels /= t->count;
                channels->weight = vector_of(channels->weight, p);
                channels->bias = vector_of(channels->bias, p);
                channels->x = parallel_at(t, p, channels->x);
                channels->out = parallel_at(t, p, channels->out);
            }
            own.in_gate = parallel_at(t, p, op->in_gate);
            own.out_gate = parallel_at(t, p, op->out_gate);
            part->ops->conv(part, &own);
        }
}

static void parallel_recurrence(Backend *backend, const Recurrence *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Norm q_norm, k_norm;
            Recurrence own = *op;
            own.place = own_place(t, p, &op->place);
            own.key_heads /= t->count;
            own.value_heads /= t->count;
            own.q_norm = norm_of(op->q_norm, p, &q_norm);
            own.k_norm = norm_of(op->k_norm, p, &k_norm);
            own.rope = parallel_rope(t, p, op->rope);
            own.rate = vector_of(op->rate, p);
            own.dt_bias = vector_of(op->dt_bias, p);
            own.dt_slope = vector_of(op->dt_slope, p);
            own.skip = vector_of(op->skip, p);
            own.q = parallel_at(t, p, op->q);
            own.k = parallel_at(t, p, op->k);
            own.v = parallel_at(t, p, op->v);
            own.a = parallel_at(t, p, op->a);
            own.b = parallel_at(t, p, op->b);
            own.work = parallel_at(t, p, op->work);
            own.out = parallel_at(t, p, op->out);
            part->ops->recurrence(part, &own);
        }
}

static void parallel_gated_norm(Backend *backend, const GatedNorm *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            GatedNorm own = *op;
            own.width /= t->count;
            own.weight = vector_of(op->weight, p);
            own.x = parallel_at(t, p, op->x);
            own.gate = parallel_at(t, p, op->gate);
            own.out = parallel_at(t, p, op->out);
            part->ops->gated_norm(part, &own);
        }
}

/* ---- experts ---- */

static void parallel_route(Backend *backend, const Routing *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Routing own = *op;
            own.logits = parallel_at(t, p, op->logits);
            own.bias = vector_of(op->bias, p);
            own.shared_logits = parallel_at(t, p, op->shared_logits);
            own.index = parallel_at(t, p, op->index);
            own.weight = parallel_at(t, p, op->weight);
            part->ops->route(part, &own);
        }
}

static void parallel_experts(Backend *backend, const Experts *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    const int64_t width = op->down[0].rows;
    float *out[BACKEND_RANKS_MAX] = {0};
    for
        EACH_PART(t, p, part) {
            Experts own = *op;
            own.x = parallel_at(t, p, op->x);
            own.gate = parallel_bank(t, p, op->gate, op->count);
            own.up = parallel_bank(t, p, op->up, op->count);
            own.down = parallel_bank(t, p, op->down, op->count);
            own.index = parallel_at(t, p, op->index);
            own.weight = parallel_at(t, p, op->weight);
            own.work = parallel_at(t, p, op->work);
            own.out = out[p] = parallel_at(t, p, op->out);
            CHECK(own.gate && own.up && own.down);
            part->ops->experts(part, &own);
        }
    if (!parallel_sums(t)) {
        sum_on_host(t, out, op->rows * width);
        return;
    }
    for
        EACH_PART(t, p, part) {
            const RankSum sum = {.rows = op->rows, .width = width, .terms = out[p]};
            part->ops->all_reduce(part, &sum);
        }
}

/* ---- rows ---- */

/* Works on the divided activations between the two products of an FFN without a gate. */
static void parallel_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part)
    part->ops->activate(part, count / t->count, parallel_at(t, p, x), activation, parallel_at(t, p, out));
}

/* All ranks have both factors whole. */
static void parallel_multiply(Backend *backend, const Multiply *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Multiply own = *op;
            own.x = parallel_at(t, p, op->x);
            own.y = parallel_at(t, p, op->y);
            own.out = parallel_at(t, p, op->out);
            part->ops->multiply(part, &own);
        }
}

static void parallel_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part)
    part->ops->scale_queries(part, rows, width / t->count, scaling, parallel_at(t, p, x));
}

static void parallel_gather(
    Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part)
    part->ops->gather(part, count, index, parallel_at(t, p, x), width, parallel_at(t, p, out));
}

/* Every rank has all logits and so samples the same tokens, which it needs for the next step. */
static void parallel_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) part->ops->logits(part, count, parallel_at(t, p, x), scale, cap);
}

static void parallel_sum_logits(Backend *backend, const LogitSums *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            LogitSums own = *op;
            own.logits = parallel_at(t, p, op->logits);
            own.out = parallel_at(t, p, op->out);
            part->ops->sum_logits(part, &own);
        }
}

static void parallel_sample(Backend *backend, const LogitSampling *op) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            LogitSampling own = *op;
            own.logits = parallel_at(t, p, op->logits);
            own.work = parallel_at(t, p, op->work);
            part->ops->sample(part, &own);
        }
}

static void parallel_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    Parallel *t = parallel_of(backend);
    Backend *part;
    for
        EACH_PART(t, p, part) {
            Norm own;
            part->ops->add(
                part, rows, width, parallel_at(t, p, residual), parallel_at(t, p, y), scale, norm_of(norm, p, &own));
        }
}

void parallel_operations(BackendOps *ops) {
    ops->embed = parallel_embed;
    ops->norm = parallel_norm;
    ops->matmul = parallel_matmul;
    ops->glu = parallel_glu;
    ops->matmul_add = parallel_matmul_add;
    ops->ffn_block = parallel_ffn_block;
    ops->attention = parallel_attention;
    ops->attention_block = parallel_attention_block;
    ops->mla = parallel_mla;
    ops->conv = parallel_conv;
    ops->recurrence = parallel_recurrence;
    ops->gated_norm = parallel_gated_norm;
    ops->route = parallel_route;
    ops->experts = parallel_experts;
    ops->activate = parallel_activate;
    ops->multiply = parallel_multiply;
    ops->scale_queries = parallel_scale_queries;
    ops->gather = parallel_gather;
    ops->logits = parallel_logits;
    ops->sum_logits = parallel_sum_logits;
    ops->sample = parallel_sample;
    ops->add = parallel_add;
}
