#include <inttypes.h>
#include <stdio.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/fits.h"
#include "hub/hub.h"

static const Command command = {"search", "TEXT",
    "Models on the Hugging Face Hub whose names hold TEXT, most downloaded first, and how this machine would run them.",
    "FIT follows from the bytes of the weights; with --fit from the plan that serve would make, which knows experts "
    "and\n"
    "the KV cache.\n"
    "  apus search qwen3-0.6b\n  apus search 'mlx-community/ 4bit' -n 50\n"};

static void print_count(int64_t count) {
    static const char units[] = " KMBT";
    double value = (double)count;
    size_t unit = 0;
    while (value >= 999.5 && unit + 2 < sizeof units) {
        value /= 1000;
        unit++;
    }
    if (unit == 0)
        printf("  %6.0f ", value);
    else
        printf("  %6.3g%c", value, units[unit]);
}

static bool print_json(const HubHit *hit, const Expectation *fit) {
    Buffer line = {0};
    buffer_text(&line, "{\"id\":");
    json_write_string(&line, slice_of(hit->name));
    buffer_printf(&line, ",\"parameters\":%" PRId64 ",\"bytes\":%" PRId64 ",\"downloads\":%" PRId64, hit->parameters,
        hit->bytes, hit->downloads);
    buffer_printf(&line, ",\"mlx\":%s,\"gguf\":%s,\"gated\":%s", hit->mlx ? "true" : "false",
        hit->gguf ? "true" : "false", hit->gated ? "true" : "false");
    fits_json(fit, &line);
    const bool ok = !line.failed;
    if (ok) printf("%s}\n", line.data);
    buffer_free(&line);
    return ok;
}

static void print_row(const HubHit *hit, const Expectation *fit) {
    printf("%-56s", hit->name);
    if (hit->parameters)
        print_count(hit->parameters);
    else
        printf("  %7s", "-");
    print_count(hit->downloads);
    fits_print(fit);
    printf("%s%s%s\n", hit->mlx ? "  mlx" : "", hit->gguf ? "  gguf" : "", hit->gated ? "  gated" : "");
}

int command_search(int argc, char **argv) {
    enum { LIMIT_MAX = 100 };
    int64_t limit = 20;
    bool planned = false, json = false;
    const Option options[] = {
        {"--limit", "-n", OPTION_INTEGER, &limit, 1, LIMIT_MAX, "N", "show so many at most (20)"},
        {"--fit", NULL, OPTION_FLAG, &planned, 0, 0, NULL, "plan each model from its headers, a second or so each"},
        {"--json", NULL, OPTION_FLAG, &json, 0, 0, NULL, "a JSON object for each model, on a line"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    HubSettings settings;
    HubHits hits;
    Fits fits = {0};
    if (!hub_settings_read(&settings, &error)) return report(&error);
    bool ok = hub_search(&settings, arguments.values[0], HUB_BY_DOWNLOADS, (int)limit, &hits, &error);
    hub_settings_free(&settings);
    if (!ok) return report(&error);
    if (!hits.count && !json) printf("no model on the hub is called like '%s'\n", arguments.values[0]);
    if (hits.count) fits_open(&fits);
    if (hits.count && !json) printf("%-56s  %7s  %7s" FITS_TITLE "\n", "NAME", "PARAMS", "LOADS");
    for (size_t i = 0; ok && i < hits.count; i++) {
        const HubHit *hit = &hits.hits[i];
        Expectation expectation;
        const Expectation *fit =
            fits_find(&fits, hit->name, planned, (uint64_t)hit->bytes, &expectation) ? &expectation : NULL;
        if (json)
            ok = print_json(hit, fit) || fail(&error, ERROR_MEMORY, "no memory for the list");
        else
            print_row(hit, fit);
        fflush(stdout);
    }
    hub_hits_free(&hits);
    return ok ? 0 : report(&error);
}
