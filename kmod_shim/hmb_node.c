// SPDX-License-Identifier: GPL-2.0
/* What a process can do with a device node: open, ask, map, wait, and move tail by a call. */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/uaccess.h>

#include "hmb_compat.h"
#include "hmb_region.h"

static bool mmap_readonly;
module_param(mmap_readonly, bool, 0644);
MODULE_PARM_DESC(mmap_readonly, "Consumers map read-only, and move tail by an ioctl (default: no)");

static unsigned int poll_interval_us = 1000;
module_param(poll_interval_us, uint, 0644);
MODULE_PARM_DESC(poll_interval_us, "How often a waiting poll looks at head (default: 1000)");

bool hmb_mmap_readonly(void)
{
	return READ_ONCE(mmap_readonly);
}

/* ---- open and release ---- */

static bool hmb_is_consumer(const struct hmb_node *node, const struct file *file)
{
	return node->role == HMB_CONSUMER && (file->f_mode & FMODE_WRITE);
}

static int hmb_open_locked(struct hmb_node *node, struct file *file)
{
	struct hmb_region *region = node->region;

	if (region->gone)
		return -ENODEV;
	if (hmb_is_consumer(node, file)) {
		if (region->consumer)
			return -EBUSY;
		WRITE_ONCE(region->consumer, task_tgid_nr(current));
	}
	return 0;
}

static int hmb_open(struct inode *inode, struct file *file)
{
	struct hmb_node *node = container_of(inode->i_cdev, struct hmb_node, cdev);
	int err;

	mutex_lock(&node->region->open_lock);
	err = hmb_open_locked(node, file);
	mutex_unlock(&node->region->open_lock);
	if (err)
		return err;
	/*
	 * Whatever path it was opened by, one unmap_mapping_range() finds all mappings. The
	 * region's own inode: one of a path belongs to a file system that may be unmounted.
	 */
	file->f_mapping = node->region->inode->i_mapping;
	file->private_data = node;
	return nonseekable_open(inode, file);
}

static int hmb_release(struct inode *inode, struct file *file)
{
	struct hmb_node *node = file->private_data;
	struct hmb_region *region = node->region;

	mutex_lock(&region->open_lock);
	if (hmb_is_consumer(node, file))
		WRITE_ONCE(region->consumer, 0);
	mutex_unlock(&region->open_lock);
	return 0;
}

/* ---- ioctl ---- */

static int hmb_get_info(struct hmb_region *region, struct nvme_hmb_trace_info *info)
{
	struct hmb_snapshot s;
	int err = -ENODEV;

	down_read(&region->alive);
	if (!region->gone) {
		hmb_region_look(region, &s);
		hmb_geometry(&s, region->provision.size, info);
		info->generation = READ_ONCE(region->watch.generation);
		if (hmb_mmap_readonly())
			info->flags |= NVME_HMB_TRACE_INFO_READONLY;
		err = 0;
	}
	up_read(&region->alive);
	return err;
}

static int hmb_store_tail(struct hmb_region *region, const struct nvme_hmb_trace_advance *arg)
{
	struct hmb_ring_hdr *hdr = region->provision.base;
	__le64 expected = cpu_to_le64(arg->expected);
	struct hmb_snapshot s;

	hmb_region_look(region, &s);
	if (!hmb_is_ring(&s, region->provision.size))
		return -ESTALE;
	switch (hmb_judge_advance(&s, arg)) {
	case HMB_ADVANCE_STALE:
		return -ESTALE;
	case HMB_ADVANCE_INVALID:
		return -EINVAL;
	case HMB_ADVANCE_OK:
		break;
	}
	/* Reads of the ring stay before the store. Pairs with the firmware's load of tail. */
	dma_mb();
	return cmpxchg(&hdr->tail, expected, cpu_to_le64(arg->new_tail)) == expected ? 0 : -ESTALE;
}

static int hmb_advance_tail(struct hmb_region *region, const struct nvme_hmb_trace_advance *arg)
{
	int err;

	down_read(&region->alive);
	err = region->gone ? -ENODEV : hmb_store_tail(region, arg);
	up_read(&region->alive);
	return err;
}

/* A structure of any size from its first one on; what this kernel does not know must be zero. */
static int hmb_copy_in(void *to, size_t known, size_t first, const void __user *from)
{
	u32 size;

	if (get_user(size, (const u32 __user *)from))
		return -EFAULT;
	if (size < first || size > PAGE_SIZE)
		return -EINVAL;
	return copy_struct_from_user(to, known, from, size);
}

static long hmb_ioctl_get_info(struct hmb_node *node, void __user *user)
{
	struct nvme_hmb_trace_info info;
	size_t asked;
	int err = hmb_copy_in(&info, sizeof(info), NVME_HMB_TRACE_INFO_SIZE_VER0, user);

	if (err)
		return err;
	if (info.flags || memchr_inv(info.reserved, 0, sizeof(info.reserved)))
		return -EINVAL;
	asked = min_t(size_t, info.size, sizeof(info));
	err = hmb_get_info(node->region, &info);
	if (err)
		return err;
	return copy_to_user(user, &info, asked) ? -EFAULT : 0;
}

static long hmb_ioctl_advance_tail(struct hmb_node *node, struct file *file, void __user *user)
{
	struct nvme_hmb_trace_advance advance;
	int err;

	if (!hmb_is_consumer(node, file))
		return -EBADF;
	err = hmb_copy_in(&advance, sizeof(advance), NVME_HMB_TRACE_ADVANCE_SIZE_VER0, user);
	if (err)
		return err;
	if (advance.flags || advance.reserved)
		return -EINVAL;
	return hmb_advance_tail(node->region, &advance);
}

/* The size is in the structures, so that they can grow: the request's own is not looked at. */
static long hmb_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct hmb_node *node = file->private_data;
	void __user *user = (void __user *)arg;

	switch (cmd & ~IOCSIZE_MASK) {
	case NVME_HMB_TRACE_GET_INFO & ~IOCSIZE_MASK:
		return hmb_ioctl_get_info(node, user);
	case NVME_HMB_TRACE_ADVANCE_TAIL & ~IOCSIZE_MASK:
		return hmb_ioctl_advance_tail(node, file, user);
	default:
		return -ENOTTY;
	}
}

/* ---- mmap ---- */

static unsigned long hmb_pfn(const struct hmb_region *region, pgoff_t page)
{
	const struct hmb_provision *p = &region->provision;

	if (p->phys)
		return PHYS_PFN(p->phys) + page;
	return vmalloc_to_pfn(p->base + (page << PAGE_SHIFT));
}

static vm_fault_t hmb_fault(struct vm_fault *vmf)
{
	struct hmb_node *node = vmf->vma->vm_private_data;
	struct hmb_region *region = node->region;
	unsigned int noio;
	unsigned long pfn;
	vm_fault_t result;

	if (vmf->pgoff >= region->provision.size >> PAGE_SHIFT)
		return VM_FAULT_SIGBUS;
	/*
	 * A drive's reset work revokes, and waits for us then: do not wait for that drive here,
	 * as reclaim for a page table could.
	 */
	noio = memalloc_noio_save();
	/* Held across the insertion: what goes in before gone is set, the revocation removes. */
	down_read(&region->alive);
	pfn = region->gone ? page_to_pfn(region->blank) : hmb_pfn(region, vmf->pgoff);
	result = vmf_insert_pfn(vmf->vma, vmf->address, pfn);
	up_read(&region->alive);
	memalloc_noio_restore(noio);
	return result;
}

static const struct vm_operations_struct hmb_vm_ops = {
	.fault = hmb_fault,
};

static int hmb_mmap_limit(struct hmb_node *node, unsigned long *limit)
{
	struct nvme_hmb_trace_info info;
	int err = hmb_get_info(node->region, &info);

	if (err)
		return err;
	*limit = node->role == HMB_FIRMWARE ? node->region->provision.size
					    : PAGE_ALIGN(info.total_mmap_size);
	return 0;
}

static int hmb_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct hmb_node *node = file->private_data;
	unsigned long clear = VM_MAYEXEC;
	unsigned long limit;
	int err = hmb_mmap_limit(node, &limit);

	if (err)
		return err;
	if (vma->vm_pgoff || vma->vm_end - vma->vm_start > limit || !(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EACCES;
	if (node->role == HMB_CONSUMER && hmb_mmap_readonly()) {
		if (vma->vm_flags & VM_WRITE)
			return -EACCES;
		clear |= VM_MAYWRITE;
	}
	vm_flags_mod(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP, clear);
	vma->vm_private_data = node;
	vma->vm_ops = &hmb_vm_ops;
	return 0;
}

/* ---- poll ---- */

/*
 * A device that wrote memory tells nobody by an interrupt, so a timer looks at
 * head while somebody waits.  Who waits cannot be seen from the wait queue: an
 * epoll registration stays in it for good.  But every waiter asks again (calls
 * ->poll) after a wake-up without a key, at the latest when it next wants
 * events: poll and select, epoll of both kinds, io_uring multishot.  So each
 * wake-up puts the timer to rest, each question starts it, and where nothing
 * happens for a while a wake-up is sent to find out whether anybody is there.
 */
#define HMB_QUIET_US (100 * USEC_PER_MSEC)

static u64 hmb_interval_us(void)
{
	return clamp(READ_ONCE(poll_interval_us), 50u, 1000000u);
}

/* Under watch_lock: is there news since the last wake-up? */
static bool hmb_is_news(struct hmb_poll_state *poll, const struct hmb_snapshot *s, bool ready)
{
	bool news = ready && !(poll->told && poll->told_head == s->head);

	poll->told = ready;
	poll->told_head = s->head;
	return news;
}

/* Under watch_lock: wake the waiters and rest, or go on? */
static bool hmb_tick_wakes(struct hmb_region *region)
{
	struct hmb_poll_state *poll = &region->poll;
	struct hmb_snapshot s;
	bool ready;

	hmb_region_look_locked(region, &s);
	ready = hmb_is_ready(&s, region->provision.size);
	poll->quiet_us += hmb_interval_us();
	/* No question to those who know of unread records: an edge is told once. */
	return hmb_is_news(poll, &s, ready) || (!ready && poll->quiet_us >= HMB_QUIET_US);
}

enum hrtimer_restart hmb_region_tick(struct hrtimer *timer)
{
	struct hmb_region *region = container_of(timer, struct hmb_region, timer);
	unsigned long irq;
	bool wake, rest;

	spin_lock_irqsave(&region->watch_lock, irq);
	/* The revocation cancels this timer after it has set gone, and before base goes away. */
	wake = !READ_ONCE(region->gone) && hmb_tick_wakes(region);
	/* A waiter that comes after this look takes the lock after us, and finds us at rest. */
	rest = wake || READ_ONCE(region->gone) || !waitqueue_active(&region->wait);
	region->poll.armed = !rest;
	spin_unlock_irqrestore(&region->watch_lock, irq);
	if (wake)
		wake_up_interruptible(&region->wait);
	if (rest)
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ns_to_ktime(hmb_interval_us() * NSEC_PER_USEC));
	return HRTIMER_RESTART;
}

/* Somebody asks: say what there is, and see to it that the timer runs. */
static __poll_t hmb_poll_alive(struct hmb_region *region)
{
	struct hmb_snapshot s;
	unsigned long irq;
	bool ready;

	spin_lock_irqsave(&region->watch_lock, irq);
	hmb_region_look_locked(region, &s);
	ready = hmb_is_ready(&s, region->provision.size);
	if (!ready)
		region->poll.told = false;
	region->poll.quiet_us = 0;
	if (!region->poll.armed) {
		region->poll.armed = true;
		hrtimer_start(&region->timer, ns_to_ktime(hmb_interval_us() * NSEC_PER_USEC),
			      HRTIMER_MODE_REL_SOFT);
	}
	spin_unlock_irqrestore(&region->watch_lock, irq);
	return ready ? EPOLLIN | EPOLLRDNORM : 0;
}

static __poll_t hmb_poll(struct file *file, poll_table *table)
{
	struct hmb_node *node = file->private_data;
	struct hmb_region *region = node->region;
	__poll_t ready = EPOLLHUP;

	poll_wait(file, &region->wait, table);
	down_read(&region->alive);
	if (!region->gone)
		ready = hmb_poll_alive(region);
	up_read(&region->alive);
	return ready;
}

const struct file_operations hmb_node_fops = {
	.owner = THIS_MODULE,
	.open = hmb_open,
	.release = hmb_release,
	.unlocked_ioctl = hmb_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = hmb_mmap,
	.poll = hmb_poll,
};
