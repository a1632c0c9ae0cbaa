/* SPDX-License-Identifier: Apache-2.0 */
/* What the variants of FNV-1a share. */
#ifndef HMB_FNV_H
#define HMB_FNV_H

#include "core.h"

#define FNV_BASIS 0xcbf29ce484222325u
#define FNV_PRIME 0x00000100000001b3u
#define FNV_BLOCK 4096u /* bytes that a fast variant takes at once */
#define FNV_TIMES 16
#define FNV_LANES 16
#define FNV_DIGITS 4

/* A way to hash whole blocks, at least one. */
struct hmb_fnv_variant {
	const char *name;
	int (*supported)(void); /* by this processor and system */
	uint64_t (*hash_blocks)(const uint8_t *data, uint64_t blocks, uint64_t state);
};

/* Fastest first; the end has no name. */
extern const struct hmb_fnv_variant hmb_fnv_variants[];
/* variant: one that is supported, or NULL: byte by byte. */
uint64_t hmb_fnv_by(const struct hmb_fnv_variant *variant, const void *data, uint64_t n,
		    uint64_t state);

struct hmb_fnv_weights {
	/* P^(4096 - 224 - 256i - 16h - r) as signed 16-bit digits, in the order of the sums. */
	int16_t digits[FNV_TIMES][2][FNV_DIGITS][FNV_LANES] __attribute__((aligned(64)));
	uint64_t power_32, power_3872;
};
extern struct hmb_fnv_weights hmb_fnv_weights;

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

uint64_t hmb_fnv_avx2(const uint8_t *data, uint64_t blocks, uint64_t state);
uint64_t hmb_fnv_avx512(const uint8_t *data, uint64_t blocks, uint64_t state);

#endif
