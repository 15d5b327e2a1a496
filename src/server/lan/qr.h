/* QR codes (libqrencode). A build without the library has none. */
#pragma once
#include "base/buffer.h"
#include "base/slice.h"

/* Appends the code's modules row by row, '1' for a dark one; returns its width, 0: there is no code. */
int qr_modules(const char *text, Buffer *out);
/* Appends the code for a terminal, two rows of modules in a line, dark on light whatever the terminal's colours are.
 * False: there is no code. */
bool qr_print(const char *text, Buffer *out);
