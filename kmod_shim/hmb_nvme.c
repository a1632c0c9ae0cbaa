// SPDX-License-Identifier: GPL-2.0
/* Provider for drives: the slice that a patched nvme driver carves out of the HMB. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/err.h>
#include <linux/module.h>

#include "hmb_region.h"
#include "nvme-pci/nvme_hmb_client.h"

static int (*hmb_set_client)(const struct nvme_hmb_client *client);

static void *hmb_nvme_add(const struct nvme_hmb_slice *slice)
{
	struct hmb_provision provision = {
		.provider = "nvme",
		.parent = slice->dev,
		.instance = slice->instance,
		.base = slice->base,
		.phys = slice->phys,
		.size = slice->size,
	};
	struct hmb_region *region = hmb_region_register(&provision);

	if (IS_ERR(region)) {
		dev_err(slice->dev, "no trace device: error %ld\n", PTR_ERR(region));
		return NULL;
	}
	return region;
}

static void hmb_nvme_reset(void *handle)
{
	hmb_region_new_generation(handle);
}

static void hmb_nvme_remove(void *handle)
{
	hmb_region_unregister(handle);
}

static const struct nvme_hmb_client hmb_nvme_client = {
	.add = hmb_nvme_add,
	.reset = hmb_nvme_reset,
	.remove = hmb_nvme_remove,
};

/* An unpatched nvme driver has no slices: that is a normal state. */
void hmb_nvme_init(void)
{
	hmb_set_client = symbol_get(nvme_hmb_set_client);
	if (!hmb_set_client) {
		pr_info("the nvme driver is not patched: no slices from drives\n");
		return;
	}
	if (hmb_set_client(&hmb_nvme_client)) {
		pr_err("the nvme driver has another trace client\n");
		symbol_put(nvme_hmb_set_client);
		hmb_set_client = NULL;
	}
}

void hmb_nvme_exit(void)
{
	if (!hmb_set_client)
		return;
	hmb_set_client(NULL);
	symbol_put(nvme_hmb_set_client);
}
