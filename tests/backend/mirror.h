/* The mirror: a backend over a device's that takes and gives host memory, so that tests written for the CPU's backends
 * run on the device unchanged. The inputs of each operation are uploaded and its outputs downloaded; weights are bound
 * for the one operation. alloc() returns host memory; its twin on the device is filled from it before the first
 * operation that uses it, and is not read back. Opened through BackendOptions.wrap = mirror_open. */
#pragma once
#include "backend/backend.h"

/* Owns inner, also on failure. */
Backend *mirror_open(Backend *inner, Error *error);
