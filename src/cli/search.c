#include <stdio.h>

#include "cli/commands.h"
#include "hub/hub.h"

static const Command command = {"search", "TEXT",
    "Models on the Hugging Face Hub whose names hold TEXT, most downloaded first.",
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

int command_search(int argc, char **argv) {
    enum { LIMIT_MAX = 100 };
    int64_t limit = 20;
    const Option options[] = {
        {"--limit", "-n", OPTION_INTEGER, &limit, 1, LIMIT_MAX, "N", "show so many at most (20)"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    HubSettings settings;
    HubHits hits;
    if (!hub_settings_read(&settings, &error)) return report(&error);
    const bool ok = hub_search(&settings, arguments.values[0], HUB_BY_DOWNLOADS, (int)limit, &hits, &error);
    hub_settings_free(&settings);
    if (!ok) return report(&error);
    if (!hits.count) printf("no model on the hub is called like '%s'\n", arguments.values[0]);
    if (hits.count) printf("%-56s  %7s  %7s\n", "NAME", "PARAMS", "LOADS");
    for (size_t i = 0; i < hits.count; i++) {
        const HubHit *hit = &hits.hits[i];
        printf("%-56s", hit->name);
        if (hit->parameters)
            print_count(hit->parameters);
        else
            printf("  %7s", "-");
        print_count(hit->downloads);
        printf("%s%s%s\n", hit->mlx ? "  mlx" : "", hit->gguf ? "  gguf" : "", hit->gated ? "  gated" : "");
    }
    hub_hits_free(&hits);
    return 0;
}
