#include "cli/fetch.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { SHOWN_EVERY_MS = 200, LOGGED_EVERY_MS = 30000 };

static volatile sig_atomic_t interrupted;
static void on_interrupt(int number) { interrupted = 1; }

typedef struct Shown {
    bool terminal, line; /* line: there is an unfinished one on the terminal */
    int64_t next_ns;
    int tenth; /* last logged tenth of the download */
    bool waiting;
} Shown;

static void print_left(double seconds) {
    if (seconds < 0) return;
    const int s = (int)seconds;
    if (s >= 3600)
        fprintf(stderr, "  %d h %02d min left", s / 3600, s / 60 % 60);
    else if (s >= 60)
        fprintf(stderr, "  %d min %02d s left", s / 60, s % 60);
    else
        fprintf(stderr, "  %d s left", s);
}

static void print_progress(const HubProgress *p) {
    const bool large = p->total_bytes >= 1000000000;
    const double unit = large ? 1e-9 : 1e-6;
    const int digits = large ? 2 : p->total_bytes < 10000000 ? 1 : 0;
    const int percent = p->total_bytes ? (int)(p->done_bytes * 100 / p->total_bytes) : 100;
    if (p->phase == HUB_ASKING) {
        fprintf(stderr, "  asking the hub");
        return;
    }
    fprintf(stderr, "  %s %3d %%  %.*f of %.*f %s", p->phase == HUB_CHECKING ? "checking" : "downloading", percent,
        digits, (double)p->done_bytes * unit, digits, (double)p->total_bytes * unit, large ? "GB" : "MB");
    if (p->phase == HUB_DOWNLOADING && p->bytes_per_s > 0) {
        fprintf(stderr, "  %.1f MB/s", p->bytes_per_s * 1e-6);
        print_left(p->eta_s);
    }
}

/* On a terminal the line is written anew; in a log there is a line per tenth, or when nothing was said for long. */
static bool show(void *context, const HubProgress *p) {
    Shown *shown = context;
    const int64_t now = clock_ns();
    const bool waiting = p->phase == HUB_WAITING;
    const int tenth = p->total_bytes ? (int)(p->done_bytes * 10 / p->total_bytes) : 0;
    const bool log_now = waiting != shown->waiting || tenth != shown->tenth || now >= shown->next_ns;
    if (interrupted) return false;
    if (shown->terminal ? now < shown->next_ns : (p->phase == HUB_ASKING || !log_now)) return true;
    shown->next_ns = now + (shown->terminal ? SHOWN_EVERY_MS : LOGGED_EVERY_MS) * 1000000ll;
    shown->tenth = tenth;
    shown->waiting = waiting;
    if (shown->terminal) fprintf(stderr, "\r");
    if (waiting)
        fprintf(stderr, "  waiting: %s", p->why);
    else
        print_progress(p);
    fprintf(stderr, shown->terminal ? "\033[K" : "\n");
    fflush(stderr);
    shown->line = shown->terminal;
    return true;
}

static bool pull(const HubSettings *settings, const HubName *name, Buffer *path, Error *error) {
    Shown shown = {.terminal = isatty(STDERR_FILENO), .next_ns = clock_ns() + SHOWN_EVERY_MS * 1000000ll};
    const HubWatch watch = {show, &shown};
    struct sigaction stop = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}, before, pipe, no_pipe;
    no_pipe = (struct sigaction){
        .sa_handler = SIG_IGN}; /* a broken TLS connection raises SIGPIPE; the error code says the same */
    interrupted = 0;
    sigaction(SIGINT, &stop, &before);
    sigaction(SIGPIPE, &no_pipe, &pipe);
    Error stale = {0};
    const bool ok = hub_pull(settings, name, &watch, path, &stale, error);
    sigaction(SIGINT, &before, NULL);
    sigaction(SIGPIPE, &pipe, NULL);
    if (shown.line) fprintf(stderr, "\r\033[K");
    if (ok && stale.code) fprintf(stderr, "apus: using what is in the cache: %s\n", stale.text);
    return ok;
}

bool model_fetch(const HubName *name, bool update, Buffer *path, Error *error) {
    HubSettings settings;
    Error none;
    if (!hub_settings_read(&settings, error)) return false;
    bool ok = !update && hub_find(&settings, name, path, &none);
    if (!ok) {
        buffer_clear(path);
        if (!settings.offline) fprintf(stderr, "apus: %s from %s\n", name->repo, settings.endpoint);
        ok = pull(&settings, name, path, error);
    }
    hub_settings_free(&settings);
    return ok;
}
