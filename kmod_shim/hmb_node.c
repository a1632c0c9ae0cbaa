// SPDX-License-Identifier: GPL-2.0
/* What a process can do with a device node: open, ask, map, wait, and move tail by a call. */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched.h>
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

static int hmb_open_locked(struct hmb_node *node, struct inode *inode, struct file *file)
{
	struct hmb_region *region = node->region;

	if (region->gone)
		return -ENODEV;
	if (hmb_is_consumer(node, file)) {
		if (region->consumer)
			return -EBUSY;
		WRITE_ONCE(region->consumer, task_tgid_nr(current));
	}
	if (!region->opens++) {
		ihold(inode);
		region->inode = inode;
	}
	/* Whatever path it was opened by, one unmap_mapping_range() finds all mappings. */
	file->f_mapping = region->inode->i_mapping;
	file->private_data = node;
	return nonseekable_open(inode, file);
}

static int hmb_open(struct inode *inode, struct file *file)
{
	struct hmb_node *node = container_of(inode->i_cdev, struct hmb_node, cdev);
	int err;

	mutex_lock(&node->region->open_lock);
	err = hmb_open_locked(node, inode, file);
	mutex_unlock(&node->region->open_lock);
	return err;
}

static int hmb_release(struct inode *inode, struct file *file)
{
	struct hmb_node *node = file->private_data;
	struct hmb_region *region = node->region;
	struct inode *last = NULL;

	mutex_lock(&region->open_lock);
	if (hmb_is_consumer(node, file))
		WRITE_ONCE(region->consumer, 0);
	if (!--region->opens) {
		last = region->inode;
		region->inode = NULL;
	}
	mutex_unlock(&region->open_lock);
	iput(last);
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

static long hmb_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct hmb_node *node = file->private_data;
	struct nvme_hmb_trace_advance advance;
	struct nvme_hmb_trace_info info;
	void __user *user = (void __user *)arg;
	int err;

	switch (cmd) {
	case NVME_HMB_TRACE_GET_INFO:
		err = hmb_get_info(node->region, &info);
		if (err)
			return err;
		return copy_to_user(user, &info, sizeof(info)) ? -EFAULT : 0;
	case NVME_HMB_TRACE_ADVANCE_TAIL:
		if (!hmb_is_consumer(node, file))
			return -EBADF;
		if (copy_from_user(&advance, user, sizeof(advance)))
			return -EFAULT;
		return hmb_advance_tail(node->region, &advance);
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
	unsigned long pfn;
	vm_fault_t result;

	if (vmf->pgoff >= region->provision.size >> PAGE_SHIFT)
		return VM_FAULT_SIGBUS;
	/* Held across the insertion: what goes in before gone is set, the revocation removes. */
	down_read(&region->alive);
	pfn = region->gone ? page_to_pfn(region->blank) : hmb_pfn(region, vmf->pgoff);
	result = vmf_insert_pfn(vmf->vma, vmf->address, pfn);
	up_read(&region->alive);
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

static ktime_t hmb_tick_interval(void)
{
	return ns_to_ktime((u64)clamp(READ_ONCE(poll_interval_us), 50u, 1000000u) * NSEC_PER_USEC);
}

/* Runs only while somebody waits: nobody is told by an interrupt that a device wrote memory. */
enum hrtimer_restart hmb_region_tick(struct hrtimer *timer)
{
	struct hmb_region *region = container_of(timer, struct hmb_region, timer);
	struct hmb_snapshot s;

	/* The revocation cancels this timer after it has set gone, and before base goes away. */
	if (READ_ONCE(region->gone))
		return HRTIMER_NORESTART;
	hmb_region_look(region, &s);
	if (s.head != s.tail) {
		wake_up_interruptible_poll(&region->wait, EPOLLIN | EPOLLRDNORM);
		return HRTIMER_NORESTART;
	}
	if (!wq_has_sleeper(&region->wait))
		return HRTIMER_NORESTART;
	/* Not by HRTIMER_RESTART: a poll may have armed it again while we looked. */
	hrtimer_start(timer, hmb_tick_interval(), HRTIMER_MODE_REL_SOFT);
	return HRTIMER_NORESTART;
}

static __poll_t hmb_poll(struct file *file, poll_table *table)
{
	struct hmb_node *node = file->private_data;
	struct hmb_region *region = node->region;
	__poll_t ready = EPOLLHUP;
	struct hmb_snapshot s;

	poll_wait(file, &region->wait, table);
	down_read(&region->alive);
	if (!region->gone) {
		hmb_region_look(region, &s);
		ready = s.head != s.tail ? EPOLLIN | EPOLLRDNORM : 0;
		if (!ready)
			hrtimer_start(&region->timer, hmb_tick_interval(), HRTIMER_MODE_REL_SOFT);
	}
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
