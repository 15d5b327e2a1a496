/* Addresses of this machine in its networks. */
#pragma once
#include <stdbool.h>

enum { ADDRESSES_MAX = 16, ADDRESS_MAX = 64 /* with the NUL */ };

/* IPv4 addresses of interfaces that are up, without loopback; the one that reaches other networks first. Returns their
 * number. */
int lan_addresses(char out[ADDRESSES_MAX][ADDRESS_MAX]);
