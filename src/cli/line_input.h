/* Messages typed at a terminal (libedit: history, editing; pasted text of several lines) or read from a pipe, and
 * Ctrl-C as something that can be asked for instead of something that ends the process. One thread. */
#pragma once
#include "base/buffer.h"

/* The terminal is made ready and the history read; history_path: NULL: none is kept. */
void line_input_open(const char *history_path);

/* One message, which goes over several lines when they end in a backslash or were pasted together. False: end of input.
 * Ctrl-C drops what was typed and gives an empty message. */
NODISCARD bool line_input_read(Buffer *message);

/* Whether Ctrl-C was typed since line_input_read returned. */
extern volatile int line_input_interrupted;

/* Writes the history. */
void line_input_close(void);
