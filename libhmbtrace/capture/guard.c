// SPDX-License-Identifier: Apache-2.0
/*
 * A ring that is a file can be cut short while it is mapped; the next look at
 * what is gone would then end the process with SIGBUS.  Here it finds zeros
 * instead, and whoever looks is told before anything of them is used.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

#define MOST 8u

/* A mapping that is guarded; base is stored last and cleared first. */
struct guarded {
	uint8_t *base;
	uint64_t size;
	uint32_t cut;
};

static struct guarded table[MOST];
static struct sigaction before;
static int installed;

static struct guarded *find(const uint8_t *address)
{
	for (unsigned int i = 0; i < MOST; i++) {
		/* Pairs with the release in hmb_guard(): size belongs to this base. */
		uint8_t *base = __atomic_load_n(&table[i].base, __ATOMIC_ACQUIRE);

		if (base && address >= base && address < base + table[i].size)
			return &table[i];
	}
	return NULL;
}

/* Zeros from the page of the fault to the mapping's end: all of that is beyond the file's end. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uint8_t *at = (uint8_t *)((uintptr_t)info->si_addr & ~(page - 1));
	struct guarded *found = find(info->si_addr);

	(void)context;
	if (!found || mmap(at, (size_t)(found->base + found->size - at), PROT_READ | PROT_WRITE,
			   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
		sigaction(number, &before, NULL); /* not ours: it comes again at once */
		return;
	}
	__atomic_store_n(&found->cut, 1, __ATOMIC_RELEASE);
}

static int install(void)
{
	struct sigaction action = { .sa_sigaction = on_bus_error,
				    .sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER };

	sigemptyset(&action.sa_mask);
	if (!installed && sigaction(SIGBUS, &action, &before))
		return -1;
	installed = 1;
	return 0;
}

int hmb_guard(void *base, uint64_t size)
{
	for (unsigned int i = 0; i < MOST; i++) {
		if (table[i].base)
			continue;
		if (install())
			return 0;
		table[i].size = size;
		table[i].cut = 0;
		__atomic_store_n(&table[i].base, base, __ATOMIC_RELEASE);
		return 1;
	}
	return 0;
}

void hmb_unguard(void *base)
{
	for (unsigned int i = 0; i < MOST; i++)
		if (table[i].base == base)
			__atomic_store_n(&table[i].base, NULL, __ATOMIC_RELEASE);
}

int hmb_is_cut(const void *base)
{
	struct guarded *found = find(base);

	return found && __atomic_load_n(&found->cut, __ATOMIC_ACQUIRE);
}
