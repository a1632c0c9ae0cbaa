// SPDX-License-Identifier: Apache-2.0
/* FNV-1a, 64 bit, as the .pccx texts define it: which variant does what. */
#include <string.h>

#include "fnv.h"

#define PADDED_LEAST 768u /* below, the byte loop beats a padded block */
#define FNV_INVERSE 0xce965057aff6957bu /* FNV_PRIME * FNV_INVERSE = 1 mod 2^64 */

_Static_assert((uint64_t)(FNV_PRIME *FNV_INVERSE) == 1, "the inverse undoes the prime");

struct hmb_fnv_weights hmb_fnv_weights;
static const struct hmb_fnv_variant *chosen; /* NULL: byte by byte */

#if defined(__x86_64__)

static int has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul");
}

static int has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
}

const struct hmb_fnv_variant hmb_fnv_variants[] = {
	{ "avx512", has_avx512, hmb_fnv_avx512 },
	{ "avx2", has_avx2, hmb_fnv_avx2 },
	{ NULL, NULL, NULL },
};

static void fill_weight(int i, int h, int r)
{
	uint64_t weight = hmb_fnv_power(FNV_PRIME, (uint64_t)(3872 - 256 * i - 16 * h - r));

	for (int digit = 0; digit < FNV_DIGITS; digit++) {
		int16_t low = (int16_t)weight;

		hmb_fnv_weights.digits[r][i >> 3][digit][8 * h + (i & 7)] = low;
		weight = (weight - (uint64_t)(int64_t)low) >> 16;
	}
}

static void fill_weights(void)
{
	for (int i = 0; i < FNV_LANES; i++)
		for (int h = 0; h < 2; h++)
			for (int r = 0; r < FNV_TIMES; r++)
				fill_weight(i, h, r);
	hmb_fnv_weights.power_32 = hmb_fnv_power(FNV_PRIME, 32);
	hmb_fnv_weights.power_3872 = hmb_fnv_power(FNV_PRIME, 3872);
}

__attribute__((constructor)) static void choose_variant(void)
{
	const struct hmb_fnv_variant *variant = hmb_fnv_variants;

	fill_weights();
	__builtin_cpu_init();
	while (variant->name && !variant->supported())
		variant++;
	chosen = variant->name ? variant : NULL;
}

#else

const struct hmb_fnv_variant hmb_fnv_variants[] = { { NULL, NULL, NULL } };

#endif

uint64_t hmb_fnv1a_64_basis(void)
{
	return FNV_BASIS;
}

uint64_t hmb_fnv1a_64_plain(const void *data, uint64_t n, uint64_t state)
{
	return hmb_fnv_bytes(data, n, state);
}

/* A zero byte only multiplies: pad with zeros to a block, then divide that out again. */
static uint64_t padded_block(const struct hmb_fnv_variant *variant, const uint8_t *data, uint64_t n,
			     uint64_t state)
{
	uint8_t block[FNV_BLOCK] __attribute__((aligned(64)));

	memcpy(block, data, n);
	memset(block + n, 0, FNV_BLOCK - n);
	return variant->hash_blocks(block, 1, state) * hmb_fnv_power(FNV_INVERSE, FNV_BLOCK - n);
}

uint64_t hmb_fnv_by(const struct hmb_fnv_variant *variant, const void *data, uint64_t n,
		    uint64_t state)
{
	const uint8_t *byte = data;
	uint64_t blocks = n / FNV_BLOCK, rest = n % FNV_BLOCK;

	if (!variant)
		return hmb_fnv_bytes(byte, n, state);
	if (blocks)
		state = variant->hash_blocks(byte, blocks, state);
	byte += blocks * FNV_BLOCK;
	if (rest >= PADDED_LEAST)
		return padded_block(variant, byte, rest, state);
	return hmb_fnv_bytes(byte, rest, state);
}

uint64_t hmb_fnv1a_64(const void *data, uint64_t n, uint64_t state)
{
	return hmb_fnv_by(chosen, data, n, state);
}
