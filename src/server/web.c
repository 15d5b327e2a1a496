#include "server/web.h"

#include <string.h>

#include "server/http/response.h"
#include "server/routes.h"

typedef struct Asset {
    const char *path, *type;
    const char *hash;        /* hash of the content; the ETag */
    bool immutable;          /* the path names the hash, so the content of a path never changes */
    const char *bytes, *end; /* gzip */
} Asset;

/* The linker's names of the files' bytes. */
#ifdef __APPLE__
#define DATA_SECTION ".const_data"
#define SYMBOL "_"
#else
#define DATA_SECTION ".section .rodata,\"a\""
#define SYMBOL ""
#endif
/* clang-format off */
#define ASSET(number, path, file, type, hash, immutable)                                                               \
    __asm__(DATA_SECTION "\n.globl " SYMBOL "web_asset_" #number "\n.globl " SYMBOL "web_asset_end_" #number "\n"      \
        SYMBOL "web_asset_" #number ":\n.incbin \"" APUS_WEB_DIRECTORY "/" file "\"\n"                                 \
        SYMBOL "web_asset_end_" #number ":\n.byte 0\n.text\n");                                                        \
    extern const char web_asset_##number[], web_asset_end_##number[];
#define SOURCES(text)
#include <assets.inc>
#undef ASSET

static const Asset assets[] = {
#define ASSET(number, path, file, type, hash, immutable)                                                               \
    {path, type, "\"" hash "\"", immutable, web_asset_##number, web_asset_end_##number},
#include <assets.inc>
#undef ASSET
#undef SOURCES
};

static const char policy[] =
    "Content-Security-Policy: default-src 'none'; "
#define ASSET(number, path, file, type, hash, immutable)
#define SOURCES(text) text
#include <assets.inc>
#undef ASSET
#undef SOURCES
    "; img-src 'self' data: blob:; "
    "media-src 'self' blob:; font-src 'self'; worker-src 'self'; manifest-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types dompurify apus; "
    "connect-src 'self'";
/* clang-format on */
static const char protections[] = "X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n"
                                  "Cross-Origin-Opener-Policy: same-origin\r\n"
                                  "Cross-Origin-Resource-Policy: same-origin\r\n"
                                  "Permissions-Policy: camera=(self), microphone=(self), geolocation=()\r\n";

static bool answer_with(Exchange *x, Slice path) {
    for (size_t i = 0; i < COUNT_OF(assets); i++) {
        const Asset *asset = &assets[i];
        if (!slice_is(path, asset->path)) continue;
        const char *known = http_request_header(x->request, "If-None-Match");
        const bool same = known && strstr(known, asset->hash);
        Buffer headers = {0};
        buffer_printf(&headers, "ETag: %s\r\nCache-Control: %s\r\nVary: Accept, Accept-Encoding\r\n%s", asset->hash,
            asset->immutable ? "public, max-age=31536000, immutable" : "no-cache", policy);
        if (x->server->options.mcp_origins) buffer_printf(&headers, " %s", x->server->options.mcp_origins);
        buffer_printf(&headers, "\r\n%s%s", protections, same ? "" : "Content-Encoding: gzip\r\n");
        const Slice bytes = {asset->bytes, (size_t)(asset->end - asset->bytes)};
        const bool ok = !headers.failed && response_file(x, same ? 304 : 200, asset->type, headers.data, bytes);
        buffer_free(&headers);
        return ok;
    }
    ApiError error = {0};
    api_fail(&error, 404, NULL, NULL, "The app has no file %.*s.", SLICE_SHOWN(path));
    return response_error(x, &error);
}

bool answer_asset(Exchange *x, Slice name) { return answer_with(x, slice_of(x->request->path)); }
bool answer_worker(Exchange *x, Slice rest) { return answer_with(x, slice_of("/sw.js")); }
static bool answer_page(Exchange *x, Slice rest) { return answer_with(x, slice_of("/")); }

const Route *web_page(const Exchange *x) {
    static const Route page = {.method = "GET", .path = "/", .answer = answer_page, .public = true};
    const char *accept = http_request_header(x->request, "Accept"), *method = x->request->method;
    const bool reads = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    return reads && !strcmp(x->request->path, "/") && accept && strstr(accept, "text/html") ? &page : NULL;
}
