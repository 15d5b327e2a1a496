/* One log line per request: route, status, tokens and times; never its text. */
#pragma once
#include "server/exchange.h"

void request_log_note(Exchange *x); /* takes the figures of x->generation, before it is closed */
void request_log_write(const Exchange *x);
