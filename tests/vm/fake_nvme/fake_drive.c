// SPDX-License-Identifier: GPL-2.0
/*
 * Stands in for the patched nvme driver where no drive with an HMB is at hand:
 * the real hmb_slice.c and hmb_carve.h around a controller that only obeys
 * /sys/module/fake_nvme/parameters/command (enable, free).
 */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/platform_device.h>

#include "hmb_carve.h"
#include "hmb_slice.h"

static unsigned int ring_kb = 64;
module_param(ring_kb, uint, 0444);

static int instance = 7;
module_param(instance, int, 0444);

static bool marked; /* did the memory go back with a mark in it? */
module_param(marked, bool, 0444);

static struct platform_device *drive;
static struct hmb_slice slice;
static dma_addr_t dma;

static int fake_alloc(void)
{
	struct hmb_carve_limits limits = {
		.total = SZ_64M,
		.page = PAGE_SIZE,
		.contiguous = SZ_4M,
	};
	s64 size = hmb_carve_slice((u64)ring_kb * SZ_1K, &limits);
	void *base;

	if (size < 0)
		return size;
	base = dma_alloc_attrs(&drive->dev, size, &dma, GFP_KERNEL, DMA_ATTR_NO_WARN);
	if (!base)
		return -ENOMEM;
	hmb_slice_set(&slice, instance, &drive->dev, base, dma, size);
	return 0;
}

static void fake_free(void)
{
	hmb_slice_revoke(&slice);
	if (slice.desc.size) {
		marked = *(u32 *)(slice.desc.base + slice.desc.size - 64) != 0;
		dma_free_attrs(&drive->dev, slice.desc.size, slice.desc.base, dma,
			       DMA_ATTR_NO_WARN);
	}
	slice.desc.size = 0;
}

static int fake_command(const char *text, const struct kernel_param *param)
{
	int err = 0;

	if (sysfs_streq(text, "free")) {
		fake_free();
		return 0;
	}
	if (!sysfs_streq(text, "enable"))
		return -EINVAL;
	if (!slice.desc.size)
		err = fake_alloc();
	if (err)
		return err;
	hmb_slice_mark(&slice);
	hmb_slice_enabled(&slice);
	return 0;
}

static const struct kernel_param_ops fake_command_ops = { .set = fake_command };
module_param_cb(command, &fake_command_ops, NULL, 0200);

static int __init fake_init(void)
{
	drive = platform_device_register_simple("fake_nvme", -1, NULL, 0);
	if (IS_ERR(drive))
		return PTR_ERR(drive);
	return dma_coerce_mask_and_coherent(&drive->dev, DMA_BIT_MASK(64));
}

static void __exit fake_exit(void)
{
	fake_free();
	platform_device_unregister(drive);
}

module_init(fake_init);
module_exit(fake_exit);
MODULE_DESCRIPTION("A drive that has nothing but a trace slice");
MODULE_LICENSE("GPL");
