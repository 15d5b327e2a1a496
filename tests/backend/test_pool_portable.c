/* test_pool.c over the pool as it is on systems without futexes. */
#define POOL_PORTABLE
#include "backend/cpu/pool.c"
#include "test_pool.c"
