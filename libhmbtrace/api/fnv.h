/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a, 64 bit. */

/* Hash n bytes; pass hmb_fnv1a_64_basis() first, then the last result, to go on. */
uint64_t hmb_fnv1a_64(const void *data, uint64_t n, uint64_t state);
/* The same by the byte loop of the texts: what the fast variants are tested against. */
uint64_t hmb_fnv1a_64_plain(const void *data, uint64_t n, uint64_t state);
uint64_t hmb_fnv1a_64_basis(void);
