// SPDX-License-Identifier: Apache-2.0
/* FNV-1a, 64 bit, as the .pccx texts define it: which variant does what. */
#include <string.h>

#include "fnv.h"

#define PADDED_LEAST 1024u /* below, the byte loop beats a padded block */
#define FNV_INVERSE 0xce965057aff6957bu /* FNV_PRIME * FNV_INVERSE = 1 mod 2^64 */

_Static_assert((uint64_t)(FNV_PRIME *FNV_INVERSE) == 1, "the inverse undoes the prime");

uint64_t hmb_fnv1a_64_basis(void)
{
	return FNV_BASIS;
}

uint64_t hmb_fnv1a_64_plain(const void *data, uint64_t n, uint64_t state)
{
	return hmb_fnv_bytes(data, n, state);
}

/* A zero byte only multiplies: pad with zeros to a block, then divide that out again. */
static uint64_t padded_block(const uint8_t *data, uint64_t n, uint64_t state)
{
	uint8_t block[FNV_BLOCK] __attribute__((aligned(32)));

	memcpy(block, data, n);
	memset(block + n, 0, FNV_BLOCK - n);
	return hmb_fnv_avx2(block, 1, state) * hmb_fnv_power(FNV_INVERSE, FNV_BLOCK - n);
}

uint64_t hmb_fnv1a_64(const void *data, uint64_t n, uint64_t state)
{
	const uint8_t *byte = data;
	uint64_t blocks = n / FNV_BLOCK, rest = n % FNV_BLOCK;

	if (n < PADDED_LEAST || !hmb_fnv_has_avx2())
		return hmb_fnv_bytes(byte, n, state);
	if (blocks)
		state = hmb_fnv_avx2(byte, blocks, state);
	byte += blocks * FNV_BLOCK;
	if (rest >= PADDED_LEAST)
		return padded_block(byte, rest, state);
	return hmb_fnv_bytes(byte, rest, state);
}
