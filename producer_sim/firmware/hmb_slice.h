/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is descriptor 0 of the Host Memory Buffer a trace slice?  Freestanding, as
 * hmb_producer.h; firmware asks at every enabling of the buffer.
 */
#ifndef HMB_SLICE_H
#define HMB_SLICE_H

#include <linux/hmb_trace.h>

/* Where the mark lies in descriptor 0; size in bytes. */
static inline __u64 hmb_slice_mark_off(__u64 slice_size)
{
	return slice_size - HMB_SLICE_MARK_SIZE;
}

/*
 * Judge the mark.  mark is firmware's own copy of the last 64 bytes of
 * descriptor 0 (read by DMA), slice_size is what the descriptor says in bytes,
 * dma_addr its address.  Returns the ring_size for hmb_producer_init() at the
 * slice's first byte, or 0: this host has not made a slice, so leave tracing
 * alone and use all of the buffer as without it.
 */
__u32 hmb_slice_ring_size(const struct hmb_slice_mark *mark, __u64 slice_size, __u64 dma_addr);

/* Write a mark for a slice: the host's part, for simulators and tests of hosts. */
void hmb_slice_make_mark(struct hmb_slice_mark *mark, __u64 slice_size, __u64 dma_addr);

#endif
