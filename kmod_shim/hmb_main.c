// SPDX-License-Identifier: GPL-2.0
/* nvme_hmb_trace: shows trace rings in host memory as device nodes; moves no bytes. */
#include <linux/module.h>

#include "hmb_region.h"

static int __init hmb_init(void)
{
	int err = hmb_region_init();

	if (err)
		return err;
	/* First: a drive's own number beats the lowest free one. */
	err = hmb_nvme_init();
	if (err)
		goto undo_region;
	err = hmb_pci_init();
	if (err)
		goto undo_nvme;
	err = hmb_pages_init();
	if (err)
		goto undo_pci;
	return 0;

undo_pci:
	hmb_pci_exit();
undo_nvme:
	hmb_nvme_exit();
undo_region:
	hmb_region_exit();
	return err;
}

static void __exit hmb_exit(void)
{
	hmb_pages_exit();
	hmb_pci_exit();
	hmb_nvme_exit();
	hmb_region_exit();
}

module_init(hmb_init);
module_exit(hmb_exit);
MODULE_DESCRIPTION("SSD firmware trace rings in the NVMe Host Memory Buffer");
MODULE_AUTHOR("The hmb-trace authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
MODULE_SOFTDEP("pre: nvme");
