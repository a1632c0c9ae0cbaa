// SPDX-License-Identifier: GPL-2.0
/* Regions: made by providers, shown as device nodes and sysfs attributes, revoked at any time. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/idr.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/poll.h>
#include <linux/pseudo_fs.h>
#include <linux/slab.h>

#include "hmb_compat.h"
#include "hmb_region.h"

#define HMB_MAX_REGIONS 64
#define HMB_FS_MAGIC HMB_RING_MAGIC

static DEFINE_IDA(hmb_indices);
static dev_t hmb_first_dev;
static struct class hmb_class = { .name = "hmbtrace" };

static void hmb_read_header(const struct hmb_region *region, struct hmb_snapshot *s)
{
	const struct hmb_ring_hdr *hdr = region->provision.base;

	s->head = le64_to_cpu(READ_ONCE(hdr->head));
	/* Pairs with the firmware's barrier before it publishes head. */
	dma_rmb();
	s->magic = le32_to_cpu(READ_ONCE(hdr->magic));
	s->version = le32_to_cpu(READ_ONCE(hdr->version));
	s->ring_size = le32_to_cpu(READ_ONCE(hdr->ring_size));
	s->record_area_off = le32_to_cpu(READ_ONCE(hdr->record_area_off));
	s->flags = le32_to_cpu(READ_ONCE(hdr->flags));
	s->tail = le64_to_cpu(READ_ONCE(hdr->tail));
}

/* Copied under the lock: an older head after a newer one would look like a reset. */
void hmb_region_look_locked(struct hmb_region *region, struct hmb_snapshot *s)
{
	hmb_read_header(region, s);
	hmb_observe(&region->watch, s, region->provision.size);
}

void hmb_region_look(struct hmb_region *region, struct hmb_snapshot *s)
{
	unsigned long irq;

	spin_lock_irqsave(&region->watch_lock, irq);
	hmb_region_look_locked(region, s);
	spin_unlock_irqrestore(&region->watch_lock, irq);
}

/* ---- sysfs ---- */

static struct hmb_region *region_of(struct device *dev)
{
	return container_of(dev, struct hmb_node, dev)->region;
}

/* Take a look for an attribute; -ENODEV once the region is gone. */
static int hmb_look_alive(struct hmb_region *region, struct hmb_snapshot *s)
{
	int err = -ENODEV;

	down_read(&region->alive);
	if (!region->gone) {
		hmb_region_look(region, s);
		err = 0;
	}
	up_read(&region->alive);
	return err;
}

static ssize_t abi_version_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct hmb_region *region = region_of(dev);
	struct nvme_hmb_trace_info info;
	struct hmb_snapshot s;
	int err = hmb_look_alive(region, &s);

	if (err)
		return err;
	hmb_geometry(&s, region->provision.size, &info);
	return sysfs_emit(buf, "%u\n", info.abi_version);
}
static DEVICE_ATTR_RO(abi_version);

static ssize_t ring_size_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct hmb_region *region = region_of(dev);
	struct hmb_snapshot s;
	int err = hmb_look_alive(region, &s);

	if (err)
		return err;
	return sysfs_emit(buf, "%u\n", hmb_is_ring(&s, region->provision.size) ? s.ring_size : 0);
}
static DEVICE_ATTR_RO(ring_size);

static ssize_t fill_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct hmb_region *region = region_of(dev);
	struct hmb_snapshot s;
	int err = hmb_look_alive(region, &s);

	return err ? err : sysfs_emit(buf, "%u\n", hmb_fill(&s, region->provision.size));
}
static DEVICE_ATTR_RO(fill);

static ssize_t overflow_count_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct hmb_region *region = region_of(dev);
	struct hmb_snapshot s;
	int err = hmb_look_alive(region, &s);

	return err ? err : sysfs_emit(buf, "%llu\n", READ_ONCE(region->watch.overflows));
}
static DEVICE_ATTR_RO(overflow_count);

static ssize_t generation_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct hmb_region *region = region_of(dev);
	struct hmb_snapshot s;
	int err = hmb_look_alive(region, &s);

	return err ? err : sysfs_emit(buf, "%llu\n", READ_ONCE(region->watch.generation));
}
static DEVICE_ATTR_RO(generation);

static ssize_t region_size_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%zu\n", region_of(dev)->provision.size);
}
static DEVICE_ATTR_RO(region_size);

/* N of the node names: udev rules name the service after it. */
static ssize_t instance_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", region_of(dev)->index);
}
static DEVICE_ATTR_RO(instance);

static ssize_t provider_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", region_of(dev)->provision.provider);
}
static DEVICE_ATTR_RO(provider);

/* Whose memory it is, such as 0000:01:00.0: N alone does not tell. */
static ssize_t origin_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", region_of(dev)->origin);
}
static DEVICE_ATTR_RO(origin);

static ssize_t consumer_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", READ_ONCE(region_of(dev)->consumer));
}
static DEVICE_ATTR_RO(consumer);

static ssize_t mmap_policy_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", hmb_mmap_readonly() ? "ro" : "rw");
}
static DEVICE_ATTR_RO(mmap_policy);

/* clang-format off: one a line */
static struct attribute *hmb_region_attrs[] = {
	&dev_attr_abi_version.attr,    &dev_attr_ring_size.attr,   &dev_attr_fill.attr,
	&dev_attr_overflow_count.attr, &dev_attr_generation.attr,  &dev_attr_region_size.attr,
	&dev_attr_instance.attr,       &dev_attr_provider.attr,	   &dev_attr_origin.attr,
	&dev_attr_consumer.attr,       &dev_attr_mmap_policy.attr, NULL,
};

/* clang-format on */
ATTRIBUTE_GROUPS(hmb_region);

/* ---- a file system for the regions' own inodes ---- */

static struct vfsmount *hmb_mount;

static int hmb_init_fs_context(struct fs_context *fc)
{
	return init_pseudo(fc, HMB_FS_MAGIC) ? 0 : -ENOMEM;
}

/* No owner: it is mounted as long as the module is there. */
static struct file_system_type hmb_fs = {
	.name = "hmbtrace",
	.init_fs_context = hmb_init_fs_context,
	.kill_sb = kill_anon_super,
};

/* ---- making and revoking ---- */

static void hmb_region_free(struct kref *refs)
{
	struct hmb_region *region = container_of(refs, struct hmb_region, refs);

	if (!IS_ERR_OR_NULL(region->inode))
		iput(region->inode);
	if (region->blank)
		__free_page(region->blank);
	kfree(region);
}

static void hmb_node_release(struct device *dev)
{
	kref_put(&region_of(dev)->refs, hmb_region_free);
}

static int hmb_claim_index(int wanted)
{
	int index = -1;

	if (wanted >= 0 && wanted < HMB_MAX_REGIONS)
		index = ida_alloc_range(&hmb_indices, wanted, wanted, GFP_KERNEL);
	if (index < 0)
		index = ida_alloc_max(&hmb_indices, HMB_MAX_REGIONS - 1, GFP_KERNEL);
	if (index >= 0 && wanted >= 0 && index != wanted)
		pr_notice("nvme%d-hmbtrace is taken: the trace of nvme%d is nvme%d-hmbtrace\n",
			  wanted, wanted, index);
	return index;
}

static void hmb_region_setup(struct hmb_region *region, const struct hmb_provision *provision)
{
	region->provision = *provision;
	region->index = -1;
	if (provision->origin)
		strscpy(region->origin, dev_name(provision->origin), sizeof(region->origin));
	kref_init(&region->refs);
	init_rwsem(&region->alive);
	init_waitqueue_head(&region->wait);
	spin_lock_init(&region->watch_lock);
	mutex_init(&region->open_lock);
	hrtimer_setup(&region->timer, hmb_region_tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
}

struct hmb_region *hmb_region_make(const struct hmb_provision *provision)
{
	struct hmb_region *region;

	if (!provision->size || !PAGE_ALIGNED(provision->size) || !PAGE_ALIGNED(provision->phys))
		return ERR_PTR(-EINVAL);
	region = kzalloc(sizeof(*region), GFP_KERNEL);
	if (!region)
		return ERR_PTR(-ENOMEM);
	hmb_region_setup(region, provision);
	region->blank = alloc_page(GFP_KERNEL | __GFP_ZERO);
	region->inode = alloc_anon_inode(hmb_mount->mnt_sb);
	if (!region->blank || IS_ERR(region->inode)) {
		kref_put(&region->refs, hmb_region_free);
		return ERR_PTR(-ENOMEM);
	}
	return region;
}

static int hmb_node_add(struct hmb_region *region, enum hmb_role role)
{
	struct hmb_node *node = &region->nodes[role];
	int err;

	device_initialize(&node->dev);
	kref_get(&region->refs);
	node->region = region;
	node->role = role;
	node->dev.class = &hmb_class;
	node->dev.parent = region->provision.parent;
	node->dev.devt = MKDEV(MAJOR(hmb_first_dev), region->index * HMB_ROLES + role);
	node->dev.release = hmb_node_release;
	if (role == HMB_CONSUMER)
		node->dev.groups = hmb_region_groups;
	err = dev_set_name(&node->dev, "nvme%d-hmbtrace%s", region->index,
			   role == HMB_FIRMWARE ? "-fw" : "");
	if (!err) {
		cdev_init(&node->cdev, &hmb_node_fops);
		node->cdev.owner = THIS_MODULE;
		err = cdev_device_add(&node->cdev, &node->dev);
	}
	if (err)
		put_device(&node->dev);
	node->added = !err;
	return err;
}

void hmb_region_revoke(struct hmb_region *region)
{
	down_write(&region->alive);
	region->gone = true;
	up_write(&region->alive);
	hrtimer_cancel(&region->timer);
	unmap_mapping_range(region->inode->i_mapping, 0, 0, 1);
	__wake_up(&region->wait, TASK_NORMAL, 0, poll_to_key(EPOLLHUP));
}

/* Opens and attribute readers that are inside end first; the names are free again then. */
static void hmb_region_unpublish(struct hmb_region *region)
{
	int role;

	for (role = 0; role < HMB_ROLES; role++)
		if (region->nodes[role].added)
			cdev_device_del(&region->nodes[role].cdev, &region->nodes[role].dev);
	for (role = 0; role < HMB_ROLES; role++)
		if (region->nodes[role].added)
			put_device(&region->nodes[role].dev);
	if (region->index >= 0)
		ida_free(&hmb_indices, region->index);
	region->index = -1;
}

void hmb_region_remove(struct hmb_region *region)
{
	hmb_region_unpublish(region);
	kref_put(&region->refs, hmb_region_free);
}

static int hmb_nodes_add(struct hmb_region *region)
{
	int err = hmb_node_add(region, HMB_CONSUMER);

	if (!err && region->provision.firmware_node)
		err = hmb_node_add(region, HMB_FIRMWARE);
	return err;
}

int hmb_region_publish(struct hmb_region *region)
{
	int err;

	if (READ_ONCE(region->gone))
		return -ENODEV;
	region->index = hmb_claim_index(region->provision.instance);
	if (region->index < 0)
		return region->index;
	err = hmb_nodes_add(region);
	if (err)
		return err;
	pr_info("/dev/nvme%d-hmbtrace: %zu bytes from %s%s%s\n", region->index,
		region->provision.size, region->provision.provider, *region->origin ? " " : "",
		region->origin);
	return 0;
}

void hmb_region_unregister(struct hmb_region *region)
{
	hmb_region_revoke(region);
	hmb_region_remove(region);
}

struct hmb_region *hmb_region_register(const struct hmb_provision *provision)
{
	struct hmb_region *region = hmb_region_make(provision);
	int err;

	if (IS_ERR(region))
		return region;
	err = hmb_region_publish(region);
	if (err) {
		hmb_region_unregister(region);
		return ERR_PTR(err);
	}
	return region;
}

void hmb_region_new_generation(struct hmb_region *region)
{
	unsigned long irq;

	spin_lock_irqsave(&region->watch_lock, irq);
	region->watch.generation++;
	region->watch.seen = 0;
	region->watch.overflowed = 0;
	spin_unlock_irqrestore(&region->watch_lock, irq);
}

int hmb_region_init(void)
{
	int err;

	hmb_mount = kern_mount(&hmb_fs);
	if (IS_ERR(hmb_mount))
		return PTR_ERR(hmb_mount);
	err = class_register(&hmb_class);
	if (err)
		goto unmount;
	err = alloc_chrdev_region(&hmb_first_dev, 0, HMB_MAX_REGIONS * HMB_ROLES, "hmbtrace");
	if (err)
		goto unregister;
	return 0;

unregister:
	class_unregister(&hmb_class);
unmount:
	kern_unmount(hmb_mount);
	return err;
}

void hmb_region_exit(void)
{
	unregister_chrdev_region(hmb_first_dev, HMB_MAX_REGIONS * HMB_ROLES);
	class_unregister(&hmb_class);
	kern_unmount(hmb_mount);
	ida_destroy(&hmb_indices);
}
