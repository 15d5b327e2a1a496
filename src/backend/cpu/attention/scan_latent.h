/* Scans of pages of MLA latents, which are keys and values in one (kv_quant.h), part of scan_impl.h. All query heads,
 * at least a dozen, read the one latent head, so products take most of the time: the codes of a page become bytes once,
 * in the layout of keys for the scores, and are transposed in blocks of four tokens by four dims, a group of dims at a
 * time, for the sums. */
#pragma once

/* A half of a page. */
typedef struct LatentPart {
    const ScanForm *form;
    const uint8_t *codes;
    const float *mean;
    uint8_t *bytes; /* [blocks of tokens][quads of dims][16][4] */
    int behind;     /* width of the preceding part; 0: this is the first */
} LatentPart;

static const ScanQuery *record_of(const ScanPage *page, const LatentPart *part, int i) {
    return part->behind ? scan_rotating(query_at(page, i), part->behind) : query_at(page, i);
}

static int part_quads_of(const LatentPart *part) { return part->form->layout.d / 4; }

static LatentPart open_part(const ScanForm *f, const uint8_t *codes, int behind, ScanWork *work) {
    const KvQuantLayout *l = &f->layout;
    float *mean = work->mean + behind;
    uint8_t *bytes = work->unpacked + (size_t)behind * TOKENS;
    const int quads = l->group / 4;
    load_mean(f, codes, mean);
    for (int run = 0; run < TOKEN_BLOCKS * l->groups; run++)
        unpack(f, false, quads, codes + l->codes + (size_t)run * l->run, bytes + (size_t)run * quads * QUAD_BYTES);
    return (LatentPart){f, codes, mean, bytes, behind};
}

/* Fetches the next page with the products, a line at a time until it is there. */
static void multiply_bytes(const ScanForm *f, bool values, int height, const Product *p) {
    if (p->ahead->left <= 0) p->ahead->fetch.product = 0;
    products[values][form_is_wide(f->form) ? SOURCE_WIDE : SOURCE_NARROW][height - 1](p);
}

/* ---- scores ---- */

/* p ← p + the contribution of a part, p being `constant` before the first; the largest is known after the last. */
static void score_part(const ScanPage *page, const LatentPart *part, int first, int count, ScanWork *work) {
    const KvQuantLayout *l = &part->form->layout;
    const float centre = 0.5f - (float)key_offset(part->form->form);
    const int quads = l->group / 4, tokens = SCAN_CHUNK * LANES;
    Product p = {.table = part->form->table,
        .block_bytes = part_quads_of(part) * QUAD_BYTES,
        .blocks = SCAN_CHUNK,
        .x_stride = (int64_t)page->stride,
        .quads = quads,
        .ahead = &work->ahead,
        .sums = work->sums};
    load_scales(part->form, part->codes, work->scales);
    for (int block = 0; block < TOKEN_BLOCKS; block += SCAN_CHUNK)
        for (int tile = 0; tile < tiles_of(count); tile++) {
            const int from = tile_at(count, tile), height = tile_at(count, tile + 1) - from;
            for (int g = 0; g < l->groups; g++) {
                p.codes = part->bytes + (block * part_quads_of(part) + g * quads) * (int64_t)QUAD_BYTES;
                p.x = (const uint8_t *)scan_codes(record_of(page, part, first + from), l->d) + g * l->group;
                multiply_bytes(part->form, false, height, &p);
                for (int i = 0; i < height; i++) {
                    const ScanQuery *query = record_of(page, part, first + from + i);
                    const Meet meet = {query->step, query->step * query->sums[g] * centre};
                    const Vec lanes = add_group(meet, work->scales + g * TOKENS + block * LANES, tokens,
                        work->sums + i * tokens, g == 0 && !part->behind, work->constant[from + i],
                        work->p + (from + i) * TOKENS + block * LANES);
                    if (g + 1 < l->groups) continue;
                    const float most = vec_most(lanes);
                    if (block == 0 || most > work->most[from + i]) work->most[from + i] = most;
                }
            }
        }
}

/* ---- sums ---- */

typedef uint8_t Square __attribute__((vector_size(16))); /* four tokens by four dims, or the other way round */

/* The bytes of a group in the layout of values, without the offset of keys: [blocks of dims][quads of tokens][16][4].
 */
static void turn_group(const LatentPart *part, int group, uint8_t *out) {
    const int blocks = part->form->layout.group / LANES;
    const uint8_t offset = (uint8_t)key_offset(part->form->form);
    for (int block = 0; block < TOKEN_BLOCKS; block++) {
        const uint8_t *from = part->bytes + (block * part_quads_of(part) + group * blocks * 4) * (int64_t)QUAD_BYTES;
        uint8_t *to = out + (int64_t)block * 4 * QUAD_BYTES;
        for (int b = 0; b < blocks; b++, from += 4 * QUAD_BYTES, to += TOKEN_QUADS * QUAD_BYTES)
            UNROLL for (int i = 0; i < 16; i++) {
                Square x;
                memcpy(&x, from + i / 4 * QUAD_BYTES + i % 4 * 16, sizeof x);
                x = __builtin_shufflevector(x, x, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15) - offset;
                memcpy(to + i % 4 * QUAD_BYTES + i / 4 * 16, &x, sizeof x);
            }
    }
}

/* o[i] ← o[i] · factor + weights · latents, in the rotated space. */
static void add_latents_of(const LatentPart *part, int count, ScanWork *work, int stride, float *o) {
    const ScanForm *f = part->form;
    const int groups = f->layout.groups, dims = f->layout.group;
    ScanWeights *w = &work->weights;
    Product p = {.codes = work->rotated,
        .table = f->table,
        .block_bytes = TOKEN_QUADS * QUAD_BYTES,
        .blocks = dims / LANES,
        .x_stride = groups * TOKENS,
        .quads = TOKEN_QUADS,
        .ahead = &work->ahead,
        .sums = work->sums};
    for (int g = 0; g < groups; g++) {
        turn_group(part, g, work->rotated);
        for (int tile = 0; tile < tiles_of(count); tile++) {
            const int from = tile_at(count, tile), height = tile_at(count, tile + 1) - from;
            p.x = w->bytes + (from * groups + g) * TOKENS;
            multiply_bytes(f, true, height, &p);
            for (int i = 0; i < height; i++) {
                const Vec step = vec_set(w->step[from + i][g]), half = vec_set(w->half[from + i][g]),
                          factor = vec_set(work->factor[from + i]), weight = vec_set(work->weight[from + i]);
                float *row = o + (int64_t)(from + i) * stride + g * dims;
                for (int j = 0; j < dims; j += LANES) {
                    const Vec whole = vec_add(vec_from_ints(work->sums + i * dims + j), half);
                    const Vec before = vec_mul(vec_load(row + j), factor);
                    const Vec mean = vec_fma(vec_load(part->mean + g * dims + j), weight, before);
                    vec_store(row + j, vec_fma(whole, step, mean));
                }
            }
        }
    }
}

/* ---- a page ---- */

static void scan_latent_page(AttentionTile *t, int first, const ScanPage *page, ScanWork *work) {
    const int count = t->queries - first, width = page->keys->layout.d;
    const LatentPart latent = open_part(page->keys, page->k, 0, work),
                     rotating = open_part(page->values, page->v, width, work);
    for (int i = 0; i < count; i++)
        work->constant[i] = score_of_mean(record_of(page, &latent, first + i), width, latent.mean) +
            score_of_mean(record_of(page, &rotating, first + i), page->values->layout.d, rotating.mean);
    start_fetching(work, page->next_k, page->keys->layout.bytes, (ScanFetch){.product = 1});
    score_part(page, &latent, first, count, work);
    score_part(page, &rotating, first, count, work);
    soften_page(t, first, count, work);
    for (int i = 0; i < count; i++) {
        Vec sum = vec_set(0);
        for (int token = 0; token < TOKENS; token += LANES) sum = vec_add(sum, vec_load(work->p + i * TOKENS + token));
        work->weight[i] = vec_sum(sum);
    }
    weigh(page->keys, page->k, count, work);
    add_latents_of(&latent, count, work, t->value_stride, t->quantised + (int64_t)first * t->value_stride);
}
