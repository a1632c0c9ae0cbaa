/* SPDX-License-Identifier: GPL-2.0 */
/* The nvme driver's side of trace slices; copied beside pci.c by apply.sh. */
#ifndef HMB_SLICE_H
#define HMB_SLICE_H

#include <linux/list.h>
#include <linux/types.h>

#include "hmb_carve.h"
#include "nvme_hmb_client.h"

/**
 * struct hmb_slice - the trace slice of one controller
 * @entry: in the list of slices, while it is shown
 * @desc: what the client gets to see; size 0: no slice
 * @dma: bus address of its first byte
 * @handle: the client's
 * @shown: in the list
 */
struct hmb_slice {
	struct list_head entry;
	struct nvme_hmb_slice desc;
	dma_addr_t dma;
	void *handle;
	bool shown;
};

/* Bytes of a slice for this drive, 0 for none: not named in drives, or (said in the log) no fit. */
u64 hmb_slice_wanted(struct device *ctrl, struct device *dev, const char *drives,
		     const char *serial, u64 ring_kb, const struct hmb_carve_limits *limits);
/* The largest piece that this host allocates for the device; bytes. */
u64 hmb_slice_contiguous(struct device *dev);
/* Descriptor 0 was allocated as a slice. */
void hmb_slice_set(struct hmb_slice *slice, int instance, struct device *dev, void *base,
		   dma_addr_t dma, size_t size);
/* The controller is about to get the buffer: firmware has to find the mark. */
void hmb_slice_mark(struct hmb_slice *slice);
/* The controller has accepted the buffer: show the slice, or say that it was reset. */
void hmb_slice_enabled(struct hmb_slice *slice);
/* Before the memory is freed: nobody touches it afterwards, and the mark is gone from it. */
void hmb_slice_revoke(struct hmb_slice *slice);

#endif
