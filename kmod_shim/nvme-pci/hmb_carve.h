/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How an HMB is laid out when descriptor 0 is to be the trace slice.  Pure
 * arithmetic: tests/unit/test_kmod_logic.py compiles this file in user space.
 */
#ifndef HMB_CARVE_H
#define HMB_CARVE_H

#include <linux/errno.h>
#include <linux/types.h>

#define HMB_CARVE_AROUND 128u /* bytes of the ring header before the records, and the mark behind */
#define HMB_CARVE_RING_MIN 4096u
#define HMB_CARVE_RING_MAX 0x40000000u

/**
 * struct hmb_carve_limits - what host and drive allow, bytes
 * @total: the whole HMB, slice included
 * @page: the host's page size
 * @contiguous: largest physically contiguous piece that the host hands out
 * @smallest: least size of a descriptor (HMMINDS)
 * @descriptors: most descriptors (HMMAXD), 0: no limit
 */
struct hmb_carve_limits {
	__u64 total;
	__u64 page;
	__u64 contiguous;
	__u64 smallest;
	__u32 descriptors;
};

/*
 * Bytes of the slice for a ring of this size: header, ring and mark, in whole pages,
 * and never smaller than a descriptor may be.
 *
 * The errors are those that hmb_carve_why() puts into words.
 */
static inline __s64 hmb_carve_slice(__u64 ring, const struct hmb_carve_limits *l)
{
	__u64 slice = (ring + HMB_CARVE_AROUND + l->page - 1) & ~(l->page - 1);

	if (ring < HMB_CARVE_RING_MIN || ring > HMB_CARVE_RING_MAX || (ring & (ring - 1)))
		return -EINVAL;
	if (slice < l->smallest)
		slice = l->smallest;
	if (slice > l->contiguous)
		return -E2BIG;
	if (l->descriptors == 1)
		return -EMLINK;
	if (slice > l->total / 2 || l->total - slice < l->smallest)
		return -ENOSPC;
	return slice;
}

static inline const char *hmb_carve_why(__s64 error)
{
	switch (error) {
	case -EINVAL:
		return "trace_ring_kb must be a power of two from 4 to 1048576";
	case -E2BIG:
		return "header, ring and mark are more than this host allocates in one piece";
	case -EMLINK:
		return "the drive takes one descriptor only (HMMAXD 1)";
	case -ENOSPC:
		return "less than half of the buffer would be left to the drive";
	case -EOPNOTSUPP:
		return "the drive's DMA is not cache-coherent, or memory is encrypted";
	default:
		return "no memory in one piece";
	}
}

/* Descriptors for an HMB of total bytes in chunks, after a slice (0: none). */
static inline __u32 hmb_carve_entries(__u64 slice, __u64 chunk, const struct hmb_carve_limits *l)
{
	__u64 rest = l->total - slice;
	__u64 entries = !!slice;

	/* By subtraction: a 32-bit kernel has no 64-bit division, and the count is small. */
	while (rest) {
		rest = rest > chunk ? rest - chunk : 0;
		entries++;
	}
	return l->descriptors && entries > l->descriptors ? l->descriptors : (__u32)entries;
}

/*
 * Bytes of the next descriptor when done bytes are laid out already; 0: that
 * is all (a remainder too small for a descriptor is left away).
 */
static inline __u64 hmb_carve_next(__u64 slice, __u64 chunk, __u64 done,
				   const struct hmb_carve_limits *l)
{
	__u64 rest = l->total - done;

	if (slice && !done)
		return slice;
	if (slice && rest < l->smallest)
		return 0;
	return rest < chunk ? rest : chunk;
}

/* Does a list such as "a,b,c" have this entry? Blanks around and behind count as nothing. */
static inline int hmb_list_has(const char *list, const char *entry)
{
	const char *e;

	while (*list) {
		e = entry;
		while (*e && *e != ' ' && *list == *e) {
			list++;
			e++;
		}
		if ((!*e || *e == ' ') && e != entry && (!*list || *list == ','))
			return 1;
		while (*list && *list != ',')
			list++;
		if (*list)
			list++;
	}
	return 0;
}

/*
 * The mark by which firmware knows a slice, as include/uapi/linux/hmb_trace.h
 * has it (struct hmb_slice_mark): sixteen 32-bit words, in CPU byte order here.
 */
#define HMB_MARK_WORDS 16u

static inline void hmb_mark_words(__u64 slice, __u64 dma_addr, __u32 words[HMB_MARK_WORDS])
{
	__u32 sum = 0;
	__u32 i;

	for (i = 0; i < HMB_MARK_WORDS; i++)
		words[i] = 0;
	words[0] = 0x53424D48u; /* magic */
	words[1] = 1; /* version */
	words[2] = (__u32)slice;
	words[3] = (__u32)(slice >> 32);
	words[4] = (__u32)dma_addr;
	words[5] = (__u32)(dma_addr >> 32);
	for (i = 0; i < HMB_MARK_WORDS; i++)
		sum += words[i];
	words[HMB_MARK_WORDS - 1] = 0 - sum; /* check */
}

#endif
