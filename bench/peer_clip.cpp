/* Time of llama.cpp's vision encoder on an mmproj file (tools/make_bench_mmproj.py), for bench/images.py:
 * peer_clip FILE [rounds]. It is compiled as a program of llama.cpp's tools/mtmd, which has the headers, and linked
 * with mtmd. Prints the milliseconds of each encoding; the first ones are warm-ups. */
#include "clip-impl.h"
#include "clip.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char **argv) {
    enum { SIDE = 896 };
    if (argc < 2) return 1;
    clip_context_params params = {};
    params.use_gpu = true;
    params.flash_attn_type = CLIP_FLASH_ATTN_TYPE_AUTO;
    params.image_min_tokens = params.image_max_tokens = -1;
    params.warmup = true;
    ggml_backend_load_all();
    clip_ctx *ctx = clip_init(argv[1], params).ctx_v;
    if (!ctx) return 1;
    clip_image_f32 image;
    image.set_size({SIDE, SIDE}, false, false);
    std::vector<float> pixels(3 * SIDE * SIDE);
    for (float &x : pixels) x = (float)rand() / (float)RAND_MAX - .5f;
    image.cpy_buf(pixels);
    std::vector<float> out((size_t)clip_n_output_tokens(ctx, &image) * clip_n_mmproj_embd(ctx));
    for (long i = 0; i < (argc > 2 ? strtol(argv[2], nullptr, 10) : 6); i++) {
        const auto start = std::chrono::steady_clock::now();
        if (!clip_image_encode(ctx, 4, &image, out)) return 2;
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        printf("%.2f ms\n", took.count() * 1e3);
    }
    return 0;
}
