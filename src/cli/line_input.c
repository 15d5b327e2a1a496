#include "cli/line_input.h"

#include <editline/readline.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>

#include "base/utf8.h"

enum {
    HISTORY_MAX = 1000,
    ESCAPE_WAIT_MS = 30, /* the rest of an escape sequence is there already; after the key alone nothing comes */
    KEY_ESCAPE = 0x1B,
    KEY_KILL_LINE = 0x15,
    KEY_PASTED_LINE = 0x23CE, /* ⏎, which stands for a line's end in pasted text until the message is read */
    NO_KEY = -1,
};
/* What a terminal sends around pasted text once it was asked to ("bracketed paste" of xterm). */
static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l", paste_begin[] = "[200~",
                  paste_end[] = "[201~";

volatile int line_input_interrupted;
static bool is_terminal, pasting, pasted;
static int waiting[8], waiting_count; /* keys to give next, the first first */
static char *history;

static void on_interrupt(int number) {
    (void)number;
    line_input_interrupted = 1;
}

static void wait_key(int key) { waiting[waiting_count++] = key; }

/* NO_KEY: the end, an error, or Ctrl-C. The signal is let in only while waiting, so that none is missed before. */
static int next_byte(void) {
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(STDIN_FILENO, &set);
    int ready = 0;
    while (!line_input_interrupted && (ready = pselect(STDIN_FILENO + 1, &set, NULL, NULL, NULL, &before)) < 0 &&
        errno == EINTR)
        FD_SET(STDIN_FILENO, &set);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    unsigned char byte;
    return ready == 1 && read(STDIN_FILENO, &byte, 1) == 1 ? byte : NO_KEY;
}

/* After an escape: whether `rest` follows. What came instead waits for libedit, which knows the other sequences. */
static bool follows(const char *rest) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (int i = 0; rest[i]; i++) {
        const int key = poll(&input, 1, ESCAPE_WAIT_MS) == 1 ? next_byte() : NO_KEY;
        if (key == (unsigned char)rest[i]) continue;
        for (int j = 0; j < i; j++) wait_key((unsigned char)rest[j]);
        if (key != NO_KEY) wait_key(key);
        return false;
    }
    return true;
}

static int code_point(int first) {
    char bytes[4] = {(char)first};
    size_t size = 1;
    for (const size_t all = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1; size < all; size++) {
        const int next = next_byte();
        if (next == NO_KEY) return NO_KEY;
        bytes[size] = (char)next;
    }
    uint32_t code;
    return utf8_decode(bytes, size, &code) > 0 ? (int)code : 0xFFFD;
}

/* For libedit: a character. */
static int read_key(FILE *unused) {
    (void)unused;
    if (waiting_count) {
        const int key = waiting[0];
        memmove(waiting, waiting + 1, (size_t)--waiting_count * sizeof *waiting);
        return key;
    }
    for (;;) {
        const int key = next_byte();
        if (key == NO_KEY && !line_input_interrupted) return NO_KEY;
        if (key == NO_KEY) { /* the line goes and an empty one is read */
            fputs("^C", stdout);
            pasting = pasted = false;
            wait_key('\n');
            return KEY_KILL_LINE;
        }
        if (key == KEY_ESCAPE) {
            if (!follows(pasting ? paste_end : paste_begin)) return key;
            pasting = !pasting;
            pasted = true;
        } else if (pasting && (key == '\n' || key == '\r')) {
            return KEY_PASTED_LINE;
        } else if (pasting && key == '\t') {
            return ' '; /* the key would complete a file's name */
        } else {
            return key < 0x80 ? key : code_point(key);
        }
    }
}

void line_input_open(const char *history_path) {
    is_terminal = isatty(STDIN_FILENO);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_interrupt}, NULL);
    if (!is_terminal) return;
    /* Text is UTF-8 whatever the environment says, and libedit takes only what its locale has. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        if (!setlocale(LC_CTYPE, "C.UTF-8")) setlocale(LC_CTYPE, "UTF-8");
    rl_catch_signals = 0;
    rl_getc_function = read_key;
    using_history();
    stifle_history(HISTORY_MAX);
    history = history_path ? strdup(history_path) : NULL;
    if (history) read_history(history);
}

static char *read_typed(const char *prompt) {
    fputs(paste_on, stdout);
    pasting = pasted = false;
    char *line = readline(prompt);
    fputs(paste_off, stdout);
    fflush(stdout);
    return line;
}

static char *read_piped(void) {
    char *line = NULL;
    size_t capacity = 0;
    const ssize_t length = getline(&line, &capacity, stdin);
    if (length < 0) {
        free(line);
        return NULL;
    }
    if (length > 0 && line[length - 1] == '\n') line[length - 1] = 0;
    return line;
}

/* Pasted ends of lines become what they were. */
static void append_line(Buffer *message, const char *line, size_t length) {
    static const char mark[] = "\u23CE";
    const size_t size = sizeof mark - 1;
    for (size_t i = 0; i < length;) {
        const bool end = pasted && length - i >= size && !memcmp(line + i, mark, size);
        if (end)
            buffer_byte(message, '\n');
        else
            buffer_byte(message, line[i]);
        i += end ? size : 1;
    }
}

bool line_input_read(Buffer *message) {
    buffer_clear(message);
    buffer_text(message, "");
    line_input_interrupted = 0;
    for (bool more = true; more;) {
        char *line = is_terminal ? read_typed(message->size ? "... " : ">>> ") : read_piped();
        if (!line) return message->size > 0;
        const size_t length = strlen(line);
        more = !line_input_interrupted && length > 0 && line[length - 1] == '\\';
        append_line(message, line, more ? length - 1 : length);
        if (more) buffer_byte(message, '\n');
        free(line);
        if (line_input_interrupted) buffer_clear(message);
    }
    line_input_interrupted = 0;
    if (is_terminal && message->size && !memchr(message->data, '\n', message->size)) add_history(message->data);
    return true;
}

void line_input_close(void) {
    if (history) write_history(history);
    free(history);
    history = NULL;
}
