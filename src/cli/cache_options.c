#include "cli/cache_options.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { DISK_BYTES_LEAST = 256 << 20 };

/* Pages are quantised whole. */
static int whole_pages(const char *option, int tokens) {
    const int rounded = (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    if (rounded != tokens)
        log_warn("%s %d becomes %d, as pages have %d tokens", option, tokens, rounded, KV_PAGE_TOKENS);
    return rounded;
}

static bool round_lengths(KvFormat *format, Error *error) {
    format->after = whole_pages("--turbo-after", format->after);
    format->hot = whole_pages("--turbo-hot", format->hot);
    format->sink = whole_pages("--turbo-sink", format->sink);
    if (format->after >= format->sink) return true;
    return fail(error, ERROR_USAGE, "--turbo-after %d: less than the %d first tokens that --turbo-sink keeps",
        format->after, format->sink);
}

static bool bad_layers(const char *text, Error *error) {
    return fail(error, ERROR_USAGE,
        "--turbo-layers %.100s: want auto, off, or numbers from 0 to %d with commas, and ranges as in 7-9", text,
        KV_LAYERS_MAX - 1);
}

static bool read_layer(const char **at, int *layer) {
    if (!isdigit((unsigned char)**at)) return false;
    char *end;
    const long value = strtol(*at, &end, 10);
    *at = end;
    *layer = (int)value;
    return value < KV_LAYERS_MAX;
}

static bool read_list(const char *text, KvFormat *format, Error *error) {
    const char *at = text;
    format->raise = KV_RAISE_LISTED;
    for (;; at++) {
        int first, last;
        if (!read_layer(&at, &first)) return bad_layers(text, error);
        last = first;
        if (*at == '-') {
            at++;
            if (!read_layer(&at, &last) || last < first) return bad_layers(text, error);
        }
        for (int i = first; i <= last; i++) format->raised[i / 64] |= UINT64_C(1) << i % 64;
        if (!*at) return true;
        if (*at != ',') return bad_layers(text, error);
    }
}

static bool read_layers(const char *text, KvFormat *format, Error *error) {
    if (!text) return true;
    if (format->k == KV_FULL)
        return fail(error, ERROR_USAGE, "--turbo-layers is about quantised keys: add --kv-cache turbo4 or the like");
    if (strcmp(text, "auto") && strcmp(text, "off")) return read_list(text, format, error);
    format->raise = strcmp(text, "off") ? KV_RAISE_MEASURED : KV_RAISE_NONE;
    return true;
}

static bool read_form(const CacheArguments *arguments, EngineOptions *out, Error *error) {
    const char *form = arguments->form ? arguments->form : arguments->turbo ? "turbo" : "f16";
    if (arguments->turbo && strcmp(form, "turbo"))
        return fail(
            error, ERROR_USAGE, "--turbo-kv is --kv-cache turbo, and --kv-cache %.40s says something else", form);
    KvFormat format;
    out->backend.bf16_pages = !strcmp(form, "bf16");
    out->kv_auto = !strcmp(form, "auto");
    if (!kv_format_parse(out->backend.bf16_pages ? "f16" : out->kv_auto ? "turbo" : form, &format, error))
        return fail_while(error, "--kv-cache, which can also be bf16 and auto");
    format.after = out->kv_format.after;
    format.hot = out->kv_format.hot;
    format.sink = out->kv_format.sink;
    out->kv_format = format;
    return true;
}

static bool check_disk(EngineOptions *options, Error *error) {
    if (!options->cache_directory)
        return !options->cache_disk_bytes ||
            fail(error, ERROR_USAGE, "--cache-disk bounds what --cache-dir keeps: name that, too");
    if (!options->cache_disk_bytes) options->cache_disk_bytes = CACHE_DISK_DEFAULT;
    if (options->prefix_off)
        return fail(error, ERROR_USAGE, "--cache-dir keeps what the prefix cache holds: not with --no-prefix-cache");
    if (options->cache_disk_bytes < DISK_BYTES_LEAST)
        return fail(error, ERROR_USAGE, "--cache-disk: at least %dM", DISK_BYTES_LEAST >> 20);
    return true;
}

bool cache_options(const CacheArguments *arguments, EngineOptions *options, Error *error) {
    return read_form(arguments, options, error) && round_lengths(&options->kv_format, error) &&
        read_layers(arguments->layers, &options->kv_format, error) && check_disk(options, error);
}
