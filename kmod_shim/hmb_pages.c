// SPDX-License-Identifier: GPL-2.0
/* Provider for bring-up: regions in the module's own pages, a process plays the firmware. */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "hmb_region.h"

static unsigned int pages_regions;
module_param(pages_regions, uint, 0444);
MODULE_PARM_DESC(pages_regions, "Regions in the module's own pages, at most 16 (default: 0)");

static unsigned int pages_ring_size = SZ_2M;
module_param(pages_ring_size, uint, 0444);
MODULE_PARM_DESC(pages_ring_size, "Bytes of each such ring, a power of two (default: 2 MiB)");

#define HMB_PAGES_MAX 16
#define HMB_PAGES_RING_MAX SZ_1G

static struct hmb_pages {
	struct hmb_region *region;
	void *base;
} hmb_pages[HMB_PAGES_MAX];

/* The region begins life as an empty ring, as a firmware's initialisation leaves it. */
static void hmb_pages_format(struct hmb_ring_hdr *hdr)
{
	hdr->version = cpu_to_le32(HMB_TRACE_ABI_VERSION);
	hdr->ring_size = cpu_to_le32(pages_ring_size);
	hdr->record_area_off = cpu_to_le32(HMB_RECORD_AREA_OFF);
	/* Whoever finds the magic finds the rest. */
	smp_store_release(&hdr->magic, cpu_to_le32(HMB_RING_MAGIC));
}

static int hmb_pages_add(struct hmb_pages *pages)
{
	struct hmb_provision provision = {
		.provider = "pages",
		.instance = -1,
		.size = PAGE_ALIGN(HMB_RECORD_AREA_OFF + (size_t)pages_ring_size),
		.firmware_node = true,
	};

	pages->base = vmalloc_user(provision.size);
	if (!pages->base)
		return -ENOMEM;
	hmb_pages_format(pages->base);
	provision.base = pages->base;
	pages->region = hmb_region_register(&provision);
	if (IS_ERR(pages->region)) {
		vfree(pages->base);
		return PTR_ERR(pages->region);
	}
	return 0;
}

static void hmb_pages_del(struct hmb_pages *pages)
{
	hmb_region_unregister(pages->region);
	vfree(pages->base);
}

int hmb_pages_init(void)
{
	unsigned int i;
	int err = 0;

	if (pages_regions > HMB_PAGES_MAX || !is_power_of_2(pages_ring_size) ||
	    pages_ring_size < HMB_RING_SIZE_MIN || pages_ring_size > HMB_PAGES_RING_MAX)
		return -EINVAL;
	for (i = 0; i < pages_regions && !err; i++)
		err = hmb_pages_add(&hmb_pages[i]);
	if (err)
		while (--i)
			hmb_pages_del(&hmb_pages[i - 1]);
	return err;
}

void hmb_pages_exit(void)
{
	unsigned int i;

	for (i = 0; i < pages_regions; i++)
		hmb_pages_del(&hmb_pages[i]);
}
