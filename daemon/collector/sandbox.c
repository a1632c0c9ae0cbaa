// SPDX-License-Identifier: Apache-2.0
/* What the process may still do once it collects, and its place among others. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collector.h"

#define PREFERRED_NICE (-15)

#if defined(__x86_64__)
#define OUR_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_ARCH AUDIT_ARCH_AARCH64
#endif

#define ALLOW(name)                                            \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))

/* No open, no exec, no socket, no new executable memory.  Everything else ends the process. */
static struct sock_filter program[] = {
	LOAD(arch),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_ARCH, 1, 0),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	LOAD(nr),
	/* waiting */
	ALLOW(futex),
	ALLOW(clock_nanosleep),
	ALLOW(nanosleep),
	ALLOW(ppoll),
#ifdef SYS_poll
	ALLOW(poll),
#endif
	ALLOW(sched_yield),
	ALLOW(clock_gettime),
	ALLOW(restart_syscall),
	/* the ring's tail, the locks */
	ALLOW(ioctl),
	ALLOW(flock),
	ALLOW(fcntl),
	ALLOW(close),
	/* the spool, and buffers for a look at what is taken again */
	ALLOW(fstat),
	ALLOW(fallocate),
	ALLOW(setpriority),
	ALLOW(madvise),
	ALLOW(munmap),
	ALLOW(mremap),
	ALLOW(brk),
	/* the end, signals, a last line */
	ALLOW(exit),
	ALLOW(exit_group),
	ALLOW(rt_sigreturn),
	ALLOW(rt_sigprocmask),
	ALLOW(getpid),
	ALLOW(gettid),
	ALLOW(tgkill),
	ALLOW(write),
	/* mmap of anonymous memory that is not executable */
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 5),
	LOAD(args[2]),
	BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 3, 0),
	LOAD(args[3]),
	BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_ANONYMOUS, 0, 1),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

void sandbox_enter(void)
{
	struct sock_fprog filter = { .len = sizeof(program) / sizeof(program[0]),
				     .filter = program };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	/* All threads at once; a kernel without seccomp leaves us as we are. */
	syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
}

void sandbox_prefer(void)
{
	setpriority(PRIO_PROCESS, 0, PREFERRED_NICE); /* threads that begin later have it too */
}

void sandbox_keep_memory(void)
{
	/* Where RLIMIT_MEMLOCK is smaller than ring and spool this fails, and the pages stay anyway. */
	mlockall(MCL_CURRENT | MCL_ONFAULT);
}
