/* SPDX-License-Identifier: GPL-2.0 */
/* A region and its nodes; private to the module. */
#ifndef HMB_REGION_H
#define HMB_REGION_H

#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "hmb_logic.h"
#include "hmb_trace_provider.h"

enum hmb_role {
	HMB_CONSUMER, /* nvme<N>-hmbtrace: one writer at a time */
	HMB_FIRMWARE, /* nvme<N>-hmbtrace-fw: maps the whole region read-write */
	HMB_ROLES,
};

struct hmb_node {
	struct hmb_region *region;
	enum hmb_role role;
	bool added;
	struct device dev;
	struct cdev cdev;
};

/**
 * struct hmb_region - memory that a producer writes, and the nodes that show it
 * @nodes: one per role
 * @refs: one per node
 * @index: N of the node names
 * @provision: as the provider registered it; base is not to be touched once gone is set
 * @alive: read side: base stays usable; write side: only to set gone
 * @gone: the provider took the memory back
 * @blank: what live mappings see after that
 * @wait: pollers
 * @timer: looks at head while somebody waits, since DMA raises no interrupt
 * @watch_lock: protects watch
 * @watch: what the last look at the header saw
 * @open_lock: protects inode, opens, consumer
 * @inode: whose mapping every open file shares, so that one call revokes all of them
 * @opens: open files
 * @consumer: pid that opened the consumer's node for writing, or 0
 */
struct hmb_region {
	struct hmb_node nodes[HMB_ROLES];
	struct kref refs;
	int index;
	struct hmb_provision provision;
	struct rw_semaphore alive;
	bool gone;
	struct page *blank;
	wait_queue_head_t wait;
	struct hrtimer timer;
	spinlock_t watch_lock; /* see above */
	struct hmb_watch watch;
	struct mutex open_lock; /* see above */
	struct inode *inode;
	unsigned int opens;
	pid_t consumer;
};

extern const struct file_operations hmb_node_fops;

/* Read the header and keep count; under alive, or from the timer. */
void hmb_region_look(struct hmb_region *region, struct hmb_snapshot *s);
enum hrtimer_restart hmb_region_tick(struct hrtimer *timer);
bool hmb_mmap_readonly(void);
bool hmb_is_write_back(const void *base);

int hmb_region_init(void);
void hmb_region_exit(void);
int hmb_pages_init(void);
void hmb_pages_exit(void);
int hmb_pci_init(void);
void hmb_pci_exit(void);
void hmb_nvme_init(void);
void hmb_nvme_exit(void);

#endif
