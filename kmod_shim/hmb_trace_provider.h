/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The one interface between the device nodes and whoever owns a region.
 *
 * A provider has memory that a trace producer writes.  It registers it, and
 * gets a device node; before the memory goes away it unregisters it, and after
 * that call nobody touches the memory any more, live mappings included.
 */
#ifndef HMB_TRACE_PROVIDER_H
#define HMB_TRACE_PROVIDER_H

#include <linux/device.h>
#include <linux/types.h>

struct hmb_region;

/**
 * struct hmb_provision - a region as its provider describes it
 * @provider: name of the provider, for sysfs
 * @origin: device that the memory belongs to, for sysfs, or NULL
 * @parent: device that the node hangs below, or NULL
 * @instance: N of /dev/nvme<N>-hmbtrace if it is free, or -1; else the lowest that is free
 * @base: kernel mapping of the region, write-back
 * @phys: physical address where the region is contiguous; 0: base is a vmalloc area
 * @size: bytes, a multiple of the page size
 * @firmware_node: also make /dev/nvme<N>-hmbtrace-fw, through which a process can be the firmware
 */
struct hmb_provision {
	const char *provider;
	struct device *origin;
	struct device *parent;
	int instance;
	void *base;
	phys_addr_t phys;
	size_t size;
	bool firmware_node;
};

/*
 * A region's life in four steps. Making and revoking wait for no I/O, so that a
 * drive's reset work may do them; publishing and removing make and remove devices,
 * and are for a work of their own where that matters.
 */
struct hmb_region *hmb_region_make(const struct hmb_provision *provision);
/* Make the nodes; -ENODEV if it is revoked already. */
int hmb_region_publish(struct hmb_region *region);
/* After this call nobody touches the memory any more, live mappings included. */
void hmb_region_revoke(struct hmb_region *region);
/* Remove the nodes, and forget the region; it must be revoked. */
void hmb_region_remove(struct hmb_region *region);

/* make and publish; revoke and remove. */
struct hmb_region *hmb_region_register(const struct hmb_provision *provision);
void hmb_region_unregister(struct hmb_region *region);
/* The contents of the memory do not count any more, as after a controller reset. */
void hmb_region_new_generation(struct hmb_region *region);

#endif
