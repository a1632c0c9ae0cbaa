/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact FNV-1a-64 with vectors of 256 bits, some seven times as fast as the byte loop.
 *
 * One text for several instruction sets.  The file that includes it defines INLINE (functions
 * for its target), HASH_BLOCKS (the result), xor3, majority, swap_bits and add_product.
 *
 * Let l be the low byte of the state h, x = l ^ b and d = x - l.  Then
 *	l' = 0xb3 * x mod 256,	h_n = h_0 P^n + sum d_i P^(n-i) mod 2^64:
 * only the low byte is sequential, the rest is a polynomial.  In 0xb3 * x a bit
 * depends on itself and lower bits only, so the low bytes of a whole block are
 * found bit plane by bit plane: within a plane, bytes are chained by XOR.
 *
 * A block is 4096 bytes, 256 groups of 16.  Byte address 256i + 32j + 16h + r:
 * i < 16 (byte lane), j < 8 (set), h < 2 (half of a vector), r < 16 (time within
 * the group).  Groups follow each other in the order i, j, h.
 *
 * The planes wait for each other, the sums do not.  So plane k of a block and the sums of set k
 * of the block before are computed in turns, step by step.
 */
#include "fnv.h"

#define SETS 8
#define TIMES FNV_TIMES
#define LANES FNV_LANES
#define PLANES 8
#define DIGITS FNV_DIGITS
#define BIAS (1 << 30) /* keeps 32-bit sums positive; |sum| < 2^29.1 */
#define AHEAD 4u /* blocks to prefetch; from main memory it is half as fast without */

/* Empty, but the compiler cannot know: it must not see through a pointer. */
#define OPAQUE(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")

/* What the planes below leave for the planes above, by time. */
struct chain {
	__m256i x[TIMES]; /* the last plane's bits of x; still without their group's entry bit */
	__m256i x_before[TIMES]; /* of the plane below it */
	__m256i x0[TIMES];
	__m256i c[TIMES]; /* carries of y = x + 2x */
	__m256i y[4][TIMES];
	__m256i d[TIMES]; /* carries of y + 16y */
};

struct block {
	__m256i rows[TIMES][SETS]; /* bytes by time and set */
	__m256i bits[PLANES][TIMES]; /* of the bytes; bit 128h + 8i + j of a vector */
	__m256i entry[SETS]; /* low byte of the state before each group */
	struct chain chain;
};

INLINE void swap_halves(__m256i *a, __m256i *b)
{
	__m256i low = _mm256_unpacklo_epi8(*a, *b);

	*b = _mm256_unpackhi_epi8(*a, *b);
	*a = low;
}

/* Half the times of a set: all at once do not fit in the registers. */
INLINE void load_half(__m256i v[8], const uint8_t *data, int half)
{
#pragma GCC unroll 8
	for (int i = 0; i < 8; i++) {
		__m256i a = _mm256_loadu_si256((const void *)(data + 256 * i));
		__m256i b = _mm256_loadu_si256((const void *)(data + 256 * (i + 8)));

		v[i] = half ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
	}
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		swap_halves(&v[i], &v[i + 4]);
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		swap_halves(&v[(i & 1) + 4 * (i >> 1)], &v[(i & 1) + 4 * (i >> 1) + 2]);
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		swap_halves(&v[2 * i], &v[2 * i + 1]);
}

/* Byte r of 16 lanes becomes lane i of 16 rows, in both halves of the vectors. */
INLINE void load_rows(struct block *block, const uint8_t *data)
{
	for (int j = 0; j < SETS; j++)
#pragma GCC unroll 2
		for (int half = 0; half < 2; half++) {
			__m256i v[8];

			load_half(v, data + 32 * j, half);
#pragma GCC unroll 8
			for (int r = 0; r < 8; r++)
				block->rows[8 * half + r][j] = v[r];
		}
}

/* Bit k of byte n in vector j becomes bit j of byte n in vector k. */
INLINE void transpose_bits(__m256i v[8])
{
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		swap_bits(&v[i], &v[i + 4], 4, 0x0f);
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		swap_bits(&v[(i & 1) + 4 * (i >> 1)], &v[(i & 1) + 4 * (i >> 1) + 2], 2, 0x33);
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		swap_bits(&v[2 * i], &v[2 * i + 1], 1, 0x55);
}

INLINE void split_planes(struct block *block)
{
	for (int r = 0; r < TIMES; r++) {
		__m256i v[SETS];

#pragma GCC unroll 8
		for (int j = 0; j < SETS; j++)
			v[j] = block->rows[r][j];
		transpose_bits(v);
#pragma GCC unroll 8
		for (int k = 0; k < PLANES; k++)
			block->bits[k][r] = v[k];
	}
}

/* XOR of all bits up to and including each one, over 128 bits. */
INLINE __m128i prefix_xor(__m128i v)
{
	__m128i ones = _mm_set1_epi32(-1);
	__m128i low = _mm_clmulepi64_si128(v, ones, 0x00);
	__m128i high = _mm_clmulepi64_si128(v, ones, 0x01);
	__m128i prefix = _mm_unpacklo_epi64(low, high);
	__m128i carry = _mm_srai_epi32(_mm_shuffle_epi32(low, 0x55), 31);

	return _mm_xor_si128(prefix, _mm_unpacklo_epi64(_mm_setzero_si128(), carry));
}

/*
 * This plane's bit of the low byte before each group, from each group's total.
 * carry: all ones if the bit is set before the block; becomes that of the next block.
 */
INLINE __m256i entry_plane(__m256i totals, __m128i *carry)
{
	__m128i low = _mm256_castsi256_si128(totals);
	__m128i high = _mm256_extracti128_si256(totals, 1);
	__m128i both = _mm_xor_si128(low, high);
	__m128i through = _mm_xor_si128(prefix_xor(both), *carry);
	__m128i before = _mm_xor_si128(through, both);

	*carry = _mm_srai_epi32(_mm_shuffle_epi32(through, 0xff), 31);
	return _mm256_set_m128i(_mm_xor_si128(before, low), before);
}

/* What plane k adds to its own bit of x in 0xb3 * x = y + 16y + 128x, y = 3x. */
INLINE __m256i lower_planes(struct chain *chain, int k, int r, __m256i entry)
{
	__m256i x, below, c, y, d;

	if (k == 0)
		return _mm256_setzero_si256();
	x = _mm256_xor_si256(chain->x[r], entry);
	if (k == 1) {
		chain->x0[r] = chain->y[0][r] = chain->x_before[r] = x;
		return x;
	}
	below = chain->x_before[r];
	c = k == 2 ? _mm256_setzero_si256() : chain->c[r];
	y = xor3(x, below, c);
	c = k == 2 ? _mm256_and_si256(x, below) : majority(x, below, c);
	chain->c[r] = c;
	chain->x_before[r] = x;
	if (k <= 4)
		chain->y[k - 1][r] = y;
	if (k < 4)
		return _mm256_xor_si256(x, c);
	if (k == 4)
		return xor3(x, c, chain->y[0][r]);
	d = k == 5 ? _mm256_and_si256(y, chain->y[0][r])
		   : majority(y, chain->y[k - 5][r], chain->d[r]);
	chain->d[r] = d;
	x = _mm256_xor_si256(xor3(x, c, d), chain->y[k - 4][r]);
	return k == 7 ? _mm256_xor_si256(x, chain->x0[r]) : x;
}

/* low: this plane's bit of the low byte before time r, still without the entry bit; and after. */
INLINE __m256i plane_step(struct block *block, int k, int r, __m256i entry, __m256i low)
{
	__m256i added = lower_planes(&block->chain, k, r, entry), bits = block->bits[k][r];

	block->chain.x[r] = _mm256_xor_si256(low, bits);
	return xor3(low, bits, added);
}

/* Sums of one set, a vector for each digit of the weights. */
struct sums {
	__m256i digit[DIGITS];
	__m256i low[2]; /* low bytes of the state in 16 bits; what stands above them is junk */
};

INLINE struct sums begin_sums(const struct block *block, int j)
{
	__m256i bias = _mm256_set1_epi32(BIAS), zero = _mm256_setzero_si256();
	__m256i entry = block->entry[j];

	return (struct sums){
		.digit = { bias, bias, zero, zero },
		.low = { _mm256_unpacklo_epi8(entry, zero), _mm256_unpackhi_epi8(entry, zero) },
	};
}

/* The same junk stands above x and low: it leaves their difference, and low bytes do not see it. */
INLINE void add_half(struct sums *sums, int half, __m256i bytes, const int16_t w[DIGITS][LANES])
{
	__m256i low = sums->low[half], x = _mm256_xor_si256(low, bytes);
	__m256i difference = _mm256_sub_epi16(x, low);

#pragma GCC unroll 4
	for (int i = 0; i < DIGITS; i++)
		sums->digit[i] = add_product(sums->digit[i], difference, (const __m256i *)w[i]);
	sums->low[half] = _mm256_mullo_epi16(x, _mm256_set1_epi16(0xb3));
}

INLINE void sums_step(struct sums *sums, const struct block *block, int j, int r)
{
	const int16_t(*w)[2][DIGITS][LANES] = hmb_fnv_weights.digits;
	__m256i bytes = block->rows[r][j];

	add_half(sums, 0, _mm256_unpacklo_epi8(bytes, _mm256_setzero_si256()), w[r][0]);
	add_half(sums, 1, _mm256_unpackhi_epi8(bytes, _mm256_setzero_si256()), w[r][1]);
}

/* Lanes of 32 bits, summed in pairs to 64 bits. */
INLINE __m256i pair_sums(__m256i v)
{
	__m256i even = _mm256_and_si256(v, _mm256_set1_epi64x(0xffffffff));

	return _mm256_add_epi64(even, _mm256_srli_epi64(v, 32));
}

INLINE uint64_t total(const struct sums *sums)
{
	const uint64_t bias = (uint64_t)BIAS * 8 * ((1 << 16) + 1);
	__m256i all = pair_sums(sums->digit[0]);
	__m128i half;

	all = _mm256_add_epi64(all, _mm256_slli_epi64(pair_sums(sums->digit[1]), 16));
	all = _mm256_add_epi64(all, _mm256_slli_epi64(pair_sums(sums->digit[2]), 32));
	all = _mm256_add_epi64(all, _mm256_slli_epi64(pair_sums(sums->digit[3]), 48));
	half = _mm_add_epi64(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
	return (uint64_t)_mm_cvtsi128_si64(half) + (uint64_t)_mm_extract_epi64(half, 1) - bias;
}

INLINE uint64_t end_sums(const struct sums *sums, int j, uint64_t state)
{
	return state * (j ? hmb_fnv_weights.power_32 : hmb_fnv_weights.power_3872) + total(sums);
}

INLINE void first_planes(struct block *block, __m128i carry[PLANES])
{
	__m256i entry = _mm256_setzero_si256();

#pragma GCC unroll 8
	for (int k = 0; k < PLANES; k++) {
		__m256i low = _mm256_setzero_si256();

#pragma GCC unroll 2
		for (int r = 0; r < TIMES; r++)
			low = plane_step(block, k, r, entry, low);
		block->entry[k] = entry = entry_plane(low, &carry[k]);
	}
	transpose_bits(block->entry);
}

INLINE uint64_t planes_and_sums(struct block *block, __m128i carry[PLANES],
				const struct block *before, uint64_t state, const uint8_t *ahead)
{
	__m256i entry = _mm256_setzero_si256();

#pragma GCC unroll 8
	for (int k = 0; k < PLANES; k++) {
		__m256i low = _mm256_setzero_si256();
		struct sums sums = begin_sums(before, k);

#pragma GCC unroll 2
		for (int r = 0; r < TIMES; r++) {
			if (r % 2)
				_mm_prefetch((const char *)ahead + 512 * k + 32 * (r - 1),
					     _MM_HINT_T0);
			low = plane_step(block, k, r, entry, low);
			sums_step(&sums, before, k, r);
		}
		block->entry[k] = entry = entry_plane(low, &carry[k]);
		state = end_sums(&sums, k, state);
	}
	transpose_bits(block->entry);
	return state;
}

INLINE uint64_t last_sums(const struct block *block, uint64_t state)
{
	for (int j = 0; j < SETS; j++) {
		struct sums sums = begin_sums(block, j);

#pragma GCC unroll 2
		for (int r = 0; r < TIMES; r++)
			sums_step(&sums, block, j, r);
		state = end_sums(&sums, j, state);
	}
	return state;
}

TARGET uint64_t HASH_BLOCKS(const uint8_t *data, uint64_t blocks, uint64_t state)
{
	__m128i carry[PLANES];
	struct block storage[2], *block = storage, *before = storage + 1, *other;

	OPAQUE(block); /* or the compiler takes it for 400 variables, and spills */
	OPAQUE(before);
	for (int k = 0; k < PLANES; k++)
		carry[k] = _mm_set1_epi32(state >> k & 1 ? -1 : 0);
	load_rows(block, data);
	split_planes(block);
	first_planes(block, carry);
	while (--blocks) {
		data += FNV_BLOCK;
		other = block, block = before, before = other;
		load_rows(block, data);
		split_planes(block);
		state = planes_and_sums(block, carry, before, state,
					data + (blocks > AHEAD ? AHEAD * FNV_BLOCK : 0));
	}
	return last_sums(block, state);
}
