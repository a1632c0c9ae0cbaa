// SPDX-License-Identifier: GPL-2.0
/* Slices of all controllers and the client that shows them; copied beside pci.c by apply.sh. */
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>

#include "hmb_slice.h"

static LIST_HEAD(hmb_slices);
static DEFINE_MUTEX(hmb_slices_lock); /* protects the list and the client */
static const struct nvme_hmb_client *hmb_client;

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

/* Behind an IOMMU the slice is contiguous for the device only: 0, look at every page. */
static phys_addr_t hmb_slice_phys(void *base)
{
	return is_vmalloc_addr(base) ? 0 : virt_to_phys(base);
}

void hmb_slice_enabled(struct hmb_slice *slice)
{
	mutex_lock(&hmb_slices_lock);
	if (!slice->shown) {
		slice->desc.phys = hmb_slice_phys(slice->desc.base);
		list_add_tail(&slice->entry, &hmb_slices);
		slice->shown = true;
		hmb_slice_offer(slice);
	} else if (slice->handle) {
		hmb_client->reset(slice->handle);
	}
	mutex_unlock(&hmb_slices_lock);
}

void hmb_slice_revoke(struct hmb_slice *slice)
{
	mutex_lock(&hmb_slices_lock);
	if (slice->shown) {
		hmb_slice_withdraw(slice);
		list_del(&slice->entry);
		slice->shown = false;
	}
	mutex_unlock(&hmb_slices_lock);
}

int nvme_hmb_set_client(const struct nvme_hmb_client *client)
{
	struct hmb_slice *slice;
	int err = 0;

	mutex_lock(&hmb_slices_lock);
	if (client && hmb_client) {
		err = -EBUSY;
	} else if (client) {
		hmb_client = client;
		list_for_each_entry(slice, &hmb_slices, entry)
			hmb_slice_offer(slice);
	} else if (hmb_client) {
		list_for_each_entry(slice, &hmb_slices, entry)
			hmb_slice_withdraw(slice);
		hmb_client = NULL;
	}
	mutex_unlock(&hmb_slices_lock);
	return err;
}
EXPORT_SYMBOL_GPL(nvme_hmb_set_client);
