// SPDX-License-Identifier: Apache-2.0
/* Exact FNV-1a-64 with AVX2. */
#include "fnv.h"

#if defined(__x86_64__)
#include <immintrin.h>

/*
 * gcc spills a tenth less when it tunes for this one, on other processors too.  clang takes
 * minutes to instrument thousands of straight lines; under sanitizers gcc checks this file.
 */
#ifdef __clang__
#define TARGET \
	__attribute__((target("avx2,pclmul"), no_sanitize("address", "undefined", "coverage")))
#else
#define TARGET __attribute__((target("avx2,pclmul,tune=znver3")))
#endif
#define INLINE TARGET static inline __attribute__((always_inline))
#define HASH_BLOCKS hmb_fnv_avx2

INLINE __m256i xor3(__m256i a, __m256i b, __m256i c)
{
	return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}

INLINE __m256i majority(__m256i a, __m256i b, __m256i c)
{
	__m256i differ = _mm256_and_si256(_mm256_xor_si256(a, c), _mm256_xor_si256(b, c));

	return _mm256_xor_si256(c, differ);
}

/* The bits of *a above, which mask selects after the shift, for those of *b below. */
INLINE void swap_bits(__m256i *a, __m256i *b, int shift, char mask)
{
	__m256i moved = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi64(*a, shift), *b),
					 _mm256_set1_epi8(mask));

	*b = _mm256_xor_si256(*b, moved);
	*a = _mm256_xor_si256(*a, _mm256_slli_epi64(moved, shift));
}

INLINE __m256i add_product(__m256i sum, __m256i a, const __m256i *b)
{
	sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, *b));
	/* The compiler must not regroup the sums: it would need more registers than there are. */
	__asm__("" : "+x"(sum));
	return sum;
}

#include "fnv_kernel.h"

#endif
