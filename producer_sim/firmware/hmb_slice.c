// SPDX-License-Identifier: Apache-2.0
/* The handshake over descriptor 0: docs/hardware.md, "The slice mark". */
#include "hmb_slice.h"

#define HMB_MARK_WORDS (HMB_SLICE_MARK_SIZE / 4)
#define HMB_SLICE_RING_MAX 0x80000000u

/* By 32-bit words, and without memcpy(): firmware may have none. */
static __u32 hmb_slice_sum(const struct hmb_slice_mark *mark)
{
	const __u8 *byte = (const __u8 *)mark;
	__u32 sum = 0;
	__u32 i;

	for (i = 0; i < HMB_MARK_WORDS; i++, byte += 4)
		sum += byte[0] | (__u32)byte[1] << 8 | (__u32)byte[2] << 16 | (__u32)byte[3] << 24;
	return sum;
}

static __u32 hmb_slice_largest_ring(__u64 slice_size)
{
	__u64 most = slice_size - HMB_RECORD_AREA_OFF - HMB_SLICE_MARK_SIZE;
	__u32 ring = HMB_SLICE_RING_MAX;

	while (ring > most)
		ring >>= 1;
	return ring < HMB_RING_SIZE_MIN ? 0 : ring;
}

__u32 hmb_slice_ring_size(const struct hmb_slice_mark *mark, __u64 slice_size, __u64 dma_addr)
{
	if (slice_size < HMB_RECORD_AREA_OFF + HMB_RING_SIZE_MIN + HMB_SLICE_MARK_SIZE)
		return 0;
	if (mark->magic != HMB_SLICE_MAGIC || mark->version != HMB_SLICE_VERSION)
		return 0;
	/* A mark that an earlier host left in this memory speaks of another slice. */
	if (mark->slice_size != slice_size || mark->dma_addr != dma_addr)
		return 0;
	if (hmb_slice_sum(mark))
		return 0;
	return hmb_slice_largest_ring(slice_size);
}

void hmb_slice_make_mark(struct hmb_slice_mark *mark, __u64 slice_size, __u64 dma_addr)
{
	__u32 i;

	mark->magic = HMB_SLICE_MAGIC;
	mark->version = HMB_SLICE_VERSION;
	mark->slice_size = slice_size;
	mark->dma_addr = dma_addr;
	for (i = 0; i < sizeof(mark->reserved) / sizeof(mark->reserved[0]); i++)
		mark->reserved[i] = 0;
	mark->reserved1 = 0;
	mark->check = 0;
	mark->check = 0 - hmb_slice_sum(mark);
}
