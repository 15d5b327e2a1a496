/* A CPU backend that computes decode rows by another arithmetic, as a device may: it aborts unless each operation is
 * told which rows they are, and makes their results a little larger. Opened through BackendOptions.wrap =
 * generated_open. */
#pragma once
#include "backend/backend.h"

/* Changes the inner backend and returns it. */
Backend *generated_open(Backend *inner, Error *error);
