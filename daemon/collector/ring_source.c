// SPDX-License-Identifier: Apache-2.0
/* The ring: a device, a shared-memory object or a file, opened and checked (SPEC R1). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "collector.h"

#define LEAST_REGION 64u

static const char *const fields[] = { "",	   "magic",	      "version",
				      "ring_size", "record_area_off", "the region's size" };

const char *source_path(const char *device, char *buffer, uint64_t size)
{
	if (strncmp(device, "shm:/", 5) != 0)
		return device;
	snprintf(buffer, size, "/dev/shm/%s", device + 5);
	return buffer;
}

static int open_path(const struct settings *settings)
{
	char buffer[4096];
	const char *path = source_path(settings->device, buffer, sizeof(buffer));
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		return fd;
	if (errno == EBUSY)
		fail(EXIT_BUSY, "cannot drain %s: another process consumes it already",
		     settings->device);
	fail(errno == EACCES || errno == EPERM ? EXIT_DENIED : EXIT_NO_INPUT,
	     "cannot open %s: %s; start the producer first, or give another --device",
	     settings->device, strerror(errno));
}

static uint64_t region_of(const struct source *source, const struct stat *status,
			  const struct settings *settings)
{
	struct nvme_hmb_trace_info info = { .size = sizeof(info) };
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (!source->is_device)
		return (uint64_t)status->st_size;
	if (ioctl(source->fd, NVME_HMB_TRACE_GET_INFO, &info))
		fail(EXIT_NO_INPUT, "%s: GET_INFO: %s; give /dev/nvme<N>-hmbtrace",
		     settings->device, strerror(errno));
	return (info.total_mmap_size + page - 1) / page * page;
}

/* A device whose policy keeps the mapping read-only has an ioctl for tail instead. */
static void *map_region(const struct source *source, uint64_t size, int *writable)
{
	void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, source->fd, 0);

	*writable = 1;
	if (base == MAP_FAILED && source->is_device && (errno == EACCES || errno == EPERM)) {
		*writable = 0;
		base = mmap(NULL, size, PROT_READ, MAP_SHARED, source->fd, 0);
	}
	return base;
}

static void attach(struct source *source, void *base, uint64_t size,
		   const struct settings *settings)
{
	struct hmb_refusal refusal;

	if (hmb_ring_attach(&source->ring, base, size, &refusal) == 0)
		return;
	fail(refusal.field == HMB_FIELD_VERSION && refusal.found > refusal.expected ? EXIT_ABI
										    : EXIT_DATA,
	     "cannot attach %s: %s is %#llx, expected %#llx; firmware must initialise the ring",
	     settings->device, fields[refusal.field], (unsigned long long)refusal.found,
	     (unsigned long long)refusal.expected);
}

/* As the daemon's Ring.identity: which device and which region this is. */
static void identify(struct source *source, const struct stat *status,
		     const struct settings *settings)
{
	const char *slash = strrchr(settings->device, '/');
	const char *name = slash ? slash + 1 : settings->device;

	if (settings->identity)
		snprintf(source->identity, sizeof(source->identity), "%s", settings->identity);
	else if (source->is_device)
		snprintf(source->identity, sizeof(source->identity), "chr:%llx:%s",
			 (unsigned long long)status->st_rdev, name);
	else
		snprintf(source->identity, 201, "file:%llx:%llu:%s",
			 (unsigned long long)status->st_dev, (unsigned long long)status->st_ino,
			 name);
}

void source_open(struct source *source, const struct settings *settings)
{
	struct stat status;
	uint64_t size;
	int writable;
	void *base;

	source->fd = settings->ring_fd >= 0 ? settings->ring_fd : open_path(settings);
	if (fstat(source->fd, &status))
		fail(EXIT_IO, "%s: %s", settings->device, strerror(errno));
	source->is_device = S_ISCHR(status.st_mode);
	if (!source->is_device && !S_ISREG(status.st_mode))
		fail(EXIT_NO_INPUT, "cannot attach %s: expected a device node or a file",
		     settings->device);
	size = region_of(source, &status, settings);
	if (size < LEAST_REGION)
		fail(EXIT_DATA, "cannot attach %s: region is %llu bytes, expected at least %u",
		     settings->device, (unsigned long long)size, LEAST_REGION);
	base = map_region(source, size, &writable);
	if (base == MAP_FAILED)
		fail(EXIT_IO, "cannot map %s: %s", settings->device, strerror(errno));
	attach(source, base, size, settings);
	source->ring.fd = source->is_device ? source->fd : -1;
	source->ring.can_poll = (uint32_t)source->is_device;
	if (!writable)
		hmb_ring_use_ioctl(&source->ring, source->fd);
	identify(source, &status, settings);
}

void source_claim(struct source *source, const struct settings *settings)
{
	struct hmb_ring now = source->ring;

	if (settings->ring_fd < 0 && source_lock(source))
		fail(EXIT_BUSY, "cannot drain %s: another process consumes it already",
		     settings->device);
	attach(source, now.base, now.region_size, settings);
	source->ring.fd = now.fd;
	source->ring.can_poll = now.can_poll;
	source->ring.advance = now.advance;
}

/* A device is consumed by whoever has it open for writing; a file by the lock on it. */
int source_lock(struct source *source)
{
	if (source->is_device || !flock(source->fd, LOCK_EX | LOCK_NB))
		return 0;
	return -errno;
}

void source_unlock(struct source *source)
{
	if (source->is_device)
		close(source->fd);
	else
		flock(source->fd, LOCK_UN);
}
