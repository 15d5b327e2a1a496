#include "cli/progress.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

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
static bool show(Shown *shown, const HubProgress *p) {
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

bool progress_conversion(void *context, uint64_t done_bytes, uint64_t total_bytes, const char *tensor) {
    int *shown = context; /* tenths on a file, percent on a terminal */
    const bool terminal = isatty(STDERR_FILENO);
    const int percent = total_bytes ? (int)(done_bytes * 100 / total_bytes) : 100;
    const int mark = terminal ? percent : percent / 10;
    if (mark == *shown) return true;
    *shown = mark;
    const double mb = 1e-6;
    if (terminal)
        fprintf(stderr, "\r  converting %3d %%  %.0f of %.0f MB\033[K%s", percent, (double)done_bytes * mb,
            (double)total_bytes * mb, done_bytes == total_bytes ? "\n" : "");
    else
        fprintf(stderr, "  converting %3d %%\n", percent);
    return true;
}

typedef struct Progress {
    Shown download;
    int conversion;                                 /* as of progress_conversion */
    struct sigaction interrupt_before, pipe_before; /* restored when the download has ended */
} Progress;

static void begin(void *context, LibraryStage stage, const char *from, const char *to) {
    Progress *p = context;
    if (stage == LIBRARY_CONVERSION) {
        p->conversion = -1;
        if (!file_is_directory(to)) fprintf(stderr, "apus: converting %s once, into %s\n", from, to);
        return;
    }
    if (to) fprintf(stderr, "apus: %s from %s\n", from, to);
    p->download = (Shown){.terminal = isatty(STDERR_FILENO), .next_ns = clock_ns() + SHOWN_EVERY_MS * INT64_C(1000000)};
    const struct sigaction stop = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    /* A broken TLS connection raises SIGPIPE; the error code says the same. */
    const struct sigaction no_pipe = {.sa_handler = SIG_IGN};
    interrupted = 0;
    sigaction(SIGINT, &stop, &p->interrupt_before);
    sigaction(SIGPIPE, &no_pipe, &p->pipe_before);
}

static bool show_download(void *context, const HubProgress *progress) {
    return show(&((Progress *)context)->download, progress);
}

static bool show_conversion(void *context, uint64_t done_bytes, uint64_t total_bytes) {
    return progress_conversion(&((Progress *)context)->conversion, done_bytes, total_bytes, "");
}

static void end(void *context, LibraryStage stage, const Error *stale) {
    Progress *p = context;
    if (stage != LIBRARY_DOWNLOAD) return;
    sigaction(SIGINT, &p->interrupt_before, NULL);
    sigaction(SIGPIPE, &p->pipe_before, NULL);
    if (p->download.line) fprintf(stderr, "\r\033[K");
    if (stale) fprintf(stderr, "apus: using what is in the cache: %s\n", stale->text);
}

const LibraryWatch *progress_on_terminal(void) {
    static Progress progress;
    static const LibraryWatch watch = {begin, show_download, show_conversion, end, &progress};
    return &watch;
}
