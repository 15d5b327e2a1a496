#include "cli/fits.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/session.h"

void fits_open(Fits *fits) {
    const EngineArguments arguments = ENGINE_ARGUMENTS_DEFAULT;
    Error why;
    fits->ready = engine_options(&arguments, NULL, &fits->options, &why);
    fits->options.model.progress = NULL;
    fits->options.model.warn = NULL;
    if (fits->ready && isatty(STDOUT_FILENO)) expected_measure(&engine_planner, &fits->options);
}

bool fits_find(const Fits *fits, const char *name, bool ask_hub, uint64_t bytes, Expectation *out) {
    ModelOutline outline;
    Error why;
    if (!fits->ready) return false;
    if (outline_find(name, ask_hub, &outline, &why)) {
        const bool ok = expected_of(&engine_planner, &fits->options, &outline, 0, out, &why);
        outline_free(&outline);
        return ok;
    }
    if (ask_hub || !bytes) return false;
    engine_expect_size(&fits->options, bytes, 0, out);
    return true;
}

void fits_print(const Expectation *e) {
    static const char *const words[] = {"fits", "tight", "streams", "too large"};
    printf("  %-10s", e ? words[e->fit] : "-");
    if (e && e->decode > 0)
        printf("  %5.*f", e->decode < 9.95 ? 1 : 0, e->decode);
    else
        printf("  %5s", "-");
}

void fits_json(const Expectation *e, Buffer *out) {
    if (!e) {
        buffer_text(out, ",\"fit\":null");
        return;
    }
    buffer_printf(out, ",\"fit\":\"%s\",\"needed_bytes\":%" PRIu64 ",\"usable_bytes\":%" PRIu64, expected_name(e->fit),
        e->needed_bytes, e->alone_bytes);
    if (e->decode > 0)
        buffer_printf(out, ",\"decode_tokens_per_second\":%.3g", e->decode);
    else
        buffer_text(out, ",\"decode_tokens_per_second\":null");
}
