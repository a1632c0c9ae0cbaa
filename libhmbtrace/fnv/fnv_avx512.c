// SPDX-License-Identifier: Apache-2.0
/* Exact FNV-1a-64 with what AVX-512 adds to vectors of 256 bits: logic of three, sums of products. */
#include "fnv.h"

#if defined(__x86_64__)
#include <immintrin.h>

/*
 * gcc spills a tenth less when it tunes for this one, on other processors too.  clang takes
 * minutes to instrument thousands of straight lines; under sanitizers gcc checks this file.
 */
#ifdef __clang__
#define TARGET                                                             \
	__attribute__((target("avx2,pclmul,avx512vl,avx512bw,avx512vnni"), \
		       no_sanitize("address", "undefined", "coverage")))
#else
#define TARGET                 \
	__attribute__((target( \
		"avx2,pclmul,avx512vl,avx512bw,avx512vnni,prefer-vector-width=256,tune=znver3")))
#endif
#define INLINE TARGET static inline __attribute__((always_inline))
#define HASH_BLOCKS hmb_fnv_avx512

INLINE __m256i xor3(__m256i a, __m256i b, __m256i c)
{
	return _mm256_ternarylogic_epi64(a, b, c, 0x96);
}

INLINE __m256i majority(__m256i a, __m256i b, __m256i c)
{
	return _mm256_ternarylogic_epi64(a, b, c, 0xe8);
}

/* Bits of a where mask is set, else of b. */
INLINE __m256i pick(__m256i mask, __m256i a, __m256i b)
{
	return _mm256_ternarylogic_epi64(mask, a, b, 0xca);
}

/* The bits of *a above, which mask selects after the shift, for those of *b below. */
INLINE void swap_bits(__m256i *a, __m256i *b, int shift, char mask)
{
	__m256i down = _mm256_srli_epi64(*a, shift), up = _mm256_slli_epi64(*b, shift);

	*a = pick(_mm256_set1_epi8(mask), *a, up);
	*b = pick(_mm256_set1_epi8(mask), down, *b);
}

INLINE __m256i add_product(__m256i sum, __m256i a, const __m256i *b)
{
	return _mm256_dpwssd_epi32(sum, a, *b);
}

#include "fnv_kernel.h"

#endif
