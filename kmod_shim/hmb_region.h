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
 * struct hmb_poll_state - what hmb_node.c remembers between two ticks of the timer
 * @armed: the timer is queued, or its function will queue it again
 * @told: the last look found something to read, and waiters were woken for it
 * @told_head: head at that look
 * @quiet_us: since somebody asked
 */
struct hmb_poll_state {
	bool armed;
	bool told;
	u64 told_head;
	u64 quiet_us;
};

/**
 * struct hmb_region - memory that a producer writes, and the nodes that show it
 * @nodes: one per role
 * @refs: one per node
 * @index: N of the node names, -1 before it is published
 * @origin: name of the device that the memory belongs to, or empty
 * @provision: as the provider registered it; base is not to be touched once gone is set
 * @alive: read side: base stays usable; write side: only to set gone
 * @gone: the provider took the memory back
 * @blank: what live mappings see after that
 * @wait: pollers
 * @timer: looks at head while somebody waits, since DMA raises no interrupt
 * @watch_lock: protects watch and poll
 * @watch: what the last look at the header saw
 * @poll: see hmb_node.c
 * @open_lock: protects consumer
 * @inode: the region's own; every open file shares its mapping, so that one call revokes all
 * @consumer: pid that opened the consumer's node for writing, or 0
 */
struct hmb_region {
	struct hmb_node nodes[HMB_ROLES];
	struct kref refs;
	int index;
	char origin[32];
	struct hmb_provision provision;
	struct rw_semaphore alive;
	bool gone;
	struct page *blank;
	wait_queue_head_t wait;
	struct hrtimer timer;
	spinlock_t watch_lock; /* see above */
	struct hmb_watch watch;
	struct hmb_poll_state poll;
	struct mutex open_lock; /* see above */
	struct inode *inode;
	pid_t consumer;
};

extern const struct file_operations hmb_node_fops;

/* Read the header and keep count; under alive, or from the timer. The second: under watch_lock. */
void hmb_region_look(struct hmb_region *region, struct hmb_snapshot *s);
void hmb_region_look_locked(struct hmb_region *region, struct hmb_snapshot *s);
enum hrtimer_restart hmb_region_tick(struct hrtimer *timer);
bool hmb_mmap_readonly(void);
bool hmb_is_write_back(const void *base);

int hmb_region_init(void);
void hmb_region_exit(void);
int hmb_pages_init(void);
void hmb_pages_exit(void);
int hmb_pci_init(void);
void hmb_pci_exit(void);
int hmb_nvme_init(void);
void hmb_nvme_exit(void);

#endif
