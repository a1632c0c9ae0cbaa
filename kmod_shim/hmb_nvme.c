// SPDX-License-Identifier: GPL-2.0
/* Provider for drives: the slice that a patched nvme driver carves out of the HMB. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/err.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "hmb_region.h"
#include "nvme-pci/nvme_hmb_client.h"

static int (*hmb_set_client)(const struct nvme_hmb_client *client);

/*
 * In order, and not under a drive's reset: making and removing devices allocates
 * memory, and reclaim may wait for the very drive that is being reset.
 */
static struct workqueue_struct *hmb_nvme_queue;

/**
 * struct hmb_nvme - a drive's slice
 * @region: made at once, so that it can be revoked at once
 * @publish: makes its nodes
 * @remove: removes them, after it was revoked
 */
struct hmb_nvme {
	struct hmb_region *region;
	struct work_struct publish;
	struct work_struct remove;
};

static void hmb_nvme_publish(struct work_struct *work)
{
	struct hmb_nvme *nvme = container_of(work, struct hmb_nvme, publish);
	int err = hmb_region_publish(nvme->region);

	if (err && err != -ENODEV)
		pr_err("no trace device for a slice: error %d\n", err);
}

static void hmb_nvme_forget(struct work_struct *work)
{
	struct hmb_nvme *nvme = container_of(work, struct hmb_nvme, remove);

	hmb_region_remove(nvme->region);
	kfree(nvme);
}

/*
 * The node hangs below no device: it is removed by a work, and may outlive the
 * drive's device by a moment. The attribute "origin" tells whose it is.
 */
static struct hmb_region *hmb_nvme_region(const struct nvme_hmb_slice *slice)
{
	struct hmb_provision provision = {
		.provider = "nvme",
		.origin = slice->dev,
		.instance = slice->instance,
		.base = slice->base,
		.phys = slice->phys,
		.size = slice->size,
	};

	return hmb_region_make(&provision);
}

static void *hmb_nvme_add(const struct nvme_hmb_slice *slice)
{
	struct hmb_nvme *nvme = kzalloc(sizeof(*nvme), GFP_KERNEL);

	if (!nvme)
		return NULL;
	nvme->region = hmb_nvme_region(slice);
	if (IS_ERR(nvme->region)) {
		dev_err(slice->dev, "no trace region: error %ld\n", PTR_ERR(nvme->region));
		kfree(nvme);
		return NULL;
	}
	INIT_WORK(&nvme->publish, hmb_nvme_publish);
	INIT_WORK(&nvme->remove, hmb_nvme_forget);
	queue_work(hmb_nvme_queue, &nvme->publish);
	return nvme;
}

static void hmb_nvme_reset(void *handle)
{
	struct hmb_nvme *nvme = handle;

	hmb_region_new_generation(nvme->region);
}

static void hmb_nvme_remove(void *handle)
{
	struct hmb_nvme *nvme = handle;

	hmb_region_revoke(nvme->region);
	queue_work(hmb_nvme_queue, &nvme->remove);
}

static const struct nvme_hmb_client hmb_nvme_client = {
	.add = hmb_nvme_add,
	.reset = hmb_nvme_reset,
	.remove = hmb_nvme_remove,
};

/* An unpatched nvme driver has no slices: that is a normal state. */
int hmb_nvme_init(void)
{
	hmb_set_client = symbol_get(nvme_hmb_set_client);
	if (!hmb_set_client) {
		pr_info("the nvme driver is not patched: no slices from drives\n");
		return 0;
	}
	hmb_nvme_queue = alloc_ordered_workqueue("hmbtrace", 0);
	if (hmb_nvme_queue && !hmb_set_client(&hmb_nvme_client)) {
		/* The drives that are there keep their own numbers. */
		flush_workqueue(hmb_nvme_queue);
		return 0;
	}
	if (hmb_nvme_queue)
		destroy_workqueue(hmb_nvme_queue);
	symbol_put(nvme_hmb_set_client);
	hmb_set_client = NULL;
	return hmb_nvme_queue ? -EBUSY : -ENOMEM;
}

void hmb_nvme_exit(void)
{
	if (!hmb_set_client)
		return;
	hmb_set_client(NULL);
	destroy_workqueue(hmb_nvme_queue);
	symbol_put(nvme_hmb_set_client);
}
