// SPDX-License-Identifier: Apache-2.0
/*
 * The spool's file: found or made.  What only the daemon can do about a leftover (write it into
 * segments, set it aside) ends this process with a line that says so.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collector.h"

#define PIECE ((uint64_t)4 << 20) /* reserved and touched at once */
#define FIRST_PART ((uint64_t)4 << 20) /* reserved before the first pass */
#define JOURNAL_MIN ((uint64_t)4 << 20)
#define JOURNAL_MAX ((uint64_t)64 << 20)
#define PAGE ((uint64_t)4096)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static int lock_byte(int fd, uint64_t at, int command, short type)
{
	struct flock lock = {
		.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1
	};

	if (fcntl(fd, command, &lock))
		return -errno;
	return command == F_OFD_GETLK && lock.l_type != F_UNLCK;
}

int place_lock(const struct place *place)
{
	return lock_byte(place->fd, hmb_live_collector_lock(), F_OFD_SETLK, F_WRLCK);
}

void place_unlock(const struct place *place)
{
	lock_byte(place->fd, hmb_live_collector_lock(), F_OFD_SETLK, F_UNLCK);
}

int place_has_writer(const struct place *place)
{
	return lock_byte(place->fd, hmb_live_writer_lock(), F_OFD_GETLK, F_WRLCK) == 1;
}

static int open_directory(const struct settings *settings)
{
	struct stat status;
	int fd;

	mkdir(settings->spool_dir, 0700);
	fd = open(settings->spool_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &status))
		fail(EXIT_CREATE, "cannot use spool directory %s: %s", settings->spool_dir,
		     strerror(errno));
	if (status.st_uid != geteuid())
		fail(EXIT_DENIED, "spool directory %s is of uid %u, expected %u; give --spool-dir",
		     settings->spool_dir, status.st_uid, geteuid());
	return fd;
}

/* Readable, and different for different paths; as the daemon's file_name(). */
static void name_spool(char *name, uint64_t size, const struct settings *settings)
{
	char buffer[4096], resolved[4096];
	const char *path = source_path(settings->device, buffer, sizeof(buffer)), *base;
	uint64_t hash;

	if (!realpath(path, resolved))
		snprintf(resolved, sizeof(resolved), "%s", path);
	hash = hmb_fnv1a_64(resolved, strlen(resolved), hmb_fnv1a_64_basis());
	base = strrchr(resolved, '/');
	snprintf(name, size, "%.80s-%08x.spool", base ? base + 1 : resolved, (uint32_t)hash);
}

/* Only ours, and under one name: the daemon's require_ours(). */
static void require_ours(int fd, const char *name)
{
	struct stat status;

	if (fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
	    status.st_mode & 077 || status.st_nlink != 1)
		fail(EXIT_DENIED,
		     "spool %s: expected a plain file of mode 0600 of uid %u with one link; look "
		     "who put it there, and move it away",
		     name, geteuid());
}

static void reserve(int fd, uint64_t from, uint64_t length, const char *name)
{
	int err = posix_fallocate(fd, (off_t)from, (off_t)length);

	if (err)
		fail(EXIT_CREATE,
		     "cannot reserve %llu bytes for spool %s: %s; free memory or give a smaller "
		     "--spool-size",
		     (unsigned long long)length, name, strerror(err));
}

/* All of its size, none of it reserved but what the first passes need. */
static void create(struct place *place, const struct settings *settings,
		   const struct source *source, const char *name)
{
	uint64_t least = HMB_MAX(source->ring.ring_size, 4 * (settings->batch_bytes + 16384));
	uint64_t data = (HMB_MAX(settings->spool_size, least) + PAGE - 1) / PAGE * PAGE;
	uint64_t first = HMB_MIN(data, FIRST_PART), front;
	int err;

	place->journal_size = HMB_MIN(HMB_MAX(data / 16, JOURNAL_MIN), JOURNAL_MAX) / PAGE * PAGE;
	place->file_size = hmb_spool_file_size(data, place->journal_size);
	front = place->file_size - data;
	if (ftruncate(place->fd, 0) || ftruncate(place->fd, (off_t)place->file_size))
		fail(EXIT_CREATE, "cannot create spool %s: %s", name, strerror(errno));
	reserve(place->fd, 0, front + first, name);
	err = hmb_spool_map(&place->spool, place->fd, place->file_size, data, place->journal_size,
			    source->identity, 1);
	if (err)
		fail(EXIT_CREATE, "cannot map spool %s: %s", name, strerror(-err));
	hmb_spool_set_reserved(&place->spool, first);
	place->fresh = 1;
}

/* A collector is there only when we are to take over from it. */
static int mode_now(const struct place *place)
{
	int mode = HMB_SPOOL_LEFTOVER;

	if (lock_byte(place->fd, hmb_live_collector_lock(), F_OFD_GETLK, F_WRLCK) == 1)
		mode |= HMB_SPOOL_JOIN_COLLECTOR;
	if (place_has_writer(place))
		mode |= HMB_SPOOL_JOIN_WRITER;
	return mode;
}

static void open_leftover(struct place *place, const struct source *source, const char *name)
{
	struct stat status;
	int err;

	if (fstat(place->fd, &status))
		fail(EXIT_IO, "spool %s: %s", name, strerror(errno));
	place->file_size = (uint64_t)status.st_size;
	err = hmb_spool_map(&place->spool, place->fd, place->file_size, 0, 0, NULL,
			    mode_now(place));
	if (err)
		fail(EXIT_LATER, "spool %s: %s; hmb-trace-daemon sets it aside at its next start",
		     name,
		     err == -EPROTONOSUPPORT ? "of another version" : "damaged, or not begun");
	if (strcmp(hmb_spool_identity(&place->spool), source->identity) != 0)
		fail(EXIT_LATER,
		     "spool %s holds records of ring %s, not of %s; hmb-trace-daemon writes them "
		     "at its next start",
		     name, hmb_spool_identity(&place->spool), source->identity);
}

void place_open(struct place *place, const struct settings *settings, const struct source *source)
{
	int directory = open_directory(settings);
	char name[256];

	if (settings->spool_name)
		snprintf(name, sizeof(name), "%s", settings->spool_name);
	else
		name_spool(name, sizeof(name), settings);
	place->fd = openat(directory, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (place->fd >= 0) {
		require_ours(place->fd, name);
		open_leftover(place, source, name);
	} else {
		if (errno != ENOENT)
			fail(EXIT_CREATE, "cannot open spool %s: %s", name, strerror(errno));
		place->fd = openat(directory, name,
				   O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (place->fd < 0)
			fail(EXIT_CREATE, "cannot create spool %s: %s", name, strerror(errno));
		create(place, settings, source, name);
	}
	close(directory);
}

/* By its own call: the C library may take another one, which the sandbox does not know. */
int place_is_lost(const struct place *place)
{
	struct stat status;

	return syscall(SYS_fstat, place->fd, &status) == 0 && status.st_nlink == 0;
}

static int reserve_piece(struct place *place, struct hmb_spool *collectors, uint64_t at,
			 uint64_t length)
{
	uint64_t front = place->file_size - place->spool.data_size;

	if (at + length <= collectors->reserved)
		return 0;
	if (fallocate(place->fd, 0, (off_t)(front + at), (off_t)length))
		return -errno;
	hmb_spool_set_reserved(collectors, at + length);
	return 0;
}

/*
 * A fresh page costs a fault and 4 KiB of zeroing at its first touch, four times what collecting
 * the bytes that go there costs.  Where the tmpfs is full already the spool ends at what there is:
 * the collector waits for room there, and that is counted.
 */
void place_reserve(struct place *place, struct hmb_spool *collectors, const uint32_t *stop)
{
	uint64_t size = place->spool.data_size;

	for (uint64_t at = 0; at < size; at += PIECE) {
		while (reserve_piece(place, collectors, at, HMB_MIN(PIECE, size - at))) {
			if (__atomic_load_n(stop, __ATOMIC_RELAXED))
				return;
			usleep(100000);
		}
	}
	setpriority(PRIO_PROCESS, 0, 0); /* this thread alone: the rest can wait */
	for (uint64_t at = 0; at < size && !__atomic_load_n(stop, __ATOMIC_RELAXED); at += PIECE) {
		uint64_t length = HMB_MIN(PIECE, size - at);

		madvise(place->spool.data + at, length, MADV_POPULATE_WRITE);
		madvise(place->spool.data + size + at, length, MADV_POPULATE_WRITE);
	}
}
