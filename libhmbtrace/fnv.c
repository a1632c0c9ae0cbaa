// SPDX-License-Identifier: Apache-2.0
/* FNV-1a, 64 bit, as the .pccx texts define it. */
#include "core.h"

#define FNV_BASIS 0xcbf29ce484222325u
#define FNV_PRIME 0x00000100000001b3u

uint64_t hmb_fnv1a_64_basis(void)
{
	return FNV_BASIS;
}

uint64_t hmb_fnv1a_64(const void *data, uint64_t n, uint64_t state)
{
	const uint8_t *byte = data;

	for (uint64_t i = 0; i < n; i++)
		state = (state ^ byte[i]) * FNV_PRIME;
	return state;
}
