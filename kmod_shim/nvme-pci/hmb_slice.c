// SPDX-License-Identifier: GPL-2.0
/* Slices of all controllers and the client that shows them; copied beside pci.c by apply.sh. */
#include <linux/cc_platform.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/sizes.h>

#include "hmb_slice.h"

/*
 * The list and the client. Taken in a drive's reset work: whoever holds it must
 * not wait for any drive, so what allocates under it does so without I/O.
 */
static DEFINE_MUTEX(hmb_slices_lock);
static LIST_HEAD(hmb_slices);
static const struct nvme_hmb_client *hmb_client;

/* ---- whether, and how large ---- */

/* User space maps the slice with the default protection: it must be what the device sees. */
static bool hmb_slice_can_be_mapped(struct device *dev)
{
	return dev_is_dma_coherent(dev) && !cc_platform_has(CC_ATTR_GUEST_MEM_ENCRYPT);
}

u64 hmb_slice_contiguous(struct device *dev)
{
	unsigned long boundary = dma_get_merge_boundary(dev);

	/* An IOMMU that can merge pages makes any size contiguous for the device. */
	if (boundary && !(PAGE_SIZE & boundary))
		return HMB_CARVE_RING_MAX;
	return (u64)PAGE_SIZE * MAX_ORDER_NR_PAGES;
}

u64 hmb_slice_wanted(struct device *ctrl, struct device *dev, const char *drives,
		     const char *serial, u64 ring_kb, const struct hmb_carve_limits *limits)
{
	s64 size = -EOPNOTSUPP;

	if (!drives || !(hmb_list_has(drives, dev_name(dev)) || hmb_list_has(drives, serial)))
		return 0;
	if (hmb_slice_can_be_mapped(dev))
		size = hmb_carve_slice(ring_kb * SZ_1K, limits);
	if (size > 0)
		return size;
	dev_warn(ctrl, "no trace slice for a ring of %llu KiB: %s\n", ring_kb, hmb_carve_why(size));
	return 0;
}

/* ---- the mark ---- */

void hmb_slice_set(struct hmb_slice *slice, int instance, struct device *dev, void *base,
		   dma_addr_t dma, size_t size)
{
	slice->desc.instance = instance;
	slice->desc.dev = dev;
	slice->desc.base = base;
	/* Behind an IOMMU it is contiguous for the device only: 0, look at every page. */
	slice->desc.phys = is_vmalloc_addr(base) ? 0 : virt_to_phys(base);
	slice->desc.size = size;
	slice->dma = dma;
}

static __le32 *hmb_slice_mark_words(struct hmb_slice *slice)
{
	return slice->desc.base + slice->desc.size - HMB_MARK_WORDS * sizeof(__le32);
}

void hmb_slice_mark(struct hmb_slice *slice)
{
	u32 words[HMB_MARK_WORDS];
	__le32 *mark;
	unsigned int i;

	if (!slice->desc.size)
		return;
	hmb_mark_words(slice->desc.size, slice->dma, words);
	mark = hmb_slice_mark_words(slice);
	for (i = 0; i < HMB_MARK_WORDS; i++)
		WRITE_ONCE(mark[i], cpu_to_le32(words[i]));
	/* Firmware reads it after the Set Features command; the doorbell's barrier pairs. */
	dma_wmb();
}

/* Another kernel, or another use of the pages, must not look like a slice. */
static void hmb_slice_unmark(struct hmb_slice *slice)
{
	if (slice->desc.size)
		memset(hmb_slice_mark_words(slice), 0, HMB_MARK_WORDS * sizeof(__le32));
}

/* ---- the client ---- */

static void hmb_slice_offer(struct hmb_slice *slice)
{
	slice->handle = hmb_client ? hmb_client->add(&slice->desc) : NULL;
}

static void hmb_slice_withdraw(struct hmb_slice *slice)
{
	if (slice->handle)
		hmb_client->remove(slice->handle);
	slice->handle = NULL;
}

static unsigned int hmb_slices_begin(void)
{
	unsigned int noio = memalloc_noio_save();

	mutex_lock(&hmb_slices_lock);
	return noio;
}

static void hmb_slices_end(unsigned int noio)
{
	mutex_unlock(&hmb_slices_lock);
	memalloc_noio_restore(noio);
}

void hmb_slice_enabled(struct hmb_slice *slice)
{
	unsigned int noio;

	if (!slice->desc.size)
		return;
	noio = hmb_slices_begin();
	if (!slice->shown) {
		list_add_tail(&slice->entry, &hmb_slices);
		slice->shown = true;
		hmb_slice_offer(slice);
	} else if (slice->handle) {
		hmb_client->reset(slice->handle);
	}
	hmb_slices_end(noio);
}

void hmb_slice_revoke(struct hmb_slice *slice)
{
	unsigned int noio = hmb_slices_begin();

	if (slice->shown) {
		hmb_slice_withdraw(slice);
		list_del(&slice->entry);
		slice->shown = false;
	}
	hmb_slices_end(noio);
	hmb_slice_unmark(slice);
}

static int hmb_slices_attach(const struct nvme_hmb_client *client)
{
	struct hmb_slice *slice;

	if (hmb_client)
		return -EBUSY;
	hmb_client = client;
	list_for_each_entry(slice, &hmb_slices, entry)
		hmb_slice_offer(slice);
	return 0;
}

static void hmb_slices_detach(void)
{
	struct hmb_slice *slice;

	list_for_each_entry(slice, &hmb_slices, entry)
		hmb_slice_withdraw(slice);
	hmb_client = NULL;
}

int nvme_hmb_set_client(const struct nvme_hmb_client *client)
{
	unsigned int noio = hmb_slices_begin();
	int err = 0;

	if (client)
		err = hmb_slices_attach(client);
	else
		hmb_slices_detach();
	hmb_slices_end(noio);
	return err;
}
EXPORT_SYMBOL_GPL(nvme_hmb_set_client);
