// SPDX-License-Identifier: GPL-2.0
/* Provider for PCI shared-memory functions (QEMU ivshmem): the region is a memory BAR. */
#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>

#include "hmb_region.h"
#include "nvme-pci/hmb_carve.h"

#define HMB_IVSHMEM_BAR 2

static bool pci_allow_uncached;
module_param(pci_allow_uncached, bool, 0444);
MODULE_PARM_DESC(pci_allow_uncached,
		 "Accept a BAR that the platform will not map write-back (default: no)");

static char *pci_regions;
module_param(pci_regions, charp, 0444);
MODULE_PARM_DESC(pci_regions, "ivshmem functions to take: addresses, or all (default: none)");

struct hmb_pci {
	struct hmb_region *region;
	void *base;
};

#ifdef CONFIG_X86
/*
 * Firmware that puts a BAR below 4 GiB usually makes it uncached by MTRR, and
 * the kernel then quietly turns a write-back request into an uncached mapping:
 * every read of a record would be a bus transaction.  The page table tells.
 */
bool hmb_is_write_back(const void *base)
{
	unsigned int level;
	pte_t *pte = lookup_address((unsigned long)base, &level);

	return pte && !(pte_val(*pte) & (_PAGE_PWT | _PAGE_PCD));
}
#else
bool hmb_is_write_back(const void *base)
{
	return true;
}
#endif

static int hmb_pci_register(struct pci_dev *pdev, struct hmb_pci *pci)
{
	struct hmb_provision provision = {
		.provider = "pci",
		.origin = &pdev->dev,
		.parent = &pdev->dev,
		.instance = -1,
		.base = pci->base,
		.phys = pci_resource_start(pdev, HMB_IVSHMEM_BAR),
		.size = pci_resource_len(pdev, HMB_IVSHMEM_BAR),
	};

	pci->region = hmb_region_register(&provision);
	return PTR_ERR_OR_ZERO(pci->region);
}

/* Ivshmem is used for much else: only what was named. */
static bool hmb_pci_is_wanted(struct pci_dev *pdev)
{
	return !strcmp(pci_regions, "all") || hmb_list_has(pci_regions, pci_name(pdev));
}

static int hmb_pci_map(struct pci_dev *pdev, struct hmb_pci *pci)
{
	struct resource *bar = &pdev->resource[HMB_IVSHMEM_BAR];
	int err = pci_request_region(pdev, HMB_IVSHMEM_BAR, KBUILD_MODNAME);

	if (err)
		return err;
	pci->base = memremap(bar->start, resource_size(bar), MEMREMAP_WB);
	if (!pci->base) {
		pci_release_region(pdev, HMB_IVSHMEM_BAR);
		return -ENOMEM;
	}
	return 0;
}

static void hmb_pci_unmap(struct pci_dev *pdev, struct hmb_pci *pci)
{
	memunmap(pci->base);
	pci_release_region(pdev, HMB_IVSHMEM_BAR);
}

static int hmb_pci_show(struct pci_dev *pdev, struct hmb_pci *pci)
{
	if (!hmb_is_write_back(pci->base) && !pci_allow_uncached)
		return dev_err_probe(&pdev->dev, -EOPNOTSUPP,
				     "BAR 2 is not write-back: move it above 4 GiB\n");
	return hmb_pci_register(pdev, pci);
}

/* Released by hand: what is managed here differs from one kernel series to the next. */
static int hmb_pci_start(struct pci_dev *pdev, struct hmb_pci *pci)
{
	int err = pci_enable_device(pdev);

	if (err)
		return err;
	err = hmb_pci_map(pdev, pci);
	if (err)
		goto disable;
	err = hmb_pci_show(pdev, pci);
	if (err)
		goto unmap;
	return 0;

unmap:
	hmb_pci_unmap(pdev, pci);
disable:
	pci_disable_device(pdev);
	return err;
}

static int hmb_pci_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct resource *bar = &pdev->resource[HMB_IVSHMEM_BAR];
	struct hmb_pci *pci;

	if (!hmb_pci_is_wanted(pdev))
		return -ENODEV;
	if (!(resource_type(bar) == IORESOURCE_MEM) || resource_size(bar) < PAGE_SIZE)
		return dev_err_probe(&pdev->dev, -ENODEV, "BAR 2 is no shared memory\n");
	pci = devm_kzalloc(&pdev->dev, sizeof(*pci), GFP_KERNEL);
	if (!pci)
		return -ENOMEM;
	pci_set_drvdata(pdev, pci);
	return hmb_pci_start(pdev, pci);
}

static void hmb_pci_remove(struct pci_dev *pdev)
{
	struct hmb_pci *pci = pci_get_drvdata(pdev);

	hmb_region_unregister(pci->region);
	hmb_pci_unmap(pdev, pci);
	pci_disable_device(pdev);
}

/* No MODULE_DEVICE_TABLE: it would load the module in every guest that has an ivshmem. */
static const struct pci_device_id hmb_pci_ids[] = { { PCI_DEVICE(0x1af4,
								 0x1110) }, /* QEMU ivshmem */
						    {} };

static struct pci_driver hmb_pci_driver = {
	.name = KBUILD_MODNAME,
	.id_table = hmb_pci_ids,
	.probe = hmb_pci_probe,
	.remove = hmb_pci_remove,
};

int hmb_pci_init(void)
{
	return pci_regions ? pci_register_driver(&hmb_pci_driver) : 0;
}

void hmb_pci_exit(void)
{
	if (pci_regions)
		pci_unregister_driver(&hmb_pci_driver);
}
