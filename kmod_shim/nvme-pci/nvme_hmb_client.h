/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Between a patched nvme driver and nvme_hmb_trace.  The driver must load and
 * boot without us, so it offers and we ask: it depends on nobody.
 */
#ifndef NVME_HMB_CLIENT_H
#define NVME_HMB_CLIENT_H

#include <linux/device.h>
#include <linux/types.h>

/**
 * struct nvme_hmb_slice - the part of a drive's HMB that belongs to its trace ring
 * @instance: N of nvme<N>
 * @dev: the PCI function
 * @base: kernel mapping
 * @phys: physical address, or 0 where base is a vmalloc area (behind an IOMMU)
 * @size: bytes; the slice is the whole of HMB descriptor 0
 */
struct nvme_hmb_slice {
	int instance;
	struct device *dev;
	void *base;
	phys_addr_t phys;
	size_t size;
};

/**
 * struct nvme_hmb_client - who shows the slices to user space
 *
 * Called in a drive's reset work: none of the three may wait for a drive.
 *
 * @add: a slice exists; returns a handle for the other two, or NULL
 * @reset: the controller was reset, the slice is the same memory
 * @remove: the slice goes away; after the call nobody touches it
 */
struct nvme_hmb_client {
	void *(*add)(const struct nvme_hmb_slice *slice);
	void (*reset)(void *handle);
	void (*remove)(void *handle);
};

/* Called with a client: add() for every slice there is. With NULL: remove() for all of them. */
int nvme_hmb_set_client(const struct nvme_hmb_client *client);

#endif
