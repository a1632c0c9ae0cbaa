/* SPDX-License-Identifier: Apache-2.0 */
/* What the variants of FNV-1a share. */
#ifndef HMB_FNV_H
#define HMB_FNV_H

#include "core.h"

#define FNV_BASIS 0xcbf29ce484222325u
#define FNV_PRIME 0x00000100000001b3u
#define FNV_BLOCK 4096u /* bytes that a fast variant takes at once */

static inline uint64_t hmb_fnv_bytes(const uint8_t *byte, uint64_t n, uint64_t state)
{
	for (uint64_t i = 0; i < n; i++)
		state = (state ^ byte[i]) * FNV_PRIME;
	return state;
}

/* base^exponent mod 2^64 */
static inline uint64_t hmb_fnv_power(uint64_t base, uint64_t exponent)
{
	uint64_t power = 1;

	for (; exponent; exponent >>= 1, base *= base)
		if (exponent & 1)
			power *= base;
	return power;
}

/* blocks * FNV_BLOCK bytes; only where hmb_fnv_has_avx2(). */
int hmb_fnv_has_avx2(void);
uint64_t hmb_fnv_avx2(const uint8_t *data, uint64_t blocks, uint64_t state);

#endif
