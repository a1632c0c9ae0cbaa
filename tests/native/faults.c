// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a program under test: system calls fail where hmb_set_fault() says.
 *
 * CALL:ERRNO:FROM:COUNT[:PATTERN] - calls number FROM .. FROM + COUNT - 1 of CALL fail, of those
 * whose file's path contains PATTERN.  Calls without a file (mmap, pthread_create) count as they
 * come.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static struct {
	char call[32];
	int code;
	long from, count;
	char pattern[128];
	long seen;
} fault;

void hmb_set_fault(const char *text);

/* For a process that was forked: what it is to meet, counted from now. */
void hmb_set_fault(const char *text)
{
	memset(&fault, 0, sizeof(fault));
	sscanf(text, "%31[^:]:%d:%ld:%ld:%127s", fault.call, &fault.code, &fault.from, &fault.count,
	       fault.pattern);
}

/* A pattern that ends in $ is the path's end. */
static int matches(const char *path)
{
	size_t n = strlen(fault.pattern), length = strlen(path);

	if (!n || fault.pattern[n - 1] != '$')
		return !n || strstr(path, fault.pattern) != NULL;
	return length >= n - 1 && strncmp(path + length - (n - 1), fault.pattern, n - 1) == 0;
}

/* Whether this call is one that is to fail; errno is set then. */
static int fails(const char *call, const char *path)
{
	long number;

	if (strcmp(call, fault.call) != 0 || !matches(path))
		return 0;
	number = __atomic_add_fetch(&fault.seen, 1, __ATOMIC_RELAXED);
	if (number < fault.from || number >= fault.from + fault.count)
		return 0;
	errno = fault.code;
	return 1;
}

static int fd_fails(const char *call, int fd)
{
	char link[64], path[4096];
	ssize_t n;

	if (strcmp(call, fault.call) != 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = 0;
	return fails(call, path);
}

#define REAL(name, ...) int (*real)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define ON_FD(symbol, call, parameters, arguments, ...)          \
	int symbol parameters                                    \
	{                                                        \
		REAL(#symbol, __VA_ARGS__);                      \
		return fd_fails(call, fd) ? -1 : real arguments; \
	}

ON_FD(fsync, "fsync", (int fd), (fd), int)
ON_FD(fdatasync, "fdatasync", (int fd), (fd), int)
ON_FD(flock, "flock", (int fd, int how), (fd, how), int, int)
ON_FD(ftruncate, "ftruncate", (int fd, off_t size), (fd, size), int, off_t)
ON_FD(ftruncate64, "ftruncate", (int fd, off_t size), (fd, size), int, off_t)
ON_FD(fallocate, "fallocate", (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), int,
      int, off_t, off_t)

static ssize_t moved(const char *call, const char *symbol, int fd, void *data, size_t n, off_t at)
{
	ssize_t (*real)(int, void *, size_t, off_t) =
		(ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, symbol);

	return fd_fails(call, fd) ? -1 : real(fd, data, n, at);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
	return moved("pwrite", "pwrite", fd, (void *)data, n, at);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t at)
{
	return moved("pwrite", "pwrite64", fd, (void *)data, n, at);
}

ssize_t pread(int fd, void *data, size_t n, off_t at)
{
	return moved("pread", "pread", fd, data, n, at);
}

ssize_t pread64(int fd, void *data, size_t n, off_t at)
{
	return moved("pread", "pread64", fd, data, n, at);
}

ssize_t write(int fd, const void *data, size_t n)
{
	static ssize_t (*real)(int, const void *, size_t);

	if (!real)
		real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
	return fd_fails("write", fd) ? -1 : real(fd, data, n);
}

static int open_at(const char *symbol, int at, const char *path, int flags, mode_t mode)
{
	int (*real)(int, const char *, int, ...) =
		(int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, symbol);

	return fails("open", path) ? -1 : real(at, path, flags, mode);
}

#define MODE_OF(flags)                         \
	mode_t mode = 0;                       \
	if ((flags) & (O_CREAT | O_TMPFILE)) { \
		va_list list;                  \
		va_start(list, flags);         \
		mode = va_arg(list, mode_t);   \
		va_end(list);                  \
	}

int open(const char *path, int flags, ...)
{
	MODE_OF(flags)
	return open_at("openat", AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	MODE_OF(flags)
	return open_at("openat64", AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
	MODE_OF(flags)
	return open_at("openat", at, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...)
{
	MODE_OF(flags)
	return open_at("openat64", at, path, flags, mode);
}

int rename(const char *from, const char *to)
{
	REAL("rename", const char *, const char *);
	return fails("rename", to) ? -1 : real(from, to);
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
	REAL("renameat", int, const char *, int, const char *);
	return fails("rename", to) ? -1 : real(from_at, from, to_at, to);
}

int unlink(const char *path)
{
	REAL("unlink", const char *);
	return fails("unlink", path) ? -1 : real(path);
}

int unlinkat(int at, const char *path, int flags)
{
	REAL("unlinkat", int, const char *, int);
	return fails("unlink", path) ? -1 : real(at, path, flags);
}

int statvfs(const char *path, struct statvfs *found)
{
	REAL("statvfs", const char *, struct statvfs *);
	return fails("statvfs", path) ? -1 : real(path, found);
}

int statvfs64(const char *path, struct statvfs64 *found)
{
	REAL("statvfs64", const char *, struct statvfs64 *);
	return fails("statvfs", path) ? -1 : real(path, found);
}

/* Large private memory only: smaller pieces are the interpreter's own. */
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
	static void *(*real)(void *, size_t, int, int, int, off_t);
	int ours = n >= (4u << 20) && flags & MAP_PRIVATE && flags & MAP_ANONYMOUS;

	if (!real)
		real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
	return ours && fails("mmap", "") ? MAP_FAILED : real(at, n, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
	return mmap(at, n, protection, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *data)
{
	REAL("pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	return fails("pthread_create", "") ? errno : real(thread, how, body, data);
}
