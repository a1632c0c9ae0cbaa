/* SPDX-License-Identifier: GPL-2.0 */
/* The nvme driver's side of trace slices; copied beside pci.c by apply.sh. */
#ifndef HMB_SLICE_H
#define HMB_SLICE_H

#include <linux/list.h>

#include "nvme_hmb_client.h"

/**
 * struct hmb_slice - the trace slice of one controller
 * @entry: in the list of slices, while it is shown
 * @desc: what the client gets to see
 * @handle: the client's
 * @shown: in the list
 */
struct hmb_slice {
	struct list_head entry;
	struct nvme_hmb_slice desc;
	void *handle;
	bool shown;
};

/* The controller has accepted the HMB: show the slice, or say that it was reset. */
void hmb_slice_enabled(struct hmb_slice *slice);
/* Before the memory is freed; nobody touches it afterwards. */
void hmb_slice_revoke(struct hmb_slice *slice);

#endif
